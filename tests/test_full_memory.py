"""While the server's memory is full, writes wait; deletes and reads go on, and what was accepted is applied later."""

from __future__ import annotations

import msgspec
import pytest
import redis
from conftest import FAST, free_port, running, start_server, stop_server, wait_until

from jiyi import keys
from jiyi.analysis import Analyzer
from jiyi.check import check
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.index import IndexWriter
from jiyi.producer import Producer
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi.sync_producer import SyncProducer
from jiyi_workers.pipeline import Pipeline
from jiyi_workers.relief import Relief

pytestmark = pytest.mark.anyio

FILLING = " ".join(f"word{i}" for i in range(400))


@pytest.fixture
def own(tmp_path):
    """(server, settings) of a server whose memory may be limited."""
    port = free_port()
    process = start_server(tmp_path, port, "--appendonly", "yes")
    with redis.Redis(port=port, protocol=2) as client:
        yield (
            client,
            Settings(redis_url=f"redis://127.0.0.1:{port}", data_dir=tmp_path, **FAST),
        )
    stop_server(process)


def fill(server):
    """Leave no room at all: the next write that takes memory is refused."""
    server.config_set("maxmemory", server.info("memory")["used_memory"] - 2**18)


async def test_deletes_are_accepted_and_applied_and_the_rest_catches_up(own):
    server, settings = own
    database = await connect(settings)
    stream = EventStream(database, settings.stream, settings.group)

    async def quiet():
        state = await stream.state(0)
        return state is not None and state.lag == 0 and state.pending == 0

    async def gone():
        fields = await database.hkeys(keys.memory_key("default", "old7"))
        return set(fields) <= {b"entry", b"deleted_at"}

    async with Producer(settings=settings) as producer:
        await producer.write_many({"id": f"old{i}", "content": FILLING} for i in range(50))
        with running("jiyi_workers", settings, 2):
            await wait_until(quiet, "the first memories are applied")
        waiting = await producer.write_many({"id": f"new{i}", "content": f"{FILLING} new{i}"} for i in range(50))
        fill(server)
        with pytest.raises(UnavailableError, match="memory is full") as caught:
            await producer.write(id="refused", content="x")
        assert caught.value.code == "oom"
        with running("jiyi_workers", settings, 2):
            with SyncProducer(settings=settings) as other:
                other.delete("old8")
            deleted = await producer.delete("old7")
            await wait_until(gone, "a delete far behind writes that cannot be applied is applied")
            assert await database.xlen(settings.stream) >= len(waiting), "no write was given up"
            assert await database.xlen(keys.dead_key("default")) == 0
            server.config_set("maxmemory", 0)
            await wait_until(quiet, "everything is caught up", timeout_s=40)
    assert await database.hget(keys.stats_key("default"), "docs") == b"98"
    assert (await database.hget(keys.memory_key("default", "old7"), "entry") or deleted.entry.encode()) == (
        deleted.entry.encode()
    )
    assert await database.hget(keys.memory_key("default", "new49"), "entry") == waiting[-1].entry.encode()
    assert all(report.ok for report in await check(database, stream=settings.stream))
    assert (await stream.sweep()).lost == 0
    await database.aclose()


async def test_expired_memories_are_removed_from_a_full_server(own):
    server, settings = own
    database = await connect(settings)
    stream = EventStream(database, settings.stream, settings.group)

    async def empty():
        return await database.hget(keys.stats_key("default"), "docs") == b"0"

    async def applied():
        return await database.hget(keys.stats_key("default"), "docs") == b"20"

    slow = msgspec.structs.replace(settings, sweep_ms=60_000)
    async with Producer(settings=settings) as producer:
        await producer.write_many({"id": f"m{i}", "content": FILLING, "expires_at": 10**12} for i in range(20))
        with running("jiyi_workers", slow):
            await wait_until(applied, "the memories are applied")
    fill(server)
    with running("jiyi_workers", settings):
        await wait_until(empty, "the expired memories are gone")
    assert (await check(database, ["default"]))[0].ok
    assert (await stream.state(0)).pending == 0
    await database.aclose()


async def test_a_damaged_namespace_does_not_keep_deletes_of_others_back(own):
    """Relief passes it by; its own deletes wait for their turn."""
    _, settings = own
    database = await connect(settings)
    analyzer = Analyzer()
    stream, writer = EventStream(database, settings.stream, settings.group), IndexWriter(database, analyzer.fingerprint)
    async with Producer(settings=settings) as producer:
        for ns in ("bad", "good"):
            await producer.write(id="m", ns=ns, content="x")
        await stream.ensure_group()
        await Pipeline(database, stream, analyzer, settings).process(await stream.read_new("worker", 10, 1))
        for ns in ("bad", "worse", "good"):
            await producer.delete("m", ns=ns)
    await database.hset(keys.stats_key("bad"), "epoch", b"\xff")
    await database.set(keys.stats_key("worse"), "of the wrong type")
    assert await Relief(stream, writer, settings).step()
    assert await database.hget(keys.memory_key("good", "m"), "deleted_at")
    await database.aclose()
