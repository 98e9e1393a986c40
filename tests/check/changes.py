"""Histories of changes, applied as a worker does, and a database that answers otherwise."""

from __future__ import annotations

import random

from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change

ODD = "a{b}:*[x]\\ ?"
STREAM = "stream:memory:write"


def write(memory_id, version, text, **fields):
    """A write whose terms are the words of its text."""
    memory = Memory(content=text, **fields)
    terms = {}
    for word in text.split():
        terms[word] = terms.get(word, 0) + 1
    return Change(id=memory_id, version=version, memory=memory, version_hash=memory.version_hash(), terms=terms)


def delete(memory_id, version):
    return Change(id=memory_id, version=version, memory=None)


def history(seed, steps=400, memories=90):
    """Writes, rewrites, unchanged rewrites and deletes, old versions among them."""
    dice = random.Random(seed)
    words = [f"w{i}" for i in range(60)] + ["共同", "索引", "common"]
    last = {}
    for step in range(1, steps + 1):
        memory_id = f"m{dice.randrange(memories)}"
        version = f"{1_700_000_000_000 + step * dice.choice((1, 1, 1, 0))}-{step}"
        roll = dice.random()
        if roll < 0.15:
            yield delete(memory_id, version)
        elif roll < 0.25 and memory_id in last:
            text, fields = last[memory_id]
            yield write(memory_id, version, text, **fields)
        else:
            text = "common " + " ".join(dice.choices(words, k=dice.randrange(0, 25)))
            fields = {
                "author": dice.choice(("alice", "bob", "李雷", None)),
                "tags": tuple(dict.fromkeys(dice.choices(("a", "b", "c:d", "é", "@x"), k=2))),
                "timestamp": dice.choice((None, 5, -7, 1_700_000_000_000)),
                "importance": dice.choice((None, 0.1, 1.0)),
                "expires_at": dice.choice((None, 9_000_000_000_000)),
            }
            last[memory_id] = text, fields
            yield write(memory_id, version, text, **fields)


async def build(database, ns, changes, batch=20):
    writer = IndexWriter(database, "f1")
    changes = list(changes)
    for at in range(0, len(changes), batch):
        await writer.apply(ns, changes[at : at + batch])


class Altered:
    """A database at which `alter(command, run)` answers in place of some commands."""

    def __init__(self, database, name, alter):
        self._database = database
        self._name = name
        self._alter = alter

    async def execute_command(self, *command, **options):
        if command[0] == self._name:
            return await self._alter(command, self._database.execute_command)
        return await self._database.execute_command(*command, **options)
