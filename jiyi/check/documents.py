"""Documents: journal, `ids` and memory hashes against each other, and the postings that they ought to have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.forward import Forward
from jiyi.check.journal import ALIVE, DEAD, UNKNOWN
from jiyi.check.report import Kind
from jiyi.errors import InvalidEventError
from jiyi.events import parse_entry
from jiyi.forward_lists import unpack_forward_list
from jiyi.memories import DEFAULT_IMPORTANCE, LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from jiyi.check.known_keys import KnownKeys
    from jiyi.check.source import Source

_BLOCKS = 2
"""`ids` blocks in one step: up to 256 documents are held at a time."""
_NEEDED = ("entry", "doc", "length", "timestamp", "version_hash", "indexed_at", "terms")
_FIELDS = (*_NEEDED, "importance", "expires_at", "deleted_at", *LABELS, "tags")

Stored = dict[str, bytes]


class Documents:
    """Reads all documents that are alive now. One that dies meanwhile is passed over.

    A document never changes: while it is alive, its number, its memory's fields, its `ids` entry and its
    postings stand as they were written. So whatever is read of a document that the journal calls alive before
    and after the reading has to agree, and a disagreement needs no second look.
    """

    def __init__(self, source: Source, known: KnownKeys) -> None:
        self._source = source
        self._known = known
        self._add = source.report.add

    async def read(self, wanted: frozenset[int], *, verify: bool, on_progress: Callable[[int, int], None]) -> Forward:
        """Read the documents' postings for terms in the buckets `wanted`; `verify` compares everything else too."""
        source = self._source
        forward = Forward(wanted, source.journal.state == ALIVE)
        alive = np.flatnonzero(forward.alive)
        blocks = np.unique(alive // keys.IDS_PER_BLOCK)
        for at in range(0, len(blocks), _BLOCKS):
            found, dead_before = await self._ids(blocks[at : at + _BLOCKS].tolist())
            docs = list(found)
            stored = await source.tolerant(docs, partial(self._stored, ids=found), self._unreadable)
            expiries = await self._expiries([found[doc] for doc in docs]) if verify else []
            await source.snapshot()
            if verify:
                here = _within(alive, blocks[at : at + _BLOCKS])
                self._verify_ids(found, dead_before, here, dict(zip(docs, stored, strict=True)))
            for i, doc in enumerate(docs):
                fields = stored[i]
                if fields is None or not source.journal.is_alive(doc) or not forward.covers(doc):
                    continue
                if verify:
                    self._verify(doc, found[doc], fields, expiries[i])
                if fields.get("doc") == b"%d" % doc:
                    self._known.add([keys.memory_key(source.ns, found[doc])])
                    forward.add(doc, forward_list(fields.get("terms")) or {}, filter_terms(fields) or [])
            forward.flush()
            on_progress(min(at + _BLOCKS, len(blocks)), len(blocks))
        forward.finish()
        return forward

    async def _ids(self, blocks: Sequence[int]) -> tuple[dict[int, str], set[int]]:
        """Ids of the documents in some blocks, and which of them had died before."""
        found: dict[int, str] = {}
        for block in blocks:
            key = keys.ids_key(self._source.ns, block * keys.IDS_PER_BLOCK)
            self._known.add([key])
            [fields] = await self._source.tolerant([key], self._hashes, self._wrong_type)
            for field, value in (fields or {}).items():
                try:
                    doc, memory_id = int(field), value.decode()
                except ValueError:
                    doc = -1
                if doc < 0 or doc // keys.IDS_PER_BLOCK != block:
                    self._add(Kind.IDS, key, "a number of this block and an id in UTF-8", "another field")
                else:
                    found[doc] = memory_id
        numbers = np.fromiter(found, np.int64, len(found))
        dead = numbers[self._source.journal.states(numbers) == DEAD]
        return found, set(dead.tolist())

    async def _hashes(self, key_names: Sequence[str]) -> list[dict[bytes, bytes]]:
        return [await self._source.command("HGETALL", key) for key in key_names]

    def _wrong_type(self, key: str, error: str) -> None:
        self._add(Kind.IDS, key, "a hash", error)

    def _unreadable(self, doc: int, error: str) -> None:
        self._add(Kind.MEMORY, f"doc {doc}", "a hash", error)

    async def _stored(self, docs: Sequence[int], ids: dict[int, str]) -> list[Stored]:
        source = self._source
        values = await scripts.read_documents(source.database, source.ns, [ids[doc] for doc in docs], _FIELDS)
        return [{name: value for name, value in zip(_FIELDS, row, strict=True) if value is not None} for row in values]

    async def _expiries(self, ids: Sequence[str]) -> list[float | None]:
        if not ids:
            return []
        try:
            scores: list[float | None] = await self._source.command("ZMSCORE", keys.expiries_key(self._source.ns), *ids)
        except ResponseError:  # no sorted set: `Marks` reports that
            return [None] * len(ids)
        return scores

    def _verify_ids(
        self,
        found: dict[int, str],
        dead: set[int],
        alive: NDArray[np.int64],
        stored: dict[int, Stored | None],
    ) -> None:
        source = self._source
        for doc in alive.tolist():
            if doc not in found and source.journal.is_alive(doc):
                self._add(Kind.IDS, f"doc {doc}", "the id of a live document", "none")
        numbers = np.fromiter(found, np.int64, len(found))
        for doc in numbers[source.journal.states(numbers) == UNKNOWN].tolist():
            if (stored[doc] or {}).get("doc") == b"%d" % doc:
                self._add(
                    Kind.JOURNAL, f"{keys.journal_key(source.ns)} doc {doc}", "the birth of a stored document", "none"
                )
            else:
                self._add(Kind.IDS, f"doc {doc}", "no entry, the number was never born", "an id")
        for doc in dead:
            self._add(Kind.IDS, f"doc {doc}", "no entry, the document is dead", "an id")

    def _verify(self, doc: int, memory_id: str, stored: Stored, expiry: float | None) -> None:
        where = f"doc {doc} {self._source.shown(memory_id)}"
        if stored.get("doc") != b"%d" % doc:
            self._add(Kind.MEMORY, where, f"document number {doc}", "another or none")
            return
        self._verify_fields(where, stored)
        self._verify_numbers(where, doc, stored)
        self._verify_expiry(where, stored.get("expires_at"), expiry)

    def _verify_fields(self, where: str, stored: Stored) -> None:
        missing = [name for name in _NEEDED[1:] if not stored.get(name)]
        if missing:
            self._add(Kind.MEMORY, where, "all fields of a memory", f"without {', '.join(missing)}")
        if "deleted_at" in stored:
            self._add(Kind.MEMORY, where, "no deleted_at in a live memory", "deleted_at")
        if filter_terms(stored) is None:
            self._add(Kind.MEMORY, where, "tags as a JSON array of text", "something else")
        if not is_entry(stored.get("entry")):
            self._add(Kind.FENCE, where, "an entry id", "none")

    def _verify_numbers(self, where: str, doc: int, stored: Stored) -> None:
        terms = forward_list(stored.get("terms"))
        if terms is None:
            self._add(Kind.FORWARD_LIST, where, "a map from terms to positive numbers", "something else")
            return
        journal, counted, length = self._source.journal, sum(terms.values()), whole(stored.get("length"))
        recorded = int(journal.lengths[doc])
        if counted != length == recorded:
            self._add(Kind.FORWARD_LIST, where, f"{length} tokens, as length and journal say", counted)
        elif counted != length:
            self._add(Kind.LENGTH, where, f"{counted} tokens, as the forward list says", length)
        if recorded not in (counted, length):
            self._add(Kind.JOURNAL, where, f"length {length}", recorded)
        created = whole(stored.get("timestamp"))
        if created != int(journal.created[doc]):
            self._add(Kind.JOURNAL, where, f"created at {created} ms", int(journal.created[doc]))
        importance = np.float32(_real(stored.get("importance"), DEFAULT_IMPORTANCE))
        if importance != journal.importance[doc]:
            self._add(Kind.JOURNAL, where, f"importance {importance}", journal.importance[doc])

    def _verify_expiry(self, where: str, expires_at: bytes | None, score: float | None) -> None:
        expected = None if expires_at is None else _real(expires_at, None)
        if score != expected:
            self._add(Kind.EXPIRY, where, f"expires_at {expected}", score)


def _within(alive: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take the document numbers of some blocks out of a sorted array."""
    first = np.searchsorted(alive, blocks * keys.IDS_PER_BLOCK)
    end = np.searchsorted(alive, (blocks + 1) * keys.IDS_PER_BLOCK)
    return np.concatenate([alive[i:j] for i, j in zip(first, end, strict=True)])


def forward_list(packed: bytes | None) -> dict[bytes, int] | None:
    """Decode a forward list; None if it is none."""
    try:
        terms = unpack_forward_list(packed or b"")
    except ValueError:
        return None
    return {term.encode(): tf for term, tf in terms.items()}


def filter_terms(stored: Stored) -> list[bytes] | None:
    """Terms by which a memory is filtered; None if its tags or labels cannot be read."""
    try:
        filters = [keys.filter_term(name, stored[name].decode()) for name in LABELS if name in stored]
        if "tags" in stored:
            filters += [keys.filter_term("tags", tag) for tag in msgspec.json.decode(stored["tags"], type=list[str])]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return [term.encode() for term in filters]


def is_entry(value: bytes | None) -> bool:
    """Tell whether a fence is a stream entry id."""
    try:
        parse_entry((value or b"").decode())
    except (InvalidEventError, UnicodeDecodeError):
        return False
    return True


def whole(value: bytes | None) -> int | None:
    """Read a whole number; None if it is none."""
    try:
        return int(value or b"")
    except ValueError:
        return None


def _real(value: bytes | None, default: float | None) -> float | None:
    try:
        return default if value is None else float(value)
    except ValueError:
        return None
