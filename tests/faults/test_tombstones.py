"""A deleted memory never comes back: a tombstone stays as long as anything older can still arrive."""

from __future__ import annotations

import pytest
from stepwise.actors import End, Process
from stepwise.mishaps import Mishap

from jiyi import dead_letters, keys
from jiyi.analysis import Analyzer
from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio

MEMORY = keys.memory_key("default", "m")


class Line:
    """A stream, a consumer at work on it, and housekeeping, one step at a time."""

    def __init__(self, database, settings):
        analyzer = Analyzer()
        self.database = database
        self.settings = settings
        self.stream = EventStream(database, settings.stream, settings.group)
        self.pipeline = Pipeline(database, self.stream, analyzer, settings)
        self.housekeeping = Housekeeping(database, self.stream, analyzer.fingerprint, settings)

    async def append(self, **fields):
        return (await self.database.xadd(self.settings.stream, {"id": "m"} | fields)).decode()

    async def read(self):
        return await self.stream.read_new("worker", 10, 1)

    async def process(self):
        await self.pipeline.process(await self.read())

    async def bury(self):
        """Read what is there, and give it up as if it had failed too often."""
        for entry in await self.read():
            await self.pipeline.bury(entry, "max_deliveries", "was delivered 6 times without success", 6)

    async def letter(self):
        (letter,) = [letter async for letter in dead_letters.letters(self.database, "default")]
        return letter

    async def replay(self):
        await dead_letters.replay(self.database, self.settings.stream, await self.letter())

    async def sweep(self):
        """Housekeeping, twice: what the first round has trimmed must not mislead the second."""
        await self.housekeeping.sweep()
        await self.housekeeping.sweep()

    async def is_gone(self):
        stats = await self.database.hgetall(keys.stats_key("default"))
        return not await self.database.hexists(MEMORY, "doc") and stats[b"docs"] == b"0"


@pytest.fixture
async def line(database, settings):
    line = Line(database, settings)
    await line.stream.ensure_group()
    return line


async def test_a_tombstone_that_nothing_can_undermine_is_forgotten(line):
    await line.append(event="write", content="x")
    await line.append(event="delete")
    await line.process()
    await line.sweep()
    assert not await line.database.exists(MEMORY, keys.tombstones_key("default"))


async def test_an_older_dead_letter_does_not_bring_it_back(line):
    """The delete heals the mark of the failed write, but its letter can still be replayed."""
    await line.append(event="write", content="x")
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await line.sweep()
    await line.replay()
    await line.process()
    assert await line.is_gone()


async def test_a_replay_under_way_does_not_bring_it_back(line):
    """The letter is gone and its event not yet processed while housekeeping looks."""
    await line.append(event="write", content="x")
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await line.replay()
    await line.sweep()
    await line.process()
    assert await line.is_gone()


async def test_a_replay_that_a_worker_holds_does_not_bring_it_back(line):
    await line.append(event="write", content="x")
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await line.replay()
    held = await line.read()
    await line.sweep()
    await line.pipeline.process(held)
    assert await line.is_gone()


async def test_a_replay_that_failed_again_does_not_bring_it_back(line):
    """It is a dead letter for the second time, and still as old as it was."""
    await line.append(event="write", content="x")
    await line.bury()
    await line.replay()
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await line.sweep()
    await line.replay()
    await line.process()
    assert await line.is_gone()


async def test_of_several_dead_letters_each_is_held_off(line):
    """The oldest letter is dropped, the second one decides."""
    await line.append(event="write", content="first")
    await line.bury()
    oldest = await line.letter()
    await line.append(event="write", content="second")
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await dead_letters.drop(line.database, oldest)
    await line.sweep()
    await line.replay()
    await line.process()
    assert await line.is_gone()


async def test_the_tombstone_goes_when_the_last_letter_is_settled(line):
    await line.append(event="write", content="x")
    await line.bury()
    await line.append(event="delete")
    await line.process()
    await line.replay()
    await line.process()
    await line.sweep()
    assert not await line.database.exists(MEMORY, keys.tombstones_key("default"), keys.letters_key("default"))


async def test_a_worker_that_was_away_does_not_bring_it_back(line):
    """Another one has taken over what it held and all of it is processed; then it goes on with what it remembers."""
    await line.append(event="write", content="x")
    held = await line.read()
    claim = await line.stream.claim("another", 0, "0-0", 10)
    await line.pipeline.process(claim.entries)
    await line.append(event="delete")
    await line.process()
    await line.sweep()
    await line.pipeline.process(held)
    assert await line.is_gone()


async def test_a_worker_that_was_away_in_the_middle_of_it_does_not_bring_it_back(line):
    """It had looked at the memory, found none, and was about to write it."""
    await line.append(event="write", content="x")
    held = await line.read()
    sleeper = Process(line.database)
    pipeline = Pipeline(sleeper.wire, line.stream, Analyzer(), line.settings)
    assert await sleeper.run(pipeline.process(held), Mishap("stalls before", 2)) is End.STALLED
    claim = await line.stream.claim("another", 0, "0-0", 10)
    await line.pipeline.process(claim.entries)
    await line.append(event="delete")
    await line.process()
    await line.sweep()
    assert await sleeper.resume() is End.DONE
    assert await line.is_gone()
