"""`sweep_stream`: what is processed goes, nothing else; what somebody else removed is found out; the lag is right."""

from __future__ import annotations

import anyio
import pytest
from redis.exceptions import ResponseError

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
COUNTED = 500
LAST = 2**64 - 1


async def sweep(database, group=GROUP):
    return await scripts.sweep_stream(database, STREAM, group)


async def lost(database, group=GROUP):
    """Entries found lost now."""
    return (await sweep(database, group))[1]


async def acknowledge(database, *entries, group=GROUP):
    return await scripts.acknowledge(database, STREAM, group, entries)


async def on_stream(database):
    return [row[0].decode() for row in await database.execute_command("XRANGE", STREAM, "-", "+")]


@pytest.fixture
async def group(either):
    """Ten entries; six are read, and of these 1, 2 and 4 processed."""
    await scripts.create_group(either, STREAM, GROUP)
    await append(either, *[f"{i}-0" for i in range(1, 11)])
    await read(either, 6)
    await acknowledge(either, "1-0", "2-0", "4-0")
    return either


# --- what goes ---


async def test_what_lies_before_the_oldest_pending_entry_goes(group):
    before = await dump(group, NS)
    assert await sweep(group) == [2, 0, b"0-0", b"3-0"]
    assert await on_stream(group) == [f"{i}-0" for i in range(3, 11)]
    after = await dump(group, NS)
    assert after[STREAM.encode()][1][1:] == before[STREAM.encode()][1][1:]
    assert await account(group) == {"acknowledged": "3", "lost": "0", "before": "0", "delivered": "6-0"}


async def test_sweeping_again_changes_nothing(group):
    await sweep(group)
    before = await dump(group, NS)
    assert await sweep(group) == [0, 0, b"6-0", b"3-0"]
    assert await dump(group, NS) == before


async def test_with_nothing_pending_the_first_unread_entry_stays(group):
    await acknowledge(group, "3-0", "5-0", "6-0")
    assert await sweep(group) == [6, 0, b"0-0", b"7-0"]
    assert await read(group, 10) == ["7-0", "8-0", "9-0", "10-0"]


async def test_when_all_is_processed_all_goes(group):
    await read(group, 10)
    await acknowledge(group, *[f"{i}-0" for i in range(1, 11)])
    assert await sweep(group) == [10, 0, b"0-0", b""]
    assert await sweep(group) == [0, 0, b"10-0", b""]
    await append(group, "11-0")
    assert await sweep(group) == [0, 0, b"10-0", b"11-0"]
    assert await read(group, 10) == ["11-0"]


async def test_no_entry_goes_that_another_group_has_not_processed(group):
    """It may have nothing to do with us, and no account."""
    await group.execute_command("XGROUP", "CREATE", STREAM, "others", "0")
    assert (await sweep(group))[0] == 0
    await read(group, 3, group="others")
    assert (await sweep(group))[0] == 0
    await group.execute_command("XACK", STREAM, "others", "1-0")
    assert await sweep(group) == [1, 0, b"6-0", b"2-0"]
    await read(group, 9, group="others")
    await group.execute_command("XACK", STREAM, "others", *[f"{i}-0" for i in range(2, 11)])
    assert await sweep(group) == [1, 0, b"6-0", b"3-0"]


@pytest.mark.parametrize(
    ("done", "next_"),
    [
        ("5-9", "5-10"),
        ("5-99", "5-100"),
        ("5-0", "5-1"),
        ("9-0", "10-0"),
        (f"5-{2**53}", f"5-{2**53 + 1}"),
        (f"{2**53}-5", f"{2**53}-6"),
        (f"5-{LAST - 1}", f"5-{LAST}"),
        (f"5-{LAST}", "6-0"),
        (f"9-{LAST}", "10-0"),
        (f"{LAST - 1}-{LAST}", f"{LAST}-0"),
        (f"{LAST}-{LAST - 1}", f"{LAST}-{LAST}"),
    ],
)
@pytest.mark.parametrize("held", [True, False])
async def test_of_two_neighbouring_entries_the_first_goes_alone(database, done, next_, held):
    """The first place after an entry, exactly: as a double, or without a carry, it would be another one."""
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, done, next_)
    await read(database, 2 if held else 1)
    await acknowledge(database, done)
    assert await sweep(database) == [1, 0, b"0-0", next_.encode()]
    assert await on_stream(database) == [next_]


async def test_the_very_last_entry_that_a_stream_can_hold_stays(database):
    """There is no place after it to trim up to; nothing can come after it either."""
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "5-0", f"{LAST}-{LAST}")
    await acknowledge(database, *await read(database, 2))
    assert await sweep(database) == [1, 0, b"0-0", f"{LAST}-{LAST}".encode()]


# --- what somebody else removed ---


async def test_unread_entries_that_vanish_are_counted_once(group):
    await sweep(group)
    await group.xdel(STREAM, "8-0", "10-0")
    assert await sweep(group) == [0, 2, b"6-0", b"3-0"]
    assert await sweep(group) == [0, 0, b"6-0", b"3-0"]
    assert await read(group, 10) == ["7-0", "9-0"]
    assert await lost(group) == 0
    await acknowledge(group, "3-0", "5-0", "6-0", "7-0", "9-0")
    assert await sweep(group) == [6, 0, b"9-0", b""]
    assert (await account(group))["lost"] == "2"


async def test_a_stream_cut_to_nothing_has_lost_what_was_unread(group):
    """What is pending may still be processed by those who hold it."""
    await sweep(group)
    await group.execute_command("XTRIM", STREAM, "MAXLEN", 0)
    assert await sweep(group) == [0, 4, b"6-0", b""]
    await acknowledge(group, "3-0")
    assert await lost(group) == 0
    await group.execute_command("XACK", STREAM, GROUP, "5-0", "6-0")  # given up
    assert await sweep(group) == [0, 2, b"6-0", b""]


async def test_a_producer_that_trims_with_every_entry_is_found_out(group):
    await group.execute_command("XADD", STREAM, "MAXLEN", 2, "11-0", "event", "write")
    assert await sweep(group) == [0, 3, b"0-0", b"10-0"]


async def test_pending_entries_that_vanish_are_counted_when_they_are_given_up(group):
    await group.xdel(STREAM, "3-0", "5-0")
    assert await lost(group) == 0
    await acknowledge(group, "5-0")  # its worker had read it in time
    assert await lost(group) == 0
    await group.execute_command("XAUTOCLAIM", STREAM, GROUP, "other", 0, "0", "COUNT", 10)
    assert await lost(group) == 1
    assert await lost(group) == 0


async def test_processed_entries_that_vanish_are_nobodys_loss(group):
    await group.xdel(STREAM, "1-0", "4-0")
    assert await sweep(group) == [1, 0, b"0-0", b"3-0"]
    await group.xdel(STREAM, "4-0")
    assert await lost(group) == 0


async def test_entries_that_went_with_their_consumer_are_counted(group):
    """XGROUP DELCONSUMER forgets what it held: nobody will be given it again."""
    await group.execute_command("XGROUP", "DELCONSUMER", STREAM, GROUP, "c")
    assert await sweep(group) == [6, 3, b"0-0", b"7-0"]


async def test_entries_that_the_group_was_made_to_skip_are_counted(group):
    await group.execute_command("XGROUP", "SETID", STREAM, GROUP, "9-0")
    assert await lost(group) == 3


async def test_entries_that_the_group_was_made_to_read_again_are_no_loss_and_hide_none_later(group):
    """They are processed twice, and counted twice."""
    await acknowledge(group, "3-0", "5-0", "6-0")
    await group.execute_command("XGROUP", "SETID", STREAM, GROUP, "0")
    assert await lost(group) == 0
    await acknowledge(group, *await read(group, 100))
    assert await sweep(group) == [10, 0, b"0-0", b""]
    await append(group, "20-0", "21-0")
    await group.xdel(STREAM, "20-0")
    assert await lost(group) == 1


async def test_many_sweeps_at_once_count_every_loss_once(either):
    await scripts.create_group(either, STREAM, GROUP)
    found, vanished, done = [], 0, anyio.Event()

    async def keep_sweeping():
        while not done.is_set():
            found.append(await lost(either))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(keep_sweeping)
        for step in range(60):
            first = 10 * step + 1
            await append_range(either, first, first + 9)
            vanished += await either.xdel(STREAM, *[f"{first + i}-0" for i in range(1 + step % 4)])
            entries = await read(either, 5)
            vanished += await either.execute_command("XACK", STREAM, GROUP, entries[-1])  # given up
            await acknowledge(either, *entries[:-1])
        done.set()
    found.append(await lost(either))
    assert sum(found) == vanished > 100


async def test_a_backlog_is_counted_exactly_however_long(either):
    """Only what lies between the oldest pending and the last read entry is counted one by one."""
    await scripts.create_group(either, STREAM, GROUP)
    await append_range(either, 1, 5_000)
    await read(either, 10)
    await either.xdel(STREAM, "4000-0", "11-0")
    assert await lost(either) == 2
    await either.execute_command("XTRIM", STREAM, "MAXLEN", 1_000)
    assert await lost(either) == 3_988  # all of 12 to 4000, less the one that was counted
    await append_range(either, 5_001, 6_000)
    assert await lost(either) == 0


@pytest.mark.parametrize(("between", "counted"), [(COUNTED, True), (COUNTED + 1, False)])
async def test_with_too_many_entries_between_a_loss_is_told_later(either, between, counted):
    """One pending entry, and so many read since; the loss is told when they are fewer, or nothing is unread."""
    await scripts.create_group(either, STREAM, GROUP)
    await append_range(either, 1, 2_000)
    await read(either, between)
    await acknowledge(either, *[f"{i}-0" for i in range(2, between + 1)])
    await either.xdel(STREAM, "1999-0", "1000-0")
    before = await account(either)
    assert (await sweep(either))[:2] == [0, 2 if counted else 0]
    if counted:
        return
    assert await account(either) == before
    await acknowledge(either, "1-0")
    assert await sweep(either) == [between, 2, b"0-0", b"%d-0" % (between + 1)]


async def test_with_too_many_entries_between_a_loss_is_told_when_nothing_is_unread(either):
    await scripts.create_group(either, STREAM, GROUP)
    await append_range(either, 1, 1_000)
    await read(either, 900)
    await acknowledge(either, *[f"{i}-0" for i in range(2, 901)])
    await either.xdel(STREAM, "950-0")
    assert await lost(either) == 0
    await read(either, 1_000)
    assert await lost(either) == 1
    assert await lost(either) == 0


async def test_another_group_that_lags_behind_hides_no_loss_for_ever(either):
    """What it has not processed is still there, and counts among what lies between."""
    await scripts.create_group(either, STREAM, GROUP)
    await either.execute_command("XGROUP", "CREATE", STREAM, "others", "0")
    await append_range(either, 1, 800)
    await acknowledge(either, *await read(either, 700))
    await either.xdel(STREAM, "750-0")
    assert await lost(either) == 0
    await acknowledge(either, *await read(either, 700))
    assert await lost(either) == 1


async def test_a_group_older_than_its_account_begins_without_losses(group):
    """Made by hand or by an earlier release; some of what it read was acknowledged without being counted."""
    await group.delete(PROCESSED)
    await group.xdel(STREAM, "9-0")
    assert await sweep(group) == [2, 0, b"0-0", b"3-0"]
    await group.xdel(STREAM, "8-0")
    assert await lost(group) == 1
    await acknowledge(group, "3-0", "5-0", "6-0")
    assert await lost(group) == 0
    await acknowledge(group, *await read(group, 10))
    assert await sweep(group) == [2, 0, b"6-0", b""]


async def test_two_groups_of_ours_are_told_each_its_own_losses(group):
    await scripts.create_group(group, STREAM, "second")
    await read(group, 8, group="second")
    await acknowledge(group, *[f"{i}-0" for i in range(1, 9)], group="second")
    await group.xdel(STREAM, "7-0", "9-0")
    assert await lost(group, "second") == 1
    assert await lost(group) == 2
    assert (await lost(group), await lost(group, "second")) == (0, 0)


async def test_a_group_made_again_begins_without_losses(group):
    await sweep(group)
    await group.xdel(STREAM, "8-0")
    await group.execute_command("XGROUP", "DESTROY", STREAM, GROUP)
    assert await sweep(group) == []
    await scripts.create_group(group, STREAM, GROUP)
    assert await lost(group) == 0
    await group.xdel(STREAM, "9-0")
    assert await lost(group) == 1


# --- how much is unread ---


async def counts(database, group=GROUP):
    """How many entries the group has read and not read, as the server tells."""
    rows = await database.execute_command("XINFO", "GROUPS", STREAM)
    (info,) = [info for row in rows if (info := dict(zip(row[::2], row[1::2], strict=True)))[b"name"] == group.encode()]
    return info[b"entries-read"], info[b"lag"]


async def miscount(database, entries_read):
    """As a failover or a restart of Redis 7.0 leaves the group: it stands where it stood, its count does not."""
    await database.execute_command("XGROUP", "SETID", STREAM, GROUP, "6-0", "ENTRIESREAD", entries_read)


@pytest.mark.parametrize("wrong", [0, 1, 5, 9, -1])
async def test_a_wrong_count_of_what_was_read_is_set_right_and_nothing_else(group, wrong):
    await sweep(group)
    before = await dump(group, NS)
    await miscount(group, wrong)
    assert await counts(group) != (6, 4)
    assert await sweep(group) == [0, 0, b"6-0", b"3-0"]
    assert await counts(group) == (6, 4)
    assert await dump(group, NS) == before
    assert await read(group, 3) == ["7-0", "8-0", "9-0"]
    assert await counts(group) == (9, 1)


async def test_a_wrong_count_is_set_right_when_everything_is_gone(group):
    await acknowledge(group, *await read(group, 10), "3-0", "5-0", "6-0")
    await group.execute_command("XGROUP", "SETID", STREAM, GROUP, "10-0", "ENTRIESREAD", 2)
    for _ in range(2):
        await sweep(group)
        assert await counts(group) == (10, 0)
    await append(group, "11-0", "12-0")
    assert await counts(group) == (10, 2)


async def test_the_count_comes_back_once_what_vanished_has_been_passed(group):
    """While it lies ahead the server tells nothing; after it the sweep need not wait for the end of the stream."""
    await group.xdel(STREAM, "8-0")
    await sweep(group)
    assert (await counts(group))[1] is None
    assert await read(group, 2) == ["7-0", "9-0"]
    await sweep(group)
    assert await counts(group) == (9, 1)


async def test_with_too_many_entries_between_the_count_is_left_alone(either):
    await scripts.create_group(either, STREAM, GROUP)
    await append_range(either, 1, 2_000)
    await read(either, COUNTED + 1)
    await either.execute_command("XGROUP", "SETID", STREAM, GROUP, f"{COUNTED + 1}-0", "ENTRIESREAD", 7)
    await sweep(either)
    assert (await counts(either))[0] == 7
    await acknowledge(either, "1-0")
    await sweep(either)
    assert await counts(either) == (COUNTED + 1, 2_000 - COUNTED - 1)


async def test_the_count_of_another_group_is_its_own(group):
    await group.execute_command("XGROUP", "CREATE", STREAM, "others", "4-0", "ENTRIESREAD", "2")
    await miscount(group, 1)
    await sweep(group)
    assert (await counts(group), await counts(group, "others")) == ((6, 4), (2, 8))


# --- wrong state ---


async def test_no_stream_or_no_group_is_no_sweep(either):
    assert await sweep(either) == []
    assert await dump(either, NS) == {}
    await append(either, "1-0")
    before = await dump(either, NS)
    assert await sweep(either) == []
    await either.execute_command("XGROUP", "CREATE", STREAM, "others", "$")
    assert await sweep(either) == []
    assert await on_stream(either) == ["1-0"]
    await either.execute_command("XGROUP", "DESTROY", STREAM, "others")
    assert await dump(either, NS) == before


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0")
    await acknowledge(database, *await read(database, 1))
    for key in (STREAM, PROCESSED):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: sweep(database), "WRONGTYPE")
    assert (await sweep(database))[0] == 1


@pytest.mark.parametrize("field", ["acknowledged", "before", "lost"])
@pytest.mark.parametrize("value", ["", "x", "1.5", "1e3", " 2", "9223372036854775807"])
async def test_an_account_that_is_no_number_stops_the_call_before_the_first_write(database, field, value):
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0")
    await acknowledge(database, *await read(database, 1))
    await database.hset(PROCESSED, f"{GROUP}:{field}", value)
    await refused(database, NS, lambda: sweep(database), "CORRUPT the account")


async def test_a_missing_key_or_argument_stops_the_call(group):
    for names, arguments in (([STREAM, PROCESSED], []), ([STREAM], [GROUP]), ([], [GROUP])):
        with pytest.raises(ResponseError):
            await scripts.call(group, "sweep_stream", names, arguments)
    assert len(await on_stream(group)) == 10


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(group):
    for removed in (2, 0, 0):
        await flush_scripts(group)
        assert (await sweep(group))[0] == removed


async def test_the_stream_is_swept_on_a_full_server(database):
    await scripts.create_group(database, STREAM, GROUP)
    await append(database, "1-0", "2-0", "3-0")
    await acknowledge(database, *await read(database, 1))
    await database.xdel(STREAM, "3-0")
    assert await carried_out_when_full(database, lambda: sweep(database)) == [1, 1, b"0-0", b"2-0"]
