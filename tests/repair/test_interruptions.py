"""`repair` that is killed, cancelled, or has much to write."""

from __future__ import annotations

import random

import anyio
import anyio.to_thread
import pytest
from check.changes import STREAM, Altered, build, history

from jiyi import keys
from jiyi.check import check_namespace
from jiyi.repair import rebuild as rebuild_module
from jiyi.repair import repair_namespace
from jiyi.repair import terms as terms_module

from .much_damage import plant_much
from .namespaces import WORDS, agrees_with_a_fresh_index, truth

pytestmark = pytest.mark.anyio


class Killed(BaseException):
    """As SIGKILL: nothing that follows is done, no clean-up either."""


class Dying:
    """A database whose user dies after so many commands."""

    def __init__(self, database, commands):
        self._database = database
        self.left = commands

    async def execute_command(self, *command, **options):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return await self._database.execute_command(*command, **options)


@pytest.fixture
def in_pieces(monkeypatch):
    """Every list and journal is written piece by piece to a key beside, and few terms are mended at a time."""
    monkeypatch.setattr(rebuild_module, "PIECE_BYTES", 40)
    monkeypatch.setattr(terms_module, "_BYTES", 60)
    monkeypatch.setattr(terms_module, "_BATCH", 7)


@pytest.mark.parametrize("seed", range(2))
async def test_a_repair_that_is_killed_anywhere_is_taken_up_again(database, seed, in_pieces):
    """It gets further when it lives a little longer each time; what it has left behind goes by itself."""
    await build(database, "n", history(seed, steps=200))
    await plant_much(database, "n", seed)
    expected, deaths, dice = await truth(database), 0, random.Random(seed)
    while True:
        dying = Dying(database, dice.randrange(500 + 50 * deaths))
        try:
            done = await repair_namespace(dying, "n", WORDS, stream=STREAM)
        except Killed:
            deaths += 1
        else:
            break
        for key in await database.keys("rebuild:*"):
            assert 0 < await database.pttl(key) <= 600_000
        assert await truth(database) == expected
    assert deaths > 2
    assert done.ok
    assert (await check_namespace(database, "n", stream=STREAM)).problems == []
    await agrees_with_a_fresh_index(database, "n")


async def test_a_repair_that_is_cancelled_leaves_nothing_behind(database, in_pieces):
    await build(database, "n", history(1, steps=200))
    await database.delete(keys.journal_key("n"))
    with anyio.CancelScope() as scope:

        async def cancel(command, run):
            scope.cancel()
            return await run(*command)

        await repair_namespace(Altered(database, "APPEND", cancel), "n", WORDS)
    assert scope.cancelled_caught
    assert await database.keys("rebuild:*") == []
    assert (await repair_namespace(database, "n", WORDS)).ok


async def test_a_long_journal_and_long_lists_are_written_in_pieces(built, in_pieces):
    await built.delete(keys.journal_key("n"), keys.index_key("n", "common"))
    pieces = 0

    async def count(command, run):
        nonlocal pieces
        pieces += 1
        assert len(command[2]) <= 40
        return await run(*command)

    assert (await repair_namespace(Altered(built, "APPEND", count), "n", WORDS)).ok
    assert pieces > 10
    for key in (keys.journal_key("n"), keys.index_key("n", "common")):
        assert await built.pttl(key) == -1
    await agrees_with_a_fresh_index(built, "n")
