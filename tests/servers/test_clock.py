"""Clocks that jump: entry ids far from now, idle times that were never spent, and nothing counted backwards."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest
from conftest import running

from jiyi import Producer, keys, scripts
from jiyi.check import check_namespace
from jiyi.index import IndexWriter, Outcome
from jiyi.memories import LATEST_MS, Memory
from jiyi.packing import Change
from jiyi.postings import GENERATION_BYTES, JOURNAL
from servers.consumer import Consumer
from servers.load import processed

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
YEAR_10000_MS = 253_402_300_800_000
FUTURES = [(0, 7), (0, 2**64 - 1), (YEAR_10000_MS, 7), (2**53 + 1, 7), (2**63, 7), (2**64 - 2, 2**64 - 1)]
"""Entry ids (0: tomorrow) that are too large for a date, a double, a signed integer, and to be followed by one."""


def now_ms():
    return time.time_ns() // 10**6


async def append(database, settings, entry, **fields):
    return (await database.xadd(settings.stream, fields, id=entry)).decode()


async def stored(database, memory_id):
    raw = await database.hgetall(keys.memory_key("default", memory_id))
    return {name.decode(): value.decode(errors="replace") for name, value in raw.items()}


@pytest.mark.parametrize(("ms", "sequence"), FUTURES)
async def test_an_event_from_the_future_is_an_event_like_any_other(database, settings, consumer, reader, ms, sequence):
    """It is applied, and the next id that the server makes is later still, so the newer write wins."""
    ms = ms or now_ms() + DAY_MS
    await append(database, settings, f"{ms}-0", event="delete", id="gone")
    future = await append(database, settings, f"{ms}-{sequence}", event="write", id="m", content="from the future")
    state = await consumer.stream.state(now_ms())
    assert state.lag == 2
    assert state.oldest_unapplied_ms == 0
    assert reader.state("m", entry=future) == "pending"
    await consumer.step()
    assert (reader.state("m", entry=future), reader.state("gone")) == ("ready", "deleted")
    assert reader.found("future") == ["m"]
    await consumer.housekeeping.sweep()
    assert reader.get("/memory/m").body["entry"] == future
    assert (await check_namespace(database, "default")).problems == []
    assert not await database.exists(keys.memory_key("default", "gone")), "its tombstone is not needed any more"
    async with Producer(settings=settings) as producer:
        accepted = await producer.write(id="m", content="written now")
    assert reader.state("m", entry=accepted.entry) == "pending"
    await consumer.step()
    assert reader.get("/memory/m").body["content"] == "written now"
    assert reader.found("future") == []
    await consumer.housekeeping.sweep()
    assert (await check_namespace(database, "default")).problems == []
    assert await database.exists(keys.dead_key("default")) == 0
    oldest = [line for line in reader.get("/metrics").raw.decode().splitlines() if line.startswith("jiyi_oldest")]
    assert oldest == ["jiyi_oldest_unapplied_seconds 0.0"]


async def test_events_from_long_ago_are_told_with_their_age(database, settings, consumer, reader):
    """The first ids of a stream may be small: the backlog looks old, and the order is right."""
    for sequence in (1, 2, 3):
        await append(database, settings, f"0-{sequence}", event="write", id="m", content=f"version {sequence}")
    health = reader.get("/readyz").body
    assert health["lag"] == 3
    assert health["oldestUnappliedMs"] > 20_000 * DAY_MS
    for batch in reversed([await consumer.read(1) for _ in range(3)]):
        await consumer.pipeline.process(batch)
    assert (await stored(database, "m"))["content"] == "version 3"
    assert reader.get("/memory/m").body["timestamp"] == "1970-01-01T00:00:00.000Z"
    await append(database, settings, "5-0", event="delete", id="m")
    await consumer.step()
    await consumer.housekeeping.sweep()
    assert await stored(database, "m") == {}
    assert (await check_namespace(database, "default")).problems == []


async def test_what_is_idle_for_days_at_once_is_claimed_by_all_and_applied_once(database, settings, analyzer, consumer):
    """The server's clock jumps a day ahead: every pending entry is up for takeover while its holder still works."""
    async with Producer(settings=settings) as producer:
        await producer.write_many({"id": f"m{i}", "content": f"number {i}"} for i in range(300))
    others = [Consumer(database, settings, analyzer, f"other{i}") for i in range(2)]
    held = await consumer.read(300)
    jump = ("IDLE", DAY_MS, "JUSTID")
    taken = []

    async def hold():
        for at in range(0, 300, 20):
            await consumer.pipeline.process(held[at : at + 20])

    async def take(other, last):
        claim = await other.stream.claim(other.name, settings.claim_idle_ms, last, 100)
        taken.extend(claim.entries)
        await other.pipeline.process(claim.entries)

    async with anyio.create_task_group() as tasks:
        for part in range(3):
            ids = [entry.id for entry in held[part * 100 : part * 100 + 100]]
            for other in others:
                await database.execute_command("XCLAIM", settings.stream, settings.group, "here", 0, *ids, *jump)
                tasks.start_soon(take, other, ids[0])
            if part == 0:
                tasks.start_soon(hold)
            await anyio.lowlevel.checkpoint()
    assert taken
    await processed(consumer.stream)
    await unaltered(database, 300)


async def test_a_claim_with_a_time_from_the_future_only_starts_the_idle_time_anew(database, settings, consumer):
    """The server's clock was ahead and is set right: what is pending is taken over late, but it is."""
    async with Producer(settings=settings) as producer:
        await producer.write_many({"id": f"m{i}", "content": f"number {i}"} for i in range(50))
    ids = [entry.id for entry in await consumer.read(50)]
    await database.execute_command(
        "XCLAIM", settings.stream, settings.group, "dead", 0, *ids, "TIME", now_ms() + DAY_MS, "JUSTID"
    )
    with running("jiyi_workers", settings):
        await processed(consumer.stream)
    await unaltered(database, 50)


async def unaltered(database, count):
    """Every memory was written once: there are as many births as memories, and nothing is wrong or dead."""
    journal = await database.get(keys.journal_key("default"))
    assert (len(journal) - GENERATION_BYTES) // JOURNAL.size == count
    report = await check_namespace(database, "default")
    assert (report.problems, report.documents) == ([], count)
    assert await database.exists(keys.dead_key("default")) == 0


async def test_an_expiry_far_from_the_entrys_time_is_kept_to(database, settings, consumer, reader):
    """What counts is the clock of the moment, not the time in the entry id: that may lie far before and behind."""
    day = DAY_MS
    expiries = {"past": now_ms() - day, "soon": now_ms() + day, "first": -62_135_596_800_000, "last": LATEST_MS}
    for entry in ("7", str(now_ms() + 10 * day)):
        await database.flushdb()
        await consumer.stream.ensure_group()
        for sequence, (memory_id, expires_at) in enumerate(expiries.items()):
            fields = {"event": "write", "id": memory_id, "content": "common", "expires_at": str(expires_at)}
            await append(database, settings, f"{entry}-{sequence}", **fields)
        await consumer.step()
        assert sorted(reader.found("common")) == ["last", "soon"]
        assert {memory_id: reader.state(memory_id) for memory_id in expiries} == {
            "past": "deleted", "soon": "ready", "first": "deleted", "last": "ready"
        }  # fmt: skip
        await consumer.housekeeping.sweep()
        assert await database.hget(keys.stats_key("default"), "docs") == b"2"
        assert (await check_namespace(database, "default")).problems == []


class Disturbed(IndexWriter):
    """A writer whose reservations are forgotten a few times by a worker with a clock that is days ahead."""

    times = 3

    async def _prepare(self, ns, changes, **options):
        answer = await super()._prepare(ns, changes, **options)
        if self.times:
            self.times -= 1
            later = {"token": f"later{self.times}", "now_ms": now_ms() + 3 * DAY_MS, "analyzer": self._analyzer}
            await scripts.prepare_events(
                self._database, ns, **later, again=False, ids=["other"], versions=[("7-0", "hash")]
            )
        return answer


async def test_a_worker_whose_clock_is_days_ahead_only_makes_others_prepare_again(database, analyzer):
    memory = Memory(content="common")
    writer = Disturbed(database, analyzer.fingerprint)
    changes = [Change(id=f"m{i}", version=f"1-{i}", memory=memory, terms={"common": 1}) for i in range(5)]
    assert await writer.apply("default", changes) == [Outcome.APPLIED] * 5
    assert writer.times == 0
    await unaltered(database, 5)
