"""Thousands of calls through a small pool, cancelled at any moment: every answer belongs to its question."""

from __future__ import annotations

import random

import anyio
import msgspec
import pytest
from histories import load_scripts

from faults.proxy import Proxy
from faults.toxics import Latency
from jiyi import Producer, keys, scripts
from jiyi.connections import connect, execute, translated_errors
from jiyi.events import decode_event
from jiyi.streams import EventStream

pytestmark = pytest.mark.anyio

POOL, CALLS, KEYS = 4, 1_500, 50


@pytest.fixture
async def proxy(database, settings):
    """A line on which every answer is under way for a while, so that a cancellation finds it there."""
    await load_scripts(database)
    async with Proxy(settings.redis_url) as proxy:
        with proxy.toxic(Latency(1, 1, seed=1), "downstream"):
            yield proxy


@pytest.fixture
def narrow(settings, proxy):
    return msgspec.structs.replace(settings, redis_url=proxy.url, max_pool=POOL)


async def storm(call, seed):
    """Make thousands of calls, a hundred at once; two of three are cancelled after 0 to 40 ms."""
    rng, finished = random.Random(seed), 0

    async def attempt(i):
        nonlocal finished
        with anyio.move_on_after(rng.random() * 0.04 if i % 3 else None):
            await call(i)
            finished += 1

    for _ in range(CALLS // 100):
        async with anyio.create_task_group() as tasks:
            for i in range(100):
                tasks.start_soon(attempt, i)
    assert finished < CALLS, "some were cancelled"


def assert_none_in_use(pool, proxy):
    assert not pool._in_use_connections
    assert len(pool._available_connections) <= POOL
    assert len(proxy.connections) <= POOL + 1, "the pool and the lane"
    assert not any(connection.unanswered for connection in proxy.connections)


async def test_commands_scripts_and_pipelines(proxy, narrow, database):
    for i in range(KEYS):
        await database.set(f"k{i}", f"value {i}")
        await database.hset(keys.memory_key("default", f"m{i}"), mapping={"entry": f"{i}-1", "indexed_at": "1"})
    ours = await connect(narrow)

    async def call(i):
        i %= KEYS
        assert await execute(ours, "GET", f"k{i}") == f"value {i}".encode()
        ((entry, *_),) = await scripts.read_readiness(ours, "default", [f"m{i}"])
        assert entry == f"{i}-1".encode()
        with translated_errors():
            pipeline = ours.pipeline(transaction=False)
            for j in range(i, i + 5):
                pipeline.get(f"k{j % KEYS}")
            values = await pipeline.execute()
        assert values == [f"value {j % KEYS}".encode() for j in range(i, i + 5)]

    await storm(call, 1)
    assert_none_in_use(ours.connection_pool, proxy)
    for i in range(KEYS):
        await call(i)
    await ours.aclose()


async def test_writes_of_a_producer(proxy, narrow, database, settings):
    """What a call that finished got as entry is the entry of its own memories."""
    accepted = []
    async with Producer(settings=narrow) as producer:

        async def call(i):
            accepted.append(await producer.write(id=f"one-{i}", content=f"content of one-{i}"))
            names = [f"{j}-of-{i}" for j in range(3)]
            accepted.extend(await producer.write_many({"id": name, "content": f"content of {name}"} for name in names))

        await storm(call, 2)
        assert_none_in_use(producer._database.connection_pool, proxy)
    stream = EventStream(database, settings.stream, settings.group)
    for one in accepted:
        entry = await stream.get(one.entry)
        event = decode_event(entry.id, entry.fields, settings.max_content_bytes)
        assert (event.id, event.memory.content) == (one.id, f"content of {one.id}")
