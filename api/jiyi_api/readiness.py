"""Readiness: whether a memory, or one version of it, can be found yet, and waiting until it can."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
from redis.exceptions import RedisError

from jiyi import keys, scripts
from jiyi.connections import translated_errors
from jiyi.errors import InvalidEventError, UnavailableError
from jiyi.events import decode_event, identify, parse_entry
from jiyi.logs import get_logger
from jiyi.memories import format_time
from jiyi_api.damage import reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jiyi.connections import Database
    from jiyi.streams import EventStream

State = Literal["ready", "pending", "deleted", "failed", "unknown"]
_POLL_S = 0.25
"""A wake-up can be lost (publish/subscribe promises nothing), so waiters also look by themselves."""

log = get_logger()


class Readiness(msgspec.Struct, rename="camel"):
    """The answer for one memory. `entry` is the applied version; `reason` tells what people should know."""

    id: str
    ready: bool
    state: State
    indexed_at: str | None = None
    entry: str | None = None
    reason: str | None = None


class ReadinessReader:
    """Answers from what Redis holds at that moment; keeps no state of its own."""

    def __init__(self, database: Database, stream: EventStream, max_content_bytes: int) -> None:
        self._database = database
        self._stream = stream
        self._max_content_bytes = max_content_bytes
        self.wakeups = Wakeups(database)

    async def ready(self, ns: str, asked: Sequence[tuple[str, str | None]], wait_s: float) -> list[Readiness]:
        """Answer for (id, entry) pairs, waiting up to `wait_s` until each is ready, deleted or failed.

        With an entry, `ready` means that it or a later version of the memory is in the index, so that any
        query to the same primary sent after this answer sees it. Without, it speaks of the newest applied
        version only.
        """
        deadline = anyio.current_time() + wait_s
        with self.wakeups.listening(ns, [memory_id for memory_id, _ in asked]) as woken:
            while True:
                woken.clear()
                answers = await self._look(ns, asked)
                left_s = deadline - anyio.current_time()
                if left_s <= 0 or all(answer.state in ("ready", "deleted", "failed") for answer in answers):
                    return answers
                with anyio.move_on_after(min(_POLL_S, left_s)):
                    await woken.wait()

    async def _look(self, ns: str, asked: Sequence[tuple[str, str | None]]) -> list[Readiness]:
        answers = await self._applied(ns, asked)
        waiting = {
            i for i, ((_, entry), answer) in enumerate(zip(asked, answers, strict=True))
            if entry is not None and answer.state == "unknown"
        }  # fmt: skip
        if not waiting:
            return answers
        # Not applied when we looked: ask the stream, then look again, for it may be applied by now.
        pending = {i for i in waiting if await self._in_stream(ns, asked[i][0], asked[i][1] or "")}
        again = await self._applied(ns, asked)
        for i in pending:
            if again[i].state == "unknown":
                again[i].state, again[i].reason = "pending", "accepted, not applied yet"
        return again

    async def _applied(self, ns: str, asked: Sequence[tuple[str, str | None]]) -> list[Readiness]:
        rows = await scripts.read_readiness(self._database, ns, [memory_id for memory_id, _ in asked])
        with reading("the stored memory"):
            return [
                _judge(memory_id, entry, [None if value is None else value.decode() for value in row])
                for (memory_id, entry), row in zip(asked, rows, strict=True)
            ]
        raise AssertionError  # the context swallows nothing; the type checker cannot know

    async def _in_stream(self, ns: str, memory_id: str, entry: str) -> bool:
        """Tell whether an entry of this very memory waits in the stream."""
        found = await self._stream.get(entry)
        if found is None:
            return False
        try:
            event = decode_event(found.id, found.fields, self._max_content_bytes)
            named: tuple[str, str | None] = (event.ns, event.id)
        except InvalidEventError:
            named = identify(found.fields)  # as its dead letter will be filed
        return named == (ns, memory_id) and await self._stream.is_unprocessed(entry)


def _judge(memory_id: str, asked: str | None, row: Sequence[str | None]) -> Readiness:
    applied, indexed_at, deleted_at, expires_at, letter = row
    answer = Readiness(memory_id, ready=False, state="unknown", entry=applied)
    dead_entry, _, reason = (letter or "").partition(" ")
    if asked is not None and (applied is None or parse_entry(applied) < parse_entry(asked)):
        if dead_entry == asked:
            answer.state, answer.reason = "failed", reason
        elif dead_entry and parse_entry(dead_entry) > parse_entry(asked):
            answer.reason = f"not applied; a later event of this memory failed: {reason}"
        return answer
    if asked is None and dead_entry and (applied is None or parse_entry(applied) < parse_entry(dead_entry)):
        answer.state, answer.reason = "failed", reason
    elif deleted_at is not None:
        answer.state, answer.indexed_at = "deleted", format_time(int(deleted_at))
    elif applied is not None and expires_at is not None and int(expires_at) <= time.time_ns() // 10**6:
        answer.state, answer.reason = "deleted", "expired"
    elif applied is not None:
        answer.state, answer.ready = "ready", True
        answer.indexed_at = format_time(int(indexed_at or 0))
    return answer


class Wakeups:
    """Wakes those who wait for a memory when a batch that names it has been applied."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: dict[tuple[str, str], set[Waiter]] = {}
        self._wanted = anyio.Event()

    @contextmanager
    def listening(self, ns: str, ids: Sequence[str]) -> Iterator[Waiter]:
        """Context in which a waiter is woken by every applied batch that names one of the ids."""
        waiter = Waiter()
        names = [(keys.applied_channel(ns), memory_id) for memory_id in ids]
        for name in names:
            self._waiters.setdefault(name, set()).add(waiter)
        self._wanted.set()
        try:
            yield waiter
        finally:
            for name in names:
                waiters = self._waiters.get(name, set())
                waiters.discard(waiter)
                if not waiters:
                    self._waiters.pop(name, None)

    async def run(self) -> None:
        """Listen while anybody waits; until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self._listen()
            except (RedisError, OSError, UnavailableError) as error:
                log.warning("wakeups_interrupted", error=type(error).__name__)
                await anyio.sleep(_POLL_S)

    async def _listen(self) -> None:
        pubsub = self._database.pubsub(ignore_subscribe_messages=True)
        try:
            with translated_errors():  # in a cluster it has to find a node, with all that can come of that
                await pubsub.psubscribe(keys.APPLIED_PATTERN)
            while self._waiters:
                with translated_errors():
                    message = await pubsub.get_message(timeout=1.0)
                if message is not None:
                    # Anybody may publish anything under this name.
                    channel, ids = (message[part].decode(errors="replace") for part in ("channel", "data"))
                    self._wake(channel, ids.split("\n"))
            self._wanted = anyio.Event()
            if self._waiters:
                self._wanted.set()
        finally:
            with anyio.CancelScope(shield=True), suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _wake(self, channel: str, ids: Sequence[str]) -> None:
        for memory_id in ids:
            for waiter in self._waiters.get((channel, memory_id), ()):
                waiter.set()


class Waiter:
    """An event that can be cleared: set by wake-ups, cleared before each look."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the waiter."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier wake-ups."""
        if self._event.is_set():
            self._event = anyio.Event()

    async def wait(self) -> None:
        """Wait for the next wake-up."""
        await self._event.wait()
