"""Two hundred thousand events that nobody has read yet: writers are refused, questions answered, memory is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from api.conftest import running_reader
from conftest import wait_until
from processes import environment_of, worker_of

from jiyi import Producer
from jiyi.errors import BacklogFullError
from jiyi.streams import EventStream
from jiyi_workers.worker import BATCHES_IN_FLIGHT

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EVENTS = 200_000
AT_ONCE_S = 3.0
"""Nothing that depends on the length of the backlog answers in that time; what does not takes milliseconds."""
DRAINED = 3_000
"""Events after which a worker that holds what it has read would show it."""
MOST_GROWTH_BYTES = 48 << 20
APPEND = """
for i = ARGV[1], ARGV[2] do
  redis.call('XADD', KEYS[1], '*', 'event', 'write', 'id', 'm' .. i, 'content', 'redis word' .. i % 1000)
end
"""


@pytest.fixture
async def backlog(database, settings):
    """The stream with as many events as the limit allows; nobody has ever read it."""
    for at in range(0, EVENTS, 20_000):
        await database.eval(APPEND, 1, settings.stream, at, at + 19_999)
    assert await database.xlen(settings.stream) == EVENTS
    return database


@pytest.fixture
def settings(settings):
    return msgspec.structs.replace(settings, max_backlog=EVENTS)


def peak_bytes(pid):
    """Most memory that a process has ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


async def test_whoever_writes_is_refused_and_whoever_asks_is_answered_at_once(backlog, settings, tmp_path):
    await EventStream(backlog, settings.stream, settings.group).ensure_group()
    async with Producer(settings=settings) as producer:
        with anyio.fail_after(AT_ONCE_S), pytest.raises(BacklogFullError, match=f"{EVENTS} events wait"):
            await producer.write(content="x")
        with running_reader(settings, tmp_path / "log") as reader:
            refused = reader.request("POST", "/memory/write", b'{"content": "x"}', timeout_s=AT_ONCE_S)
            assert refused.error[:2] == (429, "backlog_full")
            assert int(refused.headers["Retry-After"]) >= 1
            health = reader.request("GET", "/readyz", timeout_s=AT_ONCE_S).body
            assert (health["lag"], health["pending"]) == (EVENTS, 0)
            assert health["oldestUnappliedMs"] > 0
            first = (await backlog.xrange(settings.stream, count=1))[0][0].decode()
            for question in (f"/memory/ready?id=m0&entry={first}", "/memory/search?q=redis", "/metrics"):
                assert reader.request("GET", question, timeout_s=AT_ONCE_S).status == 200
            assert reader.state("m0", entry=first) == "pending"
    command = [sys.executable, "-m", "jiyi", "stats", "--json"]
    with anyio.fail_after(20):  # most of which it takes to start
        done = await anyio.run_process(command, env=environment_of(settings), stderr=subprocess.PIPE)
    assert json.loads(done.stdout)["stream"]["lag"] == EVENTS
    assert await backlog.xlen(settings.stream) == EVENTS


async def test_a_worker_that_starts_before_a_backlog_reads_it_in_pieces(backlog, settings, tmp_path):
    log = tmp_path / "log"
    await EventStream(backlog, settings.stream, settings.group).ensure_group()
    async with worker_of(settings, log) as worker:

        async def started():
            return log.exists() and "worker_started" in log.read_text()

        async def drained():
            state = await EventStream(backlog, settings.stream, settings.group).state(0)
            return EVENTS - state.lag - state.pending >= DRAINED

        await wait_until(started, "the worker has started", timeout_s=60)
        before = peak_bytes(worker.pid)
        await wait_until(drained, "a part of the backlog is applied", timeout_s=60)
        assert peak_bytes(worker.pid) - before < MOST_GROWTH_BYTES
        state = await EventStream(backlog, settings.stream, settings.group).state(0)
        assert state.pending <= BATCHES_IN_FLIGHT * settings.batch
