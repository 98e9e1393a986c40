"""`drop_letter`: a letter goes together with its memory's mark, unless a later letter has set that."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import carried_out_when_full, dump, flush_scripts, refused, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, FAILED, LETTERS = "dead:{default}", "failed:{default}", "letters:{default}"


async def bury(database, memory_id, version):
    """File a letter; gives its id in the dead-letter stream."""
    await scripts.dead_letter(
        database, NS, memory_id, version=version, code="c", reason="r", now_ms=1, deliveries=1, fields=[(b"id", b"m1")]
    )
    rows = await database.execute_command("XRANGE", DEAD, "-", "+")
    return rows[-1][0].decode()


async def letters(database):
    return [row[0].decode() for row in await database.execute_command("XRANGE", DEAD, "-", "+")]


async def test_the_letter_its_name_and_its_mark_go_together(either):
    first, second = await bury(either, "m1", "5-0"), await bury(either, "m2", "5-1")
    assert await scripts.drop_letter(either, NS, first, "m1", "5-0") is True
    assert await letters(either) == [second]
    assert await either.hgetall(FAILED) == {b"m2": b"5-1 c r"}
    assert await either.hgetall(LETTERS) == {b"5-1": second.encode()}


async def test_the_mark_of_a_later_letter_stays(either):
    first, second = await bury(either, "m1", "5-0"), await bury(either, "m1", "50-0")
    assert await scripts.drop_letter(either, NS, first, "m1", "5-0") is True
    assert await letters(either) == [second]
    assert await either.hgetall(FAILED) == {b"m1": b"50-0 c r"}


async def test_a_replayed_letter_leaves_its_version_and_its_mark_until_the_event_is_processed(either):
    letter = await bury(either, "m1", "5-0")
    await scripts.begin_replay(either, NS, letter, "5-0")
    assert await scripts.drop_letter(either, NS, letter, "m1", "5-0", replayed=True) is True
    assert await letters(either) == []
    assert await either.hgetall(FAILED) == {b"m1": b"5-0 c r"}
    assert await either.hgetall(LETTERS) == {b"5-0": b"replayed " + letter.encode()}


async def test_a_letter_whose_replay_broke_off_is_dropped_whole(either):
    letter = await bury(either, "m1", "5-0")
    await scripts.begin_replay(either, NS, letter, "5-0")
    assert await scripts.drop_letter(either, NS, letter, "m1", "5-0") is True
    assert await letters(either) == []
    assert await either.exists(FAILED, LETTERS) == 0


async def test_a_letter_whose_replay_was_processed_first_is_dropped_whole(either):
    """The worker is faster than the replayer's last step: then nothing is under way any more."""
    letter = await bury(either, "m1", "5-0")
    await scripts.begin_replay(either, NS, letter, "5-0")
    assert await scripts.settle_replay(either, NS, "m1", "5-0") is True
    assert await scripts.drop_letter(either, NS, letter, "m1", "5-0", replayed=True) is True
    assert await letters(either) == []
    assert await either.exists(FAILED, LETTERS) == 0


@pytest.mark.parametrize("replayed", [True, False])
async def test_a_letter_that_failed_again_meanwhile_is_left_alone(either, replayed):
    """Its replay was filed as another letter before the replayer's last step, or before an old list was dropped."""
    first = await bury(either, "m1", "5-0")
    await scripts.begin_replay(either, NS, first, "5-0")
    second = await bury(either, "m1", "5-0")
    before = await dump(either, NS)
    assert await scripts.drop_letter(either, NS, first, "m1", "5-0", replayed=replayed) is False
    assert await dump(either, NS) == before
    assert await letters(either) == [second]


async def test_an_event_without_an_id_is_dropped_by_its_entry(database):
    letter = await bury(database, None, "5-0")
    field = scripts.failed_field(None, "5-0")
    assert await scripts.drop_letter(database, NS, letter, field, "5-0") is True
    assert await letters(database) == []
    assert await database.exists(FAILED, LETTERS) == 0


async def test_dropping_again_changes_nothing(either):
    letter = await bury(either, "m1", "5-0")
    await bury(either, "m2", "5-1")
    await scripts.drop_letter(either, NS, letter, "m1", "5-0")
    before = await dump(either, NS)
    assert await scripts.drop_letter(either, NS, letter, "m1", "5-0") is False
    assert await dump(either, NS) == before


async def test_nothing_is_made_where_there_is_nothing(either):
    assert await scripts.drop_letter(either, NS, "5-0", "m1", "5-0") is False
    assert await dump(either, NS) == {}


async def test_a_letter_dropped_by_many_at_once_is_dropped_once(either):
    filed = [await bury(either, f"m{i}", f"{i}-0") for i in range(4)]
    answers = []

    async def drop(i):
        answers.append(await scripts.drop_letter(either, NS, filed[i % 4], f"m{i % 4}", f"{i % 4}-0"))

    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(drop, i)
    assert answers.count(True) == 4
    assert await letters(either) == []
    assert await either.exists(FAILED, LETTERS) == 0


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    letter = await bury(database, "m1", "5-0")
    for key in (DEAD, FAILED, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: scripts.drop_letter(database, NS, letter, "m1", "5-0"), "WRONGTYPE")


async def test_a_letter_id_that_is_none_stops_the_call(database):
    await bury(database, "m1", "5-0")
    await refused(database, NS, lambda: scripts.drop_letter(database, NS, "x", "m1", "5-0"))


@pytest.mark.parametrize("mark", ["", "nonsense", "5-01 c r"])
async def test_a_corrupt_mark_stays(database, mark):
    letter = await bury(database, "m1", "5-0")
    await database.hset(FAILED, "m1", mark)
    assert await scripts.drop_letter(database, NS, letter, "m1", "5-0") is True
    assert await database.hget(FAILED, "m1") == mark.encode()


async def test_a_missing_argument_stops_the_call(database):
    letter = await bury(database, "m1", "5-0")
    names, whole = [DEAD, FAILED, LETTERS], [letter, "m1", "5-0", "0"]
    for count in range(4):
        cut = whole[:count]
        await refused(database, NS, lambda: scripts.call(database, "drop_letter", names, cut))  # noqa: B023
    await refused(database, NS, lambda: scripts.call(database, "drop_letter", names[:2], whole))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        letter = await bury(either, "m1", f"{i}-0")
        await flush_scripts(either)
        assert await scripts.drop_letter(either, NS, letter, "m1", f"{i}-0") is True


async def test_a_letter_is_dropped_on_a_full_server(database):
    letter = await bury(database, "m1", "5-0")
    drop = scripts.drop_letter
    assert await carried_out_when_full(database, lambda: drop(database, NS, letter, "m1", "5-0")) is True
    assert await database.exists(FAILED, LETTERS) == 0
