"""Stored memories: how they are read from Redis and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jiyi import scripts
from jiyi.memories import DEFAULT_IMPORTANCE, Memory, format_time
from jiyi_api.damage import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database

DOCUMENT_FIELDS = (
    "doc", "entry", "indexed_at", "content", "author", "source_system", "user_id", "session_id", "kind", "tags",
    "timestamp", "importance", "expires_at", "metadata",
)  # fmt: skip


class StoredMemory(msgspec.Struct, rename="camel", omit_defaults=True):
    """A memory as it is given back. Times are ISO 8601 in UTC."""

    id: str
    content: str
    entry: str
    indexed_at: str
    timestamp: str
    importance: float
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    expires_at: str | None = None
    metadata: msgspec.Raw | None = None

    @classmethod
    def from_stored(cls, memory_id: str, stored: dict[str, str]) -> StoredMemory:
        """Build from the memory's hash in Redis."""
        memory = Memory.from_stored(stored)
        if memory.metadata is not None:
            msgspec.json.decode(memory.metadata)  # it goes into the answer unread, and would break all of it
        return cls(
            id=memory_id,
            content=memory.content,
            entry=stored["entry"],
            indexed_at=format_time(int(stored["indexed_at"])),
            timestamp=format_time(memory.timestamp or 0),
            importance=DEFAULT_IMPORTANCE if memory.importance is None else memory.importance,
            author=memory.author,
            source_system=memory.source_system,
            user_id=memory.user_id,
            session_id=memory.session_id,
            kind=memory.kind,
            tags=memory.tags,
            expires_at=None if memory.expires_at is None else format_time(memory.expires_at),
            metadata=None if memory.metadata is None else msgspec.Raw(memory.metadata.encode()),
        )


async def fetch_documents(database: Database, ns: str, ids: Sequence[str], epoch: str = "") -> list[dict[str, str]]:
    """Read memories with all fields that are given back; absent fields are left out, and all after the `epoch`."""
    if not ids:
        return []
    rows = await scripts.read_documents(database, ns, ids, DOCUMENT_FIELDS, epoch=epoch)
    with reading("a stored memory"):
        return [
            {name: value.decode() for name, value in zip(DOCUMENT_FIELDS, row, strict=True) if value is not None}
            for row in rows
        ]
    raise AssertionError  # the context swallows nothing; the type checker cannot know
