"""Compaction drops what is dead, nothing else, while everything goes on."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio
import pytest
from api.conftest import Index
from api.test_snapshots import scores, searcher_on
from conftest import running, wait_until

from jiyi import keys
from jiyi.analysis import Analyzer
from jiyi.check import check_namespace
from jiyi.compaction import SLACK, WASTE, Compacted, compact_namespace, is_due
from jiyi.errors import UnavailableError
from jiyi.postings import DF
from jiyi.producer import Producer
from jiyi_workers.compactor import Compactor

pytestmark = pytest.mark.anyio

WORDS = ["redis", "stream", "memory", "queue", "索引", "记忆", "超时", "agent"]


@pytest.fixture(scope="module")
def analyzer():
    return Analyzer()


@pytest.fixture
def index(either, analyzer):
    return Index(either, analyzer)


async def churn(index, documents=40, rounds=5):
    """Write documents several times over; gives their last texts."""
    rng, texts = random.Random(5), {}
    for _ in range(rounds):
        texts = {f"m{i}": " ".join(rng.choices(WORDS, k=6)) for i in range(documents)}
        await index.write_all(texts)
    return texts


async def sizes(database, ns="default"):
    """Bytes of the journal and of all long lists."""
    journal = await database.strlen(keys.journal_key(ns))
    lists = 0
    for bucket in range(keys.BUCKETS):
        for term, value in (await database.hgetall(keys.bucket_key(ns, bucket))).items():
            if len(value) == DF.size:
                lists += await database.strlen(keys.index_key(ns, term.decode()))
    return journal, lists


async def sound(database, ns="default"):
    report = await check_namespace(database, ns)
    assert report.ok, report.problems
    return report


async def test_afterwards_nothing_dead_is_left(either, index, analyzer):
    texts = await churn(index)
    before = await scores(searcher_on(either, analyzer), "redis 索引")
    report = await sound(either)
    assert report.dead_postings > report.live_postings
    done = await compact_namespace(either, "default")
    assert (done.postings, done.documents) == (report.dead_postings, 4 * len(texts))
    assert (await sound(either)).dead_postings == 0
    assert await scores(searcher_on(either, analyzer), "redis 索引") == before
    compacted = await sizes(either)
    await index.write_all({f"f{i}": text for i, text in enumerate(texts.values())}, ns="fresh")
    assert compacted == await sizes(either, "fresh"), "as if every memory had been written once"
    assert await compact_namespace(either, "default") == Compacted(0, 0, pytest.approx(0, abs=60))


async def test_a_reader_that_knew_the_old_lists_stays_right(either, index, analyzer):
    await churn(index)
    warm = searcher_on(either, analyzer)
    before = {word: await scores(warm, word) for word in WORDS}
    await compact_namespace(either, "default")
    await index.write("new", "redis 索引 redis")
    for word in WORDS:
        fresh = await scores(searcher_on(either, analyzer), word)
        assert await scores(warm, word) == fresh
        assert len(fresh) >= len(before[word])


async def test_writers_readers_and_compaction_at_once(either, index, analyzer):
    texts = await churn(index)
    rng, living, done = random.Random(8), dict(texts), anyio.Event()
    warm = searcher_on(either, analyzer)

    async def write():
        for step in range(150):
            memory_id = f"m{rng.randrange(50)}"
            if rng.random() < 0.3:
                await index.delete(memory_id)
                living.pop(memory_id, None)
            else:
                living[memory_id] = " ".join(rng.choices(WORDS, k=rng.randrange(1, 9)))
                await index.write(memory_id, living[memory_id])
            if step % 10 == 0:
                await scores(warm, rng.choice(WORDS))
        done.set()

    async def compact():
        while not done.is_set():
            with suppress(UnavailableError):  # the other one was faster
                await compact_namespace(either, "default")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        tasks.start_soon(compact)
        tasks.start_soon(compact)
    await sound(either)
    other = Index(either, analyzer)
    await other.write_all(living, ns="fresh")
    fresh = searcher_on(either, analyzer)
    for word in WORDS:
        found = await scores(warm, word)
        assert found == pytest.approx(await scores(fresh, word, ns="fresh"))
    await compact_namespace(either, "default")
    assert (await sound(either)).dead_postings == 0


async def test_broken_off_anywhere_it_leaves_a_right_index(either, index, analyzer):
    await churn(index)
    before = {word: await scores(searcher_on(either, analyzer), word) for word in WORDS}
    for steps in range(4):
        left = [steps]

        async def give_up(left=left):
            if left[0] == 0:
                raise RuntimeError("killed here")
            left[0] -= 1

        with pytest.raises(RuntimeError, match="killed here"):
            await compact_namespace(either, "default", on_step=give_up)
        await sound(either)
    await compact_namespace(either, "default")
    assert {word: await scores(searcher_on(either, analyzer), word) for word in WORDS} == before
    await sound(either)


async def test_a_damaged_list_is_left_for_repair_and_so_is_the_journal(either, index):
    await churn(index)
    key = keys.bucket_key("default", keys.bucket_of("redi"))
    await either.hset(key, "redi", DF.pack(7))
    journal, _ = await sizes(either)
    list_before = await either.get(keys.index_key("default", "redi"))
    done = await compact_namespace(either, "default")
    assert done.postings > 0
    assert done.documents == 0
    assert await either.get(keys.index_key("default", "redi")) == list_before
    assert (await sizes(either))[0] == journal
    report = await check_namespace(either, "default")
    assert {problem.kind.value for problem in report.problems} == {"df"}


async def test_a_namespace_wiped_meanwhile_is_said_to_be(either, index):
    await churn(index)

    async def wipe():
        async for key in either.scan_iter():
            await either.delete(key)
        await index.write("new", "redis")

    with pytest.raises(UnavailableError, match="wiped"):
        await compact_namespace(either, "default", on_step=wipe)
    await sound(either)


def test_it_is_due_when_a_fifth_is_dead():
    def journal(docs, dead):
        return 4 + 20 * (docs + 2 * dead)

    assert not is_due(0, 0)
    assert not is_due(10_000, journal(10_000, int(WASTE * 10_000) + SLACK))
    assert is_due(10_000, journal(10_000, int(WASTE * 10_000) + SLACK + 1))
    assert not is_due(10, journal(10, SLACK))
    assert is_due(10, journal(10, 10 * SLACK))


async def test_workers_hold_memory_down_under_endless_rewrites(database, settings):
    """Ten memories, written and deleted over and over: neither the journal nor the lists nor the stream grow on."""
    async with Producer(settings=settings) as producer:
        with running("jiyi_workers", settings, 2):
            for turn in range(4):
                for i in range(30):
                    await producer.write_many(
                        {"id": f"m{j}", "content": f"redis stream 索引 {turn} {i}"} for j in range(20)
                    )

                async def compacted():
                    docs = int(await database.hget(keys.stats_key("default"), "docs") or 0)
                    journal = await database.strlen(keys.journal_key("default"))
                    return docs == 20 and not is_due(docs, journal) and await database.xlen(settings.stream) == 0

                await wait_until(compacted, "what is dead is gone", timeout_s=40)
            born = int(await database.hget(keys.stats_key("default"), "next_doc"))
            assert born > 20 + SLACK + 100, "fewer would prove nothing"

            async def released():
                return not await database.exists(keys.compaction_key("default"))

            await wait_until(released, "nobody holds the lease")
    journal, lists = await sizes(database)
    assert journal <= 4 + 20 * (20 + 2 * (SLACK + 4))
    assert lists < 100_000
    await sound(database)


async def test_the_lock_of_a_worker_that_dies_ends_by_itself(either, monkeypatch):
    """Also of one that dies before its first step."""
    monkeypatch.setattr("jiyi_workers.compactor.compact_namespace", lambda *_, **__: anyio.sleep_forever())

    async def left_ms():
        left = await either.pttl(keys.compaction_key("default"))
        return None if left == -2 else left  # -2: there is none, -1: it has no end

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Compactor(either, "dead")._compact, "default")
        left = await wait_until(left_ms, "it is compacting")
        tasks.cancel_scope.cancel()
    assert 0 < left <= 60_000
    assert await left_ms() is None, "who is only stopped takes it away"
