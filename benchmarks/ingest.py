"""Documents per second: from the stream through the workers into the index, and into RediSearch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from benchmarks.processes import service
from jiyi import SyncProducer
from jiyi.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.engines.redisearch import RediSearch
    from benchmarks.results import Results
    from jiyi.connections import Database
    from jiyi.settings import Settings

_PART = 1000
_PATIENCE_S = 60


class Pace(NamedTuple):
    """How fast entries were applied. `server_s` is what the server's scripts took for all of them."""

    docs_per_s: float
    server_s: float
    script_p50_us: float | None
    script_p99_us: float | None


def append(settings: Settings, memories: Sequence[dict[str, Any]]) -> float:
    """Append write events with one blocking producer; gives the seconds that it took."""
    started = time.perf_counter()
    with SyncProducer(settings=settings) as producer:
        for at in range(0, len(memories), _PART):
            producer.write_many(memories[at : at + _PART])
    return time.perf_counter() - started


async def drain(settings: Settings, database: Database, workers: int) -> None:
    """Let workers apply what is on the stream, and see to it that nothing is left."""
    async with service("jiyi_workers", settings, workers):
        await applied(settings, database)


async def applied(settings: Settings, database: Database) -> None:
    """Wait until everything on the stream is applied; raises `TimeoutError` when nothing moves any more."""
    least, since = await _waiting(settings, database), time.monotonic()
    while waiting := await _waiting(settings, database):
        if waiting < least:
            least, since = waiting, time.monotonic()
        elif time.monotonic() > since + _PATIENCE_S:
            raise TimeoutError(f"{waiting} entries are not applied, and nothing has moved for {_PATIENCE_S} s")
        await anyio.sleep(0.02)


async def begun(settings: Settings, database: Database, workers: int) -> None:
    """Wait until so many workers have read their first batch."""
    stream = EventStream(database, settings.stream, settings.group)
    with anyio.fail_after(_PATIENCE_S):
        while await stream.state(0) is None or len(await stream.consumers()) < workers:
            await anyio.sleep(0.002)


async def measure_pace(settings: Settings, database: Database, workers: int) -> Pace:
    """Measure from the moment when every worker has its first batch to the last entry applied.

    Everything is on the stream before, so that no producer shares the machine, and no start of a process is in it.
    """
    await database.config_set("latency-tracking-info-percentiles", "50 99")
    await database.config_resetstat()
    async with service("jiyi_workers", settings, workers):
        await begun(settings, database, workers)
        started, waiting = time.perf_counter(), await _waiting(settings, database)
        await applied(settings, database)
        seconds = time.perf_counter() - started
    commands = await database.info("commandstats")
    scripts = sum(
        stats["usec"] for name, stats in commands.items() if name.startswith(("cmdstat_eval", "cmdstat_fcall"))
    )
    latencies = (await database.info("latencystats")).get("latency_percentiles_usec_evalsha") or {}
    return Pace(waiting / seconds, scripts / 1e6, latencies.get("p50"), latencies.get("p99"))


async def _waiting(settings: Settings, database: Database) -> int:
    """Give the number of entries that are unread or not yet acknowledged."""
    state = await EventStream(database, settings.stream, settings.group).state(0)
    if state is None or state.lag is None:
        return await database.xlen(settings.stream)
    return state.lag + state.pending


async def ingest(
    results: Results, settings: Settings, database: Database, memories: Sequence[dict[str, Any]], workers: int
) -> None:
    """Bring memories into an empty server and record how fast that was."""
    docs, label = len(memories), f"{workers}_worker{'s' * (workers > 1)}"
    rows = results.about("ingest", "jiyi", docs)
    took_s = await anyio.to_thread.run_sync(append, settings, memories)
    rows.record(f"{label}_appended_per_s", docs / took_s, "1/s")
    pace = await measure_pace(settings, database, workers)
    rows.record(f"{label}_docs_per_s", pace.docs_per_s, "1/s")
    rows.record(f"{label}_server_us_per_doc", pace.server_s / docs * 1e6, "us")
    for name, value in (("p50", pace.script_p50_us), ("p99", pace.script_p99_us)):
        if value is None:
            rows.absent(f"{label}_script_{name}_ms", "the server tells no percentiles")
        else:
            rows.record(f"{label}_script_{name}_ms", value / 1000, "ms")


async def ingest_redisearch(
    results: Results, engine: RediSearch, memories: Sequence[dict[str, Any]], tokens: Sequence[list[str]]
) -> None:
    """Bring the same memories into RediSearch; its analysis is in the time, ours of the pre-split terms is not."""
    docs = len(memories)
    engine.create()
    empty = engine.used_memory()
    seconds = await engine.add(memories, tokens)
    indexed = engine.documents()
    note = "" if indexed == docs else f"only {indexed} of {docs} documents are in its index"
    results.about("ingest", engine.name, docs).record("docs_per_s", docs / seconds, "1/s", note)
    results.about("memory", engine.name, docs).record("bytes_per_doc", (engine.used_memory() - empty) / docs, "B")
