"""What the server holds at an instant at which no command is under way, read in one go."""

from __future__ import annotations

from dataclasses import dataclass

from jiyi import dead_letters, keys
from jiyi.events import parse_entry


@dataclass
class View:
    """Entry ids are text, except for `delivered`, which is compared."""

    delivered: tuple
    pending: set
    tail: list  # (entry id, fields) of what came after the last view
    letters: dict  # namespace → dead letters
    stored: dict  # (namespace, id) → hash of the memory

    @classmethod
    async def of(cls, database, settings, namespaces, *, after, memories):
        """Read the stream behind an entry, its group, dead letters, and these (namespace, id) memories."""
        async with database.pipeline(transaction=False) as pipe:
            pipe.execute_command("XINFO GROUPS", settings.stream)
            pipe.execute_command("XPENDING", settings.stream, settings.group, "-", "+", 10_000)
            pipe.execute_command("XRANGE", settings.stream, f"({after}", "+")
            for ns in namespaces:
                pipe.execute_command("XRANGE", keys.dead_key(ns), "-", "+")
            for ns, memory_id in memories:
                pipe.hgetall(keys.memory_key(ns, memory_id))
            (group,), pending, tail, *rows = await pipe.execute()
        letters, hashes = rows[: len(namespaces)], rows[len(namespaces) :]
        delivered = parse_entry(_pairs(group)[b"last-delivered-id"].decode())
        return cls(
            delivered=delivered,
            pending={row[0].decode() for row in pending},
            tail=[(raw.decode(), _pairs(flat)) for raw, flat in tail],
            letters={
                ns: [dead_letters.decode(ns, raw.decode(), flat) for raw, flat in found]
                for ns, found in zip(namespaces, letters, strict=True)
            },
            stored={name: _text(row) for name, row in zip(memories, hashes, strict=True)},
        )


def _pairs(flat):
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(row):
    return {name.decode(): value.decode() for name, value in row.items() if name != b"terms"}
