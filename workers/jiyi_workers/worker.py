"""One worker process: a consumer of the group, from start to drained end."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from redis.exceptions import ResponseError

from jiyi import metrics, scripts
from jiyi.analysis import Analyzer
from jiyi.conditions import check_server
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.index import IndexWriter
from jiyi.logs import get_logger
from jiyi.streams import START, EventStream, Group
from jiyi_workers.compactor import Compactor
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline
from jiyi_workers.relief import Relief
from jiyi_workers.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database
    from jiyi.settings import Settings
    from jiyi.streams import Entry

BATCHES_IN_FLIGHT = 3
"""One waits for Redis, one has its calls ready, one is analysed; more would only lengthen the takeover of a crash."""
_GROUP_IS_GONE = {"NOGROUP", "UNBLOCKED"}
"""Error codes of a read whose stream or group was deleted; Redis has a code of its own if it waits meanwhile."""
_BACK_OFF_S = 0.1
_BACK_OFF_MOST_S = 5.0
_DOUBLINGS = 10
"""Enough to reach the longest pause; without a bound a long outage would overflow."""

log = get_logger()


class _StoppedEarly(Exception):  # noqa: N818 - not an error
    """Told to stop before there was a server to work with."""


class Worker:
    """Reads, applies, takes over and keeps house until `stop` is called, then drains."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._watchdog = Watchdog(settings.document_timeout_ms / 1000)
        self._stopping = anyio.Event()
        self._slots = anyio.Semaphore(BATCHES_IN_FLIGHT)
        self._recover = False  # something failed: what we hold has to be read again
        self._failures = 0

    def stop(self) -> None:
        """Stop reading; what has been read is finished. Call it from the event loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped. Raises `AnalyzerMismatchError` and `UnsafeServerError`; waits out everything else."""
        settings = self._settings
        analyzer = Analyzer.from_settings(settings)
        await anyio.to_thread.run_sync(analyzer.warm_up)
        if (report := await anyio.to_thread.run_sync(analyzer.check_dictionary)).not_whole:
            log.warning("user_dictionary", message=str(report))
        scripts.load_all()
        async with AsyncExitStack() as stack:
            stack.enter_context(suppress(_StoppedEarly))
            database = await self._connected(stack, 0)
            reading = await self._connected(stack, settings.block_ms)
            await self._check_server(database)
            self._blocking = EventStream(reading, settings.stream, settings.group)
            self._stream = EventStream(database, settings.stream, settings.group)
            self._pipeline = Pipeline(database, self._stream, analyzer, settings, self._watchdog.watching)
            self._compactor = Compactor(database, self.consumer)
            self._housekeeping = Housekeeping(database, self._stream, analyzer.fingerprint, settings, self._compactor)
            self._relief = Relief(self._stream, IndexWriter(database, analyzer.fingerprint), settings)
            await self._ensure_group()
            log.info("worker_started", consumer=self.consumer, analyzer=analyzer.fingerprint)
            await self._work()
            await self._leave(database)

    async def _connected(self, stack: AsyncExitStack, block_ms: int) -> Database:
        while True:
            if self._stopping.is_set():
                raise _StoppedEarly
            try:
                database = await connect(self._settings, block_ms=block_ms)
            except (UnavailableError, ResponseError) as error:
                await self._back_off(error)
            else:
                stack.push_async_callback(database.aclose)
                return database

    async def _check_server(self, database: Database) -> None:
        """Wait for a server that can be written to. Raises `UnsafeServerError` for one that would damage the index."""
        while not self._stopping.is_set():
            try:
                found = await check_server(database)
            except (UnavailableError, ResponseError) as error:
                await self._back_off(error)
            else:
                for condition in found:
                    log.warning("server_condition", condition=condition.name, message=condition.message)
                return
        raise _StoppedEarly

    async def _work(self) -> None:
        async with anyio.create_task_group() as tasks:
            sweeping, compacting = anyio.CancelScope(), anyio.CancelScope()
            tasks.start_soon(self._sweep, sweeping)
            tasks.start_soon(self._compactor.run, compacting)
            async with anyio.create_task_group() as batches:
                while not self._stopping.is_set():
                    await self._slots.acquire()
                    entries = [] if self._stopping.is_set() else await self._read()
                    if entries:
                        batches.start_soon(self._process, entries)
                    else:
                        self._slots.release()
            sweeping.cancel()
            compacting.cancel()

    async def _read(self) -> list[Entry]:
        """Read the next batch; nothing when there is none, or when something failed (then after a pause)."""
        settings = self._settings
        recovering = self._recover
        try:
            if recovering:
                await self._process_own()
            entries = await self._blocking.read_new(self.consumer, settings.batch, settings.block_ms)
        except UnavailableError as error:
            self._recover = True
            await self._back_off(error)
        except ResponseError as error:
            if gone := str(error).partition(" ")[0] in _GROUP_IS_GONE:
                log.warning("group_missing", stream=settings.stream, group=settings.group)
            self._recover = True
            await self._back_off(error)
            if gone:
                await self._ensure_group(missing=True)
        else:
            self._failures = 0
            if recovering:
                log.info("redis_available")
            return entries
        return []

    async def _process(self, entries: Sequence[Entry]) -> None:
        try:
            await self._finish(entries)
        finally:
            self._slots.release()

    async def _finish(self, entries: Sequence[Entry]) -> None:
        """Process entries, again while Redis is away; when stopped meanwhile, another worker takes them over.

        What we hold is renewed, so that an outage does not count as failed deliveries of innocent entries.
        """
        while True:
            try:
                await self._pipeline.process(entries)
            except UnavailableError as error:
                await self._back_off(error)
                if self._stopping.is_set():
                    return
                with suppress(UnavailableError, ResponseError):
                    await self._stream.renew(self.consumer, [entry.id for entry in entries])
                    while error.code == "oom" and await self._relief.step():
                        pass
            else:
                return

    async def _process_own(self) -> None:
        """Read our own history again: an answer of Redis may have been lost together with what it delivered."""
        self._recover = False
        after = START
        while entries := await self._blocking.read_own(self.consumer, self._settings.batch, after):
            after = entries[-1].id
            for entry in entries:
                await self._process_alone(entry)

    async def _process_alone(self, entry: Entry) -> None:
        """Process an entry that was delivered before, by itself: if it kills us, its neighbours do not suffer."""
        if not entry.fields:
            self._name_lost([entry.id])
            await self._stream.give_up([entry.id])
            return
        deliveries = await self._stream.deliveries(entry.id)
        if deliveries > self._settings.max_deliveries:
            reason = f"was delivered {deliveries} times without success"
            await self._pipeline.bury(entry, "max_deliveries", reason, deliveries)
        elif deliveries:
            await self._finish([entry])

    async def _sweep(self, scope: anyio.CancelScope) -> None:
        """Take over what dead workers left, and keep house, every `sweep_ms`."""
        with scope:
            while True:
                await anyio.sleep(self._settings.sweep_ms / 1000)
                try:
                    with anyio.CancelScope(shield=True):
                        await self._take_over()
                        await self._housekeeping.sweep(self.consumer)
                except (UnavailableError, ResponseError) as error:
                    metrics.WORKER_ERRORS.labels(_code(error)).inc()
                    log.warning("sweep_failed", error=str(error))

    async def _take_over(self) -> None:
        cursor = START
        while not self._stopping.is_set():
            claim = await self._stream.claim(self.consumer, self._settings.claim_idle_ms, cursor, 1)
            cursor = claim.cursor
            self._name_lost(claim.deleted)
            for entry in claim.entries:
                metrics.CLAIMED.inc()
                await self._process_alone(entry)
            if cursor == START:
                return

    def _name_lost(self, entries: Sequence[str]) -> None:
        """Name pending entries that somebody removed from the stream; the sweep of the stream counts them."""
        for entry in entries:
            log.error("event_lost", entry=entry, reason="removed from the stream before it was applied")

    async def _back_off(self, error: Exception) -> None:
        metrics.WORKER_ERRORS.labels(_code(error)).inc()
        pause_s = min(_BACK_OFF_MOST_S, _BACK_OFF_S * 2 ** min(self._failures, _DOUBLINGS))
        self._failures += 1
        log.warning("redis_unavailable", error=str(error), pause_s=pause_s)
        with anyio.move_on_after(pause_s):
            await self._stopping.wait()

    async def _ensure_group(self, *, missing: bool = False) -> None:
        """Make sure of the group; `missing` says that it was there before."""
        while not self._stopping.is_set():
            try:
                found = await self._stream.ensure_group()
            except (UnavailableError, ResponseError) as error:
                await self._back_off(error)
                continue
            if found is Group.AGAIN or (missing and found is Group.NEW):
                metrics.WIPES.labels("group").inc()
                log.error(
                    "group_wiped",
                    stream=self._settings.stream,
                    group=self._settings.group,
                    reason="somebody removed the group, the stream or all keys; it is made again and reads from the "
                    "beginning. Events that were on a removed stream and not processed are lost: write them again",
                )
            elif found is Group.NEW:
                log.info("group_created", stream=self._settings.stream, group=self._settings.group)
            return

    async def _leave(self, database: Database) -> None:
        """Take our name out of the group, unless it still holds something."""
        with anyio.move_on_after(1):
            try:
                await scripts.remove_consumer(
                    database, self._settings.stream, self._settings.group, self.consumer, idle_ms=0
                )
            except (UnavailableError, ResponseError) as error:
                log.warning("consumer_kept", error=str(error))
        log.info("worker_stopped", consumer=self.consumer)


def _code(error: Exception) -> str:
    """Give a label for metrics: few, stable words."""
    return error.code if isinstance(error, UnavailableError) else "refused"
