"""`repair_counters`: counters that can be counted with, numbers above those in use, a journal with a generation."""

from __future__ import annotations

import pytest

from jiyi import scripts

from .conftest import ANALYZER, apply, dump, flush_scripts, hash_of, refused, refused_when_full, write

pytestmark = pytest.mark.anyio

NS = "default"
STATS, JOURNAL = "stats:{default}", "journal:{default}"


async def mend(database, floor=0, analyzer=ANALYZER, revision="r2"):
    return await scripts.repair_counters(database, NS, revision=revision, analyzer=analyzer, floor=floor)


async def stats_of(database):
    """The counters; an epoch that a repair has given as `~` and its revision."""
    stats = hash_of(await dump(database, NS), STATS)
    return stats | {"epoch": b"~" + stats["epoch"].partition(b"~")[2] if b"~" in stats["epoch"] else stats["epoch"]}


async def fill(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x y") for i in range(5)])


async def test_what_is_sound_stays_as_it_is(either):
    await fill(either)
    await either.hset(STATS, mapping={"reindex_cursor": 3, "reindex_end": 5})
    before = await dump(either, NS)
    assert await mend(either, floor=5) == 0
    assert await dump(either, NS) == before


@pytest.mark.parametrize("field", ["docs", "tokens", "next_doc"])
@pytest.mark.parametrize("value", [None, "", "x", "-1", "1.5", "007", "9" * 16])
async def test_a_counter_that_is_no_count_is_replaced(database, field, value):
    await fill(database)
    before = await stats_of(database)
    await (database.hset(STATS, field, value) if value is not None else database.hdel(STATS, field))
    assert await mend(database, floor=7) == 1
    assert await stats_of(database) == before | {"epoch": b"~r2", field: b"7" if field == "next_doc" else b"0"} | (
        {"next_doc": b"7"}
    )


@pytest.mark.parametrize("forgotten", ["", "x", "5", "5-", "5-0x"])
async def test_a_forgotten_version_that_is_no_entry_id_is_removed(either, forgotten):
    await fill(either)
    before = await stats_of(either)
    await either.hset(STATS, "forgotten", forgotten)
    assert await mend(either) == 1
    assert await stats_of(either) == before | {"epoch": b"~r2"}
    await either.hset(STATS, "forgotten", "5-0")
    assert await mend(either, revision="r3") == 0


async def test_the_next_number_is_raised_above_those_in_use_and_never_lowered(either):
    await fill(either)
    before = await stats_of(either)
    assert await mend(either, floor=9) == 1
    assert await stats_of(either) == before | {"epoch": b"~r2", "next_doc": b"9"}
    assert await mend(either, floor=3, revision="r3") == 0
    assert await stats_of(either) == before | {"epoch": b"~r2", "next_doc": b"9"}


async def test_a_number_that_leaves_no_others_is_replaced(database):
    await fill(database)
    await database.hset(STATS, "next_doc", 2**32 - 1)
    assert await mend(database, floor=5) == 1
    assert (await stats_of(database))["next_doc"] == b"5"


@pytest.mark.parametrize("kind", ["none", "empty epoch", "string", "no analyzer"])
async def test_lost_counters_are_made_anew(either, kind):
    await fill(either)
    if kind == "empty epoch":
        await either.hset(STATS, "epoch", "")
    elif kind == "no analyzer":
        await either.hdel(STATS, "analyzer")
    else:
        await either.delete(STATS)
    if kind == "string":
        await either.set(STATS, "x")
    assert await mend(either, floor=5) == 1
    stats = await stats_of(either)
    named = kind == "no analyzer"
    docs, tokens = (b"5", b"10") if named or kind == "empty epoch" else (b"0", b"0")
    assert stats == {
        "epoch": b"~r2" if named else b"r2",
        "analyzer": ANALYZER.encode(),
        "docs": docs,
        "tokens": tokens,
        "next_doc": b"5",
    } | ({"changes": b"1"} if named or kind == "empty epoch" else {})


@pytest.mark.parametrize("name", ["changes", "fence_moves"])
@pytest.mark.parametrize("value", ["x", "-1", "1.5", "01", "1e3", ""])
async def test_counts_of_changes_that_are_no_numbers_begin_anew(either, name, value):
    """In a new epoch, for a reader may have seen any number."""
    await fill(either)
    before = await stats_of(either)
    await either.hset(STATS, name, value)
    assert await mend(either, floor=5) == 1
    after = await stats_of(either)
    assert after.pop("epoch") != before.pop("epoch")
    before.pop("changes")
    assert after == before
    assert await mend(either, floor=5, revision="r3") == 0


@pytest.mark.parametrize("left", [None, b"", b"abc"])
async def test_a_journal_that_cannot_be_one_is_removed(either, left):
    await fill(either)
    await either.delete(JOURNAL)
    if left is None:
        await either.rpush(JOURNAL, "x")
    elif left:
        await either.set(JOURNAL, left)
    assert await mend(either, floor=5) == (0 if left == b"" else 1)
    assert not await either.exists(JOURNAL)


async def test_a_journal_with_a_generation_stays_whatever_follows(database):
    await fill(database)
    await database.set(JOURNAL, b"abcdtorn")
    assert await mend(database, floor=5) == 0
    assert await database.get(JOURNAL) == b"abcdtorn"


async def test_a_namespace_of_another_analyzer_is_left_alone(either):
    await fill(either)
    await either.hset(STATS, "docs", "x")
    before = await dump(either, NS)
    assert await mend(either, floor=99, analyzer="other") == -1
    assert await dump(either, NS) == before


async def test_the_same_call_again_changes_nothing(either):
    await fill(either)
    await either.delete(STATS)
    assert await mend(either, floor=5) == 1
    before = await dump(either, NS)
    assert await mend(either, floor=5) == 0
    assert await dump(either, NS) == before


@pytest.mark.parametrize("arguments", [["e", "a"], ["e", "a", "x"], ["e", "a", "4294967295"], ["e", "a", "1", "2"]])
async def test_wrong_arguments_stop_the_call(database, arguments):
    await fill(database)
    await database.hdel(STATS, "docs")
    await refused(database, NS, lambda: scripts.call(database, "repair_counters", [STATS, JOURNAL], arguments))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await flush_scripts(either)
    assert await mend(either, floor=6) == 1


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    await refused_when_full(database, NS, lambda: mend(database, floor=9))
