"""Freshness: from the call that writes a memory until it is searchable, at a steady rate of writes."""

from __future__ import annotations

import re
import threading
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import anyio
import redis.asyncio

from benchmarks.http_load import reader
from benchmarks.processes import service
from jiyi import SyncProducer
from jiyi.keys import APPLIED_PATTERN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question
    from benchmarks.results import Results
    from jiyi.settings import Settings

RATE = 1_000
SECONDS = 10
WORKERS = 2
_PROBES_PER_S = 5
_PATIENCE_S = 30.0


class Writer:
    """Writes at a steady rate from a thread; notes when each call began. A late one is not left out, nor hurried."""

    def __init__(self, settings: Settings, texts: Sequence[str]) -> None:
        self._settings = settings
        self._texts = texts
        self._stopped = threading.Event()
        self.begun: dict[str, float] = {}

    def run(self) -> None:
        """Write all of them; blocks."""
        with SyncProducer(settings=self._settings) as producer:
            started = time.perf_counter()
            for i in range(RATE * SECONDS):
                if (ahead := started + i / RATE - time.perf_counter()) > 0:
                    time.sleep(ahead)
                if self._stopped.is_set():
                    return
                memory_id = f"fresh-{i}"
                self.begun[memory_id] = time.perf_counter()
                producer.write(id=memory_id, content=f"{self._texts[i % len(self._texts)]} {probe_word(i)}")

    def stop(self) -> None:
        """Let `run` return soon."""
        self._stopped.set()


def probe_word(i: int) -> str:
    """Give a word that one memory alone contains."""
    return f"probe{i}"


async def measure_freshness(
    results: Results, settings: Settings, docs: int, memories: Sequence[dict[str, Any]], question: Question
) -> None:
    """Write beside workers and a reader, into the index that is there.

    `applied_`: until the worker has applied the write, as the message says that wakes waiting readers. Every later
    search finds it, so this is the time to searchable, for every write. `found_`: until a search over HTTP, repeated
    every few milliseconds, has really found it, for a sample.
    """
    writer = Writer(settings, [memory["content"] for memory in memories[:5000]])
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
        try:
            async with anyio.create_task_group() as writing:
                writing.start_soon(anyio.to_thread.run_sync, writer.run)
                writing.start_soon(_probe, port, writer, found)
        finally:
            writer.stop()
        with anyio.move_on_after(_PATIENCE_S):
            while len(applied) < len(writer.begun):
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    rows = results.about("freshness", "jiyi", docs)
    lags = [(applied[one] - begun) * 1000 for one, begun in writer.begun.items() if one in applied]
    missing = len(writer.begun) - len(lags)
    rows.times(lags, "applied_")
    rows.record("writes_per_s", RATE, "1/s", f"{missing} not applied within {_PATIENCE_S:g} s" if missing else "")
    percentiles = quantiles(found, n=100, method="inclusive")
    rows.record("found_p50_ms", percentiles[49], "ms", f"a sample of {len(found)}")
    rows.record("found_p99_ms", percentiles[98], "ms", f"a sample of {len(found)}")


async def _listen(client: Any, applied: dict[str, float]) -> None:
    async with client.pubsub() as messages:
        await messages.psubscribe(APPLIED_PATTERN)
        async for message in messages.listen():
            now = time.perf_counter()
            if message["type"] == "pmessage":
                for memory_id in message["data"].decode().split("\n"):
                    applied.setdefault(memory_id, now)


async def _probe(port: int, writer: Writer, found: list[float]) -> None:
    """Now and then, look for the newest memory until it is found."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        end = time.perf_counter() + SECONDS - 1
        while time.perf_counter() < end:
            await anyio.sleep(1 / _PROBES_PER_S)
            if not writer.begun:
                continue
            newest = next(reversed(writer.begun))
            word = probe_word(int(newest.removeprefix("fresh-")))
            while await _total(stream, word) == 0:
                await anyio.sleep(0.003)
            found.append((time.perf_counter() - writer.begun[newest]) * 1000)


async def _total(stream: Any, word: str) -> int:
    await stream.send(f"GET /memory/search?limit=1&q={word} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    answer = b""
    while not (total := re.search(rb'"total":(\d+)', answer)) or not answer.endswith(b"}"):
        answer += await stream.receive()
    return int(total[1])
