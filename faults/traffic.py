"""What producers write: over and over the same few memories, in namespaces that are easily confused."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio

from faults.malformed import make
from faults.texts import DEADLY, ENDLESS, Texts, attributes_of
from jiyi.errors import ApiError, BacklogFullError, UnavailableError

if TYPE_CHECKING:
    from random import Random

    from faults.findings import Findings
    from faults.ledger import Key, Ledger, Sent
    from faults.malformed import Malformed
    from faults.ways import Way
    from jiyi.producer import Producer

NAMESPACES = ("team", "Team", "team:1", "team1", "a", "a:b", "team}", "{team", "caf\u00e9", "cafe\u0301", "记忆 库")
IDS = ("1", "01", "b:c", "c", "a/b", "é", "e\u0301", "张伟", "x y", "{team}:1", "m%2Fn", "search")
ROUTE = "search"
"""The one id that is a route as well: its memory cannot be fetched by its path."""

_REWRITE, _DELETE, _POISON, _MALFORMED = 0.10, 0.22, 0.002, 0.03
_UNKNOWN = frozenset({"connection", "timeout"})
"""Codes of `UnavailableError` after which an event may be on the stream. With any other the server has refused it."""
_RETRIED = 0.5
_FRESH = 400


class Strange:
    """Malformed events. Each must be a dead letter, but for those that were replayed under a new version."""

    def __init__(self) -> None:
        self.accepted: dict[str, Malformed] = {}
        """By version."""
        self.excused: set[str] = set()
        """Versions that a replay, which broke off, may have replaced by others."""
        self.unknown = 0
        """How many more may be there, or not."""


class Traffic:
    """Makes events and keeps the books about them; one for all producers."""

    def __init__(self, ledger: Ledger, findings: Findings, random: Random, max_content_bytes: int) -> None:
        self.ledger = ledger
        self.strange = Strange()
        self.fresh: deque[tuple[Sent, str]] = deque(maxlen=_FRESH)
        """Events accepted lately, with their content; deletes with one that the memory had."""
        self.dropped: set[tuple[str, str]] = set()
        """Dead letters that were thrown away: namespace and version."""
        self.frozen: set[Key] = set()
        """Memories that must not be deleted any more: a late copy of an older event could bring them back."""
        self.locks: dict[Key, anyio.Lock] = {}
        self.texts = Texts(random)
        self.last: dict[Key, str] = {}
        """Content that was sent last."""
        self._findings, self._random, self._max_content_bytes = findings, random, max_content_bytes

    def key(self) -> Key:
        """Choose a memory."""
        return self._random.choice(NAMESPACES), self._random.choice(IDS)

    def lock(self, key: Key) -> anyio.Lock:
        """Held while a memory is deleted, and while a copy of an event of it is appended."""
        return self.locks.setdefault(key, anyio.Lock())

    async def step(self, way: Way) -> bool:
        """Send one event, or a few; False when the way is shut."""
        chance, key = self._random.random(), self.key()
        if (chance := chance - _DELETE) < 0:
            return await self._delete(way, key)
        if (chance := chance - _REWRITE) < 0:
            return await self._write(way, key, self.last.get(key) or self.texts.content())
        if (chance := chance - _POISON) < 0:
            poison = self._random.choice([DEADLY, ENDLESS])
            self._findings.did("poison", poison)
            return await self._write(way, key, self.texts.content(poison))
        if (chance := chance - _MALFORMED) < 0:
            return await self._malformed(way, key)
        return await self._write(way, key, self.texts.content())

    async def _write(self, way: Way, key: Key, content: str) -> bool:
        while True:
            self.last[key] = content
            event = self.ledger.begin("write", *key, content)
            if await self._send(way, event, content):
                return True
            if self._random.random() > _RETRIED:
                return False

    async def _delete(self, way: Way, key: Key) -> bool:
        async with self.lock(key):
            if key in self.frozen:
                return True
            event = self.ledger.begin("delete", *key)
            return await self._send(way, event, None)

    async def _send(self, way: Way, event: Sent, content: str | None) -> bool:
        """Send an event and record what came of it; False when it has not been accepted for sure."""
        try:
            entry = await way.send(event.ns, event.id, content)
        except BacklogFullError:
            self.ledger.refuse(event.number)
            self._findings.done["refused, backlog full"] += 1
        except UnavailableError as error:
            if way.says_why and error.code not in _UNKNOWN:
                self.ledger.refuse(event.number)
                self._findings.done[f"refused, {error.code}"] += 1
            else:
                self._findings.done["outcome unknown"] += 1
        except ApiError as error:
            self._findings.violate("write", f"a reader answered {error.status} {error.code}: {error}")
        else:
            self._accept(event, entry, self.last.get(event.key, "") if content is None else content)
            return True
        return False

    def _accept(self, event: Sent, entry: str, content: str) -> None:
        self.ledger.accept(event.number, entry)
        accepted = self.ledger.at(entry)
        assert accepted is not None
        self.fresh.append((accepted, content))

    async def burst(self, producer: Producer, count: int) -> None:
        """Write many memories in one call."""
        ns = self._random.choice(NAMESPACES)
        contents = [(self._random.choice(IDS), self.texts.content()) for _ in range(count)]
        self.last |= {(ns, memory_id): content for memory_id, content in contents}
        events = [self.ledger.begin("write", ns, memory_id, content) for memory_id, content in contents]
        memories = [{"id": memory_id, "ns": ns, "content": text, **attributes_of(text)} for memory_id, text in contents]
        try:
            accepted = await producer.write_many(memories)
        except (UnavailableError, BacklogFullError) as error:  # some of them may be on the stream
            self._findings.done["burst broken off"] += 1
            self._findings.note("burst", str(error))
            return
        for event, one, (_, content) in zip(events, accepted, contents, strict=True):
            self._accept(event, one.entry, content)

    async def _malformed(self, way: Way, key: Key) -> bool:
        if way.append is None:
            return True
        event = make(self._random, *key, self.texts.content(), self._max_content_bytes)
        return await self.append_strange(way, event)

    async def append_strange(self, way: Way, event: Malformed) -> bool:
        """Append an event that can never be applied."""
        assert way.append is not None
        try:
            entry = await way.append(event.fields)
        except UnavailableError as error:
            if error.code in _UNKNOWN:
                self.strange.unknown += 1
            return False
        self.strange.accepted[entry] = event
        self._findings.did("malformed", f"{entry} {event.name}")
        return True
