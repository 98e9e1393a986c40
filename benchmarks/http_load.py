"""Searches over HTTP against one reader process: latency on one connection, requests per second on sixteen."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from math import inf
from statistics import median
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import anyio
import msgspec

from benchmarks.load import ROOT
from benchmarks.processes import free_port, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.load import Question
    from benchmarks.results import Results
    from jiyi.settings import Settings

CONNECTIONS = 16
_SEQUENTIAL_S = 20.0
_PARALLEL_S = 8.0
_STARTS = 3
_PATIENCE_S = 60.0


class Answers(NamedTuple):
    """What the client process saw."""

    answered: list[tuple[float, float]]
    """When each was complete, on the clock of `perf_counter`, and how many milliseconds it took."""
    seconds: float
    client_cpu_s: float

    def times_ms(self, until: float = inf) -> list[float]:
        """Give how long the answers took that were complete by then."""
        return [took_ms for at, took_ms in self.answered if at <= until]


@asynccontextmanager
async def reader(settings: Settings, question: Question) -> AsyncIterator[tuple[int, float]]:
    """Run one reader process; gives its port, and the seconds from its start to its first answer to a search."""
    port = free_port()
    started = time.perf_counter()
    async with service("jiyi_api", msgspec.structs.replace(settings, api_port=port)):
        with anyio.fail_after(_PATIENCE_S):
            while not await _answers(port, path_of(question)):
                await anyio.sleep(0.01)
        yield port, time.perf_counter() - started


async def ask(
    port: int, questions: Sequence[Question], connections: int, seconds: float, *, repeat: bool = False
) -> Answers:
    """Ask in a process of its own until the time is over, or every question was asked once."""
    command = [sys.executable, "-m", "benchmarks.http_client", *map(str, (port, connections, seconds, int(repeat)))]
    paths = "\n".join(map(path_of, questions)).encode()
    with anyio.fail_after(seconds + _PATIENCE_S):
        finished = await anyio.run_process(command, input=paths, stderr=None, cwd=ROOT)
    return Answers(**msgspec.json.decode(finished.stdout))


def path_of(question: Question) -> str:
    """Give the path of a search that returns ten memories."""
    return f"/memory/search?q={quote(question.text)}"


async def measure_http(results: Results, settings: Settings, docs: int, questions: Sequence[Question]) -> None:
    """Time searches with their memories, from the client's side; every question was asked before, but for `cold_`."""
    rows = results.about("http", "jiyi", docs)
    async with reader(settings, questions[0]) as (port, _):
        rows.times((await ask(port, questions, 1, _SEQUENTIAL_S)).times_ms(), "cold_")
        rows.times((await ask(port, questions, 1, _SEQUENTIAL_S)).times_ms())
        answers = await ask(port, questions, CONNECTIONS, _PARALLEL_S, repeat=True)
        count = len(answers.answered)
        rows.record(f"{CONNECTIONS}_connections_per_s", count / answers.seconds, "1/s")
        rows.times(answers.times_ms(), f"{CONNECTIONS}_connections_")
        rows.record("client_cpu_us", answers.client_cpu_s / count * 1e6, "us")


async def measure_cold_start(results: Results, settings: Settings, docs: int, question: Question) -> None:
    """Time the start of a reader process until it answers its first search; the median of a few starts.

    What a start leaves on disk for the next, compiled code above all, is there: this machine has run a reader before.
    """
    times = []
    for _ in range(_STARTS):
        async with reader(settings, question) as (_, seconds):
            times.append(seconds)
    results.about("cold_start", "jiyi", docs).record("first_answer_s", median(times), "s")


async def _answers(port: int, path: str) -> bool:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in (await stream.receive()).split(b"\r\n", 1)[0]
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False
