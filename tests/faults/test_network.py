"""Workers on bad lines: slow, sliced, half-open, cut at every command. All that may happen is that it takes longer."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import msgspec
import pytest
from conftest import wait_until
from histories import assert_finished, at_rest, load_scripts
from processes import worker_of

from faults.ledger import Ledger
from faults.proxy import Proxy
from faults.toxics import Bandwidth, Latency, Slicer, Timeout
from jiyi import Producer

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(request, settings):
    return msgspec.structs.replace(settings, **{"drain_ms": 1000} | getattr(request, "param", {}))


def with_settings(**values):
    return pytest.mark.parametrize("settings", [values], indirect=True, ids=[""])


@pytest.fixture
async def ledger(database, tmp_path):
    await load_scripts(database)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    yield ledger
    ledger.close()


@pytest.fixture
async def producer(settings, database):
    async with Producer(settings=settings) as producer:
        yield producer


@pytest.fixture
async def proxy(settings, database):
    async with Proxy(settings.redis_url) as proxy:
        yield proxy


@pytest.fixture
async def log(proxy, ledger, settings, tmp_path):
    """Run a worker behind the proxy, until it waits for events; gives its log."""
    log = tmp_path / "worker.log"
    async with worker_of(msgspec.structs.replace(settings, redis_url=proxy.url), log) as worker:
        waiting = proxy.failpoint("XREADGROUP", do=lambda _: None)
        await waiting.reached()
        yield log
        assert worker.is_alive(), log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


async def write(ledger, producer, count, ns="default"):
    """Write `count` memories, some of them twice, and delete some, until all are accepted."""
    pairs = [(f"m{i}", f"记忆 number {i}") for i in range(count)]
    pairs += [(f"m{i}", f"第二 version of {i}") for i in range(count // 4)]
    for at in range(0, len(pairs), 20):
        while not await ledger.write_many(producer, ns, pairs[at : at + 20]):
            pass
    for i in range(count // 5):
        while not await ledger.delete(producer, ns, f"m{i}"):
            pass


SLOW_LINES = {"300 ± 200 ms": Latency(300, 200, seed=4), "10 KB/s": Bandwidth(10_000), "byte by byte": Slicer(1)}


@with_settings(claim_idle_ms=8_000)
@pytest.mark.parametrize("toxic", SLOW_LINES.values(), ids=SLOW_LINES)
async def test_a_slow_line_is_no_failure(toxic, proxy, log, ledger, producer, database, settings):
    with proxy.toxic(toxic):
        await write(ledger, producer, 40)
        await at_rest(database, settings)
    await assert_finished(ledger, database, settings, applied=40, unknown=0)
    assert "redis_unavailable" not in log.read_text()


@with_settings(redis_timeout_ms=400, confirm_ms=100)
async def test_lines_that_went_dead_are_given_up(proxy, log, ledger, producer, database, settings):
    """Half-open: neither side hears of the other any more, and what was delivered into the dead line comes back."""
    with ExitStack() as stack:
        dead = proxy.connections
        for connection in dead:
            stack.enter_context(proxy.toxic(Timeout(), connection=connection))
        await write(ledger, producer, 20)
        await at_rest(database, settings)
        await write(ledger, producer, 20)
        await assert_finished(ledger, database, settings, applied=20)
        given_up = [line for line in log.read_text().splitlines() if "TimeoutError" in line]
        assert given_up
        assert proxy.counts["XREADGROUP"] >= 2


@with_settings(batch=10)
async def test_a_storm_of_resets(proxy, log, ledger, producer, database, settings):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, ledger, producer, 300)
        for _ in range(5):
            before = proxy.accepted
            proxy.reset()

            async def connected(before=before):
                return proxy.accepted >= before + 2

            await wait_until(connected, "the worker has connected again")
    await assert_finished(ledger, database, settings, applied=300)


@with_settings(batch=10)
async def test_a_storm_of_killed_clients(proxy, log, ledger, producer, database, settings):
    """Every client of the server is cut off again and again, the producer too: it sends again what is open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, ledger, producer, 300)
        for _ in range(5):
            before = proxy.accepted
            await database.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

            async def connected(before=before):
                return proxy.accepted >= before + 2

            await wait_until(connected, "the worker has connected again")
    await assert_finished(ledger, database, settings, applied=300)


def hit(point):
    async def has_hit():
        return point.hits

    return has_hit


CONNECTING = {"CLIENT", "INFO", "HELLO"}
ALWAYS = {"XREADGROUP", "prepare_events", "apply_events", "SADD", "PUBLISH", "dead_letter", "XAUTOCLAIM", "SSCAN"}


@pytest.mark.parametrize("at", ["request", "reply"])
async def test_a_cut_at_each_command_in_turn(at, proxy, log, ledger, producer, database, settings):
    async def work(ns):
        """One of everything, in a namespace of its own."""
        for _ in range(2):
            await ledger.write_many(producer, ns, [(f"m{i}", f"记忆 number {i}") for i in range(3)])
        await ledger.delete(producer, ns, "m1")
        bad = ledger.begin("write", ns, "bad", "no number")
        fields = {"event": "write", "ns": ns, "id": "bad", "content": "no number", "importance": "x"}
        ledger.accept(bad.number, (await database.xadd(settings.stream, fields)).decode())

    await work("first")
    await at_rest(database, settings)

    async def seen_all():
        return set(proxy.counts) >= ALWAYS

    await wait_until(seen_all, "the worker has also kept house")
    kinds = set(proxy.counts)
    assert kinds & {"acknowledge", "XACK"}
    for kind in sorted(kinds - {"create_group", "XGROUP", "ZREM"}):  # the group stays; ZREM follows conflicts only
        point = proxy.failpoint(kind, at=at, do="cut")
        if kind in CONNECTING:
            proxy.cut()
        await work(f"cut at {kind}")
        await wait_until(hit(point), f"the worker is cut at {kind}")
        await at_rest(database, settings)
    await assert_finished(ledger, database, settings, unknown=0)


@with_settings(sweep_ms=4_000, block_ms=500)
async def test_a_server_that_closes_idle_connections_is_no_failure(proxy, log, ledger, producer, database, settings):
    """`timeout 1`: what is closed while idle is opened again when it is needed, and nobody hears of it."""
    await database.config_set("timeout", 1)
    try:
        before = proxy.accepted

        async def closed():
            return len(proxy.connections) < before

        await wait_until(closed, "the server has closed what was idle")
        await write(ledger, producer, 20)
        await assert_finished(ledger, database, settings, applied=20)
        assert "redis_unavailable" not in log.read_text()
        assert "sweep_failed" not in log.read_text()
    finally:
        await database.config_set("timeout", 0)


@with_settings(block_ms=1_500, redis_timeout_ms=300, confirm_ms=100)
async def test_a_blocking_read_outlasts_the_read_timeout(proxy, log, database):
    """An idle worker has no reason to connect again."""
    before = proxy.accepted, proxy.counts["XREADGROUP"]

    async def read_on():
        return proxy.counts["XREADGROUP"] >= before[1] + 2

    await wait_until(read_on, "two blocking reads have come to their end")
    assert proxy.accepted == before[0]
    assert "redis_unavailable" not in log.read_text()


async def test_workers_follow_to_another_address(proxy, log, ledger, producer, database, settings):
    """Refused for a while, then let in again: nothing has to be started anew."""
    proxy.refuse()
    proxy.reset()
    await write(ledger, producer, 20)

    async def refused():
        return log.read_text().count("redis_unavailable") >= 2

    async def told():
        return "redis_available" in log.read_text()

    await wait_until(refused, "the worker has tried")
    assert not await told()
    proxy.accept()
    await assert_finished(ledger, database, settings, applied=20)
    await wait_until(told, "the log does not end with the outage")
