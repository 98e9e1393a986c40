"""`repair_ids`: a number leads to the memory that has it, whatever the caller believed."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, delete, dump, flush_scripts, refused, refused_when_full, write

pytestmark = pytest.mark.anyio

NS = "default"
IDS = "ids:{default}:0"


async def mend(database, *changes, block=0):
    return await scripts.repair_ids(database, NS, block, changes)


async def fill(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x y") for i in range(4)])


async def test_numbers_are_set_replaced_and_removed(either):
    await fill(either)
    whole = await dump(either, NS)
    await either.hdel(IDS, 0)
    await either.hset(IDS, mapping={1: "m2", 9: "m3", "x": "m1", b"\xff": b"\xfe", 10: ""})
    changes = [
        (b"0", b"", "m0", False), (b"1", b"m2", "m1", False), (b"9", b"m3", "", False), (b"x", b"m1", "", False),
        (b"\xff", b"\xfe", "", False), (b"10", b"", "", False),
    ]  # fmt: skip
    assert await mend(either, *changes) == 6
    assert await dump(either, NS) == whole
    assert await mend(either, *changes) == 0
    assert await dump(either, NS) == whole


async def test_what_is_right_is_neither_removed_nor_replaced(either):
    """The caller's view is old: the memory has got that number since, or has lost it."""
    await fill(either)
    before = await dump(either, NS)
    assert await mend(either, (b"1", b"m1", "", False), (b"1", b"m1", "m2", False), (b"7", b"", "m0", False)) == 0
    assert await dump(either, NS) == before


async def test_a_number_is_taken_from_a_memory_that_may_not_be_in_the_index(database):
    await fill(database)
    assert await mend(database, (b"1", b"m1", "", True)) == 1
    assert not await database.hexists(IDS, 1)


async def test_a_block_that_says_something_else_by_now_is_left_alone(either):
    await fill(either)
    await either.hset(IDS, 0, "other")
    before = await dump(either, NS)
    assert await mend(either, (b"0", b"", "m0", False), (b"0", b"m9", "", True), (b"9", b"m3", "", True)) == 0
    assert await dump(either, NS) == before


async def test_a_block_of_another_type_is_replaced(either):
    await fill(either)
    whole = await dump(either, NS)
    await either.delete(IDS)
    await either.rpush(IDS, "x")
    assert await mend(either, *[(b"%d" % i, b"", f"m{i}", False) for i in range(4)]) == 5
    assert await dump(either, NS) == whole
    await either.rpush("ids:{default}:7", "x")
    assert await mend(either, block=7) == 1
    assert await dump(either, NS) == whole
    assert await mend(either, block=7) == 0


@pytest.mark.parametrize("kind", ["gone", "list"])
async def test_a_memory_that_is_no_hash_has_no_number(database, kind):
    await fill(database)
    await database.delete("memory:{default}:m1")
    if kind == "list":
        await database.set("memory:{default}:m1", "x")
    assert await mend(database, (b"1", b"m1", "m1", False)) == 0
    assert await mend(database, (b"1", b"m1", "", False)) == 1
    await database.delete("memory:{default}:m1")


async def test_nothing_is_lost_beside_writers(either):
    """The caller removes and sets numbers at random while memories get new ones."""
    await fill(either)

    async def rewrite():
        for i in range(1, 30):
            await apply(either, NS, *[write(f"m{j}", f"{100 * i + j}-0", f"w{i}") for j in range(4)])
        await apply(either, NS, delete("m3", "9000-0"))

    async def disturb():
        for i in range(120):
            await mend(either, (b"%d" % i, b"m%d" % (i % 4), "", False), (b"%d" % i, b"", f"m{i % 4}", False))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        tasks.start_soon(disturb)
    found = await either.hgetall(IDS)
    numbers = [await either.hget(f"memory:{{default}}:m{j}", "doc") for j in range(3)]
    assert found == {number: b"m%d" % j for j, number in enumerate(numbers)}


async def test_missing_keys_or_arguments_stop_the_call(database):
    await fill(database)
    names = [IDS, "memory:{default}:m0"]
    for cut, arguments in (
        (names, ["0", "m0", ""]),
        (names[:1], ["0", "m0", "", "1"]),
        (names, ["0", "", "", "1", ""]),
    ):
        await refused(
            database, NS, lambda: scripts.call(database, "repair_ids", cut, arguments)  # noqa: B023
        )  # fmt: skip


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await flush_scripts(either)
    assert await mend(either, (b"0", b"m0", "", True)) == 1


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    await refused_when_full(database, NS, lambda: mend(database, (b"0", b"m0", "", True)))
