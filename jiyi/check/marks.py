"""Tombstones, expiries and marks of dead letters against what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.documents import is_entry
from jiyi.check.report import Kind
from jiyi.events import parse_entry
from jiyi.memories import FIELDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from jiyi.check.known_keys import KnownKeys
    from jiyi.check.source import Source

_PAGE = 250
_ROUNDS = 5
"""How often a memory that keeps changing is looked at: if it never holds still it is in use, and no stale mark."""
_STORED = ("entry", "deleted_at", "doc", "length", "terms", "version_hash", "indexed_at", *FIELDS)
_EXPIRES_AT = _STORED.index("expires_at")

Row = list[bytes | None]


class Marks:
    """Checks what lies beside the index.

    A mark and its memory are two keys. What looks wrong is read again as memory, mark, memory: every script
    that changes a mark changes the memory's hash with it, and no hash comes back to what it was. A memory that is
    not there can come back: written, deleted and forgotten again. But then the newest forgotten version is a newer
    one. So if both readings of the memory and of that version are equal, the mark is of the same instant, and the
    finding stands.
    """

    def __init__(self, source: Source, known: KnownKeys, stream: str | None) -> None:
        self._source = source
        self._known = known
        self._stream = stream
        self._add = source.report.add

    async def check(self) -> None:
        """Check all marks of the namespace."""
        ns = self._source.ns
        for key, part in (
            (keys.expiries_key(ns), self._expiries),  # while only the live memories are known
            (keys.tombstones_key(ns), self._tombstones),
            (keys.failed_key(ns), self._dead_letters),
        ):
            try:
                await part(key)
            except ResponseError as error:
                self._add(Kind.STRAY_KEY, key, "a key of the type in the layout", str(error).split(" ", 1)[0])

    async def _tombstones(self, key: str) -> None:
        async for scores in self._members(key, Kind.TOMBSTONE):
            ids = list(scores)
            self._known.add(keys.memory_key(self._source.ns, memory_id) for memory_id in ids)
            for memory_id, row in zip(ids, await self._memories(ids), strict=True):
                if _fault(row, scores[memory_id]):
                    await self.verify_tombstone(memory_id)

    async def verify_tombstone(self, memory_id: str) -> None:
        """Report a memory if either it or `tombstones` alone says that it is deleted, or they disagree when."""
        row, score = await self._settled(keys.tombstones_key(self._source.ns), memory_id)
        deleted = row is not None and row[1] is not None
        if (deleted or score is not None) and (fault := _fault(row, score)):
            kind = Kind.FENCE if deleted and row is not None and not is_entry(row[0]) else Kind.TOMBSTONE
            self._add(kind, f"memory {self._source.shown(memory_id)}", *fault)

    async def _expiries(self, key: str) -> None:
        """Look at the expiries of memories that are not among the documents; those were compared there."""
        async for scores in self._members(key, Kind.EXPIRY):
            names = {keys.memory_key(self._source.ns, memory_id).encode(): memory_id for memory_id in scores}
            for name in self._known.unknown(list(names)):
                row, score = await self._settled(key, names[name])
                expires_at = None if row is None else row[_EXPIRES_AT]
                if score is not None and (expires_at is None or float(expires_at) != score):
                    self._add(
                        Kind.EXPIRY, f"memory {self._source.shown(names[name])}", f"expires_at {expires_at!r}", score
                    )

    async def _settled(self, key: str, memory_id: str) -> tuple[Row | None, float | None]:
        """Read a memory and its score in a sorted set at one instant; (None, None) when it does not hold still."""
        for _ in range(_ROUNDS):
            forgotten = await self._forgotten()
            [before] = await self._memories([memory_id])
            try:
                score = await self._source.command("ZSCORE", key, memory_id)
            except ResponseError:  # no sorted set: reported as such
                break
            if [before] == await self._memories([memory_id]) and forgotten == await self._forgotten():
                return before, score
        return None, None

    async def _forgotten(self) -> bytes | None:
        """Read the newest version whose tombstone is gone; every newer tombstone that goes replaces it."""
        version: bytes | None = await self._source.command("HGET", keys.stats_key(self._source.ns), "forgotten")
        return version

    async def _memories(self, ids: Sequence[str]) -> list[Row | None]:
        """Read the stored fields of some memories; None where the key is of another type."""
        source = self._source

        async def read(part: Sequence[str]) -> list[Row]:
            return await scripts.read_documents(source.database, source.ns, part, _STORED)

        return await source.tolerant(ids, read, lambda _id, _error: None)

    async def _members(self, key: str, kind: Kind) -> AsyncIterator[dict[str, float]]:
        cursor = 0
        while True:
            cursor, pairs = await self._source.command("ZSCAN", key, cursor, "COUNT", _PAGE)
            scores: dict[str, float] = {}
            for member, score in pairs:
                try:
                    scores[member.decode()] = score
                except UnicodeDecodeError:
                    self._add(kind, f"{key} {self._source.shown(member)}", "an id in UTF-8", "other bytes")
            ids = list(scores)
            for at in range(0, len(ids), _PAGE):  # a compact sorted set comes whole
                yield {memory_id: scores[memory_id] for memory_id in ids[at : at + _PAGE]}
            if cursor == 0:
                return

    async def _dead_letters(self, key: str) -> None:
        async for field, _ in self.lost_letters():
            where = f"{key} {self._source.shown(field)}"
            self._add(Kind.DEAD_LETTER, where, "a dead letter of the marked entry, or its replay", "none")

    async def lost_letters(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Give field and mark of those whose event is neither among the dead letters nor on its way again.

        In this order: a replay appends the event before it removes the letter, and a worker that has processed
        the event removes the mark before it acknowledges.
        """
        if self._stream is None:
            return
        key = keys.failed_key(self._source.ns)
        marks: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._source.command("HSCAN", key, cursor, "COUNT", _PAGE)
            marks |= page
            if cursor == 0:
                break
        entries = {mark.split(b" ", 1)[0] for mark in marks.values()}
        async for _, flat in self._source.entries(keys.dead_key(self._source.ns), entries):
            entries.discard(dict(zip(flat[::2], flat[1::2], strict=True)).get(b"entry", b""))
        async for _, flat in self._source.entries(self._stream, entries):
            # The origin stands in a field of its own or inside the payload.
            entries -= {entry for entry in entries if any(entry in value for value in flat)}
        for field, mark in marks.items():
            if mark.split(b" ", 1)[0] in entries and await self._source.command("HGET", key, field) == mark:
                yield field, mark


def _fault(row: Row | None, score: float | None) -> tuple[str, Any] | None:
    """Compare a tombstone with its score: what was expected and found, None if all is well."""
    if row is None or row[1] is None:
        return "a tombstone", "none"
    if any(value is not None for value in row[2:]):
        return "nothing but entry and deleted_at", "more fields"
    if not is_entry(row[0]):
        return "an entry id", "none"
    deleted_ms = parse_entry((row[0] or b"").decode())[0]
    if score is None:
        return f"{deleted_ms} in tombstones", "no member"
    return None if score == float(deleted_ms) else (f"{deleted_ms} in tombstones", score)
