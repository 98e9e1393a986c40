"""`repair` beside writers, readers and other repairs."""

from __future__ import annotations

import random

import anyio
import anyio.to_thread
import msgspec
import pytest
from check.changes import ODD, STREAM, Altered, build, delete, history, write
from conftest import wait_until
from redis.exceptions import ResponseError

from jiyi import keys, metrics, scripts
from jiyi import repair as repair_module
from jiyi.check import check_namespace
from jiyi.errors import CorruptIndexError
from jiyi.events import parse_entry
from jiyi.index import IndexWriter
from jiyi.postings import DF, JOURNAL
from jiyi.repair import repair_namespace
from jiyi.repair.journal import JournalRepair
from jiyi_api.snapshots import SnapshotReader

from .much_damage import plant_much
from .namespaces import WORDS, agrees_with_a_fresh_index, bucket, changes, memory, scores

pytestmark = pytest.mark.anyio


class Ledger:
    """Writers that go on until told to stop; what they have applied is kept by id."""

    def __init__(self, database, ns, seed):
        self.database = database
        self.ns = ns
        self.dice = random.Random(seed)
        self.newest = {}
        self.done = anyio.Event()
        self.clock = 1_700_000_100_000
        self.applied = 0
        self.refusals = 0

    def batch(self):
        batch = []
        for i in self.dice.sample(range(60), 6):
            self.clock += 1
            version = f"{self.clock}-0"
            if self.dice.random() < 0.2:
                batch.append(delete(f"m{i}", version))
            else:
                words = self.dice.choices([*(f"w{n}" for n in range(40)), "common"], k=self.dice.randrange(1, 9))
                author = self.dice.choice(["alice", "bob"])
                batch.append(write(f"m{i}", version, " ".join(words), author=author, importance=0.5))
        return batch

    async def write(self):
        """As a worker: what is refused is tried again until it goes through."""
        writer = IndexWriter(self.database, "f1")
        while not self.done.is_set():
            batch = self.batch()
            while True:
                try:
                    await writer.apply(self.ns, batch)
                except (ResponseError, CorruptIndexError, ValueError, msgspec.MsgspecError):
                    self.refusals += 1
                    await anyio.sleep(0.001)
                else:
                    break
            await anyio.sleep(0.003)  # a worker also analyses
            self.applied += len(batch)
            for change in batch:
                known = self.newest.get(change.id)
                if known is None or parse_entry(known.version) < parse_entry(change.version):
                    self.newest[change.id] = change

    async def reached(self, count):
        return self.applied > count

    async def nothing_is_lost(self):
        for change in self.newest.values():
            stored = await self.database.hgetall(keys.memory_key(self.ns, change.id))
            assert stored[b"entry"].decode() == change.version
            if change.memory is None:
                assert b"deleted_at" in stored
            else:
                assert stored[b"content"].decode() == change.memory.content


@pytest.mark.parametrize("seed", range(3))
async def test_repair_beside_writers(either, seed):
    """Two writers rewrite, delete and revive what is being mended. They may be refused meanwhile, nothing is lost."""
    ns = ODD
    await build(either, ns, history(seed))
    reader = SnapshotReader(either, "f1", 2**20)
    await scores(either, ns, reader, ["common", *(f"w{i}" for i in range(40))])
    ledger = Ledger(either, ns, seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(ledger.write)
        await wait_until(lambda: ledger.reached(30), "the writers are at work")
        await plant_much(either, ns, seed)
        for _ in range(3):
            before = ledger.applied
            done = await repair_namespace(either, ns, WORDS, stream=STREAM)
            if done.ok:
                break
        assert done.ok, done.report.problems
        await wait_until(lambda: ledger.reached(before + 60), "the writers go on")
        ledger.done.set()
    assert (await check_namespace(either, ns, stream=STREAM)).problems == []
    await ledger.nothing_is_lost()
    await agrees_with_a_fresh_index(either, ns, reader)


@pytest.mark.parametrize("seed", range(2))
async def test_two_repairs_at_once_do_not_harm_each_other(database, seed):
    await build(database, "n", history(seed))
    await plant_much(database, "n", seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(repair_namespace, database, "n", WORDS)
    assert (await repair_namespace(database, "n", WORDS, stream=STREAM)).ok
    await agrees_with_a_fresh_index(database, "n")
    assert await database.keys("rebuild:*") == []


async def test_a_journal_that_grows_too_fast_is_read_on(built):
    """While the new journal was written, more was appended to the old one than one step carries over."""
    await built.hset(keys.stats_key("n"), "docs", 7)
    calls = 0

    async def grow(command, run):
        nonlocal calls
        if command[1] == scripts.load("repair_journal").sha:
            calls += 1
            if calls == 1:
                first = await built.hincrby(keys.stats_key("n"), "next_doc", 2000) - 2000
                records = (
                    JOURNAL.pack(number, 1, 5, 0.5) + JOURNAL.pack(number, 0xFFFF_FFFF, 0, 0.0)
                    for number in range(first, first + 2000)
                )
                await built.append(keys.journal_key("n"), b"".join(records))
        return await run(*command)

    await scripts.repair_marks(built, "n", ())
    await scripts.call(built, "repair_journal", ["a{n}", "b{n}", "c{n}"], ["e", "", 0, 0, 0, 0])  # known by its digest
    assert (await repair_namespace(Altered(built, "EVALSHA", grow), "n", WORDS)).ok
    assert calls == 2
    await agrees_with_a_fresh_index(built, "n")


async def test_what_is_born_and_dies_while_the_journal_is_written_is_in_it(built, monkeypatch):
    """Before and after the memories are read; one round has to do, for nothing else is wrong."""
    monkeypatch.setattr(repair_module, "_ROUNDS", 1)
    writer, census, version = IndexWriter(built, "f1"), JournalRepair._census, 9_000_000

    async def change(names):
        nonlocal version
        for memory_id in names:
            version += 1
            await writer.apply("n", [write(memory_id, f"{version}-0", f"common {memory_id}")])
        await writer.apply("n", [delete(names[-1], f"{version + 1}-0")])

    async def read(repairing):
        await change(["m20", "new", "m21"])
        found = await census(repairing)
        await change(["m22", "m20", "newer", "newest", "m23"])
        return found

    monkeypatch.setattr(JournalRepair, "_census", read)
    await built.hset(keys.stats_key("n"), mapping={"docs": 7, "tokens": 1000})
    assert (await repair_namespace(built, "n", WORDS)).ok
    monkeypatch.undo()
    await agrees_with_a_fresh_index(built, "n")


async def test_a_namespace_that_is_wiped_meanwhile_is_left_to_the_next_check(built):
    await built.hset(keys.stats_key("n"), "docs", 7)
    wiped = False

    async def wipe(command, run):
        nonlocal wiped
        if not wiped:
            wiped = True
            await built.flushdb()
            await build(built, "n", history(5, steps=60))
        return await run(*command)

    assert (await repair_namespace(Altered(built, "SET", wipe), "n", WORDS)).ok
    assert wiped
    await agrees_with_a_fresh_index(built, "n")


async def test_a_list_that_workers_change_all_the_time_is_mended(built, monkeypatch):
    """Between every reading and its replacing a document with the term is born."""
    monkeypatch.setattr(repair_module, "_ROUNDS", 1)
    await built.hset(bucket("common"), "common", DF.pack(99))
    await scripts.call(built, "repair_terms", ["a{n}"], ["e"])
    writer, born = IndexWriter(built, "f1"), 0

    async def bear(command, run):
        nonlocal born
        if command[1] == scripts.load("repair_terms").sha:
            born += 1
            await writer.apply("n", [write(f"m{born}", f"{9_000_000 + born}-0", "common")])
        return await run(*command)

    assert (await repair_namespace(Altered(built, "EVALSHA", bear), "n", WORDS)).ok
    assert born == 2
    await agrees_with_a_fresh_index(built, "n")


async def test_readers_take_a_repair_for_no_wipe(built):
    """They drop what they have cached all the same, and a wipe is still one."""
    reader, wipes = SnapshotReader(built, "f1", 2**20), metrics.WIPES.labels("namespace")
    await scores(built, "n", reader, ["common"])
    before = wipes._value.get()
    await built.hset(memory("m20"), "length", 99)
    assert (await repair_namespace(built, "n", WORDS)).ok
    await agrees_with_a_fresh_index(built, "n", reader)
    assert wipes._value.get() == before
    await built.flushdb()
    await build(built, "n", changes())
    await scores(built, "n", reader, ["common"])
    assert wipes._value.get() == before + 1
