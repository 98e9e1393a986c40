"""Compaction: drop the postings of dead documents, seal the others, and then drop what the journal says of the dead.

A rewrite gives its memory a new number and leaves the old number's postings in the long lists, and its birth and death
in the journal. Short lists are edited in place and hold no dead documents.

Whatever is rewritten is sealed: a third of the bytes (see `jiyi.sealed_postings`). So lists are rewritten also when
nothing has died and a namespace has only grown, each time by a half: of what is there at the end, three times as much
has been read, and at most as much written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec
import numpy as np

from jiyi import keys, scripts
from jiyi.check.journal import ALIVE, DEAD, RECORD, UNKNOWN
from jiyi.check.source import DamagedError, NamespaceMovedError
from jiyi.errors import CorruptIndexError, UnavailableError
from jiyi.postings import DEATH, DF, GENERATION_BYTES, JOURNAL, POSTING
from jiyi.repair.rebuild import Rebuild
from jiyi.repair.target import Target
from jiyi.repair.terms import TermsRepair, read_at_once
from jiyi.scripts import JournalStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from numpy.typing import NDArray

    from jiyi.check.source import Source
    from jiyi.connections import Database
    from jiyi.repair.terms import Stored

WASTE = 0.2
"""Dead documents, as a share of the living, from which on a namespace is compacted: what they may cost in memory."""
SLACK = 500
"""Dead documents that never matter, however small the namespace is."""
GROWTH = 0.5
"""Documents born since lists were last sealed, as a share of those before, from which on it is done again."""
GROWTH_SLACK = 5_000
"""Documents born since that never matter: a megabyte of postings."""
LEAST_OPEN = 32
"""Postings that are not sealed from which on a list without dead ones is rewritten."""
_TERMS = 50
_BYTES = 1_048_576
"""Terms that are read together, and about the bytes of their lists; a longer list is read alone."""
_PAGE = 500
_ROUNDS = 20


class Compacted(msgspec.Struct, frozen=True, rename="camel"):
    """What a compaction dropped: postings, and dead documents out of the journal; and how many lists it sealed."""

    postings: int
    documents: int
    lists: int
    seconds: float


def is_due(docs: int, journal_bytes: int) -> bool:
    """Tell whether a namespace of `docs` living documents has enough dead ones; a death is two records."""
    records = max(0, journal_bytes - GENERATION_BYTES) // JOURNAL.size
    return (records - docs) / 2 > WASTE * docs + SLACK


def has_grown(docs: int, next_doc: int, sealed: int) -> bool:
    """Tell whether a namespace of `docs` living documents has grown enough to be sealed again.

    `sealed` is the number from which on its documents were born since it was done last; one above `next_doc` is wrong.
    """
    born = next_doc - sealed if sealed <= next_doc else next_doc
    return born > GROWTH * max(0, docs - born) + GROWTH_SLACK


async def _nothing() -> None:
    pass


async def compact_namespace(
    database: Database, ns: str, *, growth_only: bool = False, on_step: Callable[[], Awaitable[None]] = _nothing
) -> Compacted:
    """Drop from a namespace what belongs to documents that are dead now, and seal its lists.

    Readers and writers go on meanwhile. Every list is replaced in one step, if it is still what was read; what was
    added meanwhile is carried over. It gets a new generation, so readers read it whole. The journal comes last, and
    only when no list names the dead documents any more. With `growth_only`, for a namespace where little has died, the
    journal stays, and so do lists of which little is not sealed. `on_step` is awaited between steps. Broken off at any
    point, it leaves a right index.

    Raises `UnavailableError`, also when the namespace is wiped or compacted by somebody else meanwhile, and
    `CorruptIndexError` for one that is damaged.
    """
    started = time.monotonic()
    try:
        run = _Run(database, ns, on_step, growth_only=growth_only)
        await run.begin()
        clean = await run.lists()
        await run.note()
        documents = await run.journal() if clean and not growth_only else 0
    except NamespaceMovedError:
        message = f"namespace {ns!r} was wiped, or compacted by somebody else, while it was compacted"
        raise UnavailableError(message, code="conflict") from None
    except DamagedError:
        raise CorruptIndexError(f"namespace {ns!r} is damaged; run: jiyi check") from None
    return Compacted(run.postings, documents, run.sealed, time.monotonic() - started)


class _Run:
    def __init__(
        self, database: Database, ns: str, on_step: Callable[[], Awaitable[None]], *, growth_only: bool
    ) -> None:
        self._target = Target(database, ns, None)
        self._source: Source = self._target.source()
        self._terms = TermsRepair(self._target)
        self._on_step = on_step
        self._growth_only = growth_only
        self._dead: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._next_doc = 0
        self.postings = self.sealed = 0

    async def begin(self) -> None:
        """Note which documents are dead: the journal may forget these, once no list names them any more."""
        await self._source.snapshot()
        self._dead = self._source.journal.state == DEAD
        self._next_doc = self._source.next_doc

    async def lists(self) -> bool:
        """Compact all long lists; False if one may still name dead documents: it is damaged or moves too fast."""
        clean = True
        for bucket in range(keys.BUCKETS):
            for batch in _batches(await self._long_terms(bucket)):
                clean = await self._lists(batch) and clean
                await self._on_step()
        return clean

    async def _long_terms(self, bucket: int) -> dict[bytes, int]:
        """Terms of a bucket whose postings lie in a key of their own, with their df."""
        found: dict[bytes, int] = {}
        cursor = 0
        while True:
            key = keys.bucket_key(self._target.ns, bucket)
            cursor, page = await self._target.command("HSCAN", key, cursor, "COUNT", _PAGE)
            found |= {term: DF.unpack(entry)[0] for term, entry in page.items() if len(entry) == DF.size}
            if cursor == 0:
                break
        least = LEAST_OPEN if self._growth_only else 0
        return {term: df for term, df in found.items() if df >= least}

    async def _lists(self, terms: Sequence[bytes]) -> bool:
        waiting, clean = list(terms), True
        for _ in range(_ROUNDS):
            stored = await read_at_once(self._source, waiting)
            # In a thread: long lists take longer than other tasks of a worker should wait.
            due, dropped, damaged = await anyio.to_thread.run_sync(self._due, stored)
            clean = clean and not damaged
            waiting = await self._terms.replace(self._source, stored, due)
            done = due.keys() - set(waiting)
            self.sealed += len(done)
            self.postings += sum(dropped[term] for term in done)
            if not waiting:
                return clean
        return False

    def _due(self, stored: dict[bytes, Stored]) -> tuple[dict[bytes, NDArray[np.void]], dict[bytes, int], bool]:
        """Living postings, ascending, of the lists that are to be replaced, and how many others each of these has.

        The third says whether there are damaged ones: that cannot be decoded, or are not what df counts.
        """
        due: dict[bytes, NDArray[np.void]] = {}
        dropped: dict[bytes, int] = {}
        damaged = False
        for term, one in stored.items():
            little = len(one.open_records()) < LEAST_OPEN
            if little and self._growth_only:
                continue
            try:
                records = one.records()
            except CorruptIndexError:
                damaged = True
                continue
            alive = self._source.journal.states(records["doc"]) == ALIVE
            wasted = len(records) - int(np.count_nonzero(alive))
            if little and not wasted:
                continue
            ascending = _ascending(records[alive] if wasted else records)
            if ascending is None or len(ascending) != DF.unpack_from(one.entry)[0]:
                damaged = True
            else:
                due[term], dropped[term] = ascending, wasted
        return due, dropped, damaged

    async def note(self) -> None:
        """Note what the next `has_grown` counts from."""
        source = self._source
        if source.exists and not await scripts.note_sealing(
            self._target.database, self._target.ns, source.epoch, self._next_doc
        ):
            raise NamespaceMovedError(self._target.ns)

    async def journal(self) -> int:
        """Drop the births and deaths of the dead documents; gives how many documents that were."""
        source = self._source
        for _ in range(_ROUNDS):
            await source.snapshot()
            records = self._records()
            async with Rebuild(self._target) as rebuild:
                await rebuild.write(records.tobytes())
                status = await scripts.repair_journal(
                    self._target.database,
                    self._target.ns,
                    rebuild.key,
                    epoch=source.epoch,
                    journal=(source.generation, source.journal_bytes),
                    missing=(0, 0),
                    size=rebuild.size,
                )
            if status is JournalStatus.OK:
                return int(self._dead.sum())
            if status is JournalStatus.MOVED:
                break
        return 0

    def _records(self) -> NDArray[np.void]:
        """Give the journal as of the last snapshot, without the dead documents: births, then deaths."""
        journal = self._source.journal
        known = journal.state != UNKNOWN
        known[: len(self._dead)] &= ~self._dead
        docs = np.flatnonzero(known)
        births = np.zeros(len(docs), RECORD)
        births["doc"], births["length"] = docs, journal.lengths[docs]
        births["created"], births["importance"] = journal.created[docs], journal.importance[docs]
        died = docs[journal.state[docs] == DEAD]
        deaths = np.zeros(len(died), RECORD)
        deaths["doc"], deaths["length"] = died, DEATH
        return np.concatenate([births, deaths])


def _ascending(postings: NDArray[np.void]) -> NDArray[np.void] | None:
    """Sort postings by document: workers apply side by side, so they come a little out of order; None with twins."""
    docs = postings["doc"]
    if not (docs[1:] > docs[:-1]).all():
        postings = postings[np.argsort(docs, kind="stable")]
        docs = postings["doc"]
    return postings if (docs[1:] > docs[:-1]).all() else None


def _batches(terms: dict[bytes, int]) -> list[list[bytes]]:
    """Split terms into reads of bounded size, by their df."""
    batches: list[list[bytes]] = []
    size = _BYTES
    for term, df in terms.items():
        size += df * POSTING.size
        if size > _BYTES or len(batches[-1]) == _TERMS:
            batches.append([])
            size = df * POSTING.size
        batches[-1].append(term)
    return batches
