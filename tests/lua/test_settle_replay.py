"""`settle_replay`: a replayed event has been processed, and nothing is under way any more."""

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


async def replay(database, memory_id="m1", version="5-0", *, removed=True):
    """File a letter and replay it; `removed` as when the replay did not break off before its last step."""
    letter = await bury(database, memory_id, version)
    assert await scripts.begin_replay(database, NS, letter, version)
    if removed:
        assert await scripts.drop_letter(database, NS, letter, memory_id, version, replayed=True)
    return letter


async def settle(database, memory_id="m1", version="5-0"):
    return await scripts.settle_replay(database, NS, memory_id, version)


async def test_a_whole_replay_leaves_nothing(either):
    await replay(either)
    await replay(either, "m2", "6-0")
    assert await settle(either) is True
    assert await either.hgetall(FAILED) == {b"m2": b"6-0 c r"}
    assert list(await either.hkeys(LETTERS)) == [b"6-0"]
    assert await settle(either, "m2", "6-0") is True
    assert set(await dump(either, NS)) == {DEAD.encode()}
    assert await either.xlen(DEAD) == 0


async def test_a_letter_that_its_replay_did_not_remove_counts_as_filed_again(either):
    letter = await replay(either, removed=False)
    before = await dump(either, NS)
    assert await settle(either) is True
    before[LETTERS.encode()][1][b"5-0"] = letter.encode()
    del before[FAILED.encode()]
    assert await dump(either, NS) == before


async def test_the_mark_of_a_later_letter_stays(either):
    await replay(either)
    later = await bury(either, version="50-0")
    assert await settle(either) is True
    assert await either.hgetall(FAILED) == {b"m1": b"50-0 c r"}
    assert await either.hgetall(LETTERS) == {b"50-0": later.encode()}


async def test_a_letter_that_was_filed_again_stays(either):
    """The same event stood on the stream twice: once it failed, once it did not."""
    await replay(either)
    second = await bury(either)
    assert await settle(either) is True
    assert await either.hgetall(LETTERS) == {b"5-0": second.encode()}
    assert await either.xlen(DEAD) == 1
    assert await either.exists(FAILED) == 0


@pytest.mark.parametrize("removed", [True, False])
async def test_settling_again_changes_nothing(either, removed):
    await replay(either, removed=removed)
    await settle(either)
    before = await dump(either, NS)
    assert await settle(either) is False
    assert await dump(either, NS) == before


async def test_where_there_is_nothing_nothing_is_made(either):
    assert await settle(either) is False
    assert await dump(either, NS) == {}


async def test_a_letter_that_is_not_replayed_is_left_alone_but_for_its_mark(either):
    """An event that names a version as its origin, while the letter of that version is filed."""
    letter = await bury(either)
    assert await settle(either) is True
    assert await either.hgetall(LETTERS) == {b"5-0": letter.encode()}
    assert await either.xlen(DEAD) == 1


@pytest.mark.parametrize("mark", ["", "nonsense", "5-01 c r"])
async def test_a_corrupt_mark_stays(database, mark):
    await replay(database)
    await database.hset(FAILED, "m1", mark)
    assert await settle(database) is True
    assert await database.hget(FAILED, "m1") == mark.encode()
    assert await database.exists(LETTERS) == 0


async def test_many_that_have_processed_the_same_event_settle_it_once(either):
    for i in range(4):
        await replay(either, f"m{i}", f"{i + 1}-0")
    settled = []

    async def process(i):
        settled.append(await settle(either, f"m{i}", f"{i + 1}-0"))

    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(process, i % 4)
    assert settled.count(True) == 4
    assert await either.exists(LETTERS, FAILED) == 0


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await replay(database, removed=False)
    for key in (DEAD, FAILED, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: settle(database), "WRONGTYPE")


async def test_a_corrupt_name_of_the_letter_stops_the_call_before_the_first_write(database):
    await replay(database)
    await database.hset(LETTERS, "5-0", "replayed nonsense")
    await refused(database, NS, lambda: settle(database))


async def test_a_missing_key_or_argument_stops_the_call(database):
    await replay(database)
    names = [DEAD, FAILED, LETTERS]
    for cut, arguments in ((names, ["m1"]), (names, []), (names[:2], ["m1", "5-0"]), (names, ["m1", "5-0", "more"])):
        await refused(database, NS, lambda: scripts.call(database, "settle_replay", cut, arguments))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await replay(either, version=f"{i}-0")
        await flush_scripts(either)
        assert await settle(either, version=f"{i}-0") is True


async def test_a_replay_is_settled_on_a_full_server(database):
    await replay(database)
    assert await carried_out_when_full(database, lambda: settle(database)) is True
    assert await database.exists(LETTERS, FAILED) == 0
