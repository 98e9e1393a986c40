"""`begin_replay`: from before the event is on the stream again, its version is known to be under way."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import carried_out_when_full, dump, flush_scripts, refused, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, FAILED, LETTERS = "dead:{default}", "failed:{default}", "letters:{default}"


async def bury(database, memory_id="m1", version="5-0"):
    """File a letter; gives its id in the dead-letter stream."""
    await scripts.dead_letter(
        database, NS, memory_id, version=version, code="c", reason="r", now_ms=1, deliveries=1, fields=[(b"id", b"m1")]
    )
    return (await database.hget(LETTERS, version)).decode()


async def begin(database, letter, version="5-0"):
    return await scripts.begin_replay(database, NS, letter, version)


async def test_the_version_is_under_way_and_all_else_stays(either):
    letter = await bury(either)
    await bury(either, "m2", "6-0")
    before = await dump(either, NS)
    assert await begin(either, letter) is True
    before[LETTERS.encode()][1][b"5-0"] = b"replayed " + letter.encode()
    assert await dump(either, NS) == before


async def test_beginning_again_changes_nothing(either):
    """A replay that broke off is begun once more."""
    letter = await bury(either)
    await begin(either, letter)
    before = await dump(either, NS)
    assert await begin(either, letter) is True
    assert await dump(either, NS) == before


@pytest.mark.parametrize("replayed", [True, False])
async def test_a_letter_that_is_gone_is_not_replayed(either, replayed):
    letter = await bury(either)
    await begin(either, letter)
    await scripts.drop_letter(either, NS, letter, "m1", "5-0", replayed=replayed)
    before = await dump(either, NS)
    assert await begin(either, letter) is False
    assert await dump(either, NS) == before


async def test_a_letter_that_never_was_is_not_replayed(either):
    assert await begin(either, "7-0") is False
    assert await dump(either, NS) == {}


async def test_a_letter_that_has_failed_again_is_replayed_under_its_new_name_only(either):
    first = await bury(either)
    await begin(either, first)
    second = await bury(either)
    assert await begin(either, first) is False
    assert await either.hget(LETTERS, "5-0") == second.encode()
    assert await begin(either, second) is True
    assert await either.hget(LETTERS, "5-0") == b"replayed " + second.encode()


async def test_many_replays_beside_their_removal_leave_no_name_without_a_letter(either):
    letters = [await bury(either, f"m{i}", f"{i + 1}-0") for i in range(4)]
    async with anyio.create_task_group() as tasks:
        for i in range(32):
            letter, memory_id, version = letters[i % 4], f"m{i % 4}", f"{i % 4 + 1}-0"
            tasks.start_soon(begin, either, letter, version)
            if i > 16:
                tasks.start_soon(scripts.drop_letter, either, NS, letter, memory_id, version)
    assert await either.exists(LETTERS, FAILED) == 0
    assert await either.xlen(DEAD) == 0


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    letter = await bury(database)
    for key in (DEAD, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: begin(database, letter), "WRONGTYPE")


async def test_a_letter_id_that_is_none_stops_the_call(database):
    await bury(database)
    await refused(database, NS, lambda: begin(database, "x"))


async def test_a_missing_key_or_argument_stops_the_call(database):
    letter = await bury(database)
    for names, arguments in (([DEAD, LETTERS], [letter]), ([DEAD, LETTERS], []), ([DEAD], [letter, "5-0"])):
        await refused(database, NS, lambda: scripts.call(database, "begin_replay", names, arguments))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        letter = await bury(either, version=f"{i}-0")
        await flush_scripts(either)
        assert await begin(either, letter, f"{i}-0") is True


async def test_a_replay_begins_on_a_full_server(database):
    """It may be the replay of a delete."""
    letter = await bury(database)
    assert await carried_out_when_full(database, lambda: begin(database, letter)) is True
