"""A producer dies or is cut off in XADD: it sends again, and there are at most two entries and one effect."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack

import msgspec
import pytest
from histories import assert_finished, documents
from nursery import run_producer
from processes import ended, worker_of

from faults.ledger import Ledger
from faults.proxy import Proxy, serving
from jiyi import Producer, SyncProducer, keys
from jiyi.errors import UnavailableError

pytestmark = pytest.mark.anyio

COUNT, DEADLY = 40, 25
MEMORIES = [{"id": f"m{i}", "content": f"记忆 number {i}"} for i in range(COUNT)]


async def process_all(database, settings, folder):
    async with worker_of(settings, folder / "worker.log"):
        pass


@pytest.mark.parametrize("at", ["request", "reply"])
async def test_a_killed_producer_whose_successor_repeats_what_is_open(at, database, settings, tmp_path):
    async with Proxy(settings.redis_url) as proxy:
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        path = tmp_path / "ledger.jsonl"

        def kill(request):
            writer.kill()
            request.connection.cut()

        point = proxy.failpoint("XADD", at=at, do=kill, nth=DEADLY)
        async with worker_of(through, tmp_path / "writer.log", run_producer, str(path), COUNT) as writer:
            await point.reached()
            assert await ended(writer) == -signal.SIGKILL
    ledger = Ledger(path)
    (open_one,) = [event for event in ledger.sent if event.entry is None]
    assert (len(ledger.sent), open_one.id) == (DEADLY, f"m{DEADLY - 1}")
    async with Producer(settings=settings) as producer:
        await ledger.write_many(
            producer, "default", [(memory["id"], memory["content"]) for memory in MEMORIES[DEADLY - 1 :]]
        )
    assert await database.xlen(settings.stream) == COUNT + (at == "reply")
    async with worker_of(settings, tmp_path / "worker.log"):
        await assert_finished(ledger, database, settings, applied=COUNT, unknown=1, superseded=0)
    assert await documents(database) == COUNT
    ledger.close()


@pytest.mark.parametrize("nth", [1, DEADLY])
@pytest.mark.parametrize("at", ["request", "reply"])
@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_call_that_is_repeated_has_one_effect(kind, at, nth, database, settings, tmp_path):
    """Cut in the middle of a pipeline: the producer says that the outcome is open, and repeats nothing by itself."""
    if kind is Producer:
        async with Proxy(settings.redis_url) as proxy:
            proxy.failpoint("XADD", at=at, do="cut", nth=nth)
            async with Producer(proxy.url) as producer:
                with pytest.raises(UnavailableError):
                    await producer.write_many(MEMORIES)
                once = await database.xlen(settings.stream)
                accepted = await producer.write_many(MEMORIES)
    else:
        with serving(settings.redis_url) as (proxy, _), SyncProducer(proxy.url) as producer:
            proxy.failpoint("XADD", at=at, do="cut", nth=nth)
            with pytest.raises(UnavailableError):
                producer.write_many(MEMORIES)
            once = await database.xlen(settings.stream)
            accepted = producer.write_many(MEMORIES)
    assert nth - (at == "request") <= once <= (nth - 1 if at == "request" else COUNT)
    assert await database.xlen(settings.stream) == once + COUNT
    async with worker_of(settings, tmp_path / "log"), AsyncExitStack() as stack:
        ledger = Ledger(tmp_path / "ledger.jsonl")
        stack.callback(ledger.close)
        for memory, result in zip(MEMORIES, accepted, strict=True):
            event = ledger.begin("write", "default", memory["id"], memory["content"])
            ledger.accept(event.number, result.entry)
        await assert_finished(ledger, database, settings, applied=COUNT)
    assert await documents(database) == COUNT
    entries = {await database.hget(keys.memory_key("default", result.id), "entry") for result in accepted}
    assert entries == {result.entry.encode() for result in accepted}, "the later copy counts"
