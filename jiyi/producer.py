"""Producers: append write and delete events to the stream, from asyncio (`Producer`) or without (`SyncProducer`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from jiyi.connections import connect, connect_blocking, translated_errors
from jiyi.errors import InvalidEventError
from jiyi.events import Accepted, encode_delete, encode_write
from jiyi.memories import DEFAULT_NAMESPACE, Memory, new_id, parse_id, parse_namespace
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from jiyi.connections import BlockingDatabase, Database
    from jiyi.memories import MemoryFields

__all__ = ["Accepted", "EncodedEvent", "Producer", "SyncProducer", "encode"]

PIPELINE_EVENTS = 500
"""Most events of one round trip: its time is then spread thin over them."""
PIPELINE_BYTES = 1_048_576
"""Most bytes of one round trip (a single larger event travels alone), so that large memories do not pile up."""


class EncodedEvent(NamedTuple):
    """A checked event and the fields of its stream entry."""

    id: str
    ns: str
    fields: dict[str, bytes]

    def size(self) -> int:
        """Give about the number of bytes that it takes on the wire."""
        return sum(len(value) for value in self.fields.values())


def encode(memory: Mapping[str, Any], max_content_bytes: int) -> EncodedEvent:
    """Check a memory (the names of `MemoryFields`) and encode its write event.

    Without an id it gets a new one. Raises `InvalidEventError` that names the field.
    """
    if not isinstance(memory, Mapping):
        raise InvalidEventError("invalid_field", "", f"a memory must be a mapping, not {type(memory).__name__}")
    fields = dict(memory)
    given_id, given_ns = fields.pop("id", None), fields.pop("ns", None)
    memory_id = new_id() if given_id is None else parse_id(given_id)
    ns = DEFAULT_NAMESPACE if given_ns is None else parse_namespace(given_ns)
    return EncodedEvent(memory_id, ns, encode_write(memory_id, ns, Memory.from_fields(fields, max_content_bytes)))


class _Encoding:
    """What both producers share: settings, and everything up to the command that is sent."""

    def __init__(self, url: str | None = None, *, stream: str | None = None, settings: Settings | None = None) -> None:
        base = Settings.from_environment() if settings is None else settings
        self.settings = msgspec.structs.replace(
            base,
            redis_url=base.redis_url if url is None else url,
            stream=base.stream if stream is None else stream,
        )

    def encode(self, memory: Mapping[str, Any]) -> EncodedEvent:
        """Check and encode one memory without sending it; see `encode`."""
        return encode(memory, self.settings.max_content_bytes)

    def _encode_many(self, memories: Iterable[Mapping[str, Any]]) -> list[EncodedEvent]:
        events = []
        for i, memory in enumerate(memories):
            try:
                events.append(self.encode(memory))
            except InvalidEventError as error:
                message = str(error).removeprefix(f"{error.field}: ")
                field = f"memories[{i}].{error.field}" if error.field else f"memories[{i}]"
                raise InvalidEventError(error.code, field, message) from None
        return events

    @staticmethod
    def _encode_delete(memory_id: str, ns: str) -> EncodedEvent:
        memory_id, ns = parse_id(memory_id), parse_namespace(ns)
        return EncodedEvent(memory_id, ns, encode_delete(memory_id, ns))

    def _command(self, event: EncodedEvent) -> list[str | bytes]:
        command: list[str | bytes] = ["XADD", self.settings.stream, "*"]
        for name, value in event.fields.items():
            command += (name, value)
        return command


class Producer(_Encoding):
    """Appends events to the stream. Open it with `async with Producer(url)` or `await Producer.connect(url)`.

    `url` is that of Redis or Valkey, one server or any node of a cluster; without it `JIYI_REDIS_URL` counts,
    as `JIYI_STREAM` does for `stream`. One producer serves any number of concurrent tasks.

    When a call raises `UnavailableError`, its outcome is unknown: the events may be on the stream or not.
    Repeating the call is harmless, since an identical rewrite changes nothing but the version of the memory.
    Two things to know: a write without `id` makes a new id, and so a second memory, at every call (give the id;
    `jiyi.memories.new_id()` makes one); and the repeat is a newer version than what others have written meanwhile.
    """

    _database: Database | None = None

    @classmethod
    async def connect(
        cls, url: str | None = None, *, stream: str | None = None, settings: Settings | None = None
    ) -> Self:
        """Give an open producer, to be closed with `aclose`. Errors: see `open`."""
        producer = cls(url, stream=stream, settings=settings)
        await producer.open()
        return producer

    async def open(self) -> None:
        """Connect. Raises `ServerNotFoundError` without a URL, `SettingsError` for a bad one, `UnavailableError`."""
        if self._database is None:
            self._database = await connect(self.settings)
            # A cluster client raises when its pool is full; callers shall wait for each other instead.
            self._turns = anyio.CapacityLimiter(self.settings.max_pool)

    async def aclose(self) -> None:
        """Close the connections; the producer can be opened again."""
        database, self._database = self._database, None
        if database is not None:
            await database.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory; it replaces the whole older version of the same (ns, id).

        Raises `InvalidEventError` that names the field before anything is sent, and `UnavailableError`, after
        which the outcome is unknown and the same call may be repeated (see the class).
        """
        return (await self.send([self.encode(memory)]))[0]

    async def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in their order, in few round trips; each has the fields of `write`.

        All are checked before the first is sent: `InvalidEventError` names index and field
        (`memories[3].importance`). After an `UnavailableError` some may be on the stream; repeat all.
        """
        return await self.send(self._encode_many(memories))

    async def delete(self, id: str, *, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; that there is none is no error. Errors as in `write`."""
        return (await self.send([self._encode_delete(id, ns)]))[0]

    async def send(self, events: Sequence[EncodedEvent]) -> list[Accepted]:
        """Append encoded events in their order, a bounded number a round trip."""
        accepted: list[Accepted] = []
        for chunk in _chunks(events):
            accepted += _accepted(chunk, await self._append([self._command(event) for event in chunk]))
        return accepted

    async def _append(self, commands: list[list[str | bytes]]) -> list[Any]:
        if (database := self._database) is None:
            raise RuntimeError("the producer is not open: use `async with Producer(url) as producer`")
        async with self._turns:
            with translated_errors():
                if len(commands) == 1:
                    return [await database.execute_command(*commands[0])]
                pipeline: Any = database.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                # The pipeline's own raising would put the beginning of the payload into the message.
                return _unraised(await pipeline.execute(raise_on_error=False))


class SyncProducer(_Encoding):
    """`Producer` without asyncio, on blocking sockets; safe to share between threads.

    Open it with `with SyncProducer(url) as producer` or `SyncProducer.connect(url)`. It sends the same bytes and
    promises the same as `Producer`.
    """

    _database: BlockingDatabase | None = None

    @classmethod
    def connect(cls, url: str | None = None, *, stream: str | None = None, settings: Settings | None = None) -> Self:
        """Give an open producer, to be closed with `close`. Errors: see `open`."""
        producer = cls(url, stream=stream, settings=settings)
        producer.open()
        return producer

    def open(self) -> None:
        """Connect. Raises `ServerNotFoundError` without a URL, `SettingsError` for a bad one, `UnavailableError`."""
        if self._database is None:
            self._database = connect_blocking(self.settings)
            self._turns = threading.BoundedSemaphore(self.settings.max_pool)

    def close(self) -> None:
        """Close the connections; the producer can be opened again."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory; see `Producer.write`."""
        return self.send([self.encode(memory)])[0]

    def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in their order, in few round trips; see `Producer.write_many`."""
        return self.send(self._encode_many(memories))

    def delete(self, id: str, *, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; see `Producer.delete`."""
        return self.send([self._encode_delete(id, ns)])[0]

    def send(self, events: Sequence[EncodedEvent]) -> list[Accepted]:
        """Append encoded events in their order, a bounded number a round trip."""
        accepted: list[Accepted] = []
        for chunk in _chunks(events):
            accepted += _accepted(chunk, self._append([self._command(event) for event in chunk]))
        return accepted

    def _append(self, commands: list[list[str | bytes]]) -> list[Any]:
        if (database := self._database) is None:
            raise RuntimeError("the producer is not open: use `with SyncProducer(url) as producer`")
        with self._turns, translated_errors():
            if len(commands) == 1:
                execute: Any = database.execute_command
                return [execute(*commands[0])]
            pipeline: Any = database.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return _unraised(pipeline.execute(raise_on_error=False))


def _chunks(events: Sequence[EncodedEvent]) -> Iterator[list[EncodedEvent]]:
    """Split into round trips of bounded number and size."""
    chunk: list[EncodedEvent] = []
    size = 0
    for event in events:
        if chunk and (len(chunk) == PIPELINE_EVENTS or size + event.size() > PIPELINE_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(event)
        size += event.size()
    if chunk:
        yield chunk


def _accepted(events: Sequence[EncodedEvent], entries: Sequence[Any]) -> list[Accepted]:
    return [Accepted(event.id, event.ns, entry.decode()) for event, entry in zip(events, entries, strict=True)]


def _unraised(replies: list[Any]) -> list[Any]:
    """Raise the first error among the replies of a pipeline, as the server gave it."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
