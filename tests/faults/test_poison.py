"""A text that kills the worker that analyses it, or never ends: it is filed, and its neighbours are applied."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from conftest import wait_until
from histories import assert_finished, at_rest
from nursery import DEADLY, ENDLESS, GREEDY, run_limited_worker, run_poisoned_worker
from processes import program_of, worker_of

from faults.ledger import Ledger
from jiyi import Producer, dead_letters

pytestmark = pytest.mark.anyio

NEIGHBOURS = 200
DELIVERIES = 2


@pytest.fixture
def settings(request, settings):
    """A worker that has met the limit of time must have ended before another takes the entry for abandoned."""
    document_timeout_ms = getattr(request, "param", 200)
    return msgspec.structs.replace(
        settings,
        max_deliveries=DELIVERIES,
        document_timeout_ms=document_timeout_ms,
        claim_idle_ms=2 * document_timeout_ms,
    )


@pytest.fixture
async def ledger(database, settings, tmp_path):
    """The ledger of two hundred good memories; a test puts the poison into their middle."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    yield ledger
    ledger.close()


async def write(ledger, settings, poison):
    """Give the entry of the poison."""
    async with Producer(settings=settings) as producer:
        good = [(f"m{i}", f"记忆 number {i}") for i in range(NEIGHBOURS)]
        await ledger.write_many(producer, "default", good[:30])
        accepted = await ledger.write(producer, "default", "poison", f"some words, and {poison}")
        await ledger.write_many(producer, "default", good[30:])
    return accepted.entry


async def assert_filed(ledger, database, settings, entry):
    await assert_finished(ledger, database, settings, applied=NEIGHBOURS, dead_lettered=1)
    (letter,) = [letter async for letter in dead_letters.letters(database, "default")]
    assert (letter.entry, letter.code, letter.deliveries) == (entry, "max_deliveries", DELIVERIES + 1)


no_limit_of_memory = pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds RLIMIT_AS")


@pytest.mark.parametrize(
    ("poison", "run", "status", "settings"),
    [
        (DEADLY, run_poisoned_worker, -signal.SIGKILL, 200),
        (ENDLESS, run_poisoned_worker, -signal.SIGALRM, 1_000),
        pytest.param(GREEDY, run_limited_worker, 1, 1_000, marks=no_limit_of_memory),
    ],
    indirect=["settings"],
)
async def test_poison_kills_no_more_workers_than_it_has_deliveries(
    poison, run, status, ledger, database, settings, tmp_path
):
    entry = await write(ledger, settings, poison)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(worker_of(settings, tmp_path / f"{i}.log", run))
            for i in range(DELIVERIES + 1)
        ]
        await at_rest(database, settings)

        async def one_is_left():
            return sum(worker.is_alive() for worker in workers) == 1

        await wait_until(one_is_left, "all but one have ended")
        assert sorted(worker.exitcode for worker in workers if not worker.is_alive()) == [status] * DELIVERIES
        await assert_filed(ledger, database, settings, entry)


async def test_poison_and_workers_that_are_started_again(ledger, database, settings, tmp_path):
    """`jiyi worker --processes 2`: whoever dies comes back, and stops in order when told."""
    entry = await write(ledger, settings, DEADLY)
    command = [sys.executable, str(Path(__file__).with_name("poisoned_workers.py")), "2"]
    log = tmp_path / "log"
    async with program_of(command, settings, log) as supervisor:
        await assert_filed(ledger, database, settings, entry)

        async def both_are_back():
            return log.read_text().count("worker_started") == 2 + DELIVERIES

        await wait_until(both_are_back, "two workers are there again")
    assert supervisor.returncode == 0
    ended = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "child_exited"]
    assert [line["code"] for line in ended] == [-signal.SIGKILL] * DELIVERIES
