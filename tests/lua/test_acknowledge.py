"""`acknowledge`: processed entries leave the pending list and are counted, each once."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import (
    GROUP,
    PROCESSED,
    STREAM,
    account,
    append,
    append_range,
    carried_out_when_full,
    dump,
    flush_scripts,
    read,
    refused,
    wrong_type,
)

pytestmark = pytest.mark.anyio

NS = "default"
COUNT = f"{GROUP}:acknowledged"


async def acknowledge(database, *entries, group=GROUP):
    return await scripts.acknowledge(database, STREAM, group, entries)


async def counted(database, group=GROUP):
    return int((await account(database, group)).get("acknowledged", 0))


async def pending(database, group=GROUP):
    return [row[0].decode() for row in await database.execute_command("XPENDING", STREAM, group, "-", "+", 10_000)]


@pytest.fixture
async def group(either):
    """A group with six entries; five are read, by two consumers."""
    await scripts.create_group(either, STREAM, GROUP)
    await append(either, *[f"{i}-0" for i in range(1, 7)])
    await read(either, 3, "a")
    await read(either, 2, "b")
    return either


async def test_entries_leave_the_pending_list_of_whoever_holds_them_and_are_counted(group):
    before = await dump(group, NS)
    assert await acknowledge(group, "2-0", "4-0") == 2
    after = await dump(group, NS)
    assert await pending(group) == ["1-0", "3-0", "5-0"]
    assert after[PROCESSED.encode()][1].pop(COUNT.encode()) == b"2"
    assert before[PROCESSED.encode()][1].pop(COUNT.encode()) == b"0"
    assert after[PROCESSED.encode()] == before[PROCESSED.encode()]
    assert after[STREAM.encode()][1][0] == before[STREAM.encode()][1][0]
    assert await acknowledge(group, "1-0", "3-0", "5-0") == 3
    assert (await pending(group), await counted(group)) == ([], 5)


async def test_acknowledging_again_changes_nothing(group):
    await acknowledge(group, "2-0", "4-0")
    before = await dump(group, NS)
    assert await acknowledge(group, "2-0", "4-0") == 0
    assert await dump(group, NS) == before


async def test_what_is_not_pending_is_not_counted(group):
    """Unread, never there, twice in one call, and held by another group."""
    await group.execute_command("XGROUP", "CREATE", STREAM, "others", "0")
    await read(group, 6, group="others")
    assert await acknowledge(group, "6-0", "99-0", "1-0", "1-0", "6-0") == 1
    assert await counted(group) == 1
    assert len(await pending(group, "others")) == 6
    assert await acknowledge(group, "1-0", "6-0", group="others") == 2
    assert (await counted(group, "others"), await counted(group)) == (2, 1)


async def test_an_entry_that_somebody_removed_from_the_stream_counts_as_processed(group):
    """Its worker had read it in time."""
    await group.xdel(STREAM, "2-0")
    assert await acknowledge(group, "2-0") == 1
    assert await counted(group) == 1


async def test_groups_with_colons_in_their_names_have_accounts_of_their_own(either):
    names = ["a", "a:b", "a:acknowledged", ":", "组 {x}"]
    await append(either, "1-0", "2-0", "3-0")
    for i, name in enumerate(names):
        await scripts.create_group(either, STREAM, name)
        await read(either, 3, group=name)
        await acknowledge(either, *["1-0", "2-0", "3-0"][: i % 4], group=name)
    fields = await either.hgetall(PROCESSED)
    assert [int(fields[f"{name}:acknowledged".encode()]) for name in names] == [0, 1, 2, 3, 0]
    assert len(fields) == 4 * len(names)


async def test_no_entries_a_missing_stream_and_a_missing_group_are_nothing(either):
    assert await acknowledge(either) == 0
    assert await acknowledge(either, "1-0") == 0
    assert await dump(either, NS) == {}
    await append(either, "1-0")
    before = await dump(either, NS)
    assert await acknowledge(either, "1-0") == 0
    assert await dump(either, NS) == before


async def test_thousands_of_entries_are_acknowledged_at_once(either):
    """More than Lua could put on its stack."""
    await scripts.create_group(either, STREAM, GROUP)
    await append_range(either, 1, 9_000)
    assert await acknowledge(either, *await read(either, 10_000)) == 9_000
    assert await counted(either) == 9_000
    assert await pending(either) == []


async def test_many_that_acknowledge_the_same_entries_count_each_once(either):
    await scripts.create_group(either, STREAM, GROUP)
    entries = [f"{i}-0" for i in range(1, 41)]
    await append(either, *entries)
    await read(either, 40)
    answers = []

    async def work(i):
        ours = entries[i:] + entries[:i]
        answers.extend([await acknowledge(either, *ours[at : at + 5]) for at in range(0, 40, 5)])

    async with anyio.create_task_group() as tasks:
        for i in range(8):
            tasks.start_soon(work, 3 * i)
    assert sum(answers) == await counted(either) == 40


@pytest.mark.parametrize("entry", ["", "x", "5-", "-1-0", "5-18446744073709551616"])
async def test_what_is_no_entry_id_stops_the_call_before_the_first_write(group, entry):
    await refused(group, NS, lambda: acknowledge(group, "1-0", "2-0", entry), "Invalid stream ID")


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0")
    await read(database, 1)
    async with wrong_type(database, PROCESSED):
        await refused(database, NS, lambda: acknowledge(database, "1-0"), "WRONGTYPE")
    async with wrong_type(database, STREAM):
        await refused(database, NS, lambda: acknowledge(database, "1-0"), "WRONGTYPE")
    assert await acknowledge(database, "1-0") == 1


@pytest.mark.parametrize("value", ["", "x", "1.5", "-1", " 2", "9223372036854775807"])
async def test_an_account_that_is_no_number_stops_the_call_before_the_first_write(database, value):
    """What the addition would refuse would be off the pending list by then, and never counted."""
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0")
    await read(database, 1)
    await database.hset(PROCESSED, COUNT, value)
    await refused(database, NS, lambda: acknowledge(database, "1-0"), "CORRUPT the account")
    await database.hdel(PROCESSED, COUNT)
    assert await acknowledge(database, "1-0") == 1


async def test_a_missing_key_or_argument_stops_the_call(group):
    for names, arguments in (([STREAM, PROCESSED], []), ([STREAM], [GROUP, "1-0"]), ([], [GROUP, "1-0"])):
        await refused(group, NS, lambda: scripts.call(group, "acknowledge", names, arguments))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(group):
    for i in range(1, 4):
        await flush_scripts(group)
        assert await acknowledge(group, f"{i}-0") == 1


async def test_entries_are_acknowledged_on_a_full_server(database):
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0")
    await read(database, 1)
    assert await carried_out_when_full(database, lambda: acknowledge(database, "1-0")) == 1
    assert await counted(database) == 1
