"""`SyncProducer`: append events to the stream on blocking sockets."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jiyi import confirmation, scripts
from jiyi.appending import Appending, as_accepted, chunks, node_of, unraised
from jiyi.backlog import CHUNKS_PER_LOOK, WAIT_S
from jiyi.connections import connect_blocking, translated_errors
from jiyi.errors import UnavailableError
from jiyi.memories import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from jiyi.appending import EncodedEvent, ProducerOptions
    from jiyi.connections import BlockingDatabase
    from jiyi.events import Accepted
    from jiyi.memories import MemoryFields

_NOT_OPEN = "the producer is not open: use `with SyncProducer(url) as producer`"


class SyncProducer(Appending):
    """`Producer` without asyncio, on blocking sockets; safe to share between threads.

    Open it with `with SyncProducer(url) as producer` or `SyncProducer.connect(url)`. It sends the same bytes and
    promises the same as `Producer`.
    """

    _database: BlockingDatabase | None = None

    @classmethod
    def connect(cls, url: str | None = None, **options: Unpack[ProducerOptions]) -> Self:
        """Give an open producer, to be closed with `close`. Errors: see `open`."""
        producer = cls(url, **options)
        producer.open()
        return producer

    def open(self) -> None:
        """Connect; errors as in `Producer.open`."""
        if self._database is None:
            self._database = connect_blocking(self.settings)
            self._turns = threading.BoundedSemaphore(self.settings.max_pool)
            try:
                self._probe(self._database)
            except BaseException:
                self.close()
                raise

    def _probe(self, database: BlockingDatabase) -> None:
        if self._confirmation is not None:
            try:
                with translated_errors():
                    execute: Any = database.execute_command
                    execute(*self._confirmation, **node_of(database, self.settings.stream))
            except ResponseError as error:
                raise confirmation.refuse(self.settings, error) from None

    def close(self) -> None:
        """Close the connections; the producer can be opened again.

        Waits for what other threads are sending. What they have left then raises `RuntimeError`.
        """
        database, self._database = self._database, None
        if database is not None:
            with ExitStack() as turns:
                for _ in range(self.settings.max_pool):
                    turns.enter_context(self._turns)
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
        return self.send(self.encode_many(memories))

    def delete(self, id: str, *, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; see `Producer.delete`."""
        return self.send([self.encode_delete(id, ns)])[0]

    def send(self, events: Sequence[EncodedEvent]) -> list[Accepted]:
        """Append encoded events in their order; see `Producer.send`."""
        if (database := self._database) is None:
            raise RuntimeError(_NOT_OPEN)
        accepted: list[Accepted] = []
        for i, chunk in enumerate(chunks(events)):
            if i % CHUNKS_PER_LOOK == 0:
                self._wait_for_room(database, chunk, len(accepted))
            accepted += as_accepted(chunk, self._append(database, chunk))
            self._backlog.appended(len(chunk))
        return accepted

    @contextmanager
    def _turn(self, database: BlockingDatabase) -> Iterator[None]:
        """Context of a call to the server: there are no more at once than connections."""
        with self._turns:
            if self._database is not database:
                raise RuntimeError(_NOT_OPEN)
            yield

    def _wait_for_room(self, database: BlockingDatabase, chunk: Sequence[EncodedEvent], written: int) -> None:
        backlog, count = self._backlog, sum(not event.deletes for event in chunk)
        execute: Any = database.execute_command
        while count and backlog.must_look(count):
            with self._turn(database), translated_errors():
                backlog.looked(execute("XLEN", self.settings.stream))
            if backlog.has_room():
                break
            if not self._waits:
                raise backlog.full(written)
            time.sleep(WAIT_S)

    def _append(self, database: BlockingDatabase, chunk: Sequence[EncodedEvent]) -> list[Any]:
        with self._turn(database):
            try:
                with translated_errors():
                    execute: Any = database.execute_command
                    if len(chunk) == 1 and self._confirmation is None:
                        return [execute(*self.command(chunk[0]))]
                    return self._append_many(database, chunk)
            except UnavailableError as error:
                if error.code != "oom" or not all(event.deletes for event in chunk):
                    raise
                script = scripts.load("append_delete").source
                flat = [[part for pair in event.fields.items() for part in pair] for event in chunk]
                with translated_errors():
                    return [execute("EVAL", script, 1, self.settings.stream, *fields) for fields in flat]

    def _append_many(self, database: BlockingDatabase, chunk: Sequence[EncodedEvent]) -> list[Any]:
        pipeline: Any = database.pipeline(transaction=False)
        for event in chunk:
            pipeline.execute_command(*self.command(event))
        node = node_of(database, self.settings.stream)
        if self._confirmation is not None:
            pipeline.execute_command(*self._confirmation, **node)
        replies = pipeline.execute(raise_on_error=False)
        entries = unraised(replies[: len(chunk)])
        if self._confirmation is not None:
            moved = node != node_of(database, self.settings.stream)
            confirmation.require(self.settings, 0 if moved else replies[-1], [entry.decode() for entry in entries])
        return entries
