"""Check that everything stored of a namespace agrees with everything else.

How it can be exact while workers write:

* A document never changes. A rewrite gives its memory a new number and the old number dies, in one atomic
  script that also writes the journal. So the documents that the journal calls alive before and after a
  reading were complete and unchanged all the while, and whatever was read of them must agree. Documents that
  are born or die during the check are left to the next one.
* What sums up over documents (N, Σ length, df) is compared within one call of `read_index.lua`, which gives
  the counters, the lists and the journal's news of one instant.
* Marks beside the index (tombstones, expiries, dead letters) and keys that nobody accounts for are read again
  before they are reported, in an order that proves that nothing moved in between.
* If the namespace is wiped or its journal compacted meanwhile, the check begins anew.

So no finding is a matter of timing. Memory is bounded by the ids and terms of one namespace, and by
`POSTINGS_AT_ONCE`; nothing is written.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from jiyi import keys
from jiyi.check.key_scan import scan, tag_of
from jiyi.check.namespace import POSTINGS_AT_ONCE, NamespaceCheck, Progress
from jiyi.check.report import Kind, Problem, Report
from jiyi.check.source import NamespaceMovedError
from jiyi.connections import execute
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jiyi.connections import Database

__all__ = ["POSTINGS_AT_ONCE", "Kind", "Problem", "Progress", "Report", "check", "check_namespace"]

_ROUNDS = 5
"""Attempts before a namespace that is wiped or compacted again and again is given up."""
_ORPHANS = 100
"""Namespaces that nobody announced, of which one check gives reports."""


async def check_namespace(
    database: Database, ns: str, *, stream: str | None = None, on_progress: Progress | None = None
) -> Report:
    """Check one namespace, also while workers write it; see the module.

    `stream` is the stream that producers append to. Marks of dead letters are compared only when it is given:
    a mark without its letter is right as long as the replayed event waits there.

    Raises `UnavailableError` when Redis is away, or when the namespace is wiped again and again.
    """
    tag = keys.encode_namespace(ns)
    for _ in range(_ROUNDS):
        attempt = NamespaceCheck(database, ns, stream, on_progress)
        try:
            await attempt.run()
            async for page in scan(database, ns):
                await attempt.judge([key for key in page if tag_of(key) == tag])
        except NamespaceMovedError:
            continue
        return attempt.finish()
    raise UnavailableError(f"namespace {ns!r} was wiped or compacted {_ROUNDS} times while it was checked")


async def check(
    database: Database,
    namespaces: Sequence[str] | None = None,
    *,
    stream: str | None = None,
    on_progress: Progress | None = None,
) -> list[Report]:
    """Check some namespaces, by default all: those announced, and others that have a journal.

    The server's keys are scanned once for all of them. `stream` and errors as in `check_namespace`.
    """
    if namespaces is None:
        members = await execute(database, "SMEMBERS", keys.NAMESPACES)
        names = sorted(member.decode() for member in members)
    else:
        names = list(dict.fromkeys(namespaces))
    if len(names) == 1 and namespaces is not None:
        return [await check_namespace(database, names[0], stream=stream, on_progress=on_progress)]
    attempts: dict[str, NamespaceCheck] = {}
    moved: set[str] = set()
    for ns in names:
        attempts[keys.encode_namespace(ns)] = attempt = NamespaceCheck(database, ns, stream, on_progress)
        with _noted(moved, ns):
            await attempt.run()
    orphans: dict[str, None] = {}
    async for page in scan(database, None):
        tagged: dict[str, list[bytes]] = {}
        for key in page:
            if (tag := tag_of(key)) is not None:
                tagged.setdefault(tag, []).append(key)
        for tag, found in tagged.items():
            if tag in attempts:
                with _noted(moved, attempts[tag].report.namespace):
                    await attempts[tag].judge(found)
            elif namespaces is None and len(orphans) < _ORPHANS and keys.journal_key(unquote(tag)).encode() in found:
                orphans[unquote(tag)] = None
    again = [*moved, *orphans]
    reports = [attempt.finish() for attempt in attempts.values() if attempt.report.namespace not in moved]
    reports += [await check_namespace(database, ns, stream=stream, on_progress=on_progress) for ns in again]
    return sorted(reports, key=lambda report: report.namespace)


@contextmanager
def _noted(moved: set[str], ns: str) -> Iterator[None]:
    """Note a namespace that has to be checked anew."""
    try:
        yield
    except NamespaceMovedError:
        moved.add(ns)
