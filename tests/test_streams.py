"""The event stream and its group: nothing skipped, nothing trimmed too early, nothing guessed."""

from __future__ import annotations

import pytest

from jiyi.analysis import Analyzer
from jiyi.events import parse_entry
from jiyi.streams import START, EventStream, Group, Sweep
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio


@pytest.fixture
def stream(either, settings):
    return EventStream(either, settings.stream, settings.group)


async def append(database, stream, count=1):
    fields = {"event": "write", "id": "m", "content": "x"}
    return [(await database.xadd(stream.name, fields)).decode() for _ in range(count)]


async def test_the_group_begins_at_the_beginning(either, stream):
    entries = await append(either, stream, 3)
    assert await stream.ensure_group() is Group.NEW
    assert await stream.ensure_group() is Group.EXISTS
    assert [entry.id for entry in await stream.read_new("c", 10, 10)] == entries


async def test_a_group_that_somebody_removed_is_made_again(either, stream):
    """With the stream or without it; then it begins at the beginning of what is there."""
    await stream.ensure_group()
    entries = await append(either, stream, 2)
    await stream.acknowledge([entry.id for entry in await stream.read_new("c", 1, 10)])
    await either.execute_command("XGROUP", "DESTROY", stream.name, "jiyi")
    assert await stream.ensure_group() is Group.AGAIN
    assert [entry.id for entry in await stream.read_new("c", 10, 10)] == entries
    await either.delete(stream.name)
    assert await stream.ensure_group() is Group.AGAIN
    assert await stream.read_new("c", 10, 10) == []


async def test_fields_keep_their_order_and_their_doubles(either, stream):
    await stream.ensure_group()
    await either.execute_command("XADD", stream.name, "*", "b", "1", "a", "2", "b", "3")
    (entry,) = await stream.read_new("c", 10, 10)
    assert entry.fields == [(b"b", b"1"), (b"a", b"2"), (b"b", b"3")]


async def test_an_empty_stream_gives_nothing_and_no_error(stream):
    await stream.ensure_group()
    assert await stream.read_new("c", 10, 10) == []
    assert await stream.read_own("c", 10) == []
    state = await stream.state(10**15)
    assert (state.lag, state.pending, state.oldest_unapplied_ms) == (0, 0, 0)


async def test_no_stream_is_no_state(stream):
    assert await stream.state(0) is None


async def test_a_lag_that_the_server_cannot_tell_is_unknown_not_zero(either, stream):
    """After an unread entry is deleted from the middle, the age of the oldest still says what waits."""
    await stream.ensure_group()
    entries = await append(either, stream, 5)
    await stream.read_new("c", 1, 10)
    await stream.acknowledge(entries[:1])
    await either.xdel(stream.name, entries[2])
    state = await stream.state(int(entries[1].split("-")[0]) + 5_000)
    assert state.lag is None
    assert state.oldest_unapplied_ms == 5_000


async def test_nothing_unread_is_no_lag_whatever_the_server_has_counted(either, stream):
    """After a failover or a restart Redis 7.0 has a wrong count, until the next sweep."""
    await stream.ensure_group()
    entries = await append(either, stream, 5)
    await stream.read_new("c", 5, 10)
    await either.execute_command("XGROUP", "SETID", stream.name, "jiyi", entries[-1], "ENTRIESREAD", 2)
    state = await stream.state(0)
    assert (state.lag, state.pending) == (0, 5)
    await append(either, stream, 2)
    await stream.sweep()
    assert (await stream.state(0)).lag == 2


async def test_sweeping_stops_at_the_oldest_pending_and_unread_entry(either, stream):
    await stream.ensure_group()
    entries = await append(either, stream, 6)
    await stream.read_new("c", 4, 10)
    await stream.acknowledge([entries[0], entries[1], entries[3]])
    assert await stream.sweep() == Sweep(2, 0, START, entries[2])
    assert await either.xlen(stream.name) == 4
    await stream.acknowledge([entries[2]])
    assert await stream.sweep() == Sweep(2, 0, entries[3], entries[4])
    assert [entry.id for entry in await stream.read_new("c", 10, 10)] == entries[4:]
    await stream.acknowledge(entries[4:])
    assert await stream.sweep() == Sweep(2, 0, entries[3], "")
    assert await stream.sweep() == Sweep(0, 0, entries[5], "")


async def test_sweeping_minds_every_group(either, stream):
    await stream.ensure_group()
    await either.xgroup_create(stream.name, "somebody-else", "0")
    entries = await append(either, stream, 2)
    await stream.read_new("c", 10, 10)
    await stream.acknowledge(entries)
    assert (await stream.sweep()).removed == 0


async def test_no_stream_and_no_group_are_no_sweep(either, stream):
    assert await stream.sweep() is None
    await append(either, stream)
    assert await stream.sweep() is None


async def test_what_vanished_before_it_was_processed_is_told_once_and_where_it_lay(either, stream):
    await stream.ensure_group()
    entries = await append(either, stream, 6)
    await stream.read_new("c", 2, 10)
    await stream.sweep()
    await either.xdel(stream.name, *entries[1:4])
    assert await stream.sweep() == Sweep(0, 2, entries[1], entries[0])
    await stream.acknowledge(entries[:1])
    await stream.give_up(entries[1:2])
    assert await stream.sweep() == Sweep(1, 1, entries[1], entries[4])
    assert await stream.sweep() == Sweep(0, 0, entries[1], entries[4])


async def test_nothing_to_acknowledge_or_to_give_up_is_no_command(stream):
    await stream.acknowledge([])
    await stream.give_up([])
    assert await stream.sweep() is None


@pytest.mark.parametrize(
    ("entry", "floor"),
    [
        ("5-9", "5-10"),
        (f"5-{2**64 - 1}", "6-0"),
        (f"{2**64 - 1}-7", f"{2**64 - 1}-8"),
    ],
)
async def test_the_floor_lies_behind_what_is_processed_and_is_an_entry_id(database, settings, entry, floor):
    """Any entry id can be given to XADD, by anybody; housekeeping compares tombstones with the floor."""
    stream = EventStream(database, settings.stream, settings.group)
    await stream.ensure_group()
    await database.execute_command("XADD", stream.name, entry, "event", "write")
    await stream.read_new("c", 10, 10)
    assert (await stream.state(0)).floor == entry
    await stream.acknowledge([entry])
    assert (await stream.state(0)).floor == floor
    parse_entry(floor)
    assert await stream.sweep() is not None


async def test_entries_are_read_in_pages_whoever_has_processed_them(either, stream):
    await stream.ensure_group()
    entries = await append(either, stream, 5)
    await stream.acknowledge([entry.id for entry in await stream.read_new("c", 2, 10)])
    assert [entry.id for entry in await stream.after(START, 3)] == entries[:3]
    assert [entry.id for entry in await stream.after(entries[2], 3)] == entries[3:]
    assert await stream.after(entries[4], 3) == []


async def test_claims_carry_a_cursor_and_name_what_is_gone(either, stream):
    await stream.ensure_group()
    entries = await append(either, stream, 3)
    await stream.read_new("dead", 10, 10)
    await either.xdel(stream.name, entries[1])
    found, gone, cursor = [], [], START
    while True:
        claim = await stream.claim("alive", 0, cursor, 1)
        cursor = claim.cursor
        found += [entry.id for entry in claim.entries]
        gone += claim.deleted
        if cursor == START:
            break
    assert found == [entries[0], entries[2]]
    assert gone == [entries[1]]


async def test_renewing_counts_no_delivery(either, stream):
    await stream.ensure_group()
    (entry,) = await append(either, stream)
    await stream.read_new("c", 10, 10)
    for _ in range(3):
        await stream.renew("c", [entry])
    assert await stream.deliveries(entry) == 1
    await stream.claim("d", 0, START, 1)
    assert await stream.deliveries(entry) == 2


async def test_nothing_is_acknowledged_before_it_is_applied(either, stream, settings):
    """A namespace that refuses leaves its entries pending; the others are applied and acknowledged."""
    await stream.ensure_group()
    (entry,) = await append(either, stream)
    await either.xadd(stream.name, {"event": "write", "id": "m", "ns": "good", "content": "x"})
    await either.set("stats:{default}", "of the wrong type")
    analyzer = Analyzer()
    await Pipeline(either, stream, analyzer, settings).process(await stream.read_new("c", 10, 10))
    assert await stream.deliveries(entry) == 1
    assert (await stream.state(0)).pending == 1
    assert await either.hget("stats:{good}", "docs") == b"1"


async def test_a_letter_that_cannot_be_filed_leaves_its_entry_pending(either, stream, settings):
    """Somebody has taken the key of the dead letters: the others are applied, and the worker lives."""
    await stream.ensure_group()
    bad = await either.xadd(stream.name, {"event": "write", "id": "m", "ns": "default"})
    await either.xadd(stream.name, {"event": "write", "id": "m", "ns": "good", "content": "x"})
    await either.set("dead:{default}", "of the wrong type")
    pipeline = Pipeline(either, stream, Analyzer(), settings)
    await pipeline.process(await stream.read_new("c", 10, 10))
    assert await either.hget("stats:{good}", "docs") == b"1"
    assert (await stream.state(0)).pending == 1
    await either.delete("dead:{default}")
    await pipeline.process(await stream.read_own("c", 10))
    assert (await stream.state(0)).pending == 0
    assert len(await either.xrange("dead:{default}")) == 1
    assert await stream.deliveries(bad.decode()) == 0
