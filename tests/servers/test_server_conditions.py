"""Workers, reader and producer while the server is busy, paused, loading, read-only, full or forgetful.

In each test a load goes on during the condition. Afterwards nothing is lost, doubled or dead, without a restart.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from conftest import wait_until

from servers.load import watching

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def loaded(service, client, load, count=300):
    """A load that is watched and goes on over the context; in the end everything must have its effect.

    When it begins, some of it can be found: afterwards, workers may not be able to apply anything.
    """

    async def some_is_found():
        return await in_thread(partial(service.reader.found, "redis", ns=load.ns))

    with watching(service.reader, load) as watch:
        await load.run(100)
        await wait_until(some_is_found, "the first memories are found")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run, count)
            yield watch
        await load.verify(client)


async def refused(load, code):
    """Wait until the producer has been refused a few times, for this reason."""

    async def often():
        return load.refusals[code] >= 3

    await wait_until(often, f"the producer is refused: {code}")


async def in_thread(function, *arguments):
    return await anyio.to_thread.run_sync(function, *arguments)


async def test_forgotten_scripts_are_no_failure(service, client):
    """SCRIPT FLUSH every 50 ms: it is no reason to give an event up or to refuse a query."""
    load = service.load("flushed", seed=1)
    async with loaded(service, client, load, 400):
        for _ in range(10):
            service.server.command("SCRIPT", "FLUSH")
            await anyio.sleep(0.05)
    assert not service.worker_lines("apply_refused")
    assert not any("NOSCRIPT" in line["error"] for line in service.worker_lines("sweep_failed"))


BUSY = """
local function now() local time = redis.call('TIME'); return time[1] + time[2] / 1e6 end
local from = now()
while now() - from < 1.5 do end
"""


async def test_a_server_that_is_busy_with_a_script_is_waited_for(service, client):
    server = service.server
    server.command("CONFIG", "SET", "busy-reply-threshold", "50")
    load = service.load("busy", seed=2)
    try:
        async with loaded(service, client, load):
            await in_thread(server.command, "EVAL", BUSY, 0)
    finally:
        server.command("CONFIG", "SET", "busy-reply-threshold", "5000")
    assert "busy" in load.refusals


STALLS = [("DEBUG", "SLEEP", "2.5"), ("CLIENT", "PAUSE", "2500", "ALL"), ("CLIENT", "PAUSE", "2500", "WRITE")]


@pytest.mark.parametrize("stall", STALLS, ids="-".join)
async def test_a_server_that_stalls_is_waited_for(service, client, stall):
    """Longer than everybody's time-out: commands of unknown outcome are repeated without harm."""
    load = service.load("-".join(stall), seed=3)
    async with loaded(service, client, load):
        await in_thread(service.server.command, *stall)
    assert "timeout" in load.refusals


async def test_a_server_that_loads_its_file_is_waited_for(service, client):
    """After a crash the file is read slowly: all that time every command is answered with LOADING."""
    server, load = service.server, service.load("loading", seed=5)
    pipeline = client.pipeline(transaction=False)
    for number in range(10_000):  # clients are answered after every 1,024 commands that are read
        pipeline.set("padding", number)
    await pipeline.execute()

    def crash():
        server.kill()
        server.start("--key-load-delay", "100")

    async with loaded(service, client, load) as watch:
        await in_thread(crash)
    assert watch.statuses[503] > 0
    assert "loading" in load.refusals


async def test_a_server_that_became_a_replica_refuses_and_comes_back(service, client):
    """Its primary is not there: it answers reads from what it has, and takes no writes."""
    server, load = service.server, service.load("replica", seed=6)
    async with loaded(service, client, load):
        server.command("REPLICAOF", "127.0.0.1", "1")
        try:
            await refused(load, "readonly")
            assert service.reader.found("redis", ns="replica")
            assert service.reader.get("/readyz").body["checks"]["replica"] != "ok"
        finally:
            server.command("REPLICAOF", "NO", "ONE")


async def test_a_full_server_refuses_writes_and_answers_queries(service, client):
    server, load = service.server, service.load("full", seed=7)
    async with loaded(service, client, load):
        used = server.command("INFO", "memory")["used_memory"]
        server.command("CONFIG", "SET", "maxmemory", used + 10_000)
        try:
            await refused(load, "oom")
            assert service.reader.found("redis", ns="full")
        finally:
            server.command("CONFIG", "SET", "maxmemory", "0")


async def test_a_server_that_cannot_write_its_file_refuses_and_comes_back(service, client):
    """A full disk: writes are answered with MISCONF until there is room again, and reads go on."""
    server, load = service.server, service.load("disk", seed=8)
    async with loaded(service, client, load):
        with server.full_disk():
            await refused(load, "misconf")
            assert service.reader.found("redis", ns="disk")


@pytest.mark.parametrize("command", ["hset", "append", "xack", "zrem"])
async def test_a_permission_that_is_taken_away_is_waited_for(command, service, client):
    """It is the operator's mistake and not that of the entries: none becomes a dead letter, or is applied by halves."""
    server, load = service.server, service.load("permission", seed=10)
    async with loaded(service, client, load):
        server.command("ACL", "SETUSER", "default", f"-{command}")
        try:

            async def waits():
                lines = service.worker_lines("redis_unavailable")
                return sum("NOPERM" in line["error"] for line in lines) >= 6

            await wait_until(waits, "the workers wait for the permission")
            assert service.reader.found("redis", ns="permission")
        finally:
            server.command("ACL", "SETUSER", "default", "+@all")


async def test_a_server_that_must_write_its_file_dies_of_a_full_disk(service, client):
    """With `appendfsync always` it ends itself rather than promise what it cannot keep; started again, all is there."""
    server, load = service.server, service.load("always", seed=9)
    server.command("CONFIG", "SET", "appendfsync", "always")
    async with loaded(service, client, load):
        with server.full_disk():
            await in_thread(server.process.wait, 10)
        server.start()
