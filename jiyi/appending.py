"""What both producers share: options, checked and encoded events, and round trips of bounded size; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import msgspec
import redis
from redis.asyncio import RedisCluster

from jiyi import confirmation, events
from jiyi.backlog import Backlog
from jiyi.errors import InvalidEventError
from jiyi.events import Accepted
from jiyi.memories import DEFAULT_NAMESPACE, Memory, new_id, parse_id, parse_namespace
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jiyi.connections import BlockingDatabase, Database

PIPELINE_EVENTS = 500
"""Most events of one round trip: its time is then spread thin over them."""
PIPELINE_BYTES = 1_048_576
"""Most bytes of one round trip (a single larger event travels alone), so that large memories do not pile up."""


Confirm = Literal["accepted", "fsync", "replicated"]
"""What a write waits for: the stream, then also the server's disk (WAITAOF), or a replica (WAIT)."""
WhenFull = Literal["raise", "wait"]
"""What a write does while more events wait for workers than `JIYI_MAX_BACKLOG`."""


class EncodedEvent(NamedTuple):
    """A checked event and the fields of its stream entry."""

    id: str
    ns: str
    fields: dict[str, bytes]
    deletes: bool = False

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
    return EncodedEvent(
        memory_id, ns, events.encode_write(memory_id, ns, Memory.from_fields(fields, max_content_bytes))
    )


class ProducerOptions(TypedDict, total=False):
    """Options of a producer; see `Producer`."""

    stream: str | None
    confirm: Confirm | None
    when_full: WhenFull
    settings: Settings | None


class Appending:
    """What both producers share: settings, and everything up to the command that is sent."""

    def __init__(
        self,
        url: str | None = None,
        *,
        stream: str | None = None,
        confirm: Confirm | None = None,
        when_full: WhenFull = "raise",
        settings: Settings | None = None,
    ) -> None:
        base = Settings.from_environment() if settings is None else settings
        self.settings = msgspec.structs.replace(
            base,
            redis_url=base.redis_url if url is None else url,
            stream=base.stream if stream is None else stream,
            confirm=base.confirm if confirm is None else confirm,
        )
        self._waits = when_full == "wait"
        self._backlog = Backlog(self.settings.max_backlog)
        self._confirmation = confirmation.command(self.settings)

    def encode(self, memory: Mapping[str, Any]) -> EncodedEvent:
        """Check and encode one memory without sending it; see `encode`."""
        return encode(memory, self.settings.max_content_bytes)

    def encode_many(self, memories: Iterable[Mapping[str, Any]]) -> list[EncodedEvent]:
        """Check and encode memories; an error names index and field (`memories[3].importance`)."""
        encoded = []
        for i, memory in enumerate(memories):
            try:
                encoded.append(self.encode(memory))
            except InvalidEventError as error:
                message = str(error).removeprefix(f"{error.field}: ")
                field = f"memories[{i}].{error.field}" if error.field else f"memories[{i}]"
                raise InvalidEventError(error.code, field, message) from None
        return encoded

    @staticmethod
    def encode_delete(memory_id: str, ns: str) -> EncodedEvent:
        """Check and encode a delete."""
        memory_id, ns = parse_id(memory_id), parse_namespace(ns)
        return EncodedEvent(memory_id, ns, events.encode_delete(memory_id, ns), deletes=True)

    def command(self, event: EncodedEvent) -> list[str | bytes]:
        """Give the command that appends an event."""
        command: list[str | bytes] = ["XADD", self.settings.stream, "*"]
        for name, value in event.fields.items():
            command += (name, value)
        return command


def node_of(database: Database | BlockingDatabase, stream: str) -> dict[str, Any]:
    """Name the node of a cluster that holds the stream: a command without keys has to go there."""
    if isinstance(database, RedisCluster | redis.RedisCluster):
        return {"target_nodes": database.get_node_from_key(stream)}
    return {}


def chunks(events: Sequence[EncodedEvent]) -> Iterator[list[EncodedEvent]]:
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


def as_accepted(events: Sequence[EncodedEvent], entries: Sequence[Any]) -> list[Accepted]:
    """Name what is on the stream now."""
    return [Accepted(event.id, event.ns, entry.decode()) for event, entry in zip(events, entries, strict=True)]


def unraised(replies: list[Any]) -> list[Any]:
    """Raise the first error among the replies of a pipeline, as the server gave it."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
