"""The scripts of dead letters together, with the pipeline and the housekeeping that use them.

Contents over ten bytes are too large for the `strict` pipeline and good for the `lenient` one, as when somebody has
raised the limit since.
"""

from __future__ import annotations

import pytest

from jiyi import dead_letters, scripts
from jiyi.analysis import Analyzer
from jiyi.check import check_namespace
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline

from .conftest import STREAM

pytestmark = pytest.mark.anyio

NS = "default"
MEMORY = "memory:{default}:m1"
DEAD, FAILED, LETTERS, TOMBSTONES = "dead:{default}", "failed:{default}", "letters:{default}", "tombstones:{default}"
LONG = "a text that is too long"
ANALYSIS = Analyzer()


class Work:
    """One worker without its loops."""

    def __init__(self, database):
        settings = Settings()
        self.database = database
        self.stream = EventStream(database, STREAM, settings.group)
        self.lenient = Pipeline(database, self.stream, ANALYSIS, settings)
        self.strict = Pipeline(database, self.stream, ANALYSIS, Settings(max_content_bytes=10))
        self._housekeeping = Housekeeping(database, self.stream, ANALYSIS.fingerprint, settings)

    async def append(self, **fields):
        """Put an event of memory m1 on the stream; gives its entry id."""
        return (await self.database.xadd(STREAM, {"id": "m1", **fields})).decode()

    async def process(self, pipeline, count=100):
        entries = await self.stream.read_new("c", count, 1)
        await pipeline.process(entries)
        return len(entries)

    async def forget(self):
        """Drop tombstones as a sweep does; gives whether one is still there."""
        state = await self.stream.state(0)
        await self.stream.sweep()
        await self._housekeeping._forget(NS, state.floor)
        return not await self.database.exists(TOMBSTONES)

    async def letters(self):
        return [letter async for letter in dead_letters.letters(self.database, NS)]

    async def fail(self):
        """A write that becomes a dead letter; gives the letter."""
        await self.append(event="write", content=LONG)
        await self.process(self.strict)
        return (await self.letters())[-1]

    async def delete(self):
        await self.append(event="delete")
        await self.process(self.lenient)

    async def nothing_is_left(self):
        assert await self.database.exists(LETTERS, FAILED) == 0
        assert await self.letters() == []
        assert (await check_namespace(self.database, NS, stream=STREAM)).problems == []


@pytest.fixture
async def work(either):
    work = Work(either)
    await work.stream.ensure_group()
    await work.append(id="m0", event="write", content="x")
    await work.process(work.lenient)
    return work


class BrokenOffError(Exception):
    pass


class Breaking:
    """A database that its caller loses: after some commands, the last of them with or without its answer."""

    def __init__(self, database, commands, *, answered):
        self._database = database
        self._left = commands
        self._answered = answered

    async def execute_command(self, *command):
        if not self._left and self._answered:
            raise BrokenOffError
        answer = await self._database.execute_command(*command)
        if not self._left:
            raise BrokenOffError
        self._left -= 1
        return answer


async def replay(work, letter):
    return await dead_letters.replay(work.database, STREAM, letter)


async def break_off(work, letter, commands, answered):
    """Replay a letter, and stop after so many commands."""
    with pytest.raises(BrokenOffError):
        await dead_letters.replay(Breaking(work.database, commands, answered=answered), STREAM, letter)


# --- filing ---


async def test_an_entry_that_is_delivered_again_is_one_letter(work):
    """Its worker died before it acknowledged; meanwhile the next event of the memory has failed too."""
    await work.append(event="write", content=LONG)
    await work.append(event="write", content=LONG)
    entries = await work.stream.read_new("c", 2, 1)
    for entry in entries:
        await work.strict.process([entry])
    for _ in range(2):
        await work.strict.process(entries)
    assert [letter.entry for letter in await work.letters()] == [entry.id for entry in entries]
    assert (await check_namespace(work.database, NS, stream=STREAM)).problems == []


# --- replaying ---


async def test_a_replayed_event_that_is_processed_leaves_nothing(work):
    letter = await work.fail()
    assert await work.database.hgetall(LETTERS) == {letter.entry.encode(): letter.letter.encode()}
    await replay(work, letter)
    await work.process(work.lenient)
    assert await work.database.hget(MEMORY, "entry") == letter.entry.encode()
    await work.nothing_is_left()


async def test_a_replayed_event_that_is_outdated_leaves_nothing(work):
    letter = await work.fail()
    entry = await work.append(event="write", content="newer")
    await work.process(work.lenient)
    await replay(work, letter)
    await work.process(work.lenient)
    assert await work.database.hget(MEMORY, "entry") == entry.encode()
    await work.nothing_is_left()


async def test_a_replayed_event_that_fails_again_is_one_letter_of_the_same_version(work):
    first = await work.fail()
    for _ in range(3):
        [letter] = await work.letters()
        await replay(work, letter)
        await work.process(work.strict)
    [letter] = await work.letters()
    assert (letter.entry, letter.fields) == (first.entry, (*first.fields, (b"origin", first.entry.encode())))
    assert await work.database.hgetall(LETTERS) == {first.entry.encode(): letter.letter.encode()}
    assert (await work.database.hget(FAILED, "m1")).startswith(first.entry.encode())
    assert (await check_namespace(work.database, NS, stream=STREAM)).problems == []
    await replay(work, letter)
    await work.process(work.lenient)
    await work.nothing_is_left()


@pytest.mark.parametrize("processed", ["before it is repeated", "after"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
@pytest.mark.parametrize("commands", [0, 1, 2])
async def test_a_replay_that_broke_off_can_be_repeated(work, commands, answered, processed):
    """Begin, append, remove: it may end before each, or after it without knowing."""
    letter = await work.fail()
    await break_off(work, letter, commands, answered)
    assert (await check_namespace(work.database, NS, stream=STREAM)).problems == []
    if processed != "after":
        await work.process(work.lenient)
        assert (await check_namespace(work.database, NS, stream=STREAM)).problems == []
    removed = (commands, answered) == (2, False)
    assert (await replay(work, letter) is None) == removed
    await work.process(work.lenient)
    assert await work.database.hget(MEMORY, "entry") == letter.entry.encode()
    await work.nothing_is_left()


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
@pytest.mark.parametrize("commands", [0, 1, 2])
async def test_a_replay_that_broke_off_and_failed_again_is_one_letter(work, commands, answered):
    letter = await work.fail()
    await break_off(work, letter, commands, answered)
    await work.process(work.strict)
    [again] = await work.letters()
    assert again.entry == letter.entry
    assert await work.database.hgetall(LETTERS) in (
        {again.entry.encode(): again.letter.encode()},
        {again.entry.encode(): b"replayed " + again.letter.encode()},
    )
    await replay(work, again)
    await work.process(work.lenient)
    await work.nothing_is_left()


async def test_an_event_that_was_replayed_twice_is_applied_once(work):
    letter = await work.fail()
    await break_off(work, letter, 2, answered=True)
    await replay(work, letter)
    assert await work.process(work.lenient, 1) == 1
    before = await work.database.hgetall(MEMORY)
    assert await work.process(work.lenient, 1) == 1
    assert await work.database.hgetall(MEMORY) == before
    await work.nothing_is_left()


async def test_an_event_that_cannot_carry_its_version_is_replayed_as_an_event_of_its_own(work):
    await work.database.xadd(STREAM, {"payload": b"\xc1 no msgpack"})
    await work.process(work.lenient)
    [first] = await work.letters()
    assert first.id is None
    await replay(work, first)
    await work.process(work.lenient)
    [second] = await work.letters()
    assert second.entry != first.entry
    assert await work.database.hgetall(LETTERS) == {second.entry.encode(): second.letter.encode()}
    assert await dead_letters.drop(work.database, second)
    await work.nothing_is_left()


# --- the floor for tombstones ---


async def test_a_tombstone_stays_as_long_as_an_older_letter_could_be_replayed(work):
    letter = await work.fail()
    await work.delete()
    assert not await work.forget()
    await scripts.begin_replay(work.database, NS, letter.letter, letter.entry)
    assert not await work.forget()
    await break_off(work, letter, 2, answered=True)
    assert not await work.forget()
    field = scripts.failed_field(letter.id, letter.entry)
    await scripts.drop_letter(work.database, NS, letter.letter, field, letter.entry, replayed=True)
    assert not await work.forget()
    await work.process(work.lenient)
    assert await work.forget()
    assert await work.database.exists(MEMORY) == 0
    await work.nothing_is_left()


async def test_a_tombstone_older_than_every_letter_goes(work):
    await work.append(event="delete")
    await work.append(event="write", content=LONG)
    await work.process(work.strict)
    assert await work.forget()
    assert len(await work.letters()) == 1


async def test_a_tombstone_goes_when_the_letter_is_dropped(work):
    letter = await work.fail()
    await work.delete()
    assert not await work.forget()
    assert await dead_letters.drop(work.database, letter)
    assert await work.forget()


@pytest.mark.parametrize("forgotten", [True, False])
async def test_of_two_replays_the_second_does_not_undo_a_delete_after_the_first(work, forgotten):
    """The first is processed, nothing is open any more, and the tombstone goes before the second has its turn."""
    letter = await work.fail()
    await work.delete()
    await break_off(work, letter, 2, answered=True)
    await replay(work, letter)
    await work.process(work.lenient, 1)
    if forgotten:
        await work.forget()
    assert await work.process(work.lenient, 1) == 1
    await work.forget()
    assert await work.database.exists(MEMORY) == 0
    await work.nothing_is_left()


@pytest.mark.parametrize("again", ["lenient", "strict"])
async def test_a_letter_that_is_dropped_during_its_replay_does_not_undo_a_delete(work, again):
    """Whoever saw the letter thought that the replay had failed, and its event was on the stream all the same."""
    letter = await work.fail()
    await work.delete()
    await break_off(work, letter, 2, answered=True)
    assert await dead_letters.drop(work.database, letter)
    await work.forget()
    assert await work.process(getattr(work, again)) == 1
    for later in await work.letters():
        await replay(work, later)
    await work.process(work.lenient)
    await work.forget()
    assert await work.database.exists(MEMORY) == 0
    await work.nothing_is_left()


async def test_an_event_that_only_says_that_it_is_a_replay_does_not_undo_a_delete(work):
    """Anybody can put an origin into an event."""
    entry = await work.append(event="write", content="old")
    await work.append(event="delete")
    await work.process(work.lenient)
    assert await work.forget()
    await work.append(event="write", content="old", origin=entry)
    assert await work.process(work.lenient) == 1
    assert await work.database.exists(MEMORY) == 0
