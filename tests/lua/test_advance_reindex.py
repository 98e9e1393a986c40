"""`advance_reindex`: how far a re-analysis has come, and its end."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, dump, flush_scripts, refused, refused_when_full, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
STATS = "stats:{default}"


async def advance(database, cursor, *, end=300, analyzer="f2"):
    return await scripts.advance_reindex(database, NS, analyzer=analyzer, end=end, cursor=cursor)


async def marks(database):
    return await database.hmget(STATS, "reindex_cursor", "reindex_end")


@pytest.fixture
async def begun(either):
    """A run of analyzer f2 over the numbers [0, 300)."""
    await apply(either, NS, write("m1", "5-0", "x"))
    await either.hset(STATS, "next_doc", 300)
    await scripts.begin_reindex(either, NS, analyzer="f2", force=False)
    return either


async def test_the_cursor_moves_and_nothing_else(begun):
    before = await dump(begun, NS)
    assert await advance(begun, 128) is True
    before[STATS.encode()][1][b"reindex_cursor"] = b"128"
    assert await dump(begun, NS) == before


@pytest.mark.parametrize("cursor", [300, 301, 4_294_967_294])
async def test_a_run_that_has_come_to_its_end_leaves_no_marks(begun, cursor):
    before = await dump(begun, NS)
    assert await advance(begun, cursor) is True
    for mark in (b"reindex_cursor", b"reindex_end"):
        del before[STATS.encode()][1][mark]
    assert await dump(begun, NS) == before


async def test_the_cursor_never_moves_back(begun):
    """Compared as numbers: as text 99 comes after 128."""
    assert await advance(begun, 128) is True
    for earlier in (99, 128, 0):
        assert await advance(begun, earlier) is True
        assert await marks(begun) == [b"128", b"300"]
    assert await advance(begun, 299) is True
    assert await marks(begun) == [b"299", b"300"]


async def test_the_same_step_again_changes_nothing(begun):
    await advance(begun, 128)
    before = await dump(begun, NS)
    assert await advance(begun, 128) is True
    assert await dump(begun, NS) == before
    await advance(begun, 300)
    before = await dump(begun, NS)
    assert await advance(begun, 300) is False  # ended
    assert await advance(begun, 128) is False
    assert await dump(begun, NS) == before


async def test_another_run_is_left_alone(begun):
    before = await dump(begun, NS)
    assert await advance(begun, 300, analyzer="f1") is False
    assert await advance(begun, 300, end=299) is False
    assert await advance(begun, 300, end=3_000) is False
    assert await dump(begun, NS) == before


async def test_a_namespace_that_is_unknown_or_not_under_way_stays_as_it_is(either):
    assert await advance(either, 1) is False
    assert await dump(either, NS) == {}
    await apply(either, NS, write("m1", "5-0", "x"))
    before = await dump(either, NS)
    assert await advance(either, 1, analyzer="f1") is False
    assert await dump(either, NS) == before


async def test_a_lost_cursor_is_set_anew(begun):
    await begun.hdel(STATS, "reindex_cursor")
    assert await advance(begun, 5) is True
    assert await marks(begun) == [b"5", b"300"]


async def test_many_callers_leave_the_farthest_cursor(begun):
    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(advance, begun, (i * 7) % 32 + 80)
    assert await marks(begun) == [b"111", b"300"]


async def test_many_callers_at_the_end_end_it_once(begun):
    answers = []

    async def end():
        answers.append(await advance(begun, 300))

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(end)
    assert answers.count(True) == 1
    assert await marks(begun) == [None, None]


async def test_counters_of_the_wrong_type_stop_the_call(database):
    async with wrong_type(database, STATS):
        await refused(database, NS, lambda: advance(database, 5), "WRONGTYPE")


async def test_a_corrupt_cursor_stops_the_call(begun):
    await begun.hset(STATS, "reindex_cursor", "x")
    await refused(begun, NS, lambda: advance(begun, 5))


async def test_a_missing_argument_moves_nothing(begun):
    await refused(begun, NS, lambda: scripts.call(begun, "advance_reindex", [STATS], ["f2", 300]))
    before = await dump(begun, NS)
    for arguments in ([], ["f2"]):
        assert await scripts.call(begun, "advance_reindex", [STATS], arguments) == 0
    assert await dump(begun, NS) == before


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(begun):
    for i in range(3):
        await flush_scripts(begun)
        assert await advance(begun, i + 1) is True
    assert await marks(begun) == [b"3", b"300"]


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await apply(database, NS, write("m1", "5-0", "x"))
    await scripts.begin_reindex(database, NS, analyzer="f2", force=False)
    await refused_when_full(database, NS, lambda: advance(database, 1, end=1))
