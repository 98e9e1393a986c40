"""Consistent snapshots of a namespace for one query: counters, document frequencies, decoded columns."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
import msgspec

from jiyi import keys, metrics, scripts
from jiyi.connections import server_of
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError, UnavailableError
from jiyi.lanes import Refused, lane_of
from jiyi.logs import get_logger
from jiyi.memories import format_time
from jiyi.postings import GENERATION_BYTES, MAX_DOC
from jiyi.sealed_postings import unseal
from jiyi_api.columns import ColumnCache, Journal, Postings

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Iterable, Sequence

    from jiyi.connections import Database
    from jiyi_api.columns import Unseal

PIECE_BYTES = 4_194_300
"""Most bytes of one key in one answer: a multiple of both record sizes, and a few milliseconds of copying."""
_ROUNDS = 1_000
_NOTHING: list[Any] = [b"", b"", 0, 0, 0, []]
_TOLD_S = 3_600.0
"""How long `/readyz` tells of a wipe."""

log = get_logger()
_TERMS_COUNTED = {result: metrics.CACHE_TERMS.labels(result) for result in ("hit", "delta", "miss", "short")}


class Snapshot(msgspec.Struct, frozen=True):
    """A namespace at one instant. The columns are shared: use them before anything else is awaited.

    `changes` is the server's count of changes at that instant (see `Journal`); the postings know their df.
    """

    docs: int
    tokens: int
    changes: bytes
    moves: bytes
    journal: Journal
    terms: dict[str, Postings]

    def stands(self) -> bool:
        """Whether nobody has begun to read further into its columns: then they are still those of its instant.

        The journal counts as well: saturations that are worked out while it has come in part only would stay with
        columns that need not be read anew.
        """
        as_of = [self.journal.changes, *[column.as_of for column in self.terms.values()]]
        return all(one == self.changes for one in as_of)


class Asked(NamedTuple):
    """A question for the state of a namespace: its answer to come, and whether it is on its way to the server."""

    answer: Future[Any]
    is_sent: bool


class SnapshotReader:
    """Reads snapshots, keeping decoded columns between queries.

    Queries of one namespace take turns (`turn`): answers are applied to the shared columns in the order of
    their instants, and a query scores before the next answer comes in.
    """

    def __init__(
        self,
        database: Database,
        analyzer: str,
        cache_bytes: int,
        *,
        patience_s: float = 5.0,
        unseal: Unseal = unseal,
    ) -> None:
        self._database = database
        self._analyzer = analyzer
        self._patience_s = patience_s
        self._unseal = unseal
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._wiped_at_s: float | None = None
        self.cache = ColumnCache(cache_bytes)

    @asynccontextmanager
    async def turn(self, ns: str) -> AsyncIterator[None]:
        """Context in which the caller alone reads the namespace.

        Raises `UnavailableError` after `patience_s`: while Redis hangs, callers must not pile up behind each other.
        """
        lock = self._turns.setdefault(ns, anyio.Lock(fast_acquire=True))
        try:
            with anyio.fail_after(self._patience_s):
                await lock.acquire()
        except TimeoutError:
            raise UnavailableError("too many searches of this namespace are waiting for Redis") from None
        try:
            yield
        finally:
            lock.release()

    def recent_wipe(self) -> str | None:
        """Say when a namespace was last found wiped, for an hour; None when there is nothing to say."""
        if self._wiped_at_s is None or time.time() - self._wiped_at_s > _TOLD_S:
            return None
        return (
            f"a namespace was removed and made anew, noticed at {format_time(int(self._wiped_at_s * 1000))}: "
            "what was written before is gone from it. If nobody meant that, restore a backup or write it again"
        )

    def known(self, ns: str, terms: Sequence[str]) -> Snapshot | None:
        """Give what is known of distinct terms if it was all of one state of the namespace, which may be over."""
        journal = self.cache.journal(ns)
        if journal is None or journal.changes is None:
            return None
        found = self.cache.all_postings(ns, terms, journal.changes)
        if found is None:
            return None
        self.cache.touch(ns, "")
        return Snapshot(journal.docs, journal.tokens, journal.changes, journal.moves, journal, found)

    def ask_state(self, snapshot: Snapshot) -> Asked | None:
        """Ask the server for the state of a namespace, for `is_still`.

        None when that would be no use: another server answers now, or it changes so often that it will have again.
        """
        journal = snapshot.journal
        if journal.restless:
            return None
        key = keys.stats_key(journal.ns)
        lane = lane_of(self._database, key)
        if lane is None or lane.server != journal.server:
            return None
        return Asked(lane.ask("HMGET", key, "epoch", "changes", "fence_moves", "analyzer"), lane.has_sent)

    async def is_still(self, snapshot: Snapshot, asked: Asked) -> bool:
        """Tell from the answer to `ask_state` whether a snapshot is that of the instant of the answer."""
        journal = snapshot.journal
        try:
            epoch, changes, moves, analyzer = await asked.answer
        except Refused:
            return False
        journal.restless = not (
            (epoch, analyzer) == (journal.epoch.encode(), self._analyzer.encode())
            and (changes or b"0", moves or b"0") == (snapshot.changes, snapshot.moves)
        )
        if not journal.restless:
            _TERMS_COUNTED["hit"].inc(len(snapshot.terms))
        return not journal.restless

    async def read(self, ns: str, terms: Sequence[str]) -> Snapshot | None:
        """Read a snapshot of distinct terms, within the caller's turn; None for an unknown namespace.

        What was read in another epoch, or from another server process (see `server_of`), is forgotten first.

        Raises `AnalyzerMismatchError`, `CorruptIndexError` and `UnavailableError`.
        """
        # Held here as well, for a cache that is too small for one query would drop them between two rounds.
        journal = self.cache.journal(ns)
        fresh: dict[str, Postings] = {}
        earlier = journal.changes if journal else None
        for _ in range(_ROUNDS):
            known = {term: fresh.get(term) or self.cache.postings(ns, term) for term in terms}
            server, reply = await self._ask(ns, journal, known)
            epoch, analyzer, docs, tokens, next_doc, journal_bytes, *term_bytes = _checked(reply or _NOTHING)
            if reply is None or not epoch or journal is None or journal.epoch != epoch.decode():
                # Nothing that was asked relative to another epoch or server means anything in this one.
                stale = journal is not None or any(known.values())
                self._forget(ns, fresh, journal, epoch if reply else None)
                journal = earlier = None
                if reply is not None and not epoch:
                    return None
                if reply is None or stale:
                    continue
                journal = Journal(epoch.decode(), ns, server)
            if analyzer.decode() != self._analyzer:
                raise AnalyzerMismatchError(ns, analyzer.decode(), self._analyzer)
            changes, _, moves = journal_bytes[0].partition(b" ")
            complete = self._take_journal(ns, journal, journal_bytes, next_doc)
            for (term, column), answer in zip(known.items(), term_bytes, strict=True):
                fresh[term] = column or Postings()
                complete = self._take_term(ns, term, fresh[term], answer, next_doc) and complete
            self._count(known.values(), term_bytes)
            if complete:
                journal.restless = earlier is not None and earlier != changes
                journal.docs, journal.tokens, journal.changes, journal.moves = docs, tokens, changes, moves
                for term in terms:
                    fresh[term].as_of = changes
                return Snapshot(docs, tokens, changes, moves, journal, fresh)
        raise UnavailableError("the index grows faster than it can be read")

    async def _ask(
        self, ns: str, journal: Journal | None, known: dict[str, Postings | None]
    ) -> tuple[str, list[Any] | None]:
        """Ask for what is not known yet; gives the server process, and its answer if it is the one of the journal."""
        server = server_of(self._database, keys.stats_key(ns))
        if journal is not None and journal.server != server:
            return server, None
        reply = await scripts.read_index(
            self._database,
            ns,
            limit=PIECE_BYTES,
            journal=(journal.generation, journal.seen) if journal else (b"", GENERATION_BYTES),
            terms=[(term, column.generation, column.seen) if column else (term, b"", 0)
                   for term, column in known.items()],
        )  # fmt: skip
        return server, reply if server_of(self._database, keys.stats_key(ns)) == server else None

    def _forget(self, ns: str, fresh: dict[str, Postings], journal: Journal | None, epoch: bytes | None) -> None:
        """Drop all that is known of a namespace, and say so if it was wiped (epoch None: another server)."""
        if journal is not None and epoch is not None and not scripts.is_repaired(epoch.decode(), journal.epoch):
            metrics.WIPES.labels("namespace").inc()
            self._wiped_at_s = time.time()
            log.error("namespace_wiped", ns=ns, reason="its epoch has changed: somebody removed it or all keys")
        self.cache.forget(ns)
        fresh.clear()

    def _take_journal(self, ns: str, journal: Journal, answer: list[Any], next_doc: int) -> bool:
        _, generation, start, total, data = answer
        journal.changes = None  # until all is whole
        if total:
            journal.extend(generation, start, data, next_doc)
        journal.reach(next_doc)
        self.cache.keep(ns, "", journal)  # always: the ids that it remembers count as well
        return bool(start + len(data) >= total)

    def _take_term(self, ns: str, term: str, column: Postings, answer: list[Any], next_doc: int) -> bool:
        column.df, generation, start, total, data = answer
        column.as_of = None  # until all is whole
        known = column.generation == generation and column.seen == start and not column.is_cut
        if data or not known or self.cache.postings(ns, term) is None:
            whole = start + len(data) >= total
            column.extend(generation, start, data, next_doc, whole=whole, unseal=self._unseal)
            self.cache.keep(ns, term, column)
        return bool(not generation or column.seen >= total)

    def _count(self, known: Iterable[Postings | None], answers: Sequence[list[Any]]) -> None:
        """Count what the cache had of each term: all (hit), something (delta), nothing (miss); or it is short."""
        counts = dict.fromkeys(_TERMS_COUNTED, 0)
        for column, (_, generation, _, _, data) in zip(known, answers, strict=True):
            counts["short" if not generation else "miss" if column is None else "delta" if data else "hit"] += 1
        for result, count in counts.items():
            if count:
                _TERMS_COUNTED[result].inc(count)
        metrics.CACHE_BYTES.set(self.cache.nbytes)


def _checked(answer: list[Any]) -> list[Any]:
    """Give an answer of `read_index` whose numbers can be calculated with; `CorruptIndexError` if they cannot."""
    counters, terms = answer[2:5], answer[6:]
    # A script's answer ends early at a counter that is no number, or what follows takes its place.
    if len(answer) < len(_NOTHING) or not all(isinstance(counter, int) for counter in counters):
        raise CorruptIndexError("a counter of the namespace is missing or no number; run: jiyi check")
    if not (answer[0].isascii() and answer[1].isascii()):
        raise CorruptIndexError("the epoch or the analyzer of the namespace cannot be read; run: jiyi check")
    docs, tokens, next_doc = counters
    if not 0 <= docs <= next_doc <= MAX_DOC + 1 or tokens < 0:
        raise CorruptIndexError("the counters of the namespace contradict each other; run: jiyi check")
    if any(df > docs for df, *_ in terms):
        raise CorruptIndexError("a document frequency is larger than the number of documents; run: jiyi check")
    return answer
