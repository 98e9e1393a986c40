"""Freshness: from the call that writes a memory until it is searchable, at a steady rate of writes."""

from __future__ import annotations

import os
import re
import sys
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import redis.asyncio

from benchmarks.http_load import reader
from benchmarks.load import ROOT
from benchmarks.processes import service
from jiyi import Producer
from jiyi.keys import APPLIED_PATTERN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question
    from benchmarks.results import Results
    from jiyi.settings import Settings

RATE = 1_000
SECONDS = 10
WORKERS = 2
_TEXTS = 5_000
_BETWEEN_PROBES_S = 0.1
_PATIENCE_S = 30.0


async def measure_freshness(
    results: Results, settings: Settings, docs: int, memories: Sequence[dict[str, Any]], question: Question
) -> None:
    """Write beside workers and a reader, into the index that is there.

    `applied_`: until the worker has applied the write, as the message says that wakes waiting readers. Every later
    search finds it, so this is the time to searchable, for every write. `found_`: until a search over HTTP, repeated
    every few milliseconds, has really found it, for further memories that are written meanwhile.
    """
    applied: dict[str, float] = {}
    found: list[float] = []
    async with (
        service("jiyi_workers", settings, WORKERS),
        reader(settings, question) as (port, _),
        redis.asyncio.from_url(settings.redis_url, protocol=2) as client,
        anyio.create_task_group() as tasks,
    ):
        await anyio.sleep(2)  # the workers start
        tasks.start_soon(_listen, client, applied)
        tasks.start_soon(_probe, port, settings, found)
        due, seconds = await _write(settings, [memory["content"] for memory in memories[:_TEXTS]])
        with anyio.move_on_after(_PATIENCE_S):
            while due.keys() - applied.keys():
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    rows = results.about("freshness", "jiyi", docs)
    lags = [(applied[one] - at) * 1000 for one, at in due.items() if one in applied]
    rows.times(lags, "applied_")
    if missing := len(due) - len(lags):
        rows.absent("applied_later", f"{missing} of {len(due)} were not applied within {_PATIENCE_S:g} s")
    rows.record("writes_per_s", len(due) / seconds, "1/s")
    percentiles = quantiles(found, n=100, method="inclusive")
    for name, value in (("p50", percentiles[49]), ("p99", percentiles[98])):
        rows.record(f"found_{name}_ms", value, "ms", f"a sample of {len(found)}")


async def _write(settings: Settings, texts: Sequence[str]) -> tuple[dict[str, float], float]:
    """Write in a process of its own; gives when each memory was due, and the seconds that all of it took."""
    command = [sys.executable, "-m", "benchmarks.writer", str(RATE), str(SECONDS)]
    lines = b"\n".join(map(msgspec.json.encode, texts))
    environment = {**os.environ, **settings.to_environment()}
    with anyio.fail_after(10 * SECONDS):
        done = await anyio.run_process(command, input=lines, stderr=None, cwd=ROOT, env=environment)
    answer = msgspec.json.decode(done.stdout)
    return answer["due"], answer["seconds"]


async def _listen(client: Any, applied: dict[str, float]) -> None:
    async with client.pubsub() as messages:
        await messages.psubscribe(APPLIED_PATTERN)
        async for message in messages.listen():
            now = time.perf_counter()
            if message["type"] == "pmessage":
                for memory_id in message["data"].decode().split("\n"):
                    applied.setdefault(memory_id, now)


async def _probe(port: int, settings: Settings, found: list[float]) -> None:
    """Now and then, write a memory with a word of its own, and ask for the word until it is found."""
    async with Producer(settings=settings) as producer, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await anyio.sleep(2)  # the writer starts
        end = time.perf_counter() + SECONDS - 2
        while time.perf_counter() < end:
            word = f"probe{len(found)}"
            started = time.perf_counter()
            await producer.write(id=word, content=f"{word} 记忆")
            while await _total(stream, word) == 0:
                await anyio.sleep(0.003)
            found.append((time.perf_counter() - started) * 1000)
            await anyio.sleep(_BETWEEN_PROBES_S)


async def _total(stream: Any, word: str) -> int:
    await stream.send(f"GET /memory/search?limit=1&q={word} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    answer = b""
    while not (total := re.search(rb'"total":(\d+)', answer)) or not answer.endswith(b"}"):
        answer += await stream.receive()
    return int(total[1])
