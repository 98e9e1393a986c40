"""Turn prepared events of one namespace into the keys and arguments of `apply_events.lua`.

Pure functions of values: no I/O. This is the writer's half of the index format; `jiyi.postings` has the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jiyi import keys
from jiyi.errors import CorruptIndexError
from jiyi.events import parse_entry
from jiyi.forward_lists import pack_forward_list, unpack_forward_list
from jiyi.memories import DEFAULT_IMPORTANCE, LABELS, LATEST_MS, Memory
from jiyi.postings import DEATH, JOURNAL, MAX_DOC, MAX_TF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.scripts import Argument

_TF = tuple(tf.to_bytes(2, "little") for tf in range(256))


class Change(msgspec.Struct, kw_only=True):
    """What an event does to one memory. `terms` is its analysis (None for a delete).

    `version_hash` is that of the memory unless given (it is then the stored one), "" for a delete.
    """

    id: str
    version: str
    memory: Memory | None
    version_hash: str = ""
    terms: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and not self.version_hash:
            self.version_hash = self.memory.version_hash()


class OldDocument(msgspec.Struct, frozen=True):
    """The live document that a change replaces: everything that must be taken back from the index."""

    doc: int
    length: int
    terms: tuple[str, ...]


class Prepared(msgspec.Struct, kw_only=True):
    """A change with what is stored of its memory now; `doc` is the number reserved for the new document."""

    change: Change
    expected: str  # the fence as it was found: "<entry> <doc>", each empty where there is none
    fence_only: bool = False
    doc: int | None = None
    old: OldDocument | None = None

    def postings(self) -> int:
        """About how many term entries this change touches."""
        return len(self.change.terms or ()) + (len(self.old.terms) if self.old else 0)


def old_document(state: Sequence[bytes | None]) -> OldDocument:
    """Read (doc, length, terms, labels…, tags) as `prepare_events.lua` gives them.

    Raises `CorruptIndexError` for values that no worker has written.
    """
    doc, length, forward, *labels, tags = state
    try:
        terms = list(unpack_forward_list(forward or b""))
        terms += [
            keys.filter_term(name, label.decode())
            for name, label in zip(LABELS, labels, strict=True)
            if label is not None
        ]
        if tags is not None:
            terms += [keys.filter_term("tags", tag) for tag in msgspec.json.decode(tags, type=list[str])]
        old = OldDocument(int(doc or b""), int(length or b""), tuple(terms))
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptIndexError("what is stored of a memory cannot be read; run: jiyi check") from error
    if not 0 <= old.doc <= MAX_DOC or old.length < 0:
        raise CorruptIndexError("the number or the length of a document is impossible; run: jiyi check")
    return old


class _Batch:
    """Collects what all changes of a call add to and take from the index."""

    def __init__(self, ns: str) -> None:
        self.ns = ns
        self.events: list[Argument] = []
        self.memory_keys: list[str] = []
        self.added: dict[str, bytes] = {}
        self.removed: dict[str, bytes] = {}
        self.births: dict[str, list[Argument]] = {}
        self.deaths: dict[str, list[Argument]] = {}
        self.journal: list[bytes] = []
        self.docs_delta = 0
        self.tokens_delta = 0

    def add(self, prepared: Prepared) -> None:
        change = prepared.change
        fields: list[Argument] = []
        op = "f"
        if not prepared.fence_only:
            if prepared.old is not None:
                self._remove(prepared.old)
            op = "d"
            if change.memory is not None:
                op = "w"
                fields = self._insert(prepared, change.memory)
        expires_at = change.memory.expires_at if change.memory else None
        self.memory_keys.append(keys.memory_key(self.ns, change.id))
        self.events += (op, change.id, prepared.expected, change.version, parse_entry(change.version)[0])
        self.events += ("" if expires_at is None else expires_at, len(fields), *fields)

    def _remove(self, old: OldDocument) -> None:
        number, removed = old.doc.to_bytes(4, "little"), self.removed
        for term in old.terms:
            removed[term] = removed.get(term, b"") + number
        self.deaths.setdefault(keys.ids_key(self.ns, old.doc), []).append(old.doc)
        self.journal.append(JOURNAL.pack(old.doc, DEATH, 0, 0.0))
        self.docs_delta -= 1
        self.tokens_delta -= old.length

    def _insert(self, prepared: Prepared, memory: Memory) -> list[Argument]:
        change, doc = prepared.change, prepared.doc
        assert doc is not None
        assert change.terms is not None
        number, added, length = doc.to_bytes(4, "little"), self.added, 0
        for term, tf in change.terms.items():
            length += tf
            record = number + (_TF[tf] if tf < len(_TF) else min(tf, MAX_TF).to_bytes(2, "little"))
            before = added.get(term)
            added[term] = record if before is None else before + record
        once = number + _TF[1]
        for field, value in memory.filter_values():
            term = keys.filter_term(field, value)
            added[term] = added.get(term, b"") + once
        timestamp = memory.timestamp
        stored: list[Argument] = list(memory.stored())
        if timestamp is None:
            # Entry ids may lie behind any date (a clock that was wrong once, or an id that somebody chose).
            timestamp = min(parse_entry(change.version)[0], LATEST_MS)
            stored += ("timestamp", timestamp)
        importance = DEFAULT_IMPORTANCE if memory.importance is None else memory.importance
        self.births.setdefault(keys.ids_key(self.ns, doc), []).extend((doc, change.id))
        self.journal.append(JOURNAL.pack(doc, length, timestamp, importance))
        self.docs_delta += 1
        self.tokens_delta += length
        forward = pack_forward_list(change.terms)
        return ["doc", doc, "length", length, "version_hash", change.version_hash, "terms", forward, *stored]

    def block_arguments(self) -> tuple[list[str], list[Argument]]:
        names = list(dict.fromkeys([*self.births, *self.deaths]))
        arguments: list[Argument] = []
        for name in names:
            births, deaths = self.births.get(name, []), self.deaths.get(name, [])
            arguments += (len(births) // 2, *births, len(deaths), *deaths)
        return names, arguments

    def term_arguments(self) -> tuple[list[str], list[str], list[Argument]]:
        plain: dict[int, list[str]] = {}
        mixed: dict[int, list[str]] = {}
        removed, added, bucket_of = self.removed, self.added, keys.bucket_of
        for term in added:
            (mixed if term in removed else plain).setdefault(bucket_of(term), []).append(term)
        for term in removed:
            if term not in added:
                mixed.setdefault(bucket_of(term), []).append(term)
        buckets: list[str] = []
        terms: list[str] = []
        arguments: list[Argument] = []
        prefix = keys.index_prefix(self.ns)
        for bucket in plain.keys() | mixed.keys():
            ours, theirs = plain.get(bucket, []), mixed.get(bucket, [])
            buckets.append(keys.bucket_key(self.ns, bucket))
            terms += [prefix + term for term in ours]
            terms += [prefix + term for term in theirs]
            arguments += (len(ours), len(theirs), *[added[term] for term in ours])
            for term in theirs:
                arguments += (added.get(term, b""), removed[term])
        return buckets, terms, arguments


class Reservation(msgspec.Struct, frozen=True):
    """What `prepare_events` gave for a batch: the epoch, and the token of its reserved numbers ("": none)."""

    epoch: str
    token: str


def pack(  # noqa: PLR0913 - the script's contract
    ns: str,
    reservation: Reservation,
    analyzer: str,
    batch: Sequence[Prepared],
    now_ms: int,
    *,
    last: bool,
) -> tuple[list[str], list[Argument]]:
    """Give the keys and arguments of one `apply_events.lua` call for prepared changes of distinct memories.

    `last` says that no other call of this reservation follows.
    """
    collected = _Batch(ns)
    for prepared in batch:
        collected.add(prepared)
    blocks, block_arguments = collected.block_arguments()
    buckets, terms, term_arguments = collected.term_arguments()
    generation = next((prepared.doc for prepared in batch if prepared.doc is not None), 0)
    key_names = [
        keys.stats_key(ns),
        keys.journal_key(ns),
        keys.tombstones_key(ns),
        keys.expiries_key(ns),
        keys.failed_key(ns),
        keys.reservations_key(ns),
        *collected.memory_keys,
        *blocks,
        *buckets,
        *terms,
    ]
    header: list[Argument] = [reservation.epoch, analyzer, now_ms, len(batch), len(blocks), len(buckets)]
    header += (collected.docs_delta, collected.tokens_delta, b"".join(collected.journal))
    header += (len(keys.index_prefix(ns).encode()), generation.to_bytes(4, "little"))
    header += (reservation.token, "1" if last and reservation.token else "0")
    return key_names, [*header, *collected.events, *block_arguments, *term_arguments]
