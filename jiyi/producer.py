"""`Producer`: append write and delete events to the stream from asyncio. `SyncProducer` is its twin without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from redis.exceptions import ResponseError

from jiyi import confirmation, scripts
from jiyi.appending import Appending, as_accepted, chunks, node_of, unraised
from jiyi.backlog import CHUNKS_PER_LOOK, WAIT_S
from jiyi.connections import connect, translated_errors
from jiyi.errors import UnavailableError
from jiyi.events import Accepted
from jiyi.memories import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from jiyi.appending import EncodedEvent, ProducerOptions
    from jiyi.connections import Database
    from jiyi.memories import MemoryFields

__all__ = ["Accepted", "Producer"]


class Producer(Appending):
    """Appends events to the stream. Open it with `async with Producer(url)` or `await Producer.connect(url)`.

    `url` is that of Redis or Valkey, one server or any node of a cluster; without it `JIYI_REDIS_URL` counts,
    as `JIYI_STREAM` does for `stream`. One producer serves any number of concurrent tasks.

    `confirm` says what a write waits for beyond the stream: "accepted" (nothing), "fsync" (the server has it on disk),
    "replicated" (a replica has it). `when_full` says what it does while workers are too far behind: "raise"
    `BacklogFullError`, or "wait". Deletes are never held back, and are accepted also while the server's memory is full.

    When a call raises `UnavailableError`, its outcome is unknown: the events may be on the stream or not.
    Repeating the call is harmless, since an identical rewrite changes nothing but the version of the memory.
    Two things to know: a write without `id` makes a new id, and so a second memory, at every call (give the id;
    `jiyi.memories.new_id()` makes one); and the repeat is a newer version than what others have written meanwhile.
    """

    _database: Database | None = None

    @classmethod
    async def connect(cls, url: str | None = None, **options: Unpack[ProducerOptions]) -> Self:
        """Give an open producer, to be closed with `aclose`. Errors: see `open`."""
        producer = cls(url, **options)
        await producer.open()
        return producer

    async def open(self) -> None:
        """Connect. Raises `ServerNotFoundError` without a URL, `SettingsError` for a bad one, `UnavailableError`.

        `SettingsError` also when the server cannot confirm in the way that is asked for.
        """
        if self._database is None:
            self._database = await connect(self.settings)
            # A cluster client raises when its pool is full; callers shall wait for each other instead.
            self._turns = anyio.CapacityLimiter(self.settings.max_pool)
            try:
                await self._probe(self._database)
            except BaseException:
                await self.aclose()
                raise

    async def _probe(self, database: Database) -> None:
        """Ask for a confirmation of nothing: what cannot be confirmed shall be known before the first write."""
        if self._confirmation is not None:
            try:
                with translated_errors():
                    await database.execute_command(*self._confirmation, **node_of(database, self.settings.stream))
            except ResponseError as error:
                raise confirmation.refuse(self.settings, error) from None

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
        return await self.send(self.encode_many(memories))

    async def delete(self, id: str, *, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; that there is none is no error. Errors as in `write`."""
        return (await self.send([self.encode_delete(id, ns)]))[0]

    async def send(self, events: Sequence[EncodedEvent]) -> list[Accepted]:
        """Append encoded events in their order, a bounded number a round trip.

        Raises `BacklogFullError` and `NotConfirmedError` besides the errors of `write_many`.
        """
        if (database := self._database) is None:
            raise RuntimeError("the producer is not open: use `async with Producer(url) as producer`")
        accepted: list[Accepted] = []
        for i, chunk in enumerate(chunks(events)):
            if i % CHUNKS_PER_LOOK == 0:
                await self._wait_for_room(database, chunk, len(accepted))
            accepted += as_accepted(chunk, await self._append(database, chunk))
            self._backlog.appended(len(chunk))
        return accepted

    async def _wait_for_room(self, database: Database, chunk: Sequence[EncodedEvent], written: int) -> None:
        backlog, count = self._backlog, sum(not event.deletes for event in chunk)
        while count and backlog.must_look(count):
            async with self._turns:
                with translated_errors():
                    backlog.looked(await database.execute_command("XLEN", self.settings.stream))
            if backlog.has_room():
                break
            if not self._waits:
                raise backlog.full(written)
            await anyio.sleep(WAIT_S)

    async def _append(self, database: Database, chunk: Sequence[EncodedEvent]) -> list[Any]:
        async with self._turns:
            try:
                with translated_errors():
                    if len(chunk) == 1 and self._confirmation is None:
                        return [await database.execute_command(*self.command(chunk[0]))]
                    return await self._append_many(database, chunk)
            except UnavailableError as error:
                if error.code != "oom" or not all(event.deletes for event in chunk):
                    raise
                return [await scripts.append_delete(database, self.settings.stream, event.fields) for event in chunk]

    async def _append_many(self, database: Database, chunk: Sequence[EncodedEvent]) -> list[Any]:
        """Append in one round trip, and wait for the confirmation on the same connection."""
        pipeline: Any = database.pipeline(transaction=False)
        for event in chunk:
            pipeline.execute_command(*self.command(event))
        node = node_of(database, self.settings.stream)
        if self._confirmation is not None:
            pipeline.execute_command(*self._confirmation, **node)
        # The pipeline's own raising would put the beginning of the payload into the message.
        replies = await pipeline.execute(raise_on_error=False)
        entries = unraised(replies[: len(chunk)])
        if self._confirmation is not None:
            moved = node != node_of(database, self.settings.stream)  # then the wrong node was asked
            confirmation.require(self.settings, 0 if moved else replies[-1], [entry.decode() for entry in entries])
        return entries
