"""The ledger: its file, its fold, and that it finds what is lost or wrong."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
import pytest

from faults.ledger import Ledger
from faults.proxy import Proxy
from faults.verification import verify
from jiyi import Producer, keys, scripts
from jiyi.analysis import Analyzer
from jiyi.errors import InvalidEventError
from jiyi.streams import EventStream
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    yield ledger
    ledger.close()


@pytest.fixture
async def producer(database, settings):
    async with Producer(settings=settings) as producer:
        yield producer


@pytest.fixture
async def work(database, settings):
    """A coroutine that does what workers do with everything on the stream."""
    stream = EventStream(database, settings.stream, settings.group)
    pipeline = Pipeline(database, stream, Analyzer(), settings)

    async def work():
        await stream.ensure_group()
        await pipeline.process(await stream.read_new("test", 1000, 1))

    return work


@pytest.fixture
async def written(ledger, producer, work):
    """Three memories in two versions, one of them deleted, applied; gives the accepted events."""
    accepted = await ledger.write_many(producer, "a", [(f"m{i}", f"old {i}") for i in range(3)])
    accepted += [await ledger.write(producer, "a", f"m{i}", f"new {i}") for i in range(3)]
    accepted.append(await ledger.delete(producer, "a", "m2"))
    await work()
    return accepted


async def test_a_right_index_is_accounted_for(written, ledger, database, settings):
    verdict = await verify(ledger, database, settings)
    assert verdict.ok, str(verdict)
    assert (verdict.sent, verdict.applied, verdict.superseded) == (7, 3, 4)
    assert {key: event.entry for key, event in ledger.fold().items()} == {
        ("a", "m0"): written[3].entry,
        ("a", "m1"): written[4].entry,
        ("a", "m2"): written[6].entry,
    }
    # A delete of which nothing is left was applied all the same.
    await scripts.drop_tombstones(database, "a", ["m2"], floor=f"{2**60}-0")
    assert not await database.exists(keys.memory_key("a", "m2"))
    assert msgspec.to_builtins(await verify(ledger, database, settings)) == msgspec.to_builtins(verdict)


async def test_the_file_survives_its_writer(written, ledger, tmp_path):
    unknown = ledger.begin("write", "a", "m9", "x")
    torn = ledger.path.read_bytes() + b'{"number": 99, "op'
    (tmp_path / "copy").write_bytes(torn)
    copy = Ledger(tmp_path / "copy")
    assert copy.sent == ledger.sent
    assert copy.begin("write", "a", "m9", "x").number > unknown.number
    copy.close()


async def test_what_is_refused_was_not_sent(ledger, producer, database, settings):
    with pytest.raises(InvalidEventError):
        await ledger.write(producer, "a", "m1", "x" * 100_000)
    assert (ledger.refused, ledger.sent) == (1, [])
    assert (await verify(ledger, database, settings)).ok


async def test_what_nobody_has_processed_is_pending_and_what_is_trimmed_is_lost(
    written, ledger, producer, work, database, settings
):
    newer = [await ledger.write(producer, "a", "m0", f"newest {i}") for i in range(2)]
    new = await ledger.write(producer, "a", "m3", "x")
    verdict = await verify(ledger, database, settings)
    assert verdict.pending == [newer[0].entry, newer[1].entry, new.entry]
    await database.xtrim(settings.stream, maxlen=0)
    await database.xgroup_setid(settings.stream, settings.group, "$")
    verdict = await verify(ledger, database, settings)
    assert (verdict.lost, verdict.pending, verdict.ok) == ([newer[0].entry, newer[1].entry, new.entry], [], False)
    assert newer[0].entry in str(verdict)


async def test_wrong_contents_strange_memories_and_a_damaged_index_are_found(written, ledger, database, settings):
    await database.hset(keys.memory_key("a", "m1"), "content", "something else")
    await database.hset(keys.memory_key("a", "strange"), "entry", "1-1")
    await database.hset(keys.memory_key("a", "m2"), "entry", "5-5")
    await database.hincrby(keys.stats_key("a"), "docs", 1)
    verdict = await verify(ledger, database, settings)
    named = "\n".join(verdict.wrong)
    assert f"{written[4].entry} of ('a', 'm1'): stored with another content" in named
    assert "5-5 of ('a', 'm2'): stored, but never sent" in named
    assert "strange: nobody wrote this" in named
    assert any("stats" in problem for problem in verdict.problems)


async def test_a_dead_letter_is_no_loss(written, ledger, producer, work, database, settings):
    small = msgspec.structs.replace(settings, max_content_bytes=10)
    accepted = await ledger.write(producer, "a", "m0", "longer than ten bytes")
    stream = EventStream(database, settings.stream, settings.group)
    await Pipeline(database, stream, Analyzer(), small).process(await stream.read_new("test", 10, 1))
    verdict = await verify(ledger, database, settings)
    assert verdict.ok, str(verdict)
    assert (verdict.dead_lettered, verdict.applied) == (1, 3)
    await database.hset(keys.memory_key("a", "m0"), "entry", accepted.entry)
    verdict = await verify(ledger, database, settings)
    assert any("a dead letter, and applied" in wrong for wrong in verdict.wrong)


@pytest.mark.parametrize("at", ["request", "reply"])
@pytest.mark.parametrize("op", ["write", "delete"])
async def test_an_unknown_outcome_may_be_either_but_stays_what_it_was_found_to_be(
    ledger, producer, work, database, settings, at, op
):
    first = await ledger.write(producer, "a", "m0", "first")
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(settings.redis_url))
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        cut = await stack.enter_async_context(Producer(settings=through))
        proxy.failpoint("XADD", at=at, do="cut")
        if op == "write":
            assert await ledger.write(cut, "a", "m0", "second") is None
        else:
            assert await ledger.delete(cut, "a", "m0") is None
    await work()
    verdict = await verify(ledger, database, settings)
    assert verdict.ok, str(verdict)
    if at == "request":
        assert (verdict.unknown, verdict.applied, verdict.superseded) == (1, 1, 0)
        return
    assert (verdict.unknown, verdict.applied, verdict.superseded) == (0, 1, 1)
    await database.delete(keys.memory_key("a", "m0"))
    if op == "delete":
        return  # nothing left is as right
    verdict = await verify(ledger, database, settings)
    assert len(verdict.lost) == 2
    assert first.entry in verdict.lost


async def test_a_delete_of_unknown_outcome_explains_why_nothing_is_left(ledger, producer, work, database, settings):
    """It was applied and its tombstone forgotten before anybody looked: what was written before it is superseded."""
    await ledger.write(producer, "a", "m0", "first")
    async with Proxy(settings.redis_url) as proxy:
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        async with Producer(settings=through) as cut:
            proxy.failpoint("XADD", at="reply", do="cut")
            assert await ledger.delete(cut, "a", "m0") is None
    await work()
    await database.delete(keys.memory_key("a", "m0"), keys.tombstones_key("a"))
    verdict = await verify(ledger, database, settings)
    assert verdict.ok, str(verdict)
    assert (verdict.unknown, verdict.applied, verdict.superseded) == (1, 0, 1)


async def test_a_delete_explains_nothing_that_was_written_after_it(ledger, producer, work, database, settings):
    async with Proxy(settings.redis_url) as proxy:
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        async with Producer(settings=through) as cut:
            proxy.failpoint("XADD", at="reply", do="cut")
            assert await ledger.delete(cut, "a", "m0") is None
    later = await ledger.write(producer, "a", "m0", "later")
    await work()
    await database.delete(keys.memory_key("a", "m0"), keys.tombstones_key("a"))
    assert (await verify(ledger, database, settings)).lost == [later.entry]
