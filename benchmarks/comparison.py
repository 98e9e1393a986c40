"""Opens jiyi's peers on the same documents, has them asked in turns with jiyi, and closes them."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks.engines import AbsentError
from benchmarks.engines.bm25s import Bm25s
from benchmarks.engines.fixed_loop import FixedLoop
from benchmarks.engines.jiyi import Jiyi
from benchmarks.engines.rank_bm25 import RankBm25
from benchmarks.engines.redisearch import CHINESE, PRE_SPLIT, RediSearch, locate
from benchmarks.engines.sqlite_fts5 import SqliteFts5
from benchmarks.engines.tantivy import Tantivy
from benchmarks.ingest import ingest_redisearch
from benchmarks.load import tokens_of
from benchmarks.processes import module_server
from benchmarks.queries import measure_queries
from jiyi.analysis import Analyzer

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.engines import Engine
    from benchmarks.load import Load
    from benchmarks.results import Results
    from jiyi.connections import Database
    from jiyi.settings import Settings

_RANK_BM25_UP_TO = 100_000
"""Beyond, its dictionaries take gigabytes, and a question a second and more."""
_LIBRARIES: dict[str, Callable[[list[list[str]]], Engine]] = {
    "tantivy": Tantivy,
    "bm25s": lambda tokens: Bm25s(tokens, "numpy"),
    "bm25s_numba": lambda tokens: Bm25s(tokens, "numba"),
    "sqlite_fts5": SqliteFts5,
    "rank_bm25": RankBm25,
}


async def compared(results: Results, settings: Settings, database: Database, load: Load) -> None:
    """Measure queries of all engines that can be had, and RediSearch's ingest and memory on the way."""
    docs = len(load.memories)
    analyzer = Analyzer()
    tokens = [tokens_of(analyzer, memory) for memory in load.memories]
    places = {memory["id"]: place for place, memory in enumerate(load.memories)}
    async with AsyncExitStack() as stack:
        engines: list[Engine] = [Jiyi(settings, database, places)]
        for variant in (PRE_SPLIT, CHINESE):
            try:
                engines.append(await _redisearch(stack, results, variant, load, tokens))
            except AbsentError as error:
                for bench in ("query", "ingest", "memory"):
                    results.about(bench, variant, docs).absent("all", str(error))
        for name, build in _LIBRARIES.items():
            if name == "rank_bm25" and docs > _RANK_BM25_UP_TO:
                note = f"left out above {_RANK_BM25_UP_TO:,} documents, for time and memory"
                results.about("query", name, docs).absent("all", note)
                continue
            try:
                started = time.perf_counter()
                engine = build(tokens)
                results.about("query", name, docs).record("build_s", time.perf_counter() - started, "s")
            except AbsentError as error:
                results.about("query", name, docs).absent("all", str(error))
            else:
                stack.push_async_callback(engine.close)
                engines.append(engine)
        del tokens
        await measure_queries(results, docs, [*engines, FixedLoop()], load.questions)


async def _redisearch(
    stack: AsyncExitStack, results: Results, variant: str, load: Load, tokens: list[list[str]]
) -> RediSearch:
    path = await stack.enter_async_context(module_server(*locate()))
    engine = RediSearch(path, variant)
    stack.push_async_callback(engine.close)
    await ingest_redisearch(results, engine, load.memories, tokens)
    note = "indexes within the write: searchable when HSET has returned"
    results.about("freshness", variant, len(load.memories)).absent("all", note)
    return engine
