"""A worker dies at a chosen point between two commands, and another finishes: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

import msgspec
import pytest
from conftest import wait_until
from histories import (
    COUNTS,
    DOCUMENTS,
    WRITES,
    assert_finished,
    at_rest,
    documents,
    held_by_nobody_living,
    pending,
    write_history,
)
from processes import ended, pair

from faults.ledger import Ledger
from faults.toxics import Latency
from jiyi import Producer

pytestmark = pytest.mark.anyio


class Crash(NamedTuple):
    """Where a worker dies: at the n-th of these requests. And what must be true of the server just after.

    `docs` -1 is: some, and not all.
    """

    requests: tuple[str, ...]
    at: str
    nth: int = 1
    docs: int = 0
    pending: bool = True


ACKNOWLEDGE = ("acknowledge", "XACK")
TRIM = ("sweep_stream", "XTRIM")
CRASHES = {
    "group created, answer lost": Crash(("create_group", "XGROUP"), "reply", pending=False),
    "before delivery": Crash(("XREADGROUP",), "request", pending=False),
    "delivered, answer lost": Crash(("XREADGROUP",), "reply"),
    "dead letter not sent": Crash(("dead_letter",), "request"),
    "dead letter filed, answer lost": Crash(("dead_letter",), "reply"),
    "dead letter filed, not acknowledged": Crash(ACKNOWLEDGE, "request"),
    "dead letter acknowledged, answer lost": Crash(ACKNOWLEDGE, "reply"),
    "read, not prepared": Crash(("prepare_events",), "request"),
    "prepared, answer lost": Crash(("prepare_events",), "reply"),
    "prepared, not announced": Crash(("SADD",), "request"),
    "apply not sent": Crash(("apply_events",), "request"),
    "half of a batch applied, answer lost": Crash(("apply_events",), "reply", docs=-1),
    "half of a batch applied, the rest not sent": Crash(("apply_events",), "request", nth=2, docs=-1),
    "applied, answer lost": Crash(("apply_events",), "reply", nth=5, docs=DOCUMENTS),
    "applied, nobody woken": Crash(("PUBLISH",), "request", nth=2, docs=DOCUMENTS),
    "applied, not acknowledged": Crash(ACKNOWLEDGE, "request", nth=2, docs=DOCUMENTS),
    "acknowledged, answer lost": Crash(ACKNOWLEDGE, "reply", nth=2, docs=DOCUMENTS, pending=False),
    "acknowledged, not trimmed": Crash(TRIM, "request", docs=DOCUMENTS, pending=False),
    "trimmed, answer lost": Crash(TRIM, "reply", docs=DOCUMENTS, pending=False),
}
SWEEPS = {
    "claimed, answer lost": Crash(("XAUTOCLAIM",), "reply", nth=6, docs=-1),
    "claimed, not prepared": Crash(("prepare_events",), "request", nth=6, docs=-1),
    "applied, answer lost": Crash(("apply_events",), "reply", nth=6, docs=-1),
    "applied, not acknowledged": Crash(ACKNOWLEDGE, "request", nth=6, docs=-1),
}


@pytest.fixture
def settings(settings):
    """All events of a test fit into one batch, so that the points come in one order."""
    return msgspec.structs.replace(settings, batch=500, claim_idle_ms=300, document_timeout_ms=250, drain_ms=2000)


@pytest.fixture
async def ledger(database, settings, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    await write_history(ledger, database, settings)
    yield ledger
    ledger.close()


async def crash_and_succeed(crash, two, ledger, database, settings):
    point = two.proxy.failpoint(*crash.requests, at=crash.at, do=two.kill, nth=crash.nth)
    await two.start()
    await point.reached()
    assert await ended(two.worker) == -signal.SIGKILL
    assert (await pending(database, settings) > 0) == crash.pending
    docs = await documents(database)
    assert 0 < docs < WRITES if crash.docs < 0 else docs == crash.docs
    two.let_heir_work()
    await assert_finished(ledger, database, settings, **COUNTS)


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
async def test_a_worker_that_dies_is_replaced(crash, ledger, database, settings, tmp_path):
    async with pair(settings, tmp_path) as two:
        if crash.requests == TRIM:  # not before there is something to trim
            sweep = two.proxy.failpoint("XAUTOCLAIM")
            two.proxy.failpoint(*ACKNOWLEDGE, at="reply", nth=2, do=lambda _: sweep.release())
        await crash_and_succeed(crash, two, ledger, database, settings)


@pytest.mark.parametrize("crash", SWEEPS.values(), ids=SWEEPS)
async def test_a_worker_that_dies_while_it_takes_over_is_replaced(crash, ledger, database, settings, tmp_path):
    await held_by_nobody_living(database, settings)
    async with pair(settings, tmp_path) as two:
        await crash_and_succeed(crash, two, ledger, database, settings)


async def newer(ledger, settings):
    """Change half of what the history has written."""
    async with Producer(settings=settings) as producer:
        for i in range(0, WRITES, 4):
            await ledger.write(producer, "default", f"m{i}", f"第三 version of {i}")
            await ledger.delete(producer, "default", f"m{i + 1}")


LATE = {
    "prepare": (("prepare_events",), None),
    "apply": (("apply_events",), b":1\r\n"),
    "acknowledgement": (ACKNOWLEDGE, b":0\r\n"),
    "dead letter": (("dead_letter",), b":0\r\n"),
}


@pytest.mark.parametrize(("requests", "answer"), LATE.values(), ids=LATE)
async def test_what_a_dead_worker_had_sent_comes_late_and_changes_nothing(
    requests, answer, ledger, database, settings, tmp_path
):
    """The request was on the network when its worker died, and arrives when others have done the work and more."""
    async with pair(settings, tmp_path) as two:
        held = two.proxy.failpoint(*requests)
        late = two.proxy.failpoint(*requests, at="reply", do=lambda request: answers.append(request.reply))
        answers = []
        await two.start()
        await held.reached()
        two.worker.kill()
        two.let_heir_work()
        await at_rest(database, settings)
        await newer(ledger, settings)
        await at_rest(database, settings)
        with two.proxy.toxic(Latency(50), "upstream"):  # or the end of the connection could overtake the answer
            held.release()
            await late.reached()
        assert answer is None or answers == [answer]
        await assert_finished(ledger, database, settings)


@pytest.mark.parametrize("at", ["XREADGROUP", "prepare_events"])
async def test_a_worker_that_stood_still_wakes_up_and_changes_nothing(at, ledger, database, settings, tmp_path):
    """Stopped for longer than the idle limit with a whole batch in hand, while others do the work and more."""
    async with pair(settings, tmp_path) as two:
        stopped = two.proxy.failpoint(at, at="reply", do=two.freeze)
        answers = []
        two.proxy.failpoint(
            "apply_events", at="reply", do=lambda request: answers.append(request.reply), times=None
        )  # fmt: skip
        await two.start()
        await stopped.reached()
        two.let_heir_work()
        await at_rest(database, settings)
        await newer(ledger, settings)
        await at_rest(database, settings)
        before = two.proxy.counts["acknowledge"] + two.proxy.counts["XACK"]
        os.kill(two.worker.pid, signal.SIGCONT)

        async def acknowledged():
            return two.proxy.counts["acknowledge"] + two.proxy.counts["XACK"] > before

        await wait_until(acknowledged, "the worker finishes what it held")
        assert set(answers) == ({b":1\r\n"} if at == "prepare_events" else set()), "refused: the fences have moved"
        two.worker.terminate()
        assert await ended(two.worker) == 0
        assert "Traceback" not in two.log()
        await assert_finished(ledger, database, settings)
