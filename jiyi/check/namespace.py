"""The check of one namespace: its parts in their order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jiyi import keys
from jiyi.check.documents import Documents, is_entry
from jiyi.check.key_scan import StrayKeys
from jiyi.check.known_keys import KnownKeys
from jiyi.check.letters import Letters
from jiyi.check.marks import Marks
from jiyi.check.report import Kind, Report
from jiyi.check.source import DamagedError, Source
from jiyi.check.terms import Terms
from jiyi.postings import generation_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database

POSTINGS_AT_ONCE = 12_000_000
"""Postings of the forward side that are held at once: about 30 bytes each while they are sorted, then 10.

A namespace with more is read several times, each time for some of its terms.
"""
_FILTERS = 8
"""Filter terms of a document, for the estimate of its postings; its length is an upper bound for the others."""

Progress = Callable[[int, int, str], None]
"""Called with what is done, what there is to do, and the name of the phase."""


class NamespaceCheck:
    """One attempt at one namespace; `stream` as in `check_namespace`.

    Raises `NamespaceMovedError` when it has to be made anew.
    """

    def __init__(self, database: Database, ns: str, stream: str | None, on_progress: Progress | None) -> None:
        self.report = Report(namespace=ns)
        self._started = time.monotonic()
        self._on_progress = on_progress
        self._known = KnownKeys()
        self._source = Source(database, ns, self.report)
        marks = Marks(self._source, self._known, stream)
        self._marks = marks
        self._letters = Letters(self._source, stream)
        if stream is not None:  # its name may carry the hash tag of a namespace
            self._known.add((stream, keys.processed_key(stream)))
        self._stray_keys = StrayKeys(self._source, self._known, marks)
        self._damaged = False

    async def run(self) -> None:
        """Check everything but the names of keys."""
        try:
            await self._source.snapshot()
            await self._check_announcement()
            if self._source.exists:
                await self._check_index()
                await self._check_counters()
            await self._marks.check()
            await self._letters.check()
        except DamagedError:
            self._damaged = True

    async def judge(self, page: Sequence[bytes]) -> None:
        """Check some of the namespace's keys; after `run`."""
        if not self._damaged:
            try:
                await self._stray_keys.judge(page)
            except DamagedError:
                self._damaged = True

    def finish(self) -> Report:
        """Give the report."""
        self.report.seconds = time.monotonic() - self._started
        return self.report

    def progress(self, phase: str) -> Callable[[int, int], None]:
        """Progress of one phase."""

        def on_progress(done: int, total: int) -> None:
            if self._on_progress is not None:
                self._on_progress(done, total, phase)

        return on_progress

    async def _check_announcement(self) -> None:
        source = self._source
        announced = await source.command("SISMEMBER", keys.NAMESPACES, source.ns)
        journal = await source.command("EXISTS", keys.journal_key(source.ns))
        await source.snapshot()  # raises if the namespace was wiped or made since
        if source.exists and source.journal.records and not announced:
            announced = await source.command("SISMEMBER", keys.NAMESPACES, source.ns)  # it may have been made since
        if source.exists and source.journal.records and not announced:
            self.report.add(Kind.NAMESPACE, keys.NAMESPACES, "the namespace as a member", "no member")
        # Announced and without anything is a namespace that somebody has wiped, or whose counters a crash of the server
        # took back after the writer had seen them: the next write makes it anew.
        if not source.exists and journal:
            self.report.add(Kind.STATS, keys.stats_key(source.ns), "counters of the namespace", "none")

    async def _check_index(self) -> None:
        source = self._source
        documents = Documents(source, self._known)
        groups = groups_of_buckets(source)
        for number, buckets in enumerate(groups):
            suffix = f" {number + 1}/{len(groups)}" if len(groups) > 1 else ""
            forward = await documents.read(buckets, verify=number == 0, on_progress=self.progress(f"documents{suffix}"))
            await Terms(source, self._known, forward).compare(on_progress=self.progress(f"terms{suffix}"))

    async def _check_counters(self) -> None:
        source, report, key = self._source, self.report, keys.stats_key(self._source.ns)
        await source.snapshot()
        docs, tokens = source.journal.totals()
        report.documents, report.tokens = docs, tokens
        report.index_bytes += source.journal_bytes
        for name, expected, found in (("docs", docs, source.docs), ("tokens", tokens, source.tokens)):
            if expected != found:
                report.add(Kind.STATS, f"{key} {name}", f"{expected}, as the journal says", found)
        if source.next_doc <= source.journal.highest:
            report.add(Kind.STATS, f"{key} next_doc", f"above {source.journal.highest}", source.next_doc)
        if source.journal_bytes and (generation := generation_number(source.generation)) >= source.next_doc:
            where = f"{keys.journal_key(source.ns)} generation"
            report.add(Kind.JOURNAL, where, f"a number below {source.next_doc}", generation)
        forgotten = await source.command("HGET", key, "forgotten")
        if forgotten is not None and not is_entry(forgotten):
            report.add(Kind.STATS, f"{key} forgotten", "an entry id", "something else")


def groups_of_buckets(source: Source) -> list[frozenset[int]]:
    """Divide the buckets of terms so that the postings of each group fit into `POSTINGS_AT_ONCE`."""
    docs, tokens = source.journal.totals()
    groups = min(keys.BUCKETS, 1 + (tokens + _FILTERS * docs) // POSTINGS_AT_ONCE)
    return [frozenset(range(group, keys.BUCKETS, groups)) for group in range(groups)]
