"""`python -m benchmarks.bench`: measure jiyi and its peers on this machine, and report.

Everything is real: servers, worker and reader processes, documents and questions (from the folder that
`JIYI_BENCH_DATA` names). Every number goes to build/bench.json, the report to build/ or, with --publish, to docs/.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import anyio
from redis.exceptions import RedisError
from rich.table import Table

from benchmarks.comparison import compared
from benchmarks.freshness import measure_freshness
from benchmarks.http_load import measure_cold_start, measure_http
from benchmarks.ingest import ingest
from benchmarks.load import BUILD, ROOT, load
from benchmarks.memory import measure_memory, measure_namespaces, trimmed, used_memory
from benchmarks.processes import jiyi_server, service
from benchmarks.report import verdict_cells, verdicts, write_report
from benchmarks.results import Results, console
from benchmarks.rewrites import measure_rewrites
from benchmarks.under_load import measure_under_load
from jiyi.errors import JiyiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.load import Load

_FURTHER = 20_000
_REWRITTEN = 10_000
_SPREAD_UP_TO = 100_000
_STEPS = ("rewrites", "ingest", "memory", "query", "http", "cold_start", "under_load", "freshness")


class Run:
    """One run over all sizes. A step that fails is a row that says so, and the others go on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.results = Results()
        self._options = options
        self._docs = 0
        self._started = time.monotonic()
        self.facts = {"load average before": f"{os.getloadavg()[0]:.2f}"}

    async def all(self) -> None:
        """Measure at every size; rewriting once, at the smallest."""
        for docs in sorted(self._options.documents):
            load_of_size = await load(docs, min(docs, _FURTHER), self._options.queries)
            self.facts["documents"] = load_of_size.source
            await self._size(load_of_size)
            if docs == min(self._options.documents):
                memories = load_of_size.memories[:_REWRITTEN]
                await self._step("rewrites", measure_rewrites, self.results, memories, load_of_size.questions)
        self.facts["load average after"] = f"{os.getloadavg()[0]:.2f}"
        self.facts["duration"] = f"{(time.monotonic() - self._started) / 60:.0f} minutes"

    async def _size(self, load_of_size: Load) -> None:
        memories, questions = load_of_size.memories, load_of_size.questions
        docs, results = len(memories), self.results
        self._docs = docs
        console.rule(f"{docs:,} documents, {len(questions):,} questions", align="left")
        await self._step("ingest", self._one_worker, load_of_size)
        if docs <= _SPREAD_UP_TO:
            await self._step("memory", measure_namespaces, results, memories)
        else:
            note = f"left out above {_SPREAD_UP_TO:,} documents, for time"
            results.about("memory", "jiyi", docs).absent("300_namespaces_bytes_per_doc", note)
        async with jiyi_server() as (settings, database):
            empty = await used_memory(database)
            await self._step("ingest", ingest, results, settings, database, memories, 2)
            async with service("jiyi_workers", settings):
                await trimmed(settings, database)
            await self._step("memory", measure_memory, results, database, docs, empty)
            await self._step("query", compared, results, settings, database, load_of_size)
            await self._step("http", measure_http, results, settings, docs, questions)
            await self._step("cold_start", measure_cold_start, results, settings, docs, questions[0])
            further = load_of_size.further
            await self._step("under_load", measure_under_load, results, settings, database, docs, further, questions)
            await self._step("freshness", measure_freshness, results, settings, docs, memories, questions[0])

    async def _one_worker(self, load_of_size: Load) -> None:
        """Bring memories into an empty server and record how fast one worker was."""
        async with jiyi_server() as (settings, database):
            await ingest(self.results, settings, database, load_of_size.memories, 1)

    async def _step(self, name: str, step: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        needed = step is ingest  # by every other
        if self._options.only and name not in self._options.only and not needed:
            return
        minutes = (time.monotonic() - self._started) / 60
        console.print(
            f"[bold]{name}[/]: {(step.__doc__ or name).splitlines()[0]}  [dim]{minutes:.1f} min[/]", soft_wrap=True
        )
        try:
            await step(*arguments)
        except (RedisError, JiyiError, OSError, RuntimeError, TimeoutError, ExceptionGroup) as error:
            _end_if_interrupted()  # a client library may have made an error of its own of it
            console.print_exception()
            self.results.about(name, "jiyi", self._docs).absent("failed", f"{type(error).__name__}: {error}"[:300])
        self.results.write(BUILD / "bench.json")
        _end_if_interrupted()


def _end_if_interrupted() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def main() -> None:
    """Read the command line, measure, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000], metavar="N", help="sizes of the index")
    parser.add_argument("--queries", type=int, default=1_000, help="questions (default 1000)")
    parser.add_argument("--only", nargs="+", choices=_STEPS, metavar="STEP", help=f"only these: {', '.join(_STEPS)}")
    parser.add_argument("--publish", action="store_true", help="write the report to docs/ instead of build/")
    options = parser.parse_args()
    run = Run(options)
    try:
        anyio.run(run.all, backend_options={"use_uvloop": True})
    except KeyboardInterrupt:
        console.print("interrupted; what was measured is in build/bench.json")
        raise SystemExit(130) from None
    table = Table(title="Aims", title_justify="left", box=None)
    for name in ("aim", "documents", "measured", "bound", ""):
        table.add_column(name, justify="right" if name in {"documents", "measured"} else "left")
    for verdict in verdicts(run.results):
        table.add_row(*verdict_cells(verdict), style="" if verdict.met else "yellow")
    console.print(table)
    path = write_report(run.results, ROOT / "docs" if options.publish else BUILD, run.facts)
    console.print(f"{path.relative_to(ROOT)}, build/bench.json")


if __name__ == "__main__":
    main()
