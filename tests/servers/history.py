"""A history of events that knows what any beginning of it must lead to."""

from __future__ import annotations

import random
from typing import NamedTuple

from jiyi import dead_letters, keys
from jiyi.events import encode_delete, encode_write, parse_entry
from jiyi.memories import Memory
from servers.load import WORDS

INVALID = "\x00"


class Event(NamedTuple):
    """An accepted event. `content` is None for a delete and INVALID for what can only become a dead letter."""

    entry: str
    id: str
    content: str | None
    token: str = ""
    expired: bool = False


class History:
    """Writes a mixed load step by step; every accepted event is remembered."""

    def __init__(self, database, settings, seed):
        self.events, self.replayed, self.dropped = [], set(), set()
        self._database, self._settings = database, settings
        self._dice = random.Random(seed)
        self._contents = {}

    async def append(self, count):
        """Append events: writes, copies of earlier writes, changes of tags alone, deletes, expired and invalid ones."""
        for _ in range(count):
            memory_id, roll = f"m{self._dice.randrange(40)}", self._dice.random()
            if roll < 0.15:
                await self._event(memory_id, None, encode_delete(memory_id, "default"))
            elif roll < 0.2:
                await self._event(
                    memory_id, INVALID, {"event": "write", "id": memory_id, "content": "x", "no": "field"}
                )
            else:
                await self._write(memory_id, roll)

    async def _write(self, memory_id, roll):
        dice = self._dice
        token = f"token{len(self.events)}z"
        if roll < 0.4 and memory_id in self._contents:
            content, token = self._contents[memory_id]
        else:
            content = " ".join([*dice.choices(WORDS, k=dice.randrange(1, 15)), token])
        self._contents[memory_id] = content, token
        expires_at = 1_700_000_000_000 + len(self.events) if 0.4 <= roll < 0.48 else None
        tags = tuple(dice.sample("abc", k=dice.randrange(3))) if roll < 0.3 or roll > 0.6 else ()
        memory = Memory(content=content, tags=tags, author=dice.choice(("alice", None)), expires_at=expires_at)
        await self._event(memory_id, content, encode_write(memory_id, "default", memory), token, expires_at is not None)

    async def _event(self, memory_id, content, fields, token="", expired=False):
        entry = await self._database.xadd(self._settings.stream, fields)
        self.events.append(Event(entry.decode(), memory_id, content, token, expired))

    async def tidy_letters(self):
        """Drop one dead letter and replay another (it will fail again)."""
        found = [letter async for letter in dead_letters.letters(self._database, "default")]
        if len(found) > 3:
            dropped, replayed = self._dice.sample(found, 2)
            self.dropped.add(dropped.entry)
            await dead_letters.drop(self._database, dropped)
            self.replayed.add(replayed.entry)
            await dead_letters.replay(self._database, self._settings.stream, replayed)

    def until(self, last):
        """The events up to an entry id, and of each memory the deciding one."""
        known = [event for event in self.events if parse_entry(event.entry) <= parse_entry(last)]
        decided = {event.id: event for event in known if event.content != INVALID}
        return known, decided

    async def verify(self, database, last):
        """After everything is processed: the state is what the events up to an entry id lead to, once each."""
        known, decided = self.until(last)
        live = 0
        for memory_id, event in decided.items():
            stored = await database.hmget(keys.memory_key("default", memory_id), "entry", "content")
            entry, content = (None if value is None else value.decode() for value in stored)
            wanted = None if event.content is None or event.expired else event.content
            assert content == wanted, f"{memory_id} {event.entry}"
            assert entry in ({event.entry} if wanted is not None else {event.entry, None})
            live += wanted is not None
        assert int(await database.hget(keys.stats_key("default"), "docs") or 0) == live
        letters = [letter.entry async for letter in dead_letters.letters(database, "default")]
        invalid = {event.entry for event in known if event.content == INVALID}
        assert len(letters) == len(set(letters)), "a dead letter was filed twice"
        assert invalid - self.dropped <= set(letters) <= invalid
