"""What workers do beside the stream: trim it, forget tombstones, expire memories, drop idle consumers, measure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from jiyi import keys, metrics, scripts
from jiyi.conditions import server_conditions
from jiyi.connections import execute
from jiyi.errors import CorruptIndexError, InvalidEventError
from jiyi.events import parse_entry
from jiyi.index import IndexWriter
from jiyi.logs import get_logger
from jiyi.packing import Change

if TYPE_CHECKING:
    from jiyi.connections import Database
    from jiyi.settings import Settings
    from jiyi.streams import EventStream
    from jiyi_workers.compactor import Compactor

_NAMESPACES_PER_SWEEP = 100
_PER_NAMESPACE = 500
_CONSUMER_IDLE_MS = 60_000
"""A consumer that holds nothing and has not been heard of for a minute, many times the longest block of a read.

Should its process live after all, its next read or sweep makes the name again.
"""

log = get_logger()


class Housekeeping:
    """One sweep at a time, over a bounded number of namespaces; every worker may do it at once."""

    def __init__(
        self,
        database: Database,
        stream: EventStream,
        analyzer: str,
        settings: Settings,
        compactor: Compactor | None = None,
    ) -> None:
        self._database = database
        self._compactor = compactor
        self._stream = stream
        self._settings = settings
        self._writer = IndexWriter(database, analyzer)
        self._consumer_idle_ms = max(_CONSUMER_IDLE_MS, 10 * settings.block_ms)
        self._cursor = 0
        self._letters = 0  # dead letters seen in this pass over the namespaces

    async def sweep(self, consumer: str | None = None) -> None:
        """Do one round, and keep the name of the worker whose round it is in the list of consumers."""
        now_ms = time.time_ns() // 10**6
        state = await self._stream.state(now_ms)
        if state is None:
            return
        metrics.publish_state(state)
        await self._sweep_stream()
        for ns in await self._next_namespaces():
            try:
                await self._expire(ns, now_ms)
                await self._forget(ns, state.floor)
                await self._count_letters(ns)
                if self._compactor is not None:
                    await self._compactor.look(ns)
            except (ResponseError, CorruptIndexError, InvalidEventError, ValueError) as error:
                # Damage in one namespace, be it of another type or unreadable, must not keep the others untidy.
                log.exception("sweep_refused", ns=ns, error=str(error))
                metrics.WORKER_ERRORS.labels("refused").inc()
        if self._cursor == 0:
            metrics.DEAD_LETTERS_KEPT.set(self._letters)
            self._letters = 0
        await self._tend_consumers(consumer)
        metrics.publish_conditions(await server_conditions(self._database))

    async def _sweep_stream(self) -> None:
        sweep = await self._stream.sweep()
        if sweep is not None and sweep.lost:
            metrics.EVENTS_LOST.labels("entries").inc(sweep.lost)
            log.error(
                "events_lost",
                count=sweep.lost,
                after=sweep.read,
                before=sweep.first or "the end of the stream",
                reason="somebody removed them from the stream (XTRIM, XDEL, MAXLEN) before they were processed",
            )

    async def _next_namespaces(self) -> list[str]:
        reply = await execute(self._database, "SSCAN", keys.NAMESPACES, self._cursor, "COUNT", _NAMESPACES_PER_SWEEP)
        self._cursor = int(reply[0])
        # A name that is no text is not ours: no namespace has it, nor what is made of it.
        return [raw.decode(errors="replace") for raw in reply[1]]

    async def _expire(self, ns: str, now_ms: int) -> None:
        """Delete what has expired, under its own version: a newer write of the memory wins."""
        ids = await self._range(keys.expiries_key(ns), now_ms)
        if not ids:
            return
        stored = await scripts.read_documents(self._database, ns, ids, ["entry", "expires_at"])
        changes = [
            Change(id=memory_id, version=entry.decode(), memory=None)
            for memory_id, (entry, expires_at) in zip(ids, stored, strict=True)
            if entry is not None and expires_at is not None and int(expires_at) <= now_ms
        ]
        await self._writer.apply(ns, changes, again=True)
        log.info("memories_expired", ns=ns, count=len(changes))

    async def _forget(self, ns: str, floor: str) -> None:
        """Drop tombstones that no older event can undermine any more."""
        ids = await self._range(keys.tombstones_key(ns), parse_entry(floor)[0])
        if not ids:
            return
        oldest_dead = await self._oldest_dead_letter(ns)
        if oldest_dead is not None and parse_entry(oldest_dead) < parse_entry(floor):
            floor = oldest_dead
        await scripts.drop_tombstones(self._database, ns, ids, floor=floor)

    async def _count_letters(self, ns: str) -> None:
        self._letters += int(await execute(self._database, "XLEN", keys.dead_key(ns)))

    async def _oldest_dead_letter(self, ns: str) -> str | None:
        """The oldest version that could be replayed, or is under way again."""
        versions = await execute(self._database, "HKEYS", keys.letters_key(ns))
        return min((version.decode() for version in versions), key=parse_entry, default=None)

    async def _range(self, key: str, up_to_ms: int) -> list[str]:
        reply = await execute(self._database, "ZRANGEBYSCORE", key, "-inf", up_to_ms, "LIMIT", 0, _PER_NAMESPACE)
        return [raw.decode() for raw in reply]

    async def _tend_consumers(self, own: str | None) -> None:
        consumers = await self._stream.consumers()
        heard_of = {consumer["name"] for consumer in consumers if consumer["idle"] <= self._consumer_idle_ms // 2}
        if own is not None and own.encode() not in heard_of:
            await self._stream.attend(own)
        for consumer in consumers:
            if consumer["pending"] == 0 and consumer["idle"] > self._consumer_idle_ms:
                await scripts.remove_consumer(
                    self._database,
                    self._stream.name,
                    self._settings.group,
                    consumer["name"],
                    idle_ms=self._consumer_idle_ms,
                )
