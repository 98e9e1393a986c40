"""All keys with the hash tag of a namespace: each belongs to the layout and to something that is stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from jiyi import keys
from jiyi.check.forward import bucket_of
from jiyi.check.journal import DEAD, UNKNOWN
from jiyi.check.report import Kind
from jiyi.connections import translated_errors
from jiyi.postings import DF, GENERATION_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from jiyi.check.known_keys import KnownKeys
    from jiyi.check.marks import Marks
    from jiyi.check.source import Source
    from jiyi.connections import Database

_COUNT = 1_000
_TAG = re.compile(rb"[^{]*\{([^}]+)\}", re.DOTALL)
_KEY = re.compile(rb"(memory|index|ids|journal|rebuild):\{[^}]*\}(?::(.*))?", re.DOTALL)
_GLOB = re.compile(r"([*?\[\]\\^-])")
_ROUNDS = 3


def tag_of(key: bytes) -> str | None:
    """Give the hash tag of a key, as Redis Cluster finds it; None without one, or where it is not UTF-8."""
    found = _TAG.match(key)
    try:
        return found[1].decode() if found else None
    except UnicodeDecodeError:
        return None


async def scan(database: Database, ns: str | None) -> AsyncIterator[list[bytes]]:
    """All keys that carry the hash tag of a namespace, or any (None), page by page; a key may come twice."""
    tag = "*" if ns is None else _GLOB.sub(r"\\\1", keys.encode_namespace(ns))
    pattern = f"*{{{tag}}}*"
    for node in _nodes(database, ns):
        cursor: Any = 0
        while True:
            await anyio.lowlevel.checkpoint_if_cancelled()
            with translated_errors(), anyio.CancelScope(shield=True):  # as `execute`, which can name no node
                reply = await database.execute_command("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT, **node)
            cursor, page = reply
            if isinstance(cursor, dict):  # the cluster client's form: one cursor for each node asked
                [cursor] = cursor.values()
            yield page
            if cursor == 0:
                break


def _nodes(database: Database, ns: str | None) -> list[dict[str, Any]]:
    """Whom to ask: in a cluster the owner of the namespace's slot, or every primary."""
    if not isinstance(database, RedisCluster):
        return [{}]
    if ns is None:
        return [{"target_nodes": node} for node in database.get_primaries()]
    return [{"target_nodes": database.get_node_from_key(keys.stats_key(ns))}]


class StrayKeys:
    """Judges keys that the rest of a check has not accounted for.

    Many are innocent: written since. So each is looked at again, and against a journal read after it.
    """

    def __init__(self, source: Source, known: KnownKeys, marks: Marks) -> None:
        ns = source.ns
        self._source = source
        self._known = known
        self._marks = marks
        self._add = source.report.add
        known.add(keys.bucket_key(ns, bucket) for bucket in range(keys.BUCKETS))
        known.add((keys.stats_key(ns), keys.tombstones_key(ns), keys.expiries_key(ns), keys.dead_key(ns)))
        known.add((keys.failed_key(ns), keys.letters_key(ns), keys.reservations_key(ns), keys.journal_key(ns)))
        known.add((keys.compaction_key(ns), keys.confirmed_key(ns)))

    async def judge(self, page: Sequence[bytes]) -> None:
        """Report those of some keys of the namespace that have no place in it."""
        for key in self._known.unknown(page):
            found = _KEY.fullmatch(key)
            kind, rest = (found[1], found[2]) if found else (b"", None)
            name = rest.decode(errors="replace") if rest else ""
            if kind == b"memory" and key == keys.memory_key(self._source.ns, name).encode():
                await self._memory(key, name)
            elif kind == b"index" and key == keys.index_key(self._source.ns, name).encode():
                await self._index(key, name)
            elif kind == b"ids" and name.isdecimal():
                await self._ids(key, int(name))
            elif kind == b"rebuild" and await self._source.command("PTTL", key) > 0:
                pass  # a repair is writing it, or has left it behind: it goes by itself
            else:
                await self._stray(key)

    async def _stray(self, key: bytes) -> None:
        if await self._source.command("EXISTS", key):
            self._add(Kind.STRAY_KEY, ascii(key.decode(errors="replace"))[1:-1][:200], "a key of the layout", "another")

    async def _memory(self, key: bytes, memory_id: str) -> None:
        """Judge a memory that is neither a document nor a tombstone: written since, or forgotten by the index."""
        where = f"memory {self._source.shown(memory_id)}"
        for _ in range(_ROUNDS):
            try:
                before = await self._source.command("HMGET", key, "entry", "doc", "deleted_at")
            except ResponseError as error:
                self._add(Kind.MEMORY, where, "a hash", str(error).split(" ", 1)[0])
                return
            await self._source.snapshot()
            owner = await self._owner(before[1])
            if before == await self._source.command("HMGET", key, "entry", "doc", "deleted_at"):
                break
        else:
            return
        _, doc, deleted_at = before
        if deleted_at is not None:
            await self._marks.verify_tombstone(memory_id)
        elif doc is None:
            names = await self._source.command("HKEYS", key)
            if names and not {b"doc", b"deleted_at"}.intersection(names):
                self._add(Kind.MEMORY, where, "a document or a tombstone", "neither")
        elif not doc.isdigit() or not self._source.journal.is_alive(int(doc)):
            self._add(Kind.MEMORY, where, "the number of a live document", ascii(doc.decode(errors="replace")))
        elif owner not in (None, memory_id.encode()):
            self._add(Kind.MEMORY, where, "a document number of its own", f"{int(doc)}, which another memory has")

    async def _owner(self, doc: bytes | None) -> bytes | None:
        """Give the id that a document number stands for; a memory gets both in one step."""
        if doc is None or not doc.isdigit():
            return None
        try:
            owner: bytes | None = await self._source.command("HGET", keys.ids_key(self._source.ns, int(doc)), int(doc))
        except ResponseError:  # no hash: reported as such
            return None
        return owner

    async def _index(self, key: bytes, term: str) -> None:
        """Judge a postings key without a dictionary entry that points to it.

        Generations are never used again: if the key has the same one before and after, it was there all the time.
        """
        bucket = keys.bucket_key(self._source.ns, bucket_of(term.encode()))
        where = f"{bucket} {self._source.shown(term)}"
        for _ in range(_ROUNDS):
            try:
                before = await self._source.command("GETRANGE", key, 0, GENERATION_BYTES - 1)
                entry = await self._source.command("HGET", bucket, term)
            except ResponseError as error:
                self._add(Kind.INDEX_KEY, where, "a string and its dictionary entry", str(error).split(" ", 1)[0])
                return
            if before and (entry is None or len(entry) != DF.size):
                if before != await self._source.command("GETRANGE", key, 0, GENERATION_BYTES - 1):
                    continue
                found = "none" if entry is None else "postings in the dictionary itself"
                self._add(Kind.INDEX_KEY, where, "a dictionary entry that points to the key", found)
            return

    async def _ids(self, key: bytes, block: int) -> None:
        """Judge a block of ids without a document that was alive when the check began."""
        try:
            fields = await self._source.command("HGETALL", key)
        except ResponseError as error:
            self._add(Kind.IDS, key.decode(), "a hash", str(error).split(" ", 1)[0])
            return
        dead = [raw for raw in fields if not self._belongs(raw, block) or self._state(raw) == DEAD]
        await self._source.snapshot()
        for raw in fields:
            if raw in dead or self._state(raw) == UNKNOWN:
                where = f"{key.decode()} doc {raw.decode(errors='replace')!a}"
                self._add(Kind.IDS, where, "live documents of this block", "another entry")

    def _belongs(self, raw: bytes, block: int) -> bool:
        return raw.isdigit() and int(raw) // keys.IDS_PER_BLOCK == block

    def _state(self, raw: bytes) -> int:
        doc, state = int(raw), self._source.journal.state
        return int(state[doc]) if doc < len(state) else UNKNOWN
