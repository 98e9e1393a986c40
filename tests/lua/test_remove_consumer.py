"""`remove_consumer`: a consumer goes only if it holds nothing and has been silent."""

from __future__ import annotations

import anyio
import pytest
from redis.exceptions import ResponseError

from jiyi import scripts

from .conftest import GROUP, STREAM, carried_out_when_full, dump, flush_scripts, refused, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"


@pytest.fixture
async def group(either):
    """A stream of six entries; consumer `busy` holds three of them, `idle` none."""
    await either.execute_command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    for i in range(6):
        await either.execute_command("XADD", STREAM, f"{i + 1}-0", "event", "write")
    await read(either, "busy", 3)
    await either.execute_command("XGROUP", "CREATECONSUMER", STREAM, GROUP, "idle")
    return either


async def read(database, consumer, count):
    return await database.execute_command(
        "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", STREAM, ">"
    )


async def remove(database, consumer, idle_ms=0, group=GROUP):
    return await scripts.remove_consumer(database, STREAM, group, consumer, idle_ms=idle_ms)


async def consumers(database):
    rows = await database.execute_command("XINFO", "CONSUMERS", STREAM, GROUP)
    return {dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode() for row in rows}


async def test_a_consumer_that_holds_nothing_is_removed_and_nothing_else(group):
    entries, groups, pending, _consumers = (await dump(group, NS))[STREAM.encode()][1]
    assert await remove(group, "idle") is True
    assert await dump(group, NS) == {STREAM.encode(): ("stream", (entries, groups, pending, [[b"busy"]]))}


async def test_a_consumer_with_pending_entries_is_kept_and_so_are_they(group):
    before = await dump(group, NS)
    assert await remove(group, "busy") is False
    assert await dump(group, NS) == before
    for left in (2, 1, 0):
        await group.execute_command("XACK", STREAM, GROUP, f"{3 - left}-0")
        assert await remove(group, "busy") is (left == 0)
    assert await consumers(group) == {"idle"}


async def test_a_consumer_that_was_heard_of_lately_is_kept(group):
    before = await dump(group, NS)
    assert await remove(group, "idle", idle_ms=3_600_000) is False
    assert await dump(group, NS) == before


async def test_removing_again_or_a_stranger_changes_nothing(group):
    await remove(group, "idle")
    before = await dump(group, NS)
    assert await remove(group, "idle") is False
    assert await remove(group, "") is False
    assert await dump(group, NS) == before


async def test_a_consumer_of_another_group_is_kept(group):
    await group.execute_command("XGROUP", "CREATE", STREAM, "others", "0")
    await group.execute_command("XGROUP", "CREATECONSUMER", STREAM, "others", "idle")
    assert await remove(group, "idle", group="others") is True
    assert await consumers(group) == {"busy", "idle"}


async def test_one_of_two_hundred_names_goes_and_any_bytes_are_a_name(group):
    names = [f"c {i}\0é" for i in range(200)]
    for name in names:
        await group.execute_command("XGROUP", "CREATECONSUMER", STREAM, GROUP, name)
    assert await remove(group, names[150]) is True
    assert await consumers(group) == {"busy", "idle", *names} - {names[150]}


async def test_entries_read_while_consumers_are_removed_are_never_lost(either):
    """A removal between a reading and its acknowledgement would take the entry out of the group for ever."""
    await either.execute_command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    for i in range(80):
        await either.execute_command("XADD", STREAM, f"{i + 1}-0", "event", "write")
    taken, done = [], anyio.Event()

    async def sweep():
        while not done.is_set():
            for i in range(4):
                await remove(either, f"c{i}")

    async def work(i):
        while reply := await read(either, f"c{i}", 1):
            [[_stream, [[entry, _fields]]]] = reply
            if int(entry.split(b"-")[0]) % 2:
                assert await either.execute_command("XACK", STREAM, GROUP, entry) == 1
                taken.append(entry)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep)
        tasks.start_soon(sweep)
        async with anyio.create_task_group() as workers:
            for i in range(4):
                workers.start_soon(work, i)
        done.set()
    pending = await either.execute_command("XPENDING", STREAM, GROUP, "-", "+", 100)
    assert (len(taken), len(pending)) == (40, 40)


async def test_a_stream_or_group_that_is_not_there_is_an_error_and_stays_so(either):
    with pytest.raises(ResponseError, match="no such key"):
        await remove(either, "idle")
    assert await dump(either, NS) == {}
    await either.execute_command("XADD", STREAM, "1-0", "event", "write")
    await refused(either, NS, lambda: remove(either, "idle"), "NOGROUP")


async def test_a_stream_of_the_wrong_type_is_an_error(database):
    async with wrong_type(database, STREAM):
        await refused(database, NS, lambda: remove(database, "idle"), "WRONGTYPE")


async def test_a_missing_argument_stops_the_call(group):
    for cut in ([], [GROUP, "idle"]):
        await refused(group, NS, lambda: scripts.call(group, "remove_consumer", [STREAM], cut))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(group):
    for i in range(3):
        await group.execute_command("XGROUP", "CREATECONSUMER", STREAM, GROUP, f"c{i}")
        await flush_scripts(group)
        assert await remove(group, f"c{i}") is True


async def test_a_consumer_is_removed_on_a_full_server(database):
    await database.execute_command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    await database.execute_command("XGROUP", "CREATECONSUMER", STREAM, GROUP, "idle")
    assert await carried_out_when_full(database, lambda: remove(database, "idle")) is True
