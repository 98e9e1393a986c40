"""The documents of a ranking: fetched once and kept, for a document number stands for one version of one memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jiyi import keys, metrics, scripts
from jiyi.connections import server_of
from jiyi_api.damage import reading
from jiyi_api.hits import Hit
from jiyi_api.stored import StoredMemory, fetch_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database
    from jiyi_api.columns import Journal

_FOREVER_MS = 2**62
_OBJECT_BYTES = 1_000
"""What a document costs besides its text, about."""


class Document(NamedTuple):
    """A version of a memory: a hit of it that says nothing of a question, when it expires (epoch ms), its bytes, about.

    The hit is there to be copied, which takes a sixth of the time of making one.
    """

    blank: Hit
    expires_at: int
    size: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its `StoredMemory`."""
        return {name: getattr(self.blank, name) for name in StoredMemory.__struct_fields__}


class Fetched(NamedTuple):
    """Documents in the order asked for. Missing: `expired` ones, and `moved` ones, whose memory has another version.

    All have moved when the namespace was made anew since the ranking, or another server process answers for it.
    """

    documents: dict[int, Document]
    expired: int
    moved: int


class Documents:
    """Fetches documents by their numbers, keeping at most `limit_bytes`; the least recently used go first.

    The fields of a version never change, except that an event that changes nothing else moves its entry on: a document
    is kept for the state of `Journal.moves` under which it was ranked.
    """

    def __init__(self, database: Database, limit_bytes: int = 67_108_864) -> None:
        self._database = database
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[tuple[int, bytes, int], Document] = OrderedDict()
        self.nbytes = 0

    async def fetch(self, ns: str, docs: Sequence[int], journal: Journal, moves: bytes) -> Fetched:
        """Fetch documents that were alive under `journal` and `moves`.

        Raises `CorruptIndexError` and `UnavailableError`.
        """
        found: dict[int, Document] = {}
        missing = []
        for doc in docs:
            key = (journal.token, moves, doc)
            if (document := self._kept.get(key)) is None:
                missing.append(doc)
            else:
                self._kept.move_to_end(key)
                found[doc] = document
        if missing:
            fresh = await self._read(ns, missing, journal)
            if fresh is None:
                return Fetched({}, 0, len(docs))
            for doc, document in fresh.items():
                self._keep((journal.token, moves, doc), document)
            found |= fresh
        now_ms = time.time_ns() // 10**6
        living = {doc: document for doc in docs if (document := found.get(doc)) and document.expires_at > now_ms}
        return Fetched(living, len(found) - len(living), len(docs) - len(found))

    async def _read(self, ns: str, docs: Sequence[int], journal: Journal) -> dict[int, Document] | None:
        """Read the documents that have not moved; None when another server process answers."""
        ids = await self._ids(ns, docs, journal)
        known = [(doc, memory_id) for doc, memory_id in zip(docs, ids, strict=True) if memory_id]
        rows = await fetch_documents(self._database, ns, [memory_id for _, memory_id in known], journal.epoch)
        if server_of(self._database, keys.stats_key(ns)) != journal.server:
            return None
        with reading("a stored memory"):
            return {
                doc: _document(memory_id, row)
                for (doc, memory_id), row in zip(known, rows, strict=True)
                if row.get("doc") == str(doc)
            }
        raise AssertionError  # the context swallows nothing; the type checker cannot know

    async def _ids(self, ns: str, docs: Sequence[int], journal: Journal) -> list[str | None]:
        cache = journal.ids
        missing = [doc for doc in docs if doc not in cache]
        if missing:
            if len(cache) > len(missing) + 100_000:
                cache.clear()
                missing = list(docs)
            found = await scripts.read_ids(self._database, ns, missing, epoch=journal.epoch)
            with reading("the id of a document"):
                cache.update({doc: raw.decode() for doc, raw in zip(missing, found, strict=True) if raw is not None})
        return [cache.get(doc) for doc in docs]

    def _keep(self, key: tuple[int, bytes, int], document: Document) -> None:
        if (old := self._kept.pop(key, None)) is not None:
            self.nbytes -= old.size
        self._kept[key] = document
        self.nbytes += document.size
        while self.nbytes > self._limit_bytes and self._kept:
            _, gone = self._kept.popitem(last=False)
            self.nbytes -= gone.size
        metrics.DOCUMENT_CACHE_BYTES.set(self.nbytes)


def _document(memory_id: str, row: dict[str, str]) -> Document:
    size = _OBJECT_BYTES + 2 * sum(map(len, row.values()))
    memory = StoredMemory.from_stored(memory_id, row)
    blank = Hit(**msgspec.structs.asdict(memory), score=0.0, matched_terms=[])
    return Document(blank, int(row.get("expires_at", _FOREVER_MS)), size)
