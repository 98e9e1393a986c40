"""`read_ids`: document numbers become memory ids, and dead ones nothing."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, dump, flush_scripts, memory_limit, refused, used_memory, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"


async def read(database, docs, ns=NS, epoch=None):
    """Ask for numbers, of the namespace's own epoch unless told otherwise."""
    if epoch is None:
        epoch = (await database.hget(f"stats:{{{ns}}}", "epoch") or b"none").decode()
    return await scripts.read_ids(database, ns, docs, epoch=epoch)


async def test_numbers_of_many_blocks_are_answered_in_the_order_asked(either):
    await apply(either, NS, *[write(f"m{i}", f"{i + 1}-0", "x") for i in range(300)])
    before = await dump(either, NS)
    docs = [299, 0, 127, 128, 255, 256, 0]
    assert await read(either, docs) == [b"m299", b"m0", b"m127", b"m128", b"m255", b"m256", b"m0"]
    assert await dump(either, NS) == before


async def test_dead_and_unborn_numbers_are_none(either):
    await apply(either, NS, write("m0", "1-0", "x"), write("张三", "1-1", "x"))
    await apply(either, NS, write("m0", "2-0", "y"))
    assert await read(either, [0, 1, 2, 3, 4_294_967_294]) == [None, "张三".encode(), b"m0", None, None]


async def test_no_numbers_give_no_ids_and_an_unknown_namespace_none(database):
    assert await read(database, []) == []
    assert await read(database, [0], ns="nobody") == [None]


async def test_a_number_of_another_epoch_means_nothing(either):
    await apply(either, NS, write("m0", "1-0", "x"))
    before = (await either.hget("stats:{default}", "epoch")).decode()
    assert await read(either, [0, 1], epoch="another") == [None, None]
    assert await read(either, [0, 1], epoch="") == [None, None]
    await either.delete("stats:{default}")
    assert await read(either, [0], epoch=before) == [None]
    assert await read(either, [0], epoch="") == [None]
    await apply(either, NS, write("m5", "1-0", "x"))  # number 0 again, in an epoch of its own
    assert await read(either, [0], epoch=before) == [None]
    assert await read(either, [0]) == [b"m5"]


async def test_a_number_never_means_another_memory_while_writers_work(either):
    meanings = {}

    async def work(writer):
        for i in range(15):
            await apply(either, NS, write(f"{writer}-{i % 3}", f"{i + 1}-0", {"x": i + 1}))
            for doc, memory_id in enumerate(await read(either, range(150))):
                assert memory_id is None or meanings.setdefault(doc, memory_id) == memory_id

    async with anyio.create_task_group() as tasks:
        for writer in range(8):
            tasks.start_soon(work, writer)
    assert len(meanings) > 24


async def test_ten_thousand_numbers_are_read_at_once(either):
    await apply(either, NS, write("m0", "1-0", "x"))
    assert await read(either, [0, *range(9_999)]) == [b"m0", b"m0", *[None] * 9_998]


async def test_a_key_of_the_wrong_type_is_an_error(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x") for i in range(130)])
    epoch = (await database.hget("stats:{default}", "epoch")).decode()
    for key in ("stats:{default}", "ids:{default}:0", "ids:{default}:1"):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: read(database, [0, 129], epoch=epoch), "WRONGTYPE")


async def test_a_missing_argument_is_an_error(database):
    await apply(database, NS, write("m0", "1-0", "x"))
    epoch = await database.hget("stats:{default}", "epoch")
    names = ["stats:{default}", "ids:{default}:0", "ids:{default}:1"]
    await refused(database, NS, lambda: scripts.call(database, "read_ids", names, [epoch, 0]))
    await refused(database, NS, lambda: scripts.call(database, "read_ids", [], [epoch, 0]))
    assert await scripts.call(database, "read_ids", names, []) == [None, None]  # no epoch is nobody's


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await apply(either, NS, write("m0", "1-0", "x"))
    for _ in range(3):
        await flush_scripts(either)
        assert await read(either, [0]) == [b"m0"]


async def test_a_full_server_still_answers(database):
    await apply(database, NS, write("m0", "1-0", "x"))
    async with memory_limit(database, await used_memory(database) - 1024):
        assert await read(database, [0]) == [b"m0"]
