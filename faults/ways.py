"""The ways in: asyncio producer, blocking producer in a thread, HTTP, and plain XADD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from faults.texts import attributes_of
from jiyi.connections import execute
from jiyi.memories import Memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faults.malformed import Fields
    from jiyi.client import Client
    from jiyi.connections import Database
    from jiyi.producer import Producer
    from jiyi.settings import Settings
    from jiyi.sync_producer import SyncProducer


class Way:
    """Sends one event. Raises `UnavailableError`, and `BacklogFullError` where the way has it."""

    says_why = True
    """Whether the code of an `UnavailableError` is that of the server."""
    append: Callable[[Fields], Awaitable[str]] | None = None
    """Append any fields as they are, where the way can."""

    async def send(self, ns: str, memory_id: str, content: str | None) -> str:
        """Write a memory, or delete it where `content` is None; gives the entry id."""
        raise NotImplementedError


class Asynchronous(Way):
    """`Producer`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send(self, ns: str, memory_id: str, content: str | None) -> str:
        """Send through the producer."""
        if content is None:
            return (await self._producer.delete(memory_id, ns=ns)).entry
        return (await self._producer.write(id=memory_id, ns=ns, content=content, **attributes_of(content))).entry


class Threaded(Way):
    """`SyncProducer`, each call in a thread."""

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer

    async def send(self, ns: str, memory_id: str, content: str | None) -> str:
        """Send through the producer."""
        return await anyio.to_thread.run_sync(self._send, ns, memory_id, content)

    def _send(self, ns: str, memory_id: str, content: str | None) -> str:
        if content is None:
            return self._producer.delete(memory_id, ns=ns).entry
        return self._producer.write(id=memory_id, ns=ns, content=content, **attributes_of(content)).entry


class Http(Way):
    """`Client`, and so a reader."""

    says_why = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, ns: str, memory_id: str, content: str | None) -> str:
        """Send through the reader."""
        if content is None:
            return (await self._client.delete(memory_id, ns=ns)).entry
        return (await self._client.write(id=memory_id, ns=ns, content=content, **attributes_of(content))).entry


class Plain(Way):
    """XADD of flat fields, as redis-cli does it."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self.append = self._append

    async def send(self, ns: str, memory_id: str, content: str | None) -> str:
        """Send as flat fields."""
        fields = {"event": "delete" if content is None else "update", "ns": ns, "id": memory_id}
        if content is not None:
            fields |= _flat(content, self._settings.max_content_bytes)
        return await self._append([(name.encode(), value.encode()) for name, value in fields.items()])

    async def _append(self, fields: Fields) -> str:
        parts: list[Any] = [part for pair in fields for part in pair]
        entry = await execute(self._database, "XADD", self._settings.stream, "*", *parts)
        return str(entry.decode())


def _flat(content: str, max_content_bytes: int) -> dict[str, str]:
    memory = Memory.from_fields({"content": content, **attributes_of(content)}, max_content_bytes)
    stored = memory.stored()
    return dict(zip(stored[::2], stored[1::2], strict=True))
