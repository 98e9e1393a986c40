"""Re-analysis: afterwards everything is as if it had been written with the new analyzer, whatever came between."""

from __future__ import annotations

import random
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from jiyi import keys, scripts
from jiyi.analysis import TooManyTerms
from jiyi.check import check_namespace
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError
from jiyi.index import IndexWriter, Outcome
from jiyi.logs import id_hash
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.postings import POSTING, split_term_value
from jiyi.reindex import Failure, reindex_namespace

pytestmark = pytest.mark.anyio

NS = "a{b}:*"


class Words:
    """Splits at spaces."""

    fingerprint = "words"

    def terms(self, text):
        return dict(Counter(text.split()))


class Letters(Words):
    """Every character is a term."""

    fingerprint = "letters"

    def terms(self, text):
        return dict(Counter(text.replace(" ", "")))


class Capped(Letters):
    fingerprint = "capped"

    def terms(self, text):
        if "long" in text:
            raise TooManyTerms(9, 8)
        return super().terms(text)


WORDS, LETTERS, CAPPED = Words(), Letters(), Capped()


def change(analyzer, memory_id, version, text, **fields):
    memory = Memory(content=text, **fields)
    return Change(
        id=memory_id, version=version, memory=memory, version_hash=memory.version_hash(), terms=analyzer.terms(text)
    )


def delete(memory_id, version):
    return Change(id=memory_id, version=version, memory=None)


async def apply(database, analyzer, *changes, ns=NS):
    return await IndexWriter(database, analyzer.fingerprint).apply(ns, changes)


def history(analyzer, seed=1, count=300):
    dice = random.Random(seed)
    for step in range(1, count):
        memory_id, version = f"m{dice.randrange(150)}", f"{step + 1_000_000}-1"
        if dice.random() < 0.1:
            yield delete(memory_id, version)
        else:
            text = " ".join(
                dice.choices(["redis", "stream", "索引", "记忆", "timeout", "x1", "y2"], k=dice.randrange(9))
            )
            tags = tuple({dice.choice("ab"), "all"})
            expires_at = dice.choice((None, 9_000_000_000_000))
            importance = dice.choice((None, 0.3))
            yield change(analyzer, memory_id, version, text, tags=tags, expires_at=expires_at, importance=importance)


async def build(database, analyzer, **options):
    changes = list(history(analyzer, **options))
    for at in range(0, len(changes), 25):
        await apply(database, analyzer, *changes[at : at + 25])


async def contents(database, ns=NS):
    """All that scoring can see, with ids for document numbers: N, Σ length, and live postings and df of each term."""
    stats = await database.hgetall(keys.stats_key(ns))
    assert not {b"reindex_cursor", b"reindex_end"} & stats.keys()
    ids, lists, records = {}, {}, {}
    async for key in database.scan_iter(match="ids:*", count=10_000):
        if key.startswith(keys.ids_key(ns, 0)[:-1].encode()):
            ids |= {int(doc): memory_id for doc, memory_id in (await database.hgetall(key)).items()}
    for bucket in range(keys.BUCKETS):
        for term, value in (await database.hgetall(keys.bucket_key(ns, bucket))).items():
            df, postings = split_term_value(value)
            if postings is None:
                postings = (await database.get(keys.index_key(ns, term.decode())))[4:]
            lists[term] = df, {ids[doc]: tf for doc, tf in POSTING.iter_unpack(postings) if doc in ids}
    for memory_id in ids.values():
        record = await database.hgetall(keys.memory_key(ns, memory_id.decode()))
        records[memory_id] = {name: record[name] for name in record if name not in (b"doc", b"indexed_at")}
    return int(stats[b"docs"]), int(stats[b"tokens"]), lists, records


async def wiped(database):
    await database.delete(*[key async for key in database.scan_iter(count=10_000)])


async def test_the_index_is_that_of_a_fresh_one(either):
    await build(either, WORDS)
    seen = []
    result = await reindex_namespace(either, NS, LETTERS, on_progress=lambda *numbers: seen.append(numbers))
    found = await contents(either)
    assert (await check_namespace(either, NS)).problems == []
    assert result.documents == found[0] > 50
    assert result.failed == ()
    assert result.seconds > 0
    assert seen[-1][0] == seen[-1][1] > 128
    if hasattr(either, "get_primaries"):
        await either.flushall(target_nodes="primaries")
    else:
        await either.flushdb()
    await build(either, LETTERS)
    expected = await contents(either)
    assert found[:3] == expected[:3]
    # A time that was not given is the first version's own: it stays what it was.
    assert found[3].keys() == expected[3].keys()
    assert found == expected


async def test_the_same_analyzer_has_nothing_to_do_unless_forced(database):
    await build(database, WORDS, count=50)
    before = await contents(database)
    assert (await reindex_namespace(database, NS, WORDS)).documents == 0
    assert (await reindex_namespace(database, NS, WORDS, force=True)).documents == before[0]
    assert await contents(database) == before
    assert (await check_namespace(database, NS)).ok


async def test_an_unknown_and_an_empty_namespace(database):
    assert (await reindex_namespace(database, "nobody", WORDS)).documents == 0
    assert await database.dbsize() == 0
    await apply(database, WORDS, delete("m", "1-0"))
    assert (await reindex_namespace(database, NS, LETTERS)).documents == 0
    assert (await contents(database))[0] == 0
    assert await database.hget(keys.stats_key(NS), "analyzer") == b"letters"


class BreakError(Exception):
    pass


class Stopping(Letters):
    """Fails after some texts."""

    def __init__(self, after):
        self.left = after

    def terms(self, text):
        self.left -= 1
        if self.left < 0:
            raise BreakError
        return super().terms(text)


@pytest.mark.parametrize("after", [0, 1, 33, 60])
async def test_an_interrupted_run_goes_on(database, after):
    await build(database, WORDS)
    with pytest.raises(BreakError):
        await reindex_namespace(database, NS, Stopping(after))
    assert (await check_namespace(database, NS)).ok
    with pytest.raises(AnalyzerMismatchError):
        await apply(database, WORDS, change(WORDS, "m1", "9000000-1", "late"))
    docs = int(await database.hget(keys.stats_key(NS), "docs"))
    rest = await reindex_namespace(database, NS, LETTERS)
    assert docs - after <= rest.documents <= docs
    found = await contents(database)
    await wiped(database)
    await build(database, LETTERS)
    assert found == await contents(database)


async def test_a_cancelled_run_goes_on(database):
    await build(database, WORDS)
    with anyio.CancelScope() as scope:
        await reindex_namespace(database, NS, LETTERS, on_progress=lambda *_: scope.cancel())
    assert scope.cancelled_caught
    assert await database.hget(keys.stats_key(NS), "reindex_cursor") == b"128"
    seen = []
    result = await reindex_namespace(database, NS, LETTERS, on_progress=lambda *numbers: seen.append(numbers))
    assert 0 < result.documents < (await contents(database))[0]
    assert (await check_namespace(database, NS)).ok


async def test_a_third_analyzer_starts_over(database):
    await build(database, WORDS)
    with pytest.raises(BreakError):
        await reindex_namespace(database, NS, Stopping(40))
    result = await reindex_namespace(database, NS, CAPPED)
    found = await contents(database)
    assert result.documents == found[0]
    await wiped(database)
    await build(database, LETTERS)
    assert found == await contents(database)


async def test_a_run_that_was_overtaken_by_a_third_analyzer_stops(database):
    await build(database, WORDS)

    class Overtaken(Letters):
        def terms(self, text):
            anyio.from_thread.run(reindex_namespace, database, NS, CAPPED)
            return super().terms(text)

    with pytest.raises(AnalyzerMismatchError):
        await reindex_namespace(database, NS, Overtaken())
    assert await database.hget(keys.stats_key(NS), "analyzer") == b"capped"
    assert (await check_namespace(database, NS)).ok


async def test_two_runs_at_once(either):
    await build(either, WORDS)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(reindex_namespace, either, NS, LETTERS)
    found = await contents(either)
    assert (await check_namespace(either, NS)).problems == []
    assert found[2].keys() >= {"引".encode(), b"@tags:all"}


async def test_what_cannot_be_analysed_is_reported_and_keeps_its_old_terms(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "too long"), change(WORDS, "b", "2-0", "brief"))
    result = await reindex_namespace(database, NS, CAPPED)
    assert (result.documents, result.failed) == (1, (Failure(id_hash(NS, "a"), "too_many_terms"),))
    _, _, lists, _ = await contents(database)
    assert lists[b"long"] == (1, {b"a": 1})
    assert lists[b"b"] == (1, {b"b": 1})
    assert (await check_namespace(database, NS)).ok
    assert (await reindex_namespace(database, NS, CAPPED)).failed == ()  # nothing under way any more
    assert (await reindex_namespace(database, NS, LETTERS)).documents == 2


async def test_what_failed_before_an_interruption_is_reported_again(database):
    await apply(database, WORDS, *[change(WORDS, f"m{i}", f"{i + 1}-0", "long" if i == 5 else "x") for i in range(200)])
    with anyio.CancelScope() as scope:
        await reindex_namespace(database, NS, CAPPED, on_progress=lambda *_: scope.cancel())
    result = await reindex_namespace(database, NS, CAPPED)
    assert [failure.id_hash for failure in result.failed] == [id_hash(NS, "m5")]
    assert result.documents == 72


@pytest.mark.parametrize("damage", [{"tags": "["}, {"timestamp": "x"}, {"content": b"\xff"}])
async def test_a_damaged_memory_is_reported_and_left(database, damage):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "x"), change(WORDS, "b", "2-0", "brief"))
    await database.hset(keys.memory_key(NS, "a"), mapping=damage)
    result = await reindex_namespace(database, NS, LETTERS)
    assert (result.documents, result.failed) == (1, (Failure(id_hash(NS, "a"), "unreadable"),))


async def test_damaged_ids_end_the_run(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "x"))
    await database.hset(keys.ids_key(NS, 0), "x", "y")
    with pytest.raises(CorruptIndexError):
        await reindex_namespace(database, NS, LETTERS)


class Meanwhile(Letters):
    """Does something to the database while the first text is analysed."""

    def __init__(self, act):
        self.act = act

    def terms(self, text):
        act, self.act = self.act, None
        if act is not None:
            anyio.from_thread.run(act)
        return super().terms(text)


async def test_a_rewrite_meanwhile_wins(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "old"), change(WORDS, "b", "2-0", "kept"))

    async def rewrite():
        assert await apply(database, LETTERS, change(LETTERS, "a", "3-0", "new")) == [Outcome.APPLIED]

    assert (await reindex_namespace(database, NS, Meanwhile(rewrite))).documents == 1
    assert await database.hget(keys.memory_key(NS, "a"), "content") == b"new"
    assert (await check_namespace(database, NS)).ok


async def test_a_delete_meanwhile_wins_also_when_its_tombstone_is_gone(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "old"), change(WORDS, "b", "2-0", "kept"))

    async def remove():
        await apply(database, LETTERS, delete("a", "3-0"), delete("b", "4-0"))
        assert await scripts.drop_tombstones(database, NS, ["b"], floor="9-0") == 1

    assert (await reindex_namespace(database, NS, Meanwhile(remove))).documents == 0
    assert await database.hexists(keys.memory_key(NS, "a"), "deleted_at")
    assert not await database.exists(keys.memory_key(NS, "b"))
    assert (await check_namespace(database, NS)).ok


async def test_an_unchanged_rewrite_meanwhile_does_not_keep_the_old_terms(database):
    """Its version moves, its document does not: it still has to be analysed."""
    await apply(database, WORDS, change(WORDS, "a", "1-0", "same"))

    async def repeat():
        assert await apply(database, LETTERS, change(LETTERS, "a", "3-0", "same")) == [Outcome.UNCHANGED]

    assert (await reindex_namespace(database, NS, Meanwhile(repeat))).documents == 1
    assert (await contents(database))[2].keys() == set(map(str.encode, "same"))
    assert await database.hget(keys.memory_key(NS, "a"), "entry") == b"3-0"


class Between:
    """A database at which something happens just before a script first runs: by default after fences were read."""

    def __init__(self, database, act, script="apply_events"):
        self._database = database
        self._act = act
        self._sha = scripts.load(script).sha

    async def execute_command(self, name, *arguments, **options):
        act = self._act
        if name == "EVALSHA" and arguments[0] == self._sha and act is not None:
            self._act = None
            await act()
        return await self._database.execute_command(name, *arguments, **options)


async def test_a_run_that_was_overtaken_after_its_last_document_says_so(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "old"))

    async def overtake():
        await reindex_namespace(database, NS, CAPPED)

    with pytest.raises(AnalyzerMismatchError):
        await reindex_namespace(Between(database, overtake, "advance_reindex"), NS, LETTERS)
    assert (await check_namespace(database, NS)).ok


@pytest.mark.parametrize("second", [change(LETTERS, "a", "3-0", "new"), delete("a", "3-0")])
async def test_a_change_prepared_before_the_document_was_analysed_again(database, second):
    """The version is still the one that was read, the document is another: the change has to be prepared again."""
    await apply(database, WORDS, change(WORDS, "a", "1-0", "old words"), change(WORDS, "b", "2-0", "old"))
    await database.hset(keys.stats_key(NS), "analyzer", LETTERS.fingerprint)

    async def analyse():
        await reindex_namespace(database, NS, LETTERS, force=True)

    writer = IndexWriter(Between(database, analyse), LETTERS.fingerprint)
    assert await writer.apply(NS, [second]) == [Outcome.APPLIED]
    assert (await check_namespace(database, NS)).problems == []


async def test_two_workers_expire_the_same_memory(database):
    await apply(database, WORDS, change(WORDS, "a", "1-0", "old words"), change(WORDS, "b", "2-0", "old"))
    expire = Change(id="a", version="1-0", memory=None)

    async def faster():
        await IndexWriter(database, WORDS.fingerprint).apply(NS, [expire], again=True)

    await IndexWriter(Between(database, faster), WORDS.fingerprint).apply(NS, [expire], again=True)
    assert (await check_namespace(database, NS)).problems == []


async def test_writes_beside_a_run_keep_the_newest(either):
    await build(either, WORDS)
    await scripts.begin_reindex(either, NS, analyzer=LETTERS.fingerprint, force=False)
    latest = {}

    async def keep_writing(number):
        dice = random.Random(number)
        for step in range(60):
            await anyio.lowlevel.checkpoint()
            ids = {f"m{dice.randrange(number, 150, 3)}" for _ in range(4)}
            changes = []
            for memory_id in ids:
                version, text = f"{2_000_000 + step}-{number}", f"{number} {step} {memory_id}"
                gone = dice.random() < 0.2
                changes.append(delete(memory_id, version) if gone else change(LETTERS, memory_id, version, text))
                latest[memory_id] = None if gone else text.encode()
            await apply(either, LETTERS, *changes)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(keep_writing, number)
        for _ in range(2):
            tasks.start_soon(reindex_namespace, either, NS, LETTERS)
    assert (await check_namespace(either, NS)).problems == []
    for memory_id, text in latest.items():
        assert await either.hget(keys.memory_key(NS, memory_id), "content") == text
    _, _, lists, records = await contents(either)
    assert records.keys() >= {memory_id.encode() for memory_id, text in latest.items() if text is not None}
    assert all(len(term.decode()) == 1 or term.startswith(b"@") for term in lists)


async def test_marks_of_another_run_are_left_alone(database):
    await build(database, WORDS, count=200)
    await scripts.begin_reindex(database, NS, analyzer="letters", force=False)
    end = int(await database.hget(keys.stats_key(NS), "reindex_end"))

    async def advance(cursor, *, analyzer="letters", end=end):
        return await scripts.advance_reindex(database, NS, analyzer=analyzer, end=end, cursor=cursor)

    assert await advance(128)
    assert await advance(5)
    assert not await advance(end, analyzer="words")
    assert not await advance(end + 1, end=end + 1)
    assert await database.hget(keys.stats_key(NS), "reindex_cursor") == b"128"
    assert await advance(end)
    assert not await advance(end)
    assert not {b"reindex_cursor", b"reindex_end"} & (await database.hgetall(keys.stats_key(NS))).keys()
