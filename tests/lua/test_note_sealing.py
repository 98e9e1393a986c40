"""`note_sealing`: up to which number lists are sealed, noted for the namespace that they belong to."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import apply, dump, flush_scripts, hash_of, refused, refused_when_full, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
STATS = "stats:{default}"


async def note(database, number=7, epoch=None):
    current = await database.hget(STATS, "epoch") if epoch is None else epoch
    return await scripts.note_sealing(database, NS, current, number)


@pytest.fixture
async def filled(either):
    await apply(either, NS, write("m1", "5-0", "x"))
    return either


async def test_the_number_is_noted_and_nothing_else_changes(filled):
    before = await dump(filled, NS)
    for number in (7, 9, 9, 3):
        assert await note(filled, number) is True
        before[STATS.encode()][1][b"sealed"] = b"%d" % number
        assert await dump(filled, NS) == before


@pytest.mark.parametrize("epoch", [b"other", b""])
async def test_another_epoch_is_left_alone(filled, epoch):
    before = await dump(filled, NS)
    assert await note(filled, epoch=epoch) is False
    assert await dump(filled, NS) == before


@pytest.mark.parametrize("epoch", [b"gone", b""])
async def test_a_namespace_that_is_gone_does_not_come_back(either, epoch):
    assert await note(either, epoch=epoch) is False
    assert await dump(either, NS) == {}


async def test_writers_and_many_callers_at_once(filled):
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(note, filled, number)
            tasks.start_soon(apply, filled, NS, write(f"n{number}", f"{number + 9}-0", "x"))
    stats = hash_of(await dump(filled, NS), STATS)
    assert int(stats["sealed"]) in range(20)
    assert stats["docs"] == b"21"


async def test_a_key_of_the_wrong_type_stops_the_call(database):
    await apply(database, NS, write("m1", "5-0", "x"))
    epoch = await database.hget(STATS, "epoch")
    async with wrong_type(database, STATS):
        await refused(database, NS, lambda: note(database, epoch=epoch), "WRONGTYPE")


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(filled):
    await flush_scripts(filled)
    assert await note(filled) is True


async def test_a_full_server_refuses_the_call(database):
    await apply(database, NS, write("m1", "5-0", "x"))
    epoch = await database.hget(STATS, "epoch")
    await refused_when_full(database, NS, lambda: note(database, epoch=epoch))
