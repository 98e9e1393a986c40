"""A worker is told to stop while its hands are full: nothing is acknowledged that is not applied."""

from __future__ import annotations

import os
import signal

import anyio
import msgspec
import pytest
from conftest import wait_until
from histories import (
    assert_finished,
    assert_nothing_acknowledged_unapplied,
    documents,
    held_by_nobody_living,
    load_scripts,
    pending,
)
from processes import ended, pair

from faults.ledger import Ledger
from jiyi import Producer
from jiyi.streams import EventStream
from jiyi_workers.worker import BATCHES_IN_FLIGHT

pytestmark = pytest.mark.anyio

BATCH, EVENTS = 10, 100
PREFETCH = BATCHES_IN_FLIGHT * BATCH


@pytest.fixture
def settings(request, settings):
    """Workers that wait long for Redis, and longer before they give up draining unless a test says otherwise."""
    drain_ms = getattr(request, "param", 60_000)
    return msgspec.structs.replace(
        settings, batch=BATCH, claim_idle_ms=300, document_timeout_ms=250, drain_ms=drain_ms, redis_timeout_ms=30_000
    )  # fmt: skip


@pytest.fixture
async def ledger(database, settings, tmp_path):
    await load_scripts(database)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with Producer(settings=settings) as producer:
        await ledger.write_many(producer, "default", [(f"m{i}", f"记忆 number {i}") for i in range(EVENTS)])
    yield ledger
    ledger.close()


@pytest.fixture
async def two(ledger, settings, tmp_path):
    """A pair whose worker has read all that it ever reads at once, and waits for the answers to its applies."""
    async with pair(settings, tmp_path) as two:
        two.applies = two.proxy.failpoint("apply_events", at="reply", times=None)
        await two.start()
        await two.applies.reached()
        yield two


async def full(database, settings):
    async def all_read():
        return await pending(database, settings) == PREFETCH

    await wait_until(all_read, "the worker has read all that it holds at once")


async def send(worker, signum):
    """Send a signal and wait until it has arrived: two of a kind that wait are one."""
    status = anyio.Path(f"/proc/{worker.pid}/status")
    os.kill(worker.pid, signum)

    async def arrived():
        try:
            lines = (await status.read_text()).splitlines()
        except OSError:
            return True
        return not any(int(line.split()[1], 16) >> signum - 1 & 1 for line in lines if line.startswith("ShdPnd"))

    await wait_until(arrived, "the signal has arrived")


async def heir_finishes(two, ledger, database, settings):
    await assert_nothing_acknowledged_unapplied(ledger, database, settings)
    two.applies.disarm()
    two.let_heir_work()
    await assert_finished(ledger, database, settings, applied=EVENTS)


@pytest.mark.parametrize("times", [1, 3])
async def test_sigterm_finishes_what_has_been_read_and_nothing_else(times, two, ledger, database, settings):
    """However often it comes: of a supervisor that is killed there is one for each of its threads."""
    await full(database, settings)
    for _ in range(times):
        await send(two.worker, signal.SIGTERM)
    two.applies.release()
    assert await ended(two.worker) == 0
    assert await documents(database) == PREFETCH
    assert await pending(database, settings) == 0
    state = await EventStream(database, settings.stream, settings.group).state(0)
    assert (state.lag, state.consumers) == (EVENTS - PREFETCH, 0), "it has left the group"
    await heir_finishes(two, ledger, database, settings)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
async def test_sigint_after_a_signal_ends_it_at_once(first, two, ledger, database, settings):
    await full(database, settings)
    for signum in (first, signal.SIGINT):
        await send(two.worker, signum)
    assert await ended(two.worker) == 1
    assert await pending(database, settings) == PREFETCH
    await heir_finishes(two, ledger, database, settings)


async def test_sigkill_while_it_drains(two, ledger, database, settings):
    await full(database, settings)
    two.worker.terminate()
    two.worker.kill()
    assert await ended(two.worker) == -signal.SIGKILL
    assert await pending(database, settings) == PREFETCH
    await heir_finishes(two, ledger, database, settings)


@pytest.mark.parametrize("settings", [1_000], indirect=True)
async def test_the_grace_time_ends_also_when_redis_never_answers(two, ledger, database, settings):
    await full(database, settings)
    two.worker.terminate()
    assert await ended(two.worker) == 1
    assert await pending(database, settings) == PREFETCH
    await heir_finishes(two, ledger, database, settings)


@pytest.mark.parametrize("away", ["for everything", "for applies"])
async def test_sigterm_while_redis_is_away(away, two, ledger, database, settings):
    """It waits for nobody: what it holds stays its own until others take it over."""
    await full(database, settings)
    if away == "for everything":
        two.proxy.refuse()
    else:
        two.proxy.failpoint("apply_events", do="cut", times=None)
    two.proxy.reset()

    async def noticed():
        return "redis_unavailable" in two.log()

    await wait_until(noticed, "the worker has noticed")
    two.worker.terminate()
    assert await ended(two.worker) == 0, two.log()
    assert "Traceback" not in two.log()
    assert await pending(database, settings) == PREFETCH
    await heir_finishes(two, ledger, database, settings)


async def test_sigterm_in_the_middle_of_a_takeover(ledger, database, settings, tmp_path):
    """It finishes the entry that it is at, and claims no other."""
    await held_by_nobody_living(database, settings)
    async with pair(settings, tmp_path) as two:
        two.applies = two.proxy.failpoint("apply_events", at="reply", nth=4)
        await two.start()
        await two.applies.reached()
        claims = two.proxy.counts["XAUTOCLAIM"]
        two.worker.terminate()

        async def not_reading():
            consumers = await EventStream(database, settings.stream, settings.group).consumers()
            return all(consumer["idle"] > 2 * settings.block_ms for consumer in consumers)

        await wait_until(not_reading, "the worker has stopped to read")
        two.applies.release()
        assert await ended(two.worker) == 0
        assert two.proxy.counts["XAUTOCLAIM"] == claims
        assert (await documents(database), await pending(database, settings)) == (4, EVENTS - 4)
        await heir_finishes(two, ledger, database, settings)
