"""Processes that have no file descriptor left: they wait or say so, use no time meanwhile, and go on afterwards."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import anyio
import msgspec
import pytest
from api.conftest import running_reader
from conftest import wait_until
from histories import assert_finished
from processes import worker_of

from faults.ledger import Ledger
from jiyi import Producer

pytestmark = pytest.mark.anyio

DESCRIPTORS = 80
CLIENTS = DESCRIPTORS // 2
QUESTIONS = ("/memory/search?q=redis", "/memory/ready?id=m", "/memory/m", "/dead", "/readyz")
BUSY = 0.5
"""Part of a processor that one would use who turns in a circle, on a machine that others use as well."""


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def assert_idle(pid, seconds=1.5):
    """Nothing is asked of it, so it has nothing to do."""
    began, before = time.monotonic(), processor_seconds(pid)
    await anyio.sleep(seconds)
    assert processor_seconds(pid) - before < BUSY * (time.monotonic() - began)


@contextmanager
def without_descriptors(pid):
    """Context in which the process cannot open anything; what is open stays so."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def cut_all(database):
    """Close the connections of all others to the server."""
    await database.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await database.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


class KeptConnection:
    """A client that stays connected."""

    def __init__(self, port):
        self._connection = HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.connect()

    def ask(self, target, method="GET", body=None):
        self._connection.request(method, target, body)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self):
        self._connection.close()


@pytest.fixture
def kept(reader):
    connection = KeptConnection(reader.port)
    assert connection.ask("/healthz")[0] == 200  # the reader has it: before that it is the server's queue that does
    yield connection
    connection.close()


@pytest.fixture
def reader(settings, tmp_path):
    with running_reader(settings, tmp_path / "log", descriptors=DESCRIPTORS) as reader:
        yield reader
        assert not reader.failures(), reader.log.read_text()


async def test_a_reader_with_too_many_clients_serves_the_first_and_refuses_the_others(database, reader, kept):
    """Also when it has to connect to Redis anew: what that takes is kept free."""
    with ExitStack() as stack:
        address = ("127.0.0.1", reader.port)
        for _ in range(CLIENTS - 1):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET")
        refused = reader.get("/healthz")
        assert refused.error[:2] == (503, "unavailable")
        assert refused.headers["Retry-After"] == "1"
        for _ in range(2 * DESCRIPTORS):
            stack.enter_context(socket.create_connection(address))
        await assert_idle(reader.process.pid)
        await cut_all(database)
        assert kept.ask("/memory/write", "POST", b'{"id": "m", "content": "redis"}')[0] == 202
        assert [kept.ask(target)[0] for target in QUESTIONS] == [200, 200, 404, 200, 200]
    reader.wait_for("/readyz", 200)
    assert len(os.listdir(f"/proc/{reader.process.pid}/fd")) < CLIENTS  # noqa: PTH208 - names of no files
    assert await database.xlen("stream:memory:write") == 1


async def test_a_reader_that_can_open_nothing_says_that_it_cannot_answer_now(database, reader, kept):
    with without_descriptors(reader.process.pid):
        await cut_all(database)
        for target in QUESTIONS:
            assert kept.ask(target)[0] == 503
        assert kept.ask("/memory/write", "POST", b'{"id": "m", "content": "redis"}')[0] == 503
        assert kept.ask("/healthz")[0] == 200
        await assert_idle(reader.process.pid)
    reader.wait_for("/readyz", 200)
    assert [kept.ask(target)[0] for target in QUESTIONS] == [200, 200, 404, 200, 200]
    assert reader.get("/readyz").status == 200


async def test_a_worker_that_can_open_nothing_waits_and_loses_nothing(database, settings, tmp_path):
    settings = msgspec.structs.replace(settings, redis_timeout_ms=1_000)
    log, ledger = tmp_path / "worker.log", Ledger(tmp_path / "ledger.jsonl")
    async with Producer(settings=settings) as producer, worker_of(settings, log) as worker:

        async def started():
            return log.exists() and "worker_started" in log.read_text()

        await wait_until(started, "the worker has started", timeout_s=60)
        with without_descriptors(worker.pid):
            await cut_all(database)
            await ledger.write_many(producer, "default", [(f"m{i}", f"记忆 number {i}") for i in range(200)])

            async def waits():
                return log.read_text().count("redis_unavailable") > 1

            await wait_until(waits, "the worker has found that it cannot connect")
            await assert_idle(worker.pid)
            assert worker.is_alive()
            assert log.read_text().count("redis_unavailable") < 15, "it pauses longer and longer"
            assert await database.dbsize() == 2, "stream and account: nothing is applied yet"
        await assert_finished(ledger, database, settings, applied=200, dead_lettered=0)
    ledger.close()
