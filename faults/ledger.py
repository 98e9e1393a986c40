"""The ledger of a producer: what was sent, what came of it, and so what must be stored.

Each send is written to a file before and after, so that the file survives the death of its writer. An XADD whose
answer was lost has an unknown outcome: its event may be stored or not, but once it was found stored it must stay.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from jiyi.appending import encode
from jiyi.errors import InvalidEventError, UnavailableError
from jiyi.events import parse_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from jiyi.events import Accepted
    from jiyi.producer import Producer

Key: TypeAlias = tuple[str, str]
"""(namespace, memory id)."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One event that was sent. `entry` is its entry id, None while the outcome is unknown.

    Every record of a ledger has a number from one count: an event that was `concluded` before another's `number` was
    accepted before the other was sent, and so has the lower entry id.
    """

    number: int
    at_ms: int
    op: Literal["write", "delete"]
    ns: str
    id: str
    digest: str | None  # of the content; None for a delete
    entry: str | None = None
    concluded: int | None = None

    @property
    def key(self) -> Key:
        """The memory that it is about."""
        return self.ns, self.id

    @property
    def version(self) -> tuple[int, int]:
        """Its place in the order of events; only for a known outcome."""
        assert self.entry is not None
        return parse_entry(self.entry)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a send: its entry id, or None when it certainly was not accepted."""

    number: int
    entry: str | None
    concluded: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one memory: those accepted in the order of their entry ids, and those of unknown outcome."""

    accepted: list[Sent]
    unknown: list[Sent]


def digest_of(content: str | bytes) -> str:
    """Digest of a memory's content."""
    raw = content.encode() if isinstance(content, str) else content
    return blake2b(raw, digest_size=12).hexdigest()


class Ledger:
    """Events in the order of sending, and their file (JSON lines). One writer per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sent: dict[int, Sent] = {}
        self._by_entry: dict[str, int] = {}
        self._open: dict[Key, dict[int, Sent]] = {}
        self._newest: dict[Key, Sent] = {}
        self._refused = 0
        self._last = 0
        if path.exists():
            self._read()
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def sent(self) -> list[Sent]:
        """All events but those that certainly were not accepted."""
        return list(self._sent.values())

    @property
    def refused(self) -> int:
        """Events that certainly were not accepted."""
        return self._refused

    def begin(self, op: Literal["write", "delete"], ns: str, memory_id: str, content: str | None = None) -> Sent:
        """Record an event that will be sent now."""
        digest = None if content is None else digest_of(content)
        number, now_ms = self._count(), time.time_ns() // 10**6
        event = Sent(number=number, at_ms=now_ms, op=op, ns=ns, id=memory_id, digest=digest)
        self._note(event)
        self._append(event)
        return event

    def accept(self, number: int, entry: str) -> None:
        """Record that an event was accepted, or that one of unknown outcome turned out to be."""
        self._conclude(Outcome(number=number, entry=entry, concluded=self._count()), keep=True)

    def refuse(self, number: int) -> None:
        """Record that an event certainly was not accepted."""
        self._conclude(Outcome(number=number, entry=None, concluded=self._count()), keep=True)

    async def write(self, producer: Producer, ns: str, memory_id: str, content: str) -> Accepted | None:
        """Write a memory on the record; None when the outcome is unknown. Raises what refuses it for sure."""
        event = self.begin("write", ns, memory_id, content)
        return await self._send(producer, event, content)

    async def delete(self, producer: Producer, ns: str, memory_id: str) -> Accepted | None:
        """Delete a memory on the record; otherwise as `write`."""
        return await self._send(producer, self.begin("delete", ns, memory_id), None)

    async def write_many(self, producer: Producer, ns: str, contents: Iterable[tuple[str, str]]) -> list[Accepted]:
        """Write (id, content) pairs in one call on the record; nothing when the outcome of all is unknown."""
        pairs = list(contents)
        events = [self.begin("write", ns, memory_id, content) for memory_id, content in pairs]
        encoded = [
            encode({"id": memory_id, "ns": ns, "content": content}, producer.settings.max_content_bytes)
            for memory_id, content in pairs
        ]
        try:
            accepted = await producer.send(encoded)
        except UnavailableError:
            return []
        for event, result in zip(events, accepted, strict=True):
            self.accept(event.number, result.entry)
        return accepted

    async def _send(self, producer: Producer, event: Sent, content: str | None) -> Accepted | None:
        try:
            if content is None:
                accepted = await producer.delete(event.id, ns=event.ns)
            else:
                accepted = await producer.write(id=event.id, ns=event.ns, content=content)
        except InvalidEventError:
            self.refuse(event.number)
            raise
        except UnavailableError:
            return None
        self.accept(event.number, accepted.entry)
        return accepted

    def histories(self) -> dict[Key, History]:
        """Events by memory."""
        found: dict[Key, History] = {}
        for event in self._sent.values():
            history = found.setdefault(event.key, History(accepted=[], unknown=[]))
            (history.unknown if event.entry is None else history.accepted).append(event)
        for history in found.values():
            history.accepted.sort(key=lambda event: event.version)
        return found

    def at(self, entry: str) -> Sent | None:
        """Give the event that is known to have this entry id."""
        number = self._by_entry.get(entry)
        return None if number is None else self._sent[number]

    def open(self, key: Key) -> list[Sent]:
        """Events of one memory whose outcome is unknown, also because they are on their way."""
        return list(self._open.get(key, {}).values())

    def newest(self, key: Key) -> Sent | None:
        """Give the event of one memory that has the highest entry id of those known to be accepted."""
        return self._newest.get(key)

    def fold(self) -> dict[Key, Sent]:
        """The event that decides about each memory: the accepted one with the highest entry id."""
        return {key: history.accepted[-1] for key, history in self.histories().items() if history.accepted}

    def _note(self, event: Sent) -> None:
        self._sent[event.number] = event
        self._open.setdefault(event.key, {})[event.number] = event

    def _count(self) -> int:
        self._last += 1
        return self._last

    def _append(self, record: Sent | Outcome) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")

    def _conclude(self, outcome: Outcome, *, keep: bool = False) -> None:
        event = self._sent.pop(outcome.number)
        self._open.get(event.key, {}).pop(event.number, None)
        if outcome.entry is None:
            self._refused += 1
        else:
            event = msgspec.structs.replace(event, entry=outcome.entry, concluded=outcome.concluded)
            self._sent[event.number] = event
            self._by_entry[outcome.entry] = event.number
            newest = self._newest.get(event.key)
            if newest is None or newest.version < event.version:
                self._newest[event.key] = event
        if keep:
            self._append(outcome)

    def _read(self) -> None:
        for line in _lines(self.path):
            if b'"op"' in line:
                event = msgspec.json.decode(line, type=Sent)
                self._note(event)
                self._last = event.number
            else:
                outcome = msgspec.json.decode(line, type=Outcome)
                self._conclude(outcome)
                self._last = outcome.concluded


def _lines(path: Path) -> Iterator[bytes]:
    """Give the whole lines; the writer may have died in the middle of its last one."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line
