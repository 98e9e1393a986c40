"""`check` of dead letters and their names: loud on every kind of damage, and right while they come and go."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest

from jiyi import dead_letters, keys, scripts
from jiyi.check import Kind, check_namespace

from .changes import STREAM, Altered, build, history
from .findings import kinds

pytestmark = pytest.mark.anyio


async def file(database, version, memory_id="m50"):
    """File a dead letter; gives it."""
    await scripts.dead_letter(
        database, "n", memory_id, version=version, code="bad", reason="r", now_ms=1, deliveries=1,
        fields=[(b"event", b"write"), (b"id", memory_id.encode())],
    )  # fmt: skip
    return [letter async for letter in dead_letters.letters(database, "n")][-1]


async def test_letters_and_their_names_agree_in_every_state_of_a_replay(built):
    letter = await file(built, "5000-0")
    again = await file(built, "5001-0")
    names = keys.letters_key("n")

    async def fits():
        return (await check_namespace(built, "n", stream=STREAM)).problems == []

    assert await fits()
    await scripts.begin_replay(built, "n", letter.letter, letter.entry)
    assert await fits()
    entry = await dead_letters.replay(built, STREAM, letter)
    assert (await built.hget(names, "5000-0")).startswith(b"replayed")
    assert await fits()
    await scripts.settle_replay(built, "n", "m50", "5000-0")
    assert await fits()
    await built.xdel(STREAM, entry)
    assert await fits()
    await dead_letters.drop(built, again)
    assert await fits()


@pytest.mark.parametrize("name", [None, "7-0", "replayed 7-0", "soon", ""])
async def test_a_letter_that_its_version_does_not_name(built, name):
    """With a name that leads elsewhere there is something wrong with that as well."""
    await file(built, "5001-0", "m51")
    letter = await file(built, "5000-0")
    await built.hdel(keys.letters_key("n"), "5000-0")
    if name is not None:
        await built.hset(keys.letters_key("n"), "5000-0", name)
    report = await check_namespace(built, "n", stream=STREAM)
    assert set(report.counts) == {Kind.DEAD_LETTER}
    assert report.problems[0].where == "letters:{n} 5000-0"
    assert report.problems[0].found == ("another letter" if name else "none")
    await built.hset(keys.letters_key("n"), "5000-0", letter.letter)
    assert (await check_namespace(built, "n", stream=STREAM)).ok


async def test_a_letter_that_another_letters_version_names(built):
    first, second = await file(built, "5000-0"), await file(built, "5001-0", "m51")
    await built.hset(keys.letters_key("n"), mapping={"5000-0": second.letter, "5001-0": first.letter})
    assert (await check_namespace(built, "n")).counts == {Kind.DEAD_LETTER: 2}


async def test_a_name_without_its_letter(built):
    letter = await file(built, "5000-0")
    await built.xdel(keys.dead_key("n"), letter.letter)
    assert await kinds(built) == {Kind.DEAD_LETTER}


async def test_a_replay_whose_event_is_nowhere(built):
    """Its version would keep every later tombstone for ever. Without the stream nobody can tell."""
    await file(built, "5000-0")
    await built.hset(keys.letters_key("n"), "4000-0", "replayed 7-0")
    assert await kinds(built, stream=STREAM) == {Kind.DEAD_LETTER}
    assert (await check_namespace(built, "n")).ok
    await built.xadd(STREAM, {"event": "write", "id": "m50", "origin": "4000-0"})
    assert (await check_namespace(built, "n", stream=STREAM)).ok


@pytest.mark.parametrize(
    ("version", "name"), [("soon", "7-0"), ("", "7-0"), ("5000-0", "replayed x"), (b"\xff", b"\xff")]
)
async def test_a_name_that_is_none(built, version, name):
    await built.hset(keys.letters_key("n"), version, name)
    assert await kinds(built) == {Kind.DEAD_LETTER}


@pytest.mark.parametrize("fields", [{"x": "y"}, {"entry": "5000-0"}, {"entry": "5000-0", "code": "bad", "fields": "x"}])
async def test_what_no_worker_has_filed_is_named(built, fields):
    await file(built, "5000-0")
    letter = await built.xadd(keys.dead_key("n"), fields)
    report = await check_namespace(built, "n", stream=STREAM)
    assert report.counts == {Kind.STRAY_LETTER: 1}
    assert report.problems[0].where == f"dead:{{n}} {letter.decode()}"
    await dead_letters.drop(built, await dead_letters.find(built, "n", letter.decode()))
    assert (await check_namespace(built, "n", stream=STREAM)).ok


async def test_what_no_worker_has_filed_and_is_gone_before_it_is_judged_is_no_problem(built):
    letter = await built.xadd(keys.dead_key("n"), {"x": "y"})

    async def go(command, run):
        answer = await run(*command)
        if command[1] == keys.dead_key("n"):
            await built.xdel(keys.dead_key("n"), letter)
        return answer

    assert (await check_namespace(Altered(built, "XRANGE", go), "n", stream=STREAM)).problems == []


@pytest.mark.parametrize("name", [keys.letters_key, keys.dead_key])
async def test_letters_of_another_type(built, name):
    await built.set(name("n"), "x")
    assert await kinds(built) == {Kind.STRAY_KEY}


async def test_a_letter_that_comes_and_is_replayed_while_letters_are_read(built):
    """Its name was not there when names were read, and is that of a replay when it is looked at again."""

    async def come(command, run):
        answer = await run(*command)
        if command[1] == keys.letters_key("n"):
            letter = await file(built, "5000-0")
            await scripts.begin_replay(built, "n", letter.letter, letter.entry)
        return answer

    assert (await check_namespace(Altered(built, "HSCAN", come), "n", stream=STREAM)).problems == []
    assert (await built.hget(keys.letters_key("n"), "5000-0")).startswith(b"replayed")


async def test_a_replay_that_is_processed_while_the_stream_is_read(built):
    """Its event is off the stream before it is met, and its name is gone by then as well."""
    letter = await file(built, "5000-0")
    entry = await dead_letters.replay(built, STREAM, letter)

    async def process(command, run):
        if command[1] == STREAM:
            await scripts.settle_replay(built, "n", "m50", "5000-0")
            await built.xdel(STREAM, entry)
        return await run(*command)

    await built.hdel(keys.failed_key("n"), "m50")  # the mark alone would have the stream read as well
    assert (await check_namespace(Altered(built, "XRANGE", process), "n", stream=STREAM)).problems == []
    assert await built.exists(keys.letters_key("n")) == 0


async def test_no_false_problem_beside_letters_that_come_and_go(either):
    """Checks while letters are filed, replayed, processed, filed again and dropped."""
    await build(either, "n", history(7, steps=40))
    done = anyio.Event()
    lives = 0

    async def live(number):
        nonlocal lives
        dice, step = random.Random(number), 0
        while not done.is_set():
            step += 1
            version, memory_id = f"{1_800_000_000_000 + step}-{number}", f"d{number}"
            await file(either, version, memory_id)
            letter = next(one for one in await listed() if one.entry == version)
            if dice.random() < 0.2:
                await dead_letters.drop(either, letter)
                continue
            if dice.random() < 0.3:
                await scripts.begin_replay(either, "n", letter.letter, version)  # and breaks off
            entry = await dead_letters.replay(either, STREAM, letter)
            if dice.random() < 0.3:
                await file(either, version, memory_id)
                letter = next(one for one in await listed() if one.entry == version)
                await dead_letters.drop(either, letter)
            else:
                await scripts.settle_replay(either, "n", memory_id, version)
            await either.xdel(STREAM, entry)
            lives += 1

    async def listed():
        return [letter async for letter in dead_letters.letters(either, "n")]

    reports = []
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(live, number)
        for _ in range(8):
            before = lives
            reports.append(await check_namespace(either, "n", stream=STREAM))
            assert lives > before
        done.set()
    assert [problem for report in reports for problem in report.problems] == []
