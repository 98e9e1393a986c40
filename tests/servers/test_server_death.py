"""The server dies under load and comes back, or comes back empty: nothing that it still has is lost, nobody spins.

`JIYI_TEST_KILLS` sets how often it is killed, `JIYI_TEST_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from contextlib import contextmanager

import anyio
import pytest
from conftest import wait_until

from jiyi import Producer
from servers.consumer import Consumer
from servers.load import watching

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("JIYI_TEST_KILLS", "6"))
MOST_LINES = 40
"""Log lines of a worker that notices a loss and goes on; a loop without a pause writes thousands."""


async def test_a_server_that_is_killed_again_and_again_loses_nothing(service, client, seed):
    """Every accepted event takes effect, and the reader says 503 meanwhile: no worker and no reader is restarted."""
    dice, load, killed = random.Random(seed), service.load("killed", seed=seed), 0

    async def go_on():
        while killed < KILLS:
            await load.run(20)

    with watching(service.reader, load) as watch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            for _ in range(KILLS):
                await answered(watch, 200)
                await anyio.sleep(dice.uniform(0, 0.3))
                service.server.kill()
                await answered(watch, 503)
                await anyio.to_thread.run_sync(service.server.start)
                killed += 1
        await load.verify(client)
    assert load.refusals


async def answered(watch, status):
    """Wait until the reader gives an answer with this status, from now on."""
    before = watch.statuses[status]

    async def once_more():
        return watch.statuses[status] > before

    await wait_until(once_more, f"the reader answers with {status}")


def restart_empty(server):
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    server.start()


def delete_consumers(server):
    for consumer in server.command("XINFO", "CONSUMERS", "stream:memory:write", "jiyi"):
        server.command("XGROUP", "DELCONSUMER", "stream:memory:write", "jiyi", consumer[1])


LOSSES = {
    "restarted empty": restart_empty,
    "all keys flushed": lambda server: server.command("FLUSHALL"),
    "stream deleted": lambda server: server.command("DEL", "stream:memory:write"),
    "group destroyed": lambda server: server.command("XGROUP", "DESTROY", "stream:memory:write", "jiyi"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_after_a_loss_workers_go_on_and_nothing_lost_is_called_ready(service, client, loss):
    name = loss.replace(" ", "-")
    before = service.load(f"before-{name}", seed=11)
    await before.run(60)
    await before.verify(client)
    lines = [len(worker.lines()) for worker in service.workers]
    LOSSES[loss](service.server)
    after = service.load(f"after-{name}", seed=12)
    with watching(service.reader, after):
        await after.run(200)
        await after.verify(client)
    memory_id, entry, token = before.settled[0]
    if loss in {"restarted empty", "all keys flushed"}:
        assert service.reader.state(memory_id, entry=entry, ns=before.ns) == "unknown"
        assert service.reader.state(memory_id, ns=before.ns) == "unknown"
        assert service.reader.found(token, ns=before.ns) == []
    else:
        assert service.reader.state(memory_id, entry=entry, ns=before.ns) == "ready"
        await before.verify(client)
    for worker, earlier in zip(service.workers, lines, strict=True):
        assert len(worker.lines()) - earlier <= MOST_LINES
    assert "group_wiped" in [
        line["event"]
        for worker, earlier in zip(service.workers, lines, strict=True)
        for line in worker.lines()[earlier:]
    ]


async def test_workers_whose_names_are_deleted_go_on_with_what_they_hold(service, client):
    """Unless a delete is forgotten meanwhile: what they hold is not pending, and older writes would be refused."""
    load = service.load("nameless", seed=13, deletes=0.0)
    with watching(service.reader, load):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run, 400)
            for _ in range(8):
                delete_consumers(service.server)
                await anyio.sleep(0.03)
        await load.wait_applied(client)
        await load.verify(client)


async def test_what_a_deleted_consumer_held_is_counted_as_lost_and_never_called_ready(service, client, analyzer):
    """Redis forgets the deliveries with the name, so nobody takes them over; this cannot be undone, only said."""
    settings = service.server.settings
    consumer = Consumer(client, settings, analyzer, "doomed")
    before = sum(line["count"] for line in service.worker_lines("events_lost"))
    with stopped(service.workers):
        async with Producer(settings=settings) as producer:
            accepted = [await producer.write(id=f"m{i}", ns="doomed", content=f"text {i}") for i in range(9)]
        held = {entry.id for entry in await consumer.read(9)}  # the workers' last reads get one or two
        assert held
        service.server.command("XGROUP", "DELCONSUMER", settings.stream, settings.group, "doomed")

    async def counted():
        return sum(line["count"] for line in service.worker_lines("events_lost")) - before == len(held)

    await wait_until(counted, "they are counted")
    for one in accepted:
        if one.entry in held:
            assert service.reader.state(one.id, entry=one.entry, ns="doomed") == "unknown"
    again = service.load("after-doomed", seed=14)
    await again.run(20)
    await again.verify(client)


@contextmanager
def stopped(workers):
    """Workers that stand still over the context."""
    for worker in workers:
        worker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            worker.process.send_signal(signal.SIGCONT)
