"""The reader beside workers: its latency while two of them ingest as fast as they can, against its latency at rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.http_load import ask, reader
from benchmarks.ingest import append, applied, begun
from benchmarks.processes import service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question
    from benchmarks.results import Results
    from jiyi.connections import Database
    from jiyi.settings import Settings

WORKERS = 2
_SECONDS = 8.0
_INGESTING_S = 15.0


async def measure_under_load(  # noqa: PLR0913 - all of them are needed
    results: Results,
    settings: Settings,
    database: Database,
    docs: int,
    further: Sequence[dict[str, Any]],
    questions: Sequence[Question],
) -> None:
    """Ask on one connection: at rest, and while further memories go into the namespace that is asked.

    Only answers until the last of them is applied are counted, so that no time at rest is. All processes share this
    machine's cores; with fewer than five, a part of the difference is waiting for a core.
    """
    rows = results.about("under_load", "jiyi", docs)
    async with reader(settings, questions[0]) as (port, _):
        await ask(port, questions, 1, _SECONDS)
        rows.times((await ask(port, questions, 1, _SECONDS)).times_ms(), "idle_")
        await anyio.to_thread.run_sync(append, settings, further)
        ended: list[float] = []
        async with service("jiyi_workers", settings, WORKERS), anyio.create_task_group() as tasks:
            await begun(settings, database, WORKERS)
            tasks.start_soon(_note_end, settings, database, ended)
            answers = await ask(port, questions, 1, _INGESTING_S, repeat=True)
    times = answers.times_ms(until=ended[0])
    rows.times(times, "ingesting_")
    rows.record("ingesting_queries", len(times))


async def _note_end(settings: Settings, database: Database, ended: list[float]) -> None:
    await applied(settings, database)
    ended.append(time.perf_counter())
