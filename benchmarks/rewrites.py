"""What rewriting costs: memory and latency after every document was written five times, against a fresh index."""

from __future__ import annotations

from contextlib import AsyncExitStack
from statistics import fmean
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.engines.jiyi import Jiyi
from benchmarks.ingest import append, applied
from benchmarks.memory import trimmed, used_memory
from benchmarks.processes import jiyi_server, service
from benchmarks.queries import asked, rounds
from jiyi import keys
from jiyi.memories import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question
    from benchmarks.results import Results
    from jiyi.connections import Database

TIMES = 5
WORKERS = 2
_STEP = 7_919  # a prime: each round gives every memory the text of another
_SETTLED_S = 4.0
_PATIENCE_S = 120.0


async def measure_rewrites(results: Results, memories: Sequence[dict[str, Any]], questions: Sequence[Question]) -> None:
    """Compare two servers with the same memories at the end, one of which has rewritten all of them.

    Every round but the last gives each memory the text of another, and the last its own again, so that both hold the
    same. The workers compact by themselves; it is measured when they have come to rest.
    """
    docs = len(memories)
    places = {memory["id"]: place for place, memory in enumerate(memories)}
    bytes_per_doc, engines = [], []
    async with AsyncExitStack() as stack:
        for name, times in (("fresh", 0), ("rewritten", TIMES)):
            settings, database = await stack.enter_async_context(jiyi_server())
            empty = await used_memory(database)
            async with service("jiyi_workers", settings, WORKERS):
                for each in _rounds(memories, times):
                    await anyio.to_thread.run_sync(append, settings, each)
                    await applied(settings, database)
                await trimmed(settings, database)
                await _settled(database)
            bytes_per_doc.append((await used_memory(database) - empty) / docs)
            engines.append(Jiyi(settings, database, places, name))
        for engine in engines:
            await asked(engine, questions)
        times_ms = await rounds(engines, questions)
    rows = results.about("rewrites", "jiyi", docs)
    means = [fmean(times_ms[engine.name]) for engine in engines]
    for engine, size, mean in zip(engines, bytes_per_doc, means, strict=True):
        rows.record(f"{engine.name}_bytes_per_doc", size, "B")
        rows.record(f"{engine.name}_query_mean_ms", mean, "ms")
    rows.record("memory_ratio", bytes_per_doc[1] / bytes_per_doc[0])
    rows.record("query_ratio", means[1] / means[0])


def _rounds(memories: Sequence[dict[str, Any]], times: int) -> list[list[dict[str, Any]]]:
    count = len(memories)
    return [
        [{**memory, "content": memories[(i + (times - number) * _STEP) % count]["content"]}
         for i, memory in enumerate(memories)]
        for number in range(times + 1)
    ]  # fmt: skip


async def _settled(database: Database) -> None:
    """Wait until no compaction runs and the journal has kept its size for some seconds."""
    journal, lease = keys.journal_key(DEFAULT_NAMESPACE), keys.compaction_key(DEFAULT_NAMESPACE)
    size, since = -1, anyio.current_time()
    with anyio.move_on_after(_PATIENCE_S):
        while anyio.current_time() < since + _SETTLED_S:
            now = await database.strlen(journal)
            if now != size or await database.exists(lease):
                size, since = now, anyio.current_time()
            await anyio.sleep(0.1)
