"""`check` beside writers: nothing is reported that is not wrong, and what is wrong is found."""

from __future__ import annotations

import itertools
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from jiyi import keys, scripts
from jiyi.check import Kind, check, check_namespace
from jiyi.index import IndexWriter
from jiyi.postings import POSTING

from .changes import STREAM, Altered, build, delete, history, write
from .findings import bucket, doc_of

pytestmark = pytest.mark.anyio


async def test_a_page_that_comes_twice_counts_once(built):
    """HSCAN promises every field at least once."""

    async def twice(command, run):
        name, key, cursor, *rest = command
        answer = await run(name, key, 0, *rest)
        return (7, answer[1]) if cursor == 0 else answer

    once = await check_namespace(built, "n")
    found = await check_namespace(Altered(built, "HSCAN", twice), "n")
    found.seconds = once.seconds
    assert found == once


async def test_a_term_that_leaves_while_its_key_is_judged(built):
    """Its postings key was there before the dictionary was read, and is gone with the entry: nothing is wrong."""
    await built.set(keys.index_key("n", "ghost"), b"\0\0\0\0")

    async def leave(command, run):
        await run("DEL", keys.index_key("n", "ghost"))
        return await run(*command)

    assert (await check_namespace(Altered(built, "HGET", leave), "n")).problems == []


@pytest.mark.parametrize("come", [delete, partial(write, text="", expires_at=9_000_000_000_000)])
async def test_a_memory_that_comes_and_goes_while_its_mark_is_read(built, come):
    """It is not there before its mark is read, nor after; in between it was a tombstone, or would have expired."""
    writer, version = IndexWriter(built, "f1"), itertools.count(1_800_000_000_000)

    async def come_and_go(command, run):
        await writer.apply("n", [come("ghost", f"{next(version)}-0")])
        answer = await run(*command)
        await writer.apply("n", [delete("ghost", f"{next(version)}-0")])
        assert await scripts.drop_tombstones(built, "n", ["ghost"], floor="1900000000000-0") == 1
        return answer

    restless = Altered(Altered(built, "ZSCAN", come_and_go), "ZSCORE", come_and_go)
    assert (await check_namespace(restless, "n")).problems == []


async def test_no_false_problem_beside_writers(either):
    """Checks while three writers rewrite, delete and revive the same memories, and tombstones are dropped."""
    await build(either, "n", history(7))
    done = anyio.Event()
    applied = 0

    async def keep_writing(number):
        nonlocal applied
        writer, step = IndexWriter(either, "f1"), 0
        while not done.is_set():
            step += 1
            await anyio.lowlevel.checkpoint()
            changes = list(history(f"{number} {step}", steps=12, memories=120))
            for i, change in enumerate(changes):
                change.version = f"{1_700_000_100_000 + step}-{number * 100 + i}"
            await writer.apply("n", changes)
            applied += len(changes)
            if step % 5 == 0:
                ids = [f"m{i}" for i in range(0, 120, number + 1)]
                await scripts.drop_tombstones(either, "n", ids, floor="1800000000000-0")

    reports = []
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(keep_writing, number)
        for _ in range(4):
            before = applied
            reports.append(await check_namespace(either, "n", stream=STREAM))
            assert applied > before
        reports += await check(either)
        done.set()
    assert [problem for report in reports for problem in report.problems] == []


async def test_a_problem_is_found_beside_writers(database):
    """Damage of a document that stands still is reported at once, whatever moves around it."""
    await build(database, "n", history(8))
    await build(database, "n", [write("still", "1800000000000-0", "common alone")])
    doc = await doc_of(database, "still")
    value = await database.hget(bucket("alone"), "alone")
    await database.hset(bucket("alone"), "alone", value.replace(POSTING.pack(doc, 1), POSTING.pack(doc, 3)))
    async with anyio.create_task_group() as tasks:

        async def keep_writing():
            writer = IndexWriter(database, "f1")
            for step in range(100_000):
                await anyio.lowlevel.checkpoint()
                await writer.apply("n", [write(f"m{step % 90}", f"{1_700_000_100_000 + step}-0", f"common v{step}")])

        tasks.start_soon(keep_writing)
        for _ in range(5):
            assert (await check_namespace(database, "n")).counts == {Kind.POSTING: 1}
        tasks.cancel_scope.cancel()


async def test_a_namespace_wiped_meanwhile_is_checked_anew(database):
    await build(database, "n", history(9))
    wiped = False

    async def wipe():
        await database.flushdb()
        await build(database, "n", history(10, steps=100))

    async with anyio.create_task_group() as tasks:

        def on_progress(_done, _total, phase):
            nonlocal wiped
            if phase == "terms" and not wiped:
                wiped = True
                tasks.start_soon(wipe)

        report = await check_namespace(database, "n", on_progress=on_progress)
    assert wiped
    assert report.problems == []
