"""Compaction drops what is dead, nothing else, while everything goes on."""

from __future__ import annotations

import random
from contextlib import suppress
from types import SimpleNamespace

import anyio
import pytest
from api.conftest import Index
from api.test_snapshots import scores, searcher_on
from conftest import running, wait_until

from jiyi import compaction, keys, scripts
from jiyi.analysis import Analyzer
from jiyi.check import check_namespace
from jiyi.compaction import GROWTH, GROWTH_SLACK, SLACK, WASTE, Compacted, compact_namespace, has_grown, is_due
from jiyi.errors import UnavailableError
from jiyi.postings import DF
from jiyi.producer import Producer
from jiyi.repair import terms as repair_terms
from jiyi.sealed_postings import open_part, plain, sealed_bytes
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
    """Bytes of the journal and of all records of long lists, sealed or not."""
    journal = await database.strlen(keys.journal_key(ns))
    return journal, sum(len(plain(content)) for content in (await long_lists(database, ns)).values())


async def long_lists(database, ns="default"):
    """What follows the generation of each long list, by term."""
    prefix, found = keys.index_prefix(ns).encode(), {}
    async for key in database.scan_iter(count=10_000):
        if key.startswith(prefix):
            found[key[len(prefix) :].decode()] = (await database.get(key))[4:]
    return found


@pytest.fixture
def tiny(monkeypatch):
    """Everything is large, and has grown much."""
    monkeypatch.setattr(compaction, "LEAST_OPEN", 1)
    monkeypatch.setattr(compaction, "GROWTH_SLACK", 10)


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
    assert await compact_namespace(either, "default") == Compacted(0, 0, 0, pytest.approx(0, abs=60))


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


async def test_what_has_only_grown_is_sealed(either, index, analyzer, tiny):
    """All postings are there, in less than half of the bytes, and every score is the same to the last bit."""
    rng = random.Random(3)
    await index.write_all({f"m{i}": " ".join(rng.choices(WORDS, k=6)) for i in range(150)})
    before = await long_lists(either)
    expected = {word: await scores(searcher_on(either, analyzer), word) for word in WORDS}
    done = await compact_namespace(either, "default", growth_only=True)
    assert (done.postings, done.documents, done.lists) == (0, 0, len(before))
    after = await long_lists(either)
    assert after.keys() == before.keys()
    assert all(sealed_bytes(after[term]) == len(after[term]) < len(before[term]) / 2 for term in before)
    assert {term: plain(content) for term, content in after.items()} == before
    assert {word: await scores(searcher_on(either, analyzer), word) for word in WORDS} == expected
    await sound(either)
    again = await compact_namespace(either, "default", growth_only=True)
    assert (again.lists, await long_lists(either)) == (0, after)


async def test_what_follows_is_appended_and_sealed_with_the_rest_in_its_turn(either, index, analyzer, tiny):
    """Readers that know a sealed list are sent what is new, and nothing is lost in any order of steps."""
    warm, rng, living = searcher_on(either, analyzer), random.Random(4), {}
    for step in range(12):
        texts = {f"m{rng.randrange(200)}": " ".join(rng.choices(WORDS, k=5)) for _ in range(15)}
        await index.write_all(texts)
        living |= texts
        if step % 3 == 1:
            await compact_namespace(either, "default", growth_only=True)
        if step % 5 == 4:
            await compact_namespace(either, "default")
        word = rng.choice(WORDS)
        assert await scores(warm, word) == await scores(searcher_on(either, analyzer), word)
    contents = (await long_lists(either)).values()
    assert any(sealed_bytes(content) for content in contents)
    assert any(sealed_bytes(content) and open_part(content) for content in contents)
    await sound(either)
    await index.write_all(living, ns="fresh")
    for word in WORDS:
        fresh = await scores(searcher_on(either, analyzer), word, ns="fresh")
        assert await scores(warm, word) == pytest.approx(fresh)


@pytest.mark.parametrize("beside", [False, True])
async def test_what_is_added_to_a_list_while_it_is_sealed_stays(either, index, analyzer, tiny, monkeypatch, beside):
    """Also to one that is written beside its key first. All at the worst moment: after it was read."""
    if beside:
        monkeypatch.setattr(repair_terms, "_BYTES", 8)
    await index.write_all({f"m{i}": "redis stream" for i in range(40)})
    replace, count = scripts.repair_terms, iter(range(3))

    async def late(database, ns, epoch, places, changes):
        for i in count if any(term == "redi" for _, term, _ in places) else ():
            await index.write(f"new{i}", "redis")
            await index.delete(f"m{i}")
        return await replace(database, ns, epoch, places, changes)

    monkeypatch.setattr(scripts, "repair_terms", late)
    assert (await compact_namespace(either, "default", growth_only=True)).lists == 2
    content = (await long_lists(either))["redi"]
    assert len(open_part(content)) == 3 * 6
    assert sealed_bytes(content)
    found = await scores(searcher_on(either, analyzer), "redis")
    assert found.keys() == {f"m{i}" for i in range(3, 40)} | {f"new{i}" for i in range(3)}
    await sound(either)


async def test_growth_alone_leaves_lists_that_have_little_to_seal(either, index, monkeypatch):
    monkeypatch.setattr(compaction, "LEAST_OPEN", 30)
    await index.write_all({f"m{i}": "redis" if i % 2 else "redis stream" for i in range(31)})
    await index.write("m0", "queue")  # one that is dead does not matter
    done = await compact_namespace(either, "default", growth_only=True)
    assert (done.lists, done.postings) == (1, 1)
    assert {term: bool(sealed_bytes(content)) for term, content in (await long_lists(either)).items()} == {
        "redi": True, "stream": False,
    }  # fmt: skip
    await index.write_all({f"n{i}": "redis" for i in range(29)})
    assert (await compact_namespace(either, "default", growth_only=True)).lists == 0
    await index.write("n29", "redis")
    assert (await compact_namespace(either, "default", growth_only=True)).lists == 1
    await sound(either)


@pytest.mark.parametrize("growth_only", [False, True])
@pytest.mark.parametrize("damage", ["flipped", "cut", "twins"])
async def test_a_damaged_list_is_not_sealed(either, index, tiny, damage, growth_only):
    await index.write_all({f"m{i}": "redis stream" for i in range(40)})
    if damage != "twins":
        await compact_namespace(either, "default")
        await index.write_all({f"n{i}": "redis stream" for i in range(20)})
    key = keys.index_key("default", "redi")
    content = bytearray(await either.get(key))
    if damage == "flipped":
        content[20] ^= 1
    elif damage == "cut":
        content = content[: 4 + sealed_bytes(bytes(content[4:])) - 1]
    else:
        content[-6:] = content[-12:-6]
    await either.set(key, bytes(content))
    done = await compact_namespace(either, "default", growth_only=growth_only)
    assert (done.lists, done.documents) == (1, 0)
    assert await either.get(key) == bytes(content)


def test_it_has_grown_when_a_half_is_new():
    assert not has_grown(0, 0, 0)
    assert not has_grown(GROWTH_SLACK, GROWTH_SLACK, 0)
    assert has_grown(GROWTH_SLACK + 1, GROWTH_SLACK + 1, 0)
    enough = int(GROWTH * 20_000) + GROWTH_SLACK
    assert not has_grown(20_000 + enough, 30_000 + enough, 30_000)
    assert has_grown(20_000 + enough + 1, 30_000 + enough + 1, 30_000)
    assert has_grown(20_000, 20_000, 20_001), "a number that cannot be says nothing"


def test_a_list_is_read_a_bounded_number_of_times_while_it_grows():
    docs, sealed, read, passes = 0, 0, 0, 0
    for docs in range(0, 2_000_000, 500):
        if has_grown(docs, docs, sealed):
            sealed, read, passes = docs, read + docs, passes + 1
    assert passes <= 20
    assert read <= docs / (1 - 1 / (1 + GROWTH))


async def test_a_worker_seals_what_has_grown_and_then_rests(either, index, tiny):
    compactor, steps = Compactor(either, "w"), []
    for documents in (8, 20, 4, 40, 3):
        start = sum(steps)
        await index.write_all({f"m{start + i}": "redis stream" for i in range(documents)})
        steps.append(documents)
        before, born = await either.hmget(keys.stats_key("default"), "sealed", "next_doc")
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(compactor.run, scope)
            await compactor.look("default")
            due = bool(compactor._due)

            async def rests():
                return not compactor._due and not await either.exists(keys.compaction_key("default"))

            await wait_until(rests, "it has nothing to do")
            scope.cancel()
        noted = await either.hget(keys.stats_key("default"), "sealed")
        assert (noted != before) is due is (documents >= 20)
        assert not due or noted == born
        if due:
            assert all(sealed_bytes(content) for content in (await long_lists(either)).values())
        await sound(either)
        await compactor.look("default")
        assert not compactor._due


@pytest.mark.parametrize("sealed", [b"x", b"-3", b"99999999999999999999", b""])
async def test_a_damaged_note_keeps_nobody_from_sealing(either, index, tiny, sealed):
    await index.write_all({f"m{i}": "redis" for i in range(30)})
    await either.hset(keys.stats_key("default"), "sealed", sealed)
    compactor = Compactor(either, "w")
    await compactor.look("default")
    assert compactor._due == {"default": True}
    await compact_namespace(either, "default", growth_only=True)
    assert await either.hget(keys.stats_key("default"), "sealed") == b"30"


async def test_sealing_brings_no_namespace_back_that_is_wiped_meanwhile(either, index, tiny):
    await index.write_all({f"m{i}": "redis" for i in range(30)})

    async def wipe():
        async for key in either.scan_iter():
            await either.delete(key)

    with pytest.raises(UnavailableError, match="wiped"):
        await compact_namespace(either, "default", growth_only=True, on_step=wipe)
    assert [key async for key in either.scan_iter()] == []


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


@pytest.mark.parametrize(("rests", "expected"), [(True, [0.4, 1.0]), (False, [])])
async def test_sealing_rests_as_long_as_it_works_and_a_second_at_most(database, monkeypatch, rests, expected):
    """What has only grown can wait; what wastes memory is compacted without a rest."""
    compactor = Compactor(database, "w")
    rested, clock = [], iter([0.0, 0.4, 1.0, 9.0, 9.0] if rests else [0.0, 0.4, 9.0])

    async def sleep(seconds):
        rested.append(seconds)

    monkeypatch.setattr("jiyi_workers.compactor.anyio", SimpleNamespace(current_time=lambda: next(clock), sleep=sleep))
    step = compactor._pace("compaction:{n}", rests=rests)
    for _ in range(2):
        await step()
    assert rested == pytest.approx(expected)
