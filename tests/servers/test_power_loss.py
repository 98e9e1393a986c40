"""Power is lost at any byte of the append-only file: what comes back is a moment of the past, whole, and goes on.

`JIYI_TEST_CUTS` sets how many cuts are tried, `JIYI_TEST_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from contextlib import aclosing, asynccontextmanager

import pytest
from conftest import start_server, wait_until

from jiyi.check import check
from jiyi.connections import connect
from jiyi.events import parse_entry
from servers.asking import Asker
from servers.consumer import Consumer
from servers.history import History
from servers.processes import OwnServer

pytestmark = pytest.mark.anyio

CUTS = int(os.environ.get("JIYI_TEST_CUTS", "60"))
WINDOW_BYTES = 12
TAIL_BYTES = 65_536


async def record(server, analyzer, seed):
    """Let a server write a history into its file: read in order, processed in any, tidied, killed at the end."""
    dice = random.Random(seed)
    database = await connect(server.patient)
    history = History(database, server.patient, seed)
    consumer = Consumer(database, server.patient, analyzer)
    await consumer.stream.ensure_group()
    held = []
    for step in range(60):
        await history.append(dice.randrange(1, 12))
        held.append(await consumer.read(dice.randrange(1, 12)))
        dice.shuffle(held)
        while len(held) > dice.randrange(4):
            await consumer.pipeline.process(held.pop())
        if step % 5 == 4:
            await consumer.housekeeping.sweep()
        if step % 10 == 9:
            await history.tidy_letters()
        if step == 20:
            await rewritten(database)
    await database.aclose()
    server.kill()
    return history


async def rewritten(database):
    """Have the file rewritten: what came before lies in a base file then, out of reach of the cuts."""
    await database.bgrewriteaof()

    async def done():
        info = await database.info("persistence")
        return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]

    await wait_until(done, "the file is rewritten")


def cuts(dice, size, count):
    """Lengths of what is left: every byte of some windows near the end, half of all; the rest anywhere."""
    found = set()
    while len(found) < count // 2:
        at = dice.randrange(max(0, size - TAIL_BYTES), size)
        found.update(range(at, min(at + WINDOW_BYTES, size + 1)))
    while len(found) < count:
        found.add(dice.randrange(size + 1))
    return sorted(found)


@asynccontextmanager
async def restarted(source, folder, length, port):
    """A server on a copy of a folder, its append-only file cut to a length."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.folder, folder)
    [file] = folder.glob("appendonlydir/*.incr.aof")
    os.truncate(file, length)
    process = start_server(folder, port, *source.options)
    try:
        async with aclosing(await connect(source.patient)) as database:
            yield database
    finally:
        process.kill()
        process.wait()


async def test_any_cut_leaves_a_moment_of_the_past_that_goes_on(tmp_path, analyzer, seed):
    server = OwnServer(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "no")
    history = await record(server, analyzer, seed)
    [file] = server.append_only_files()
    dice = random.Random(seed)
    for length in cuts(dice, file.stat().st_size, CUTS):
        sys.stdout.write(f"cut at {length} of {file.stat().st_size}\n")
        async with restarted(server, tmp_path / "copy", length, server.port) as database:
            await goes_on(database, server.patient, analyzer, history, dice)


async def goes_on(database, settings, analyzer, history, dice):
    """What is there is whole and tells the truth; and processing what is left leads to the fold of all events."""
    if not await database.exists(settings.stream):
        return  # cut before the first event
    last = (await database.xinfo_stream(settings.stream))["last-generated-id"].decode()
    assert [problem for report in await check(database, stream=settings.stream) for problem in report.problems] == []
    await readiness_tells_the_truth(Asker(database, settings, analyzer), history, last, dice)
    consumer = Consumer(database, settings, analyzer, "survivor")
    await consumer.catch_up()
    for _ in range(2):
        await consumer.housekeeping.sweep()
    assert [problem for report in await check(database, stream=settings.stream) for problem in report.problems] == []
    state = await consumer.stream.state(0)
    assert (state.lag, state.pending) == (0, 0)
    await history.verify(database, last)
    await readiness_tells_the_truth(Asker(database, settings, analyzer), history, last, dice)


async def readiness_tells_the_truth(asker, history, last, dice):
    """What is called ready is found by its own token; what came after the cut is not ready."""
    events = {event.entry: event for event in history.events}
    known, decided = history.until(last)
    some = dice.sample(known, k=min(10, len(known))) + history.events[len(known) :][:5]
    for event, answer in zip(some, await asker.ready([(event.id, event.entry) for event in some]), strict=True):
        assert not answer.ready or parse_entry(answer.entry) >= parse_entry(event.entry)
        assert event in known or answer.state in {"unknown", "failed"}, "it is gone"
    for answer in await asker.ready(
        [(memory_id, None) for memory_id in dice.sample(sorted(decided), k=len(decided) // 4)]
    ):
        if answer.ready:
            token = events[answer.entry].token
            assert answer.id in {hit.id for hit in (await asker.search(token)).hits}, f"{answer.entry} is not found"
