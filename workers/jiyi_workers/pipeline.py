"""What happens to a batch of entries: decode, analyse, apply per namespace, wake waiters, acknowledge."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import anyio
from redis.exceptions import ResponseError

from jiyi import keys, metrics, scripts
from jiyi.analysis import TooManyTerms
from jiyi.connections import execute
from jiyi.errors import CorruptIndexError, InvalidEventError, UnavailableError
from jiyi.events import Event, decode_event, identify, parse_entry, version_of
from jiyi.index import IndexWriter, Outcome
from jiyi.logs import get_logger, id_hash
from jiyi.packing import Change
from jiyi.scripts import Filing
from jiyi_workers.acknowledging import Acknowledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from jiyi.analysis import Analyzer
    from jiyi.connections import Database
    from jiyi.settings import Settings
    from jiyi.streams import Entry, EventStream

SLICE_CHARACTERS = 2_000
"""Text analysed between two turns of the event loop: two milliseconds, for which the server may have to wait."""
LONG_CHARACTERS = 8_000
"""A longer text is analysed in a thread, which costs more than it is worth for a shorter one."""
_NAMESPACES_AT_ONCE = 8

log = get_logger()


class Pipeline:
    """Takes entries of the stream to their end: applied, or filed as dead letter, and acknowledged after.

    `watching` gives a context in which each text is analysed (see `Watchdog`).

    Safe to run any number of times on the same entries, in any order and from any number of processes.
    """

    def __init__(
        self,
        database: Database,
        stream: EventStream,
        analyzer: Analyzer,
        settings: Settings,
        watching: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._database = database
        self._analyzer = analyzer
        self._settings = settings
        self._watching = watching
        self._acknowledger = Acknowledger(database, stream, settings)
        self._writer = IndexWriter(database, analyzer.fingerprint, observe=metrics.APPLY_SECONDS.observe)
        self._limiter = anyio.CapacityLimiter(_NAMESPACES_AT_ONCE)

    async def process(self, entries: Sequence[Entry]) -> None:
        """Process a batch.

        Raises `UnavailableError` when Redis was away for a part of it: that part stays pending, processing all of
        it again is right. Entries of a damaged namespace stay pending too, but raise nothing: they come back by
        takeover and end as dead letters. Raises `AnalyzerMismatchError` for an index of another analyzer.
        """
        metrics.BATCH_SIZE.observe(len(entries))
        events = await self._decode(entries)
        groups: dict[str, list[tuple[Event, Change]]] = {}
        for event, change in await self._analyse(events):
            groups.setdefault(event.ns, []).append((event, change))
        failures: list[UnavailableError] = []
        async with anyio.create_task_group() as tasks:
            for ns, group in groups.items():
                tasks.start_soon(self._apply, ns, group, failures)
        if failures:
            raise failures[0]

    async def bury(self, entry: Entry, code: str, reason: str, deliveries: int = 1) -> None:
        """File an entry as dead letter and acknowledge it. One that has been applied before is only acknowledged.

        Where the server refuses that (a damaged namespace, a group that is gone), the entry stays pending.
        """
        ns, memory_id = identify(entry.fields)
        server = self._acknowledger.server(ns)
        try:
            await self._file(entry, ns, memory_id, code, reason, deliveries)
            await self._acknowledger.acknowledge(ns, server, [entry.id])
        except ResponseError as error:
            log.exception("letter_refused", ns=ns, error=str(error), entry=entry.id)
            metrics.WORKER_ERRORS.labels("refused").inc()

    async def _file(  # noqa: PLR0913 - what `bury` was given, and whose it is
        self, entry: Entry, ns: str, memory_id: str | None, code: str, reason: str, deliveries: int
    ) -> None:
        await execute(self._database, "SADD", keys.NAMESPACES, ns)  # or nobody would find letters where nothing else is
        version = version_of(entry.id, entry.fields)
        filing = await scripts.dead_letter(
            self._database,
            ns,
            memory_id,
            version=version,
            code=code,
            reason=reason,
            now_ms=time.time_ns() // 10**6,
            deliveries=deliveries,
            fields=entry.fields,
        )
        names = {"entry": entry.id, "ns": ns, "id_hash": id_hash(ns, memory_id), "code": code, "reason": reason}
        if filing is not Filing.APPLIED_BEFORE:
            metrics.DEAD_LETTERS.labels(code).inc()
            metrics.EVENTS.labels("unknown", "dead").inc()
            log.warning("event_dead", **names)
        elif memory_id is not None:
            log.info("event_applied_before", **names)
            if version != entry.id:
                await scripts.settle_replay(self._database, ns, memory_id, version)
        await self._wake(ns, [memory_id] if memory_id is not None else [])

    async def _decode(self, entries: Sequence[Entry]) -> list[tuple[Entry, Event]]:
        events = []
        for entry in entries:
            try:
                events.append((entry, decode_event(entry.id, entry.fields, self._settings.max_content_bytes)))
            except InvalidEventError as error:
                await self.bury(entry, error.code, str(error))
        return events

    async def _analyse(self, events: Sequence[tuple[Entry, Event]]) -> list[tuple[Event, Change]]:
        started, changes, sliced = time.perf_counter(), [], 0
        for entry, event in events:
            change = Change(id=event.id, version=event.version, memory=event.memory)
            if event.memory is not None:
                text = event.memory.content
                if (sliced := sliced + len(text)) > SLICE_CHARACTERS:
                    await anyio.lowlevel.checkpoint()
                    sliced = len(text)
                try:
                    with self._watching():
                        if len(text) > LONG_CHARACTERS:
                            change.terms = await anyio.to_thread.run_sync(self._analyzer.terms, text)
                        else:
                            change.terms = self._analyzer.terms(text)
                except TooManyTerms as error:
                    await self.bury(entry, "too_many_terms", f"content: {error}")
                    continue
            changes.append((event, change))
        metrics.TOKENISE_SECONDS.observe(time.perf_counter() - started)
        return changes

    async def _apply(self, ns: str, group: list[tuple[Event, Change]], failures: list[UnavailableError]) -> None:
        async with self._limiter:
            try:
                server = self._acknowledger.server(ns)
                outcomes = await self._writer.apply(ns, [change for _, change in group])
                await self._settle(ns, [event for event, _ in group if event.version != event.entry])
                await self._wake(ns, [event.id for event, _ in group])
                await self._acknowledger.acknowledge(ns, server, [event.entry for event, _ in group])
            except UnavailableError as error:
                failures.append(error)
                return
            except (ResponseError, CorruptIndexError) as error:
                log.exception("apply_refused", ns=ns, error=str(error), entries=len(group))
                metrics.WORKER_ERRORS.labels("refused").inc()
                return
        self._count(group, outcomes)

    async def _settle(self, ns: str, replayed: Sequence[Event]) -> None:
        """Replayed events have been processed, whatever came of it: their memories are no longer failed."""
        for event in replayed:
            await scripts.settle_replay(self._database, ns, event.id, event.version)

    def _count(self, group: Sequence[tuple[Event, Change]], outcomes: Sequence[Outcome]) -> None:
        now_ms = time.time_ns() // 10**6
        for (event, _), outcome in zip(group, outcomes, strict=True):
            metrics.EVENTS.labels(event.kind, outcome.value).inc()
            if outcome is Outcome.APPLIED:
                metrics.SEARCHABLE_SECONDS.observe(max(0, now_ms - parse_entry(event.entry)[0]) / 1000)

    async def _wake(self, ns: str, ids: Sequence[str]) -> None:
        """Tell waiting readers which memories have moved. No id holds a line feed."""
        if ids:
            await execute(self._database, "PUBLISH", keys.applied_channel(ns), "\n".join(ids))
