"""What is derived in the memories themselves: document number, forward list, length, and the fields beside them."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.analysis import TooManyTerms
from jiyi.check.documents import forward_list, is_entry, whole
from jiyi.check.source import NamespaceMovedError
from jiyi.events import parse_entry
from jiyi.forward_lists import pack_forward_list
from jiyi.memories import FIELDS, Memory
from jiyi.postings import DEATH
from jiyi.repair.target import number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jiyi.check.journal import Journal
    from jiyi.reindex import TermsOf
    from jiyi.repair.target import Stored, Target
    from jiyi.scripts import Argument

_FIELDS = ("entry", "doc", "length", "terms", "version_hash", "indexed_at", "deleted_at", *FIELDS)
_ROUNDS = 20
"""How often memories that move on meanwhile are looked at; such a one is in the hands of workers, and complete."""
_MOST_MS = 1 << 62


class Found(msgspec.Struct):
    """A memory that is a document, as it was read, and what its content gives (None: not asked, or not to be had)."""

    id: str
    stored: Stored
    needs_number: bool
    forward: dict[bytes, int] | None
    content: str | None
    terms: dict[bytes, int] | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the forward list contradicts itself or the length."""
        return self.forward is None or sum(self.forward.values()) != whole(self.stored.get("length"))


class Documents:
    """Mends one memory after the other, each in one step and only as long as it is the document that was read.

    Afterwards `owners` says which memory has which number, and `strangers` are ids of memories that have one and
    cannot be in the index: nobody can tell what their postings are. `changed` counts mended memories.
    """

    def __init__(self, target: Target, analyzer: TermsOf, journal: Journal) -> None:
        self._target = target
        self._analyzer = analyzer
        self._journal = journal
        self._next_doc = 0
        self.owners: dict[int, str] = {}
        self.strangers: set[str] = set()
        self.changed = 0

    async def mend(self, *, analyse: bool) -> None:
        """Pass through all memories. With `analyse` each forward list is compared with the content's terms."""
        async for ids in self._target.ids("memories"):
            waiting = ids
            for _ in range(_ROUNDS):
                waiting = await self._batch(waiting, analyse=analyse)
                if not waiting:
                    break

    async def _batch(self, ids: Sequence[str], *, analyse: bool) -> list[str]:
        """Mend some memories; gives those that have moved on."""
        rows = await self._target.read(ids, _FIELDS)
        await self._learn_next_doc(rows)
        documents = [found for found in map(self._judge, ids, rows) if found is not None]
        texts = [found for found in documents if found.content is not None and (analyse or found.is_in_doubt)]
        analysed = await anyio.to_thread.run_sync(lambda: list(_analyse(self._analyzer, texts)))
        for found, terms in zip(texts, analysed, strict=True):
            found.terms = terms
        changes = {}
        for found in documents:
            if (change := self._change(found)) is not None:
                changes[found.id] = change
        return await self._send(changes) if changes else []

    async def _learn_next_doc(self, rows: Sequence[Stored | None]) -> None:
        """Know every number that was given out before the rows were read."""
        numbers = [number_of((row or {}).get("doc")) or 0 for row in rows]
        if max(numbers, default=0) >= self._next_doc:
            found = await self._target.command("HGET", keys.stats_key(self._target.ns), "next_doc")
            self._next_doc = number_of(found) or 0

    def _judge(self, memory_id: str, stored: Stored | None) -> Found | None:
        """Tell whether a memory is a document, and whether it can keep its number."""
        self.strangers.discard(memory_id)
        if not stored:
            return None
        if "deleted_at" in stored and not ("doc" in stored and "content" in stored):
            self._turn_away(memory_id, stored)  # a tombstone: whatever else is in it, `mend_marks` removes
            return None
        content = _text(stored.get("content"))
        number = number_of(stored.get("doc"))
        sound = number is not None and number < self._next_doc
        if sound and self.owners.setdefault(number or 0, memory_id) == memory_id:
            return Found(memory_id, stored, False, forward_list(stored.get("terms")), content)
        if content is not None and is_entry(stored.get("entry")):
            return Found(memory_id, stored, True, forward_list(stored.get("terms")), content)
        self._turn_away(memory_id, stored)
        return None

    def _turn_away(self, memory_id: str, stored: Stored) -> None:
        if "doc" in stored:
            self.strangers.add(memory_id)
            number = number_of(stored["doc"])
            if number is not None and self.owners.get(number) == memory_id:
                del self.owners[number]

    def _change(self, found: Found) -> list[Argument] | None:
        """Give the script's arguments that make a memory what it should be; None if it is, or cannot be made so."""
        stored = found.stored
        terms = found.forward if found.terms is None else found.terms
        created = self._created(stored)
        if terms is None or created is None or sum(terms.values()) >= DEATH:
            self._turn_away(found.id, stored)
            return None
        fields: dict[str, Argument] = {}
        if terms != found.forward:
            fields["terms"] = pack_forward_list({term.decode(): tf for term, tf in terms.items()})
        if sum(terms.values()) != whole(stored.get("length")):
            fields["length"] = sum(terms.values())
        if created != whole(stored.get("timestamp")):
            fields["timestamp"] = created
        if not stored.get("indexed_at"):
            fields["indexed_at"] = time.time_ns() // 10**6
        if not stored.get("version_hash") and (version_hash := _version_hash(stored, created)):
            fields["version_hash"] = version_hash
        removed = ["deleted_at"] if "deleted_at" in stored else []
        if not (fields or removed or found.needs_number):
            return None
        flat = [part for pair in fields.items() for part in pair]
        fence = [stored.get("entry", b""), stored.get("doc", b"")]
        return [*fence, "1" if found.needs_number else "0", len(flat), *flat, len(removed), *removed]

    def _created(self, stored: Stored) -> int | None:
        """Time of creation: stored, else as the journal has it, else that of the entry, as for a memory without."""
        created = whole(stored.get("timestamp"))
        if created is not None and abs(created) <= _MOST_MS:
            return created
        number = number_of(stored.get("doc"))
        if number is not None and self._journal.is_alive(number):
            return int(self._journal.created[number])
        entry = stored.get("entry")
        return parse_entry((entry or b"").decode())[0] if is_entry(entry) else None

    async def _send(self, changes: dict[str, list[Argument]]) -> list[str]:
        target, ids = self._target, list(changes)
        try:
            numbers = await scripts.repair_memories(
                target.database, target.ns, ids, list(changes.values()), revision=secrets.token_hex(8)
            )
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            return ids
        if not numbers:
            raise NamespaceMovedError(target.ns)
        left = []
        for memory_id, raw in zip(ids, numbers, strict=True):
            number = number_of(raw)
            if number is None:
                left.append(memory_id)
                continue
            self.owners[number] = memory_id
            self.changed += 1
            target.done["memories"] += 1
        return left


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _analyse(analyzer: TermsOf, documents: Iterable[Found]) -> Iterator[dict[bytes, int] | None]:
    """Give the terms of each content; None where it has too many: such a document keeps those it has."""
    for found in documents:
        try:
            yield {term.encode(): tf for term, tf in analyzer.terms(found.content or "").items()}
        except TooManyTerms:
            yield None


def _version_hash(stored: Stored, created: int) -> str | None:
    """Give the hash of a memory's fields as they were given: without a timestamp that was only filled in."""
    try:
        named = {name: stored[name].decode() for name in FIELDS if name in stored} | {"timestamp": str(created)}
        if is_entry(stored.get("entry")) and parse_entry(stored["entry"].decode())[0] == created:
            del named["timestamp"]
        return Memory.from_stored(named).version_hash()
    except (ValueError, msgspec.MsgspecError):
        return None
