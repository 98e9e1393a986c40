"""Housekeeping, one sweep at a time: what it may forget, and what it has to tell."""

from __future__ import annotations

import msgspec
import pytest
from conftest import wait_until
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from jiyi import dead_letters, keys
from jiyi.analysis import Analyzer
from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def analyzer():
    return Analyzer()


@pytest.fixture
async def stream(database, settings):
    stream = EventStream(database, settings.stream, settings.group)
    await stream.ensure_group()
    return stream


@pytest.fixture
def housekeeping(database, stream, analyzer, settings):
    return Housekeeping(database, stream, analyzer.fingerprint, settings)


async def append(database, settings, **fields):
    return (await database.xadd(settings.stream, fields)).decode()


def lost():
    return REGISTRY.get_sample_value("jiyi_events_lost_total", {"what": "entries"})


async def process(database, stream, analyzer, settings):
    await Pipeline(database, stream, analyzer, settings).process(await stream.read_new("worker", 100, 1))


async def test_what_somebody_else_removed_is_counted_and_named(database, stream, housekeeping, settings):
    """Unread and pending entries alike, once, however often one sweeps."""
    entries = [await append(database, settings, event="write", id=f"m{i}", content="x") for i in range(5)]
    await stream.read_new("worker", 1, 1)
    await housekeeping.sweep()
    before = lost()
    await database.xtrim(settings.stream, minid=entries[3], approximate=False)
    await stream.give_up(entries[:1])
    with capture_logs() as logs:
        for _ in range(3):
            await housekeeping.sweep()
    assert lost() - before == 3
    (told,) = [line for line in logs if line["event"] == "events_lost"]
    assert (told["count"], told["after"], told["before"]) == (3, entries[0], entries[3])


async def test_a_dead_letter_that_is_older_than_deletes_can_still_be_replayed(
    database, stream, housekeeping, analyzer, settings
):
    """A tombstone that outranks it stays, and its event finds its place: nothing newer of its memory is there."""
    small = msgspec.structs.replace(settings, max_content_bytes=10)
    failed = await append(database, settings, event="write", id="failed", content="longer than ten bytes")
    await append(database, settings, event="write", id="deleted", content="x")
    await append(database, settings, event="delete", id="deleted")
    await process(database, stream, analyzer, small)
    for _ in range(2):
        await housekeeping.sweep()
    assert await database.exists(keys.memory_key("default", "deleted")), "its tombstone outranks what may come back"
    (letter,) = [letter async for letter in dead_letters.letters(database, "default")]
    await dead_letters.replay(database, settings.stream, letter)
    await process(database, stream, analyzer, settings)
    assert await database.hget(keys.memory_key("default", "failed"), "entry") == failed.encode()
    for _ in range(2):
        await housekeeping.sweep()
    assert not await database.exists(keys.memory_key("default", "deleted"))


async def test_a_worker_that_waits_is_in_the_list_of_consumers(database, stream, housekeeping, settings):
    """Also where a read that gets nothing leaves no trace; it is renewed in time, and reads nothing by that."""
    entries = [await append(database, settings, event="write", id=f"m{i}", content="x") for i in range(2)]
    await housekeeping.sweep("waiting")
    (waiting,) = await stream.consumers()
    assert (waiting["name"], waiting["pending"]) == (b"waiting", 0)
    housekeeping._consumer_idle_ms = 100

    async def idle_ms():
        (waiting,) = await stream.consumers()
        return waiting["idle"] if waiting["idle"] > 100 else None

    silent_ms = await wait_until(idle_ms, "it has not been heard of")
    await housekeeping.sweep("waiting")
    (waiting,) = await stream.consumers()
    assert waiting["name"] == b"waiting"
    assert waiting["idle"] < silent_ms
    assert [entry.id for entry in await stream.read_new("c", 10, 1)] == entries


async def test_names_that_are_no_text_stop_nobody(database, stream, housekeeping, settings):
    """A consumer and a namespace of somebody else: the one is removed like ours, in the other there is nothing."""
    await database.sadd(keys.NAMESPACES, b"\xff")
    await database.xgroup_createconsumer(settings.stream, settings.group, b"\xff")
    housekeeping._consumer_idle_ms = -1
    await housekeeping.sweep()
    assert await stream.consumers() == []
