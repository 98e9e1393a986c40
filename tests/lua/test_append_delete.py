"""`append_delete`: a delete gets onto the stream also when nothing else does."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts
from jiyi.events import decode_event, encode_delete

from .conftest import STREAM, carried_out_when_full, dump, flush_scripts, refused, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"


async def append_delete(database, memory_id="m1"):
    return (await scripts.append_delete(database, STREAM, encode_delete(memory_id, NS))).decode()


async def on_stream(database):
    """The entries of the stream, decoded as a worker does."""
    rows = await database.execute_command("XRANGE", STREAM, "-", "+")
    found = [(entry.decode(), list(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in rows]
    return [decode_event(entry, fields, 1000) for entry, fields in found]


async def test_the_event_is_appended_as_it_was_given(either):
    await either.execute_command("XADD", STREAM, "1-0", "event", "write", "id", "m0", "content", "x")
    entry = await append_delete(either, "记忆 {a}\0\r\n"[:6])
    _, event = await on_stream(either)
    assert (event.entry, event.kind, event.ns, event.id) == (entry, "delete", NS, "记忆 {a}")
    assert set(await dump(either, NS)) == {STREAM.encode()}


async def test_flat_fields_keep_their_order(database):
    await scripts.append_delete(database, STREAM, {"event": b"delete", "id": b"\xff\0", "ns": b"n"})
    [[_entry, flat]] = await database.execute_command("XRANGE", STREAM, "-", "+")
    assert flat == [b"event", b"delete", b"id", b"\xff\0", b"ns", b"n"]


async def test_every_call_appends_an_event_of_its_own(either):
    """As XADD does: the second has no effect on the index, but is there."""
    entries = [await append_delete(either) for _ in range(3)]
    assert [event.entry for event in await on_stream(either)] == entries


async def test_many_callers_get_an_entry_each(either):
    entries = []

    async def work(i):
        entries.append((await append_delete(either, f"m{i}"), f"m{i}"))

    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(work, i)
    assert sorted((event.entry, event.id) for event in await on_stream(either)) == sorted(entries)


async def test_a_stream_of_the_wrong_type_is_an_error(database):
    async with wrong_type(database, STREAM):
        await refused(database, NS, lambda: append_delete(database), "WRONGTYPE")


async def test_an_event_without_fields_or_with_half_a_field_is_an_error(database):
    for names, arguments in (([STREAM], []), ([STREAM], ["event"]), ([STREAM], ["event", "delete", "id"]), ([], ["a"])):
        await refused(database, NS, lambda: scripts.call(database, "append_delete", names, arguments))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await flush_scripts(either)
        await append_delete(either, f"m{i}")
    assert [event.id for event in await on_stream(either)] == ["m0", "m1", "m2"]


async def test_a_delete_is_accepted_on_a_full_server(database):
    await carried_out_when_full(database, lambda: append_delete(database))
    assert [event.kind for event in await on_stream(database)] == ["delete"]
