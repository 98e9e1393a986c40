"""Measure jiyi end to end on this machine: ingest, freshness, memory, search at the index layer and over HTTP.

Everything is real: an embedded server, worker processes, the reader, and documents and questions from the
folder that `JIYI_BENCH_DATA` names (a `make_load.py` there writes both; without it, variations of the example
memories serve, which repeat words more than real text does). Prints a table and writes build/bench.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, quantiles
from urllib.parse import quote

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

from jiyi import SyncProducer
from jiyi.analysis import Analyzer
from jiyi.connections import connect
from jiyi.events import parse_entry
from jiyi.server import EmbeddedServer
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_api import kernel
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "bench"
API_PORT = 8797
FRESH_RATE = 500
FRESH_SECONDS = 10
SHORT_TERMS = 5  # questions of at most so many terms are also reported by themselves
console = Console(highlight=False)
rows: list[dict] = []


def record(bench, docs, metric, value, unit):
    rows.append(
        {"bench": bench, "engine": "jiyi", "docs": docs, "metric": metric, "value": round(value, 4), "unit": unit}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--namespaces", type=int, default=0, help="spread over this many namespaces (0: one)")
    parser.add_argument("--no-single", action="store_true", help="leave out the ingest run with one worker")
    options = parser.parse_args()
    memories, questions = load(options)
    shutil.rmtree(FOLDER, ignore_errors=True)
    if not options.no_single:
        anyio.run(ingest_only, memories, 1)
    anyio.run(everything, memories, questions, options.workers, backend_options={"use_uvloop": True})
    show()
    (ROOT / "build" / "bench.json").write_text(json.dumps(rows, indent=1) + "\n")


def load(options):
    generator = Path(os.environ.get("JIYI_BENCH_DATA", ROOT.parent / "shared" / "data")) / "make_load.py"
    if not generator.exists():
        return varied(options)
    spread = ["--namespaces", str(options.namespaces)] if options.namespaces else []
    lines = subprocess.run(
        [sys.executable, generator, "-n", str(options.documents), *spread], capture_output=True, check=True
    ).stdout.splitlines()
    texts = (
        subprocess.run(
            [sys.executable, generator, "-n", str(options.queries), "--queries"], capture_output=True, check=True
        )
        .stdout.decode()
        .splitlines()
    )
    return [msgspec.json.decode(line) for line in lines], texts


def varied(options):
    console.print("[yellow]no real load data here: varying the example memories[/]")
    source = [json.loads(line) for line in (ROOT / "examples" / "memories.jsonl").read_text().splitlines()]
    chance = random.Random(1)
    memories = [
        {**chance.choice(source), "id": f"bench-{i}",
         "content": "\n".join(chance.choice(source)["content"] for _ in range(2)) + f"\n{i}"}
        for i in range(options.documents)
    ]  # fmt: skip
    questions = [json.loads(line)["query"] for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
    return memories, [chance.choice(questions) for _ in range(options.queries)]


@contextmanager
def processes(module, count, settings, **extra):
    environment = {**os.environ, **settings.to_environment(), "JIYI_LOG_LEVEL": "warning", **extra}
    started = [subprocess.Popen([sys.executable, "-m", module], env=environment) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)


async def fill(url, memories):
    """Append everything, before any worker runs; gives the last entry."""
    started = time.perf_counter()
    with SyncProducer(url) as producer:
        accepted = [one for i in range(0, len(memories), 1000) for one in producer.write_many(memories[i : i + 1000])]
    record("ingest", len(memories), "appended_per_s", len(memories) / (time.perf_counter() - started), "1/s")
    return accepted[-1].entry


async def ingested(database, settings, last, count, label):
    """Time from the first applied document to the last."""
    stream = EventStream(database, settings.stream, settings.group)
    while not (state := await stream.state(0)) or parse_entry(state.floor) <= (1, 0):
        await anyio.sleep(0.005)
    started = time.perf_counter()
    while parse_entry((await stream.state(0)).floor) <= parse_entry(last):
        await anyio.sleep(0.02)
    seconds = time.perf_counter() - started
    record("ingest", count, f"{label}_docs_per_s", count / seconds, "1/s")


async def ingest_only(memories, workers):
    folder = FOLDER / f"workers-{workers}"
    async with EmbeddedServer(folder) as server:
        settings = Settings(redis_url=server.url)
        database = await connect(settings)
        last = await fill(server.url, memories)
        rows.clear()
        with processes("jiyi_workers", workers, settings):
            await ingested(database, settings, last, len(memories), f"{workers}_worker{'s' * (workers > 1)}")
        await database.aclose()
    shutil.rmtree(folder)


async def everything(memories, questions, workers):
    count = len(memories)
    async with EmbeddedServer(FOLDER / "server") as server:
        settings = Settings(redis_url=server.url, api_port=API_PORT, sweep_ms=1000)
        database = await connect(settings)
        empty = (await database.info("memory"))["used_memory"]
        last = await fill(server.url, memories)
        await database.config_resetstat()
        with processes("jiyi_workers", workers, settings):
            await ingested(database, settings, last, count, f"{workers}_workers")
            await server_share(database, count)
            while await database.xlen(settings.stream):  # the workers trim what is done
                await anyio.sleep(0.1)
            await memory_table(database, count, empty)
            await freshness(server.url, database, memories)
        await index_layer(database, questions, count)
        with processes("jiyi_api", 1, settings):
            await anyio.to_thread.run_sync(over_http, questions, count)
        await database.aclose()


async def server_share(database, count):
    stats = await database.info("commandstats")
    scripts = stats["cmdstat_evalsha"]["usec"] + stats.get("cmdstat_eval", {"usec": 0})["usec"]
    record("ingest", count, "server_us_per_doc", scripts / count, "us")


async def memory_table(database, count, empty):
    used = (await database.info("memory"))["used_memory"]
    record("memory", count, "bytes_per_doc", (used - empty) / count, "B")
    kinds: dict[str, int] = {}
    async for key in database.scan_iter(count=1000):
        kind = key.partition(b":")[0].decode()
        kinds[kind] = kinds.get(kind, 0) + int(await database.memory_usage(key, samples=0) or 0)
    for kind, size in sorted(kinds.items(), key=lambda pair: -pair[1]):
        if size / count >= 1:
            record("memory", count, f"{kind}_bytes_per_doc", size / count, "B")


async def freshness(url, database, memories):
    """Write at a steady rate beside the workers; from the stored times of each entry and its indexing."""
    accepted = []
    with SyncProducer(url) as producer:
        begun = time.perf_counter()
        for i in range(FRESH_RATE * FRESH_SECONDS):
            source = memories[i % len(memories)]
            accepted.append(producer.write(id=f"fresh-{i}", ns="fresh", content=f"{source['content']} {i}"))
            if (ahead := begun + i / FRESH_RATE - time.perf_counter()) > 0:
                await anyio.sleep(ahead)
    last = f"memory:{{fresh}}:{accepted[-1].id}"
    while not await database.hget(last, "indexed_at"):
        await anyio.sleep(0.01)
    indexed = [await database.hget(f"memory:{{fresh}}:{one.id}", "indexed_at") for one in accepted]
    lags = [max(0, int(at) - parse_entry(one.entry)[0]) for at, one in zip(indexed, accepted, strict=True)]
    summarize("freshness", len(memories), lags, "ms", f"at_{FRESH_RATE}_per_s_")


def summarize(bench, docs, values, unit, prefix=""):
    percentiles = quantiles(values, n=100)
    for name, value in (("mean", fmean(values)), ("p50", percentiles[49]), ("p99", percentiles[98])):
        record(bench, docs, f"{prefix}{name}_{unit}", value, unit)


async def index_layer(database, questions, count):
    """Analyse, one call to Redis, score and explain the best ten: a search without fetching the documents."""
    analyzer = Analyzer()
    kernel.warm_up()
    searcher = Searcher(database, analyzer, SnapshotReader(database, analyzer.fingerprint, 2**30))
    settings = Settings()
    queries = [SearchQuery.from_request(SearchRequest(q=text), settings) for text in questions]
    short = [len(analyzer.query_terms(query.text)) <= SHORT_TERMS for query in queries]
    for label in ("cold_", ""):
        times, matched = [], 0
        for query in queries:
            started = time.perf_counter()
            ranking = await searcher.rank(query, analyzer.query_terms(query.text), 10)
            times.append((time.perf_counter() - started) * 1000)
            matched += ranking.total
        summarize("query", count, times, "ms", label)
    summarize("query", count, [one for one, few in zip(times, short, strict=True) if few], "ms", "short_")
    record("query", count, "mean_terms", fmean(len(analyzer.query_terms(text)) for text in questions), "")
    record("query", count, "mean_matching_docs", matched / len(queries), "")


def over_http(questions, count):
    """One connection, one question after the other, ten memories returned."""
    connection = http.client.HTTPConnection("127.0.0.1", API_PORT)
    while True:
        try:
            connection.request("GET", "/readyz")
            ready = connection.getresponse()
            ready.read()
            if ready.status == 200:
                break
        except OSError:
            connection.close()
        time.sleep(0.1)
    paths = [f"/memory/search?q={quote(text)}" for text in questions]
    for label in ("http_cold", "http"):
        times = []
        for path in paths:
            started = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            times.append((time.perf_counter() - started) * 1000)
            assert response.status == 200, response.status
        summarize(label, count, times, "ms")


def show():
    table = Table(title="jiyi", title_justify="left", box=None)
    for name in ("bench", "documents", "metric", "value"):
        table.add_column(name, justify="right" if name in {"documents", "value"} else "left")
    for row in rows:
        table.add_row(row["bench"], f"{row['docs']:,}", row["metric"], f"{row['value']:,.3f} {row['unit']}")
    console.print(table)


if __name__ == "__main__":
    main()
