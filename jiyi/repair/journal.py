"""The journal, written anew from the memories, and the counters with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jiyi import scripts
from jiyi.check.documents import whole
from jiyi.check.journal import RECORD
from jiyi.check.source import NamespaceMovedError
from jiyi.memories import DEFAULT_IMPORTANCE
from jiyi.postings import DEATH, GENERATION_BYTES, JOURNAL, MAX_DOC
from jiyi.repair.rebuild import Rebuild
from jiyi.repair.target import number_of
from jiyi.scripts import JournalStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from jiyi.repair.target import Stored, Target

_FIELDS = ("doc", "length", "timestamp", "importance")
_PIECE = JOURNAL.size * 65_536
_ROUNDS = 20
"""Attempts while more is appended than one script may carry over, or another repair is faster."""
_MOST_MS = 1 << 63


class Instant(NamedTuple):
    """The journal and the counters as they stood together."""

    epoch: bytes
    generation: bytes
    size: int
    docs: int
    tokens: int


class JournalRepair:
    """Writes the journal that follows from the memories alone.

    Memories are read one after the other, but what is born or dies meanwhile is appended to the old journal, in one
    step with the memory itself. So the memories read, with the births and without the deaths since the reading
    began, are those alive at the instant of the last append. Deaths before that are forgotten, and so postings of
    dead documents become unknown ones: `TermsRepair` has to follow.
    """

    def __init__(self, target: Target, strangers: Collection[str]) -> None:
        self._target = target
        self._strangers = strangers
        self._since: list[bytes] = []

    async def mend(self) -> None:
        """Replace the journal. Raises `NamespaceMovedError` when it is replaced again and again meanwhile."""
        for _ in range(_ROUNDS):
            if await self._attempt():
                self._target.done["journal"] += 1
                return
        raise NamespaceMovedError(self._target.ns)

    async def _attempt(self) -> bool:
        self._since = []
        read, _ = await self._look(b"", 0)
        census = await self._census()
        async with Rebuild(self._target) as rebuild:
            for _ in range(_ROUNDS):
                now = await self._read_on(read)
                if now is None:
                    return False
                read = now
                records = _alive(census, np.frombuffer(b"".join(self._since), RECORD))
                await rebuild.write(records.tobytes())
                tokens = int(records["length"].sum(dtype=np.uint64))
                status = await scripts.repair_journal(
                    self._target.database,
                    self._target.ns,
                    rebuild.key,
                    epoch=read.epoch,
                    journal=(read.generation, read.size),
                    missing=(len(records) - read.docs, tokens - read.tokens),
                    size=rebuild.size,
                )
                if status is not JournalStatus.BEHIND:
                    return status is JournalStatus.OK
        return False

    async def _look(self, generation: bytes, have: int) -> tuple[Instant, tuple[int, bytes]]:
        """Read counters and a piece of the journal from byte `have` on: (where it begins, records)."""
        limit = _PIECE if generation else 0
        answer = await scripts.read_index(
            self._target.database, self._target.ns, limit=limit, journal=(generation, have), terms=()
        )
        epoch, _, docs, tokens, _, (_, found, start, size, records) = answer[:6]
        if not epoch:
            raise NamespaceMovedError(self._target.ns)
        return Instant(epoch, found, size, docs, tokens), (start, records)

    async def _read_on(self, read: Instant) -> Instant | None:
        """Collect what was appended since `read`, and give the instant up to which that is; None if it is over."""
        generation, have = read.generation, read.size
        if not generation:  # there was no journal
            generation, have = (await self._look(b"", 0))[0].generation, GENERATION_BYTES
        while True:
            now, (start, records) = await self._look(generation, have)
            if now.epoch != read.epoch or now.generation != generation or (now.size and start != have):
                return None
            self._since.append(records)
            have += len(records)
            if have >= now.size:
                return now

    async def _census(self) -> NDArray[np.void]:
        rows: list[tuple[int, int, int, float]] = []
        parts = [np.empty(0, RECORD)]
        async for ids in self._target.ids("journal"):
            for memory_id, stored in zip(ids, await self._target.read(ids, _FIELDS), strict=True):
                if stored and memory_id not in self._strangers and (record := _record(stored)):
                    rows.append(record)
            parts.append(np.array(rows, RECORD))
            rows.clear()
        return np.concatenate(parts)


def _record(stored: Stored) -> tuple[int, int, int, float] | None:
    """Give the birth of a document; None for a memory that is none."""
    number, length, created = number_of(stored.get("doc")), whole(stored.get("length")), whole(stored.get("timestamp"))
    if number is None or length is None or created is None:
        return None
    if number > MAX_DOC or not 0 <= length < DEATH or not -_MOST_MS <= created < _MOST_MS:
        return None
    try:
        importance = float(stored.get("importance", DEFAULT_IMPORTANCE))
    except ValueError:
        importance = DEFAULT_IMPORTANCE
    return number, length, created, importance


def _alive(census: NDArray[np.void], since: NDArray[np.void]) -> NDArray[np.void]:
    """Documents read, and those born since, without those that died since; sorted by number."""
    is_death = since["length"] == DEATH
    records = np.concatenate([census, since[~is_death]])
    _, first = np.unique(records["doc"], return_index=True)
    records = records[first]
    return records[~np.isin(records["doc"], since["doc"][is_death])]
