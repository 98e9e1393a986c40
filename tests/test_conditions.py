"""States of the server that endanger the index are found, named and acted upon."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager, suppress

import msgspec
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until

from jiyi.binaries import find_binary
from jiyi.conditions import CONDITIONS, check_server, server_conditions
from jiyi.connections import connect
from jiyi.errors import UnavailableError, UnsafeServerError
from jiyi.settings import Settings

pytestmark = pytest.mark.anyio

AOF = ("--appendonly", "yes")


@contextmanager
def server_on(folder, *options):
    port = free_port()
    process = start_server(folder, port, *options)
    with redis.Redis(port=port, protocol=2) as client:
        try:
            yield client, Settings(redis_url=f"redis://127.0.0.1:{port}", data_dir=folder, sweep_ms=100)
        finally:
            stop_server(process)


async def names(settings):
    client = await connect(settings)
    try:
        return [condition.name for condition in await server_conditions(client)]
    finally:
        await client.aclose()


async def test_a_good_server_has_no_conditions(tmp_path):
    with server_on(tmp_path, *AOF) as (_, settings):
        assert await names(settings) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "allkeys-random", "volatile-ttl"])
async def test_eviction_is_refused(tmp_path, policy):
    with server_on(tmp_path, *AOF, "--maxmemory-policy", policy) as (_, settings):
        assert await names(settings) == ["eviction"]
        client = await connect(settings)
        with pytest.raises(UnsafeServerError, match=f"maxmemory-policy is {policy}"):
            await check_server(client)
        await client.aclose()


async def test_a_replica_has_to_be_waited_for(tmp_path):
    with server_on(tmp_path, *AOF) as (server, settings):
        server.execute_command("REPLICAOF", "127.0.0.1", 1)
        assert await names(settings) == ["replica"]
        client = await connect(settings)
        with pytest.raises(UnavailableError, match="must lead to the primary") as caught:
            await check_server(client)
        assert caught.value.code == "readonly"
        server.execute_command("REPLICAOF", "NO", "ONE")
        assert await check_server(client) == []
        await client.aclose()


async def test_a_server_without_a_file_and_one_nearly_full_are_warned_of(tmp_path):
    with server_on(tmp_path) as (server, settings):
        assert await names(settings) == ["aof_off"]
        server.config_set("maxmemory", int(server.info("memory")["used_memory"] * 1.05))
        assert await names(settings) == ["aof_off", "memory_nearly_full"]
        client = await connect(settings)
        assert [found.name for found in await check_server(client)] == ["aof_off", "memory_nearly_full"]
        await client.aclose()


async def test_a_server_that_is_loading_is_not_said_to_have_no_file(tmp_path):
    """It opens its append-only file when it has read it, and says until then that it has none."""
    with server_on(tmp_path, *AOF) as (server, settings), server.pipeline(transaction=False) as pipeline:
        for i in range(30_000):  # a loading server answers once in 1,024 commands
            pipeline.set(f"key:{i}", i)
        pipeline.execute()
    port = free_port()
    settings = msgspec.structs.replace(settings, redis_url=f"redis://127.0.0.1:{port}")
    slow = ["--key-load-delay", "100"]
    process = subprocess.Popen(
        [find_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(tmp_path), *AOF, *slow],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:

        async def connected():
            with suppress(UnavailableError):
                return await connect(settings)

        client = await wait_until(connected, "the server answers")
        try:
            told = await client.info("persistence")
            assert (told["loading"], told["aof_enabled"]) == (1, 0)
            assert await server_conditions(client) == []
            with pytest.raises(UnavailableError, match="loading") as caught:
                await check_server(client)
            assert caught.value.code == "loading"
            await client.execute_command("CONFIG", "SET", "key-load-delay", "0")

            async def loaded():
                with suppress(UnavailableError):
                    return await check_server(client) == []

            await wait_until(loaded, "the server has loaded, and has a file")
        finally:
            await client.aclose()
    finally:
        stop_server(process)


async def test_every_node_of_a_cluster_is_asked(cluster_url, tmp_path):
    settings = Settings(redis_url=cluster_url)
    assert await names(settings) == ["aof_off"], "each condition once"
    client = await connect(settings)
    node = client.get_primaries()[-1]
    try:
        await client.execute_command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", target_nodes=[node])
        assert sorted(await names(settings)) == ["aof_off", "eviction"]
    finally:
        await client.execute_command("CONFIG", "SET", "maxmemory-policy", "noeviction", target_nodes=[node])
        await client.aclose()


def run_worker(settings, log):
    return subprocess.Popen(
        [sys.executable, "-m", "jiyi_workers"], env=settings.to_environment() | {"PATH": "/usr/bin"}, stderr=log
    )


async def test_a_worker_waits_for_a_replica_to_become_the_primary_and_says_so(tmp_path):
    with server_on(tmp_path, *AOF) as (server, settings), (tmp_path / "log").open("w+") as log:
        server.execute_command("REPLICAOF", "127.0.0.1", 1)
        worker = run_worker(settings, log)

        async def told():
            return "is a replica" in (tmp_path / "log").read_text()

        async def stream_made():
            return server.exists(settings.stream)

        try:
            await wait_until(told, "the worker says why it waits")
            assert not server.exists(settings.stream)
            server.execute_command("REPLICAOF", "NO", "ONE")
            await wait_until(stream_made, "the worker goes on")
        finally:
            worker.terminate()
            assert worker.wait(20) == 0


async def test_a_worker_refuses_a_server_that_evicts_and_warns_of_one_without_a_file(tmp_path):
    with server_on(tmp_path) as (server, settings), (tmp_path / "log").open("w+") as log:
        server.config_set("maxmemory-policy", "allkeys-lru")
        assert run_worker(settings, log).wait(30) == 78
        server.config_set("maxmemory-policy", "noeviction")
        worker = run_worker(msgspec.structs.replace(settings, metrics_port=free_port()), log)

        async def warned():
            lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            return [line for line in lines if line["event"] == "server_condition" and line["condition"] == "aof_off"]

        try:
            await wait_until(warned, "the worker warns")
        finally:
            worker.terminate()
            assert worker.wait(20) == 0


def test_the_metric_names_every_condition():
    from jiyi import metrics

    metrics.publish_conditions([])
    rendered = metrics.render().decode()
    for name in CONDITIONS:
        assert f'jiyi_server_condition{{condition="{name}"}} 0.0' in rendered
