"""`read_documents`: the same fields of several memories, of one instant."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, delete, dump, flush_scripts, memory_limit, refused, used_memory, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"


async def test_fields_come_in_the_order_asked_and_absent_ones_as_none(either):
    await apply(either, NS, write("m1", "1-0", "x", content="内容\0\r\n", author="a"), write("m2", "1-1", "x"))
    await apply(either, NS, delete("m2", "2-0"))
    before = await dump(either, NS)
    assert await scripts.read_documents(
        either, NS, ["m2", "none", "m1", "m1"], ["content", "author", "doc", "entry"]
    ) == [
        [None, None, None, b"2-0"],
        [None] * 4,
        ["内容\0\r\n".encode(), b"a", b"0", b"1-0"],
        ["内容\0\r\n".encode(), b"a", b"0", b"1-0"],
    ]
    assert await dump(either, NS) == before


async def test_another_epoch_has_no_memory(either):
    """Document numbers of one epoch mean nothing in the next: what a reader ranked must not be looked up in it."""
    await apply(either, NS, write("m1", "1-0", "x"))
    epoch = (await either.hget("stats:{default}", "epoch")).decode()
    names = ["entry", "doc"]

    async def read(epoch):
        return await scripts.read_documents(either, NS, ["m1", "none"], names, epoch=epoch)

    assert await read(epoch) == await read("") == [[b"1-0", b"0"], [None, None]]
    assert await read("another") == await read(epoch[:-1]) == [[None, None]] * 2
    await either.delete("stats:{default}")
    assert await read(epoch) == [[None, None]] * 2
    assert await read("") == [[b"1-0", b"0"], [None, None]]


async def test_no_ids_give_no_documents(database):
    assert await scripts.read_documents(database, NS, [], ["content"]) == []


async def test_both_memories_of_one_batch_are_seen_in_the_same_version(either):
    """Pairs are written in one call each, and read in one call each."""
    done = anyio.Event()

    async def work():
        for i in range(1, 60):
            await apply(either, NS, write("a", f"{i}-0", {"x": i}), write("b", f"{i}-0", {"x": i}))
        done.set()

    async def watch():
        while not done.is_set():
            a, b = await scripts.read_documents(either, NS, ["a", "b"], ["entry", "length"])
            assert a == b

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in range(8):
            tasks.start_soon(watch)


async def test_ten_thousand_memories_are_read_at_once(either):
    await apply(either, NS, write("m1", "1-0", "x"))
    found = await scripts.read_documents(either, NS, ["m1"] * 10_000, ["entry", "absent"])
    assert found == [[b"1-0", None]] * 10_000


async def test_a_key_of_the_wrong_type_is_an_error(database):
    await apply(database, NS, write("m1", "1-0", "x"), write("m2", "1-1", "x"))
    epoch = (await database.hget("stats:{default}", "epoch")).decode()
    for key in ("stats:{default}", "memory:{default}:m1", "memory:{default}:m2"):
        async with wrong_type(database, key):
            await refused(
                database,
                NS,
                lambda: scripts.read_documents(database, NS, ["m1", "m2"], ["entry"], epoch=epoch),
                "WRONGTYPE",
            )


async def test_asking_for_no_field_is_an_error(database):
    await refused(database, NS, lambda: scripts.read_documents(database, NS, ["m1"], []))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await apply(either, NS, write("m1", "1-0", "x"))
    for _ in range(3):
        await flush_scripts(either)
        assert await scripts.read_documents(either, NS, ["m1"], ["entry"]) == [[b"1-0"]]


async def test_a_full_server_still_answers(database):
    await apply(database, NS, write("m1", "1-0", "x"))
    async with memory_limit(database, await used_memory(database) - 1024):
        assert await scripts.read_documents(database, NS, ["m1"], ["entry"]) == [[b"1-0"]]
