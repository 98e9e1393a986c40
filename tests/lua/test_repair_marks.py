"""`repair_marks`: the marks say what the memories say, and a tombstone is nothing but one."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, delete, dump, flush_scripts, refused, refused_when_full, write

pytestmark = pytest.mark.anyio

NS = "default"
TOMBSTONES, EXPIRIES = "tombstones:{default}", "expiries:{default}"
IDS = ["live", "expires", "dead", "gone"]


async def mend(database, *ids):
    return await scripts.repair_marks(database, NS, ids or IDS)


async def fill(database):
    await apply(
        database, NS, write("live", "1-0", "x"), write("expires", "2-0", "x", expires_at=-5), delete("dead", "1234-7")
    )


async def test_marks_are_set_corrected_and_removed(either):
    await fill(either)
    whole = await dump(either, NS)
    await either.zrem(TOMBSTONES, "dead")
    await either.zadd(EXPIRIES, {"expires": 7, "live": 1, "dead": 1, "gone": 1})
    assert await mend(either) == 5
    assert await dump(either, NS) == whole
    await either.zrem(EXPIRIES, "expires")
    await either.zadd(TOMBSTONES, {"dead": 7, "live": 1, "expires": 1, "gone": 1, b"\xff": 1})
    assert await mend(either, *IDS, b"\xff") == 6
    assert await dump(either, NS) == whole


async def test_right_marks_stay_and_the_same_call_again_changes_nothing(either):
    await fill(either)
    before = await dump(either, NS)
    assert await mend(either) == 0
    assert await dump(either, NS) == before


@pytest.mark.parametrize("extra", [{"content": "x"}, {"doc": "3"}, {"expires_at": "3", "terms": b"\xff"}])
async def test_a_tombstone_keeps_nothing_else(either, extra):
    await fill(either)
    whole = await dump(either, NS)
    await either.hset("memory:{default}:dead", mapping=extra)
    assert await mend(either, "dead") == 1
    assert await dump(either, NS) == whole


async def test_a_document_with_a_time_of_deletion_stays_a_document(database):
    await fill(database)
    await database.hset("memory:{default}:live", "deleted_at", "5")
    before = await dump(database, NS)
    assert await mend(database, "live") == 0
    assert await dump(database, NS) == before


@pytest.mark.parametrize("fence", [None, "", "soon", "5", "5-", "18446744073709551616-0", "0-18446744073709551616"])
async def test_a_tombstone_without_fence_keeps_its_mark(database, fence):
    await fill(database)
    key = "memory:{default}:dead"
    await (database.hdel(key, "entry") if fence is None else database.hset(key, "entry", fence))
    await database.hset(key, "content", "left over")
    before = await dump(database, NS)
    assert await mend(database) == 0
    assert await dump(database, NS) == before


async def test_the_largest_fence_is_one(database):
    await apply(database, NS, delete("dead", "18446744073709551615-18446744073709551615"))
    before = await dump(database, NS)
    assert await mend(database, "dead") == 0
    await database.zrem(TOMBSTONES, "dead")
    assert await mend(database, "dead") == 1
    assert await dump(database, NS) == before


@pytest.mark.parametrize("value", ["soon", "", "1e3", "5x"])
async def test_an_expiry_that_is_no_time_marks_nothing(database, value):
    await fill(database)
    await database.hset("memory:{default}:expires", "expires_at", value)
    assert await mend(database) == 1
    assert not await database.exists(EXPIRIES)


async def test_a_memory_of_another_type_or_of_none_has_no_marks(database):
    await fill(database)
    for memory_id in ("live", "expires"):
        await database.delete(f"memory:{{default}}:{memory_id}")
        await database.set(f"memory:{{default}}:{memory_id}", "x")
    await database.zadd(TOMBSTONES, {"live": 5})
    assert await mend(database) == 2
    assert await database.zrange(TOMBSTONES, 0, -1) == [b"dead"]
    await database.delete("memory:{default}:live", "memory:{default}:expires")


async def test_mark_sets_of_another_type_are_replaced(either):
    await fill(either)
    whole = await dump(either, NS)
    for key in (TOMBSTONES, EXPIRIES):
        await either.delete(key)
        await either.rpush(key, "x")
    assert await mend(either) == 2
    assert await dump(either, NS) == whole


async def test_marks_are_right_beside_writers(either):
    async def rewrite():
        for i in range(1, 30):
            await apply(either, NS, write("m", f"{2 * i}-0", "x", expires_at=i))
            await apply(either, NS, delete("m", f"{2 * i + 1}-0"))

    async def disturb():
        for _ in range(100):
            await mend(either, "m")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        tasks.start_soon(disturb)
    assert await mend(either, "m") == 0
    assert await either.zscore(TOMBSTONES, "m") == 59


async def test_missing_keys_or_arguments_stop_the_call(database):
    await fill(database)
    await database.zrem(TOMBSTONES, "dead")
    names = [TOMBSTONES, EXPIRIES, "memory:{default}:dead"]
    for cut, arguments in ((names, []), (names[:2], ["dead"]), (names, ["dead", "live"])):
        await refused(
            database, NS, lambda: scripts.call(database, "repair_marks", cut, arguments)  # noqa: B023
        )  # fmt: skip


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await either.zrem(TOMBSTONES, "dead")
    await flush_scripts(either)
    assert await mend(either) == 1


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    await database.zrem(TOMBSTONES, "dead")
    await refused_when_full(database, NS, lambda: mend(database))
