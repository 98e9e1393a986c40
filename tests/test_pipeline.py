"""The pipeline with real processes: from an event on the stream to the index, whatever dies on the way."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import permutations

import anyio
import msgpack
import msgspec
import pytest
from conftest import DATA, free_port, running, wait_until
from redis.exceptions import ResponseError

from jiyi import Client, Producer, SyncProducer, dead_letters, keys
from jiyi.analysis import Analyzer
from jiyi.check import check, check_namespace
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.events import decode_event
from jiyi.index import IndexWriter, Outcome
from jiyi.packing import Change
from jiyi.server import EmbeddedServer
from jiyi.streams import EventStream
from jiyi_workers.pipeline import Pipeline
from jiyi_workers.worker import Worker

pytestmark = pytest.mark.anyio

DOCUMENT = {
    "id": "m1",
    "content": "张工上周提的 Redis 超时：ERR_CONN_RESET，v1.2.3",
    "author": "张伟",
    "source_system": "chat",
    "user_id": "u1",
    "session_id": "s1",
    "kind": "incident",
    "tags": ["redis", "事故"],
    "timestamp": "2026-05-04T10:30:00+08:00",
    "importance": 0.8,
    "metadata": {"ticket": 42, "open": True},
}


@pytest.fixture
def stream(database, settings):
    return EventStream(database, settings.stream, settings.group)


async def processed(stream):
    """Wait until everything on the stream is processed; gives the state."""

    async def quiet():
        state = await stream.state(0)
        return state if state and state.lag == 0 and state.pending == 0 else None

    return await wait_until(quiet, "the stream is processed")


async def stored(database, ns, memory_id):
    raw = await database.hgetall(keys.memory_key(ns, memory_id))
    return {name.decode(): value for name, value in raw.items()}


async def append(database, settings, **fields):
    return (await database.xadd(settings.stream, fields)).decode()


async def test_events_from_before_the_first_worker_are_applied(database, settings, stream):
    """The group begins at 0, so nothing is skipped."""
    for i in range(10):
        await append(database, settings, event="write", id=f"m{i}", content=f"记忆 {i}")
    with running("jiyi_workers", settings):
        await processed(stream)
    assert await database.hget(keys.stats_key("default"), "docs") == b"10"


WAYS = ("flat", "async", "sync", "packed", "http", "ingest")


async def test_all_ways_in_give_the_same_memory_and_the_same_index(database, settings, stream, tmp_path):
    flat = {name: value for name, value in DOCUMENT.items() if name not in {"tags", "metadata"}}
    flat |= {"tags": json.dumps(DOCUMENT["tags"]), "metadata": json.dumps(DOCUMENT["metadata"])}
    await append(database, settings, event="write", ns="flat", **flat)
    async with Producer(settings.redis_url) as producer:
        await producer.write(**DOCUMENT, ns="async")
    with SyncProducer(settings.redis_url) as producer:
        producer.write(**DOCUMENT, ns="sync")
    packed = msgpack.packb({"event": "create", "ns": "packed", **DOCUMENT})
    await append(database, settings, payload=packed)
    (tmp_path / "one.jsonl").write_text(json.dumps({**DOCUMENT, "ns": "ingest"}))
    environment = {**os.environ, **settings.to_environment()}
    ingest = [sys.executable, "-m", "jiyi", "ingest", str(tmp_path / "one.jsonl")]
    await anyio.run_process(ingest, env=environment)
    reading = msgspec.structs.replace(settings, api_port=free_port())
    with running("jiyi_workers", settings), running("jiyi_api", reading):
        async with Client(f"http://127.0.0.1:{reading.api_port}") as client:

            async def written():
                with suppress(UnavailableError):
                    return await client.write(**DOCUMENT, ns="http")

            await wait_until(written, "the reader accepts a write", timeout_s=60)
        await processed(stream)
    versions = {"entry", "indexed_at"}
    memories = [
        {name: value for name, value in (await stored(database, ns, "m1")).items() if name not in versions}
        for ns in WAYS
    ]
    assert memories[0]["content"].decode() == DOCUMENT["content"]
    assert memories[0]["timestamp"] == b"1777861800000"
    assert memories[1:] == memories[:1] * (len(WAYS) - 1)
    indexes = []
    for ns in WAYS:
        buckets = [await database.hgetall(keys.bucket_key(ns, bucket)) for bucket in range(keys.BUCKETS)]
        indexes.append((buckets, await database.get(keys.journal_key(ns))))
    assert indexes[1:] == indexes[:1] * (len(WAYS) - 1)
    assert all(report.ok for report in await check(database))


async def test_a_killed_workers_entries_are_taken_over(database, settings, stream):
    """SIGKILL between delivery and apply: another worker applies them within the idle limit and a sweep."""
    entries = [await append(database, settings, event="write", id=f"m{i}", content=f"text {i}") for i in range(200)]
    await stream.ensure_group()
    held = await stream.read_new("dead-worker", 50, 10)
    assert len(held) == 50
    with running("jiyi_workers", settings, 2) as workers:
        await wait_until(lambda: database.exists(keys.memory_key("default", "m60")), "some are applied")
        workers[0].kill()
        more = [await append(database, settings, event="write", id=f"n{i}", content=f"text {i}") for i in range(200)]
        await processed(stream)
    assert await database.hget(keys.stats_key("default"), "docs") == b"400"
    assert (await stored(database, "default", "m0"))["entry"].decode() == entries[0]
    assert (await stored(database, "default", "n199"))["entry"].decode() == more[-1]
    assert (await check_namespace(database, "default")).ok


async def test_entries_of_a_dead_worker_are_found_behind_those_that_others_work_on(database, settings, stream):
    """A step of a takeover looks at a few entries only: it has to go on from where the last one ended."""
    patient = msgspec.structs.replace(settings, claim_idle_ms=60_000)
    for i in range(30):
        await append(database, settings, event="write", id=f"young-{i}", content="somebody works on it")
    await append(database, settings, event="write", id="left", content="nobody works on it")
    await stream.ensure_group()
    await stream.read_new("busy", 30, 10)
    (left,) = await stream.read_new("dead", 1, 10)
    await database.execute_command(
        "XCLAIM", settings.stream, settings.group, "dead", 0, left.id, "IDLE", 10 * patient.claim_idle_ms
    )
    with running("jiyi_workers", patient):
        await wait_until(lambda: database.exists(keys.memory_key("default", "left")), "the entry is taken over")
    held = await database.execute_command("XPENDING", settings.stream, settings.group, "-", "+", 100, "busy")
    assert len(held) == 30


async def test_what_came_with_a_lost_answer_is_processed_by_its_worker(database, settings, stream):
    """Delivered to a worker that never saw it: once its connection has broken, it looks at what it holds."""
    patient = msgspec.structs.replace(settings, claim_idle_ms=60_000, block_ms=5_000)
    with running("jiyi_workers", patient):

        async def consumer():
            with suppress(ResponseError):  # no stream yet
                return next((found["name"] for found in await stream.consumers()), None)

        name = await wait_until(consumer, "the worker reads")
        async with database.pipeline(transaction=True) as both:  # the worker must not be served in between
            both.xadd(settings.stream, {"event": "write", "id": "m1", "content": "x"})
            both.execute_command(
                "XREADGROUP", "GROUP", settings.group, name, "COUNT", 1, "STREAMS", settings.stream, ">"
            )
            await both.execute()
        await database.client_kill_filter(_type="normal", skipme=True)
        await wait_until(lambda: database.exists(keys.memory_key("default", "m1")), "it is applied")


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
async def test_the_highest_entry_wins_in_every_order(database, settings, stream, order):
    """write, rewrite and delete of one memory, each processed by whoever takes it over, in every order."""
    events = [("write", "第一 版本"), ("write", "第二 版本"), ("delete", None)]
    entries = []
    for event, content in events:
        fields = {"event": event, "id": "m1"} | ({"content": content} if content else {})
        entries.append(await append(database, settings, **fields))
    # Duplicates of the older events, under their original versions, change nothing.
    for i in (0, 1):
        await append(database, settings, event="write", id="m1", content=events[i][1], origin=entries[i])
    await append(database, settings, event="write", id="other", content="第三 版本")
    await stream.ensure_group()
    await stream.read_new("stalled", 10, 10)
    # Each holder lets go in turn: the entry that is first in `order` comes back to the workers first.
    for rank, i in enumerate(order):
        idle = settings.claim_idle_ms * (10 - rank)
        await database.execute_command(
            "XCLAIM", settings.stream, settings.group, "stalled", 0, entries[i], "IDLE", idle
        )
    with running("jiyi_workers", settings, 2):
        await processed(stream)
    memory = await stored(database, "default", "m1")
    assert not memory or set(memory) == {"entry", "deleted_at"}
    assert await database.hgetall(keys.bucket_key("default", keys.bucket_of("第一"))) == {}
    stats = await database.hgetall(keys.stats_key("default"))
    tokens = sum(Analyzer().terms("第三 版本").values())
    assert (int(stats[b"docs"]), int(stats[b"tokens"])) == (1, tokens)
    assert (await check_namespace(database, "default")).ok


async def test_malformed_events_become_dead_letters_and_the_others_flow(database, settings, stream):
    bad = [
        ({"event": "write", "id": "no-content"}, "missing_field"),
        ({"event": "write", "content": "no id"}, "missing_field"),
        ({"event": "erase", "id": "x"}, "unknown_event"),
        ({"event": "write", "id": "big", "content": "x" * (settings.max_content_bytes + 1)}, "too_large"),
        ({"event": "write", "id": "raw", "content": b"\xff\xfe"}, "not_utf8"),
        ({"event": "write", "id": "importance", "content": "x", "importance": "nan"}, "invalid_field"),
        ({"payload": b"\xc1 no msgpack"}, "invalid_payload"),
        ({"event": "write", "id": "terms", "content": " ".join(f"w{i}" for i in range(10_001))}, "too_many_terms"),
    ]
    entries = {}
    for i, (fields, code) in enumerate(bad):
        entries[await append(database, settings, **fields)] = code
        for j in range(20):
            await append(database, settings, event="write", id=f"good-{i}-{j}", content=f"好 memory {j}")
    with running("jiyi_workers", settings):
        await processed(stream)
    letters = [letter async for letter in dead_letters.letters(database, "default")]
    assert {letter.entry: letter.code for letter in letters} == entries
    assert await database.hget(keys.stats_key("default"), "docs") == str(20 * len(bad)).encode()
    assert (await database.hget(keys.failed_key("default"), "big")).startswith(b"17")
    assert (await check_namespace(database, "default")).ok


async def test_a_replayed_letter_is_applied_under_its_original_version(database, settings, stream):
    """Replay cannot undo a newer write, and the memory is no longer failed afterwards."""
    small = msgspec.structs.replace(settings, max_content_bytes=10)
    first = await append(database, settings, event="write", id="m1", content="longer than ten bytes")
    await append(database, settings, event="write", id="m2", content="longer than ten bytes")
    with running("jiyi_workers", small):
        await processed(stream)
    newer = await append(database, settings, event="write", id="m2", content="newer")
    with running("jiyi_workers", settings):
        await processed(stream)
        for letter in [letter async for letter in dead_letters.letters(database, "default")]:
            await dead_letters.replay(database, settings.stream, letter)
        await processed(stream)
    assert (await stored(database, "default", "m1"))["entry"].decode() == first
    assert (await stored(database, "default", "m2"))["entry"].decode() == newer
    assert (await stored(database, "default", "m2"))["content"] == b"newer"
    assert not await database.exists(keys.failed_key("default"))
    assert await database.xlen(keys.dead_key("default")) == 0
    assert (await check_namespace(database, "default")).ok


async def test_an_entry_that_never_succeeds_ends_as_dead_letter(database, settings, stream):
    """Deliveries are counted by Redis: after the limit the entry is filed, and nothing else suffers."""
    poison = await append(database, settings, event="write", id="poison", content="x")
    await append(database, settings, event="write", id="good", content="y")
    await stream.ensure_group()
    await stream.read_new("crashed", 10, 10)
    await database.execute_command(
        "XCLAIM", settings.stream, settings.group, "crashed", 0, poison, "IDLE", 10**6, "RETRYCOUNT", 5
    )
    with running("jiyi_workers", settings):
        await processed(stream)
    (letter,) = [letter async for letter in dead_letters.letters(database, "default")]
    assert (letter.entry, letter.code, letter.deliveries) == (poison, "max_deliveries", 6)
    assert await database.exists(keys.memory_key("default", "good"))


async def test_an_entry_that_was_applied_and_never_acknowledged_is_no_dead_letter(database, settings, stream):
    """However often its workers died just before they would have acknowledged it; also when it was a replay."""
    applied = await append(database, settings, event="write", id="m1", content="redis")
    await stream.ensure_group()
    pipeline = Pipeline(database, stream, Analyzer(), settings)
    entries = await stream.read_new("crashed", 10, 10)
    await pipeline.bury(*entries, "max_deliveries", "died", 6)
    (letter,) = [letter async for letter in dead_letters.letters(database, "default")]
    await dead_letters.replay(database, settings.stream, letter)
    await append(database, settings, event="write", id="m2", content="redis")
    entries = await stream.read_new("crashed", 10, 10)
    writer = IndexWriter(database, Analyzer().fingerprint)
    for entry in entries:
        event = decode_event(entry.id, entry.fields, settings.max_content_bytes)
        change = Change(id=event.id, version=event.version, memory=event.memory, terms={"redis": 1})
        assert await writer.apply("default", [change]) == [Outcome.APPLIED]
        await pipeline.bury(entry, "max_deliveries", "died", 6)
    assert (await stored(database, "default", "m1"))["entry"].decode() == applied
    assert (await stream.state(0)).pending == 0
    assert await database.xlen(keys.dead_key("default")) == 0
    assert not await database.exists(keys.failed_key("default"), keys.letters_key("default"))
    assert (await check_namespace(database, "default")).ok


async def test_sigterm_drains(database, settings, stream):
    """A worker that is told to stop finishes what it holds, leaves the group and exits with 0."""
    for i in range(2000):
        await append(database, settings, event="write", id=f"m{i}", content=f"记忆 number {i}")
    with running("jiyi_workers", settings) as (worker,):
        await wait_until(lambda: database.exists(keys.memory_key("default", "m100")), "the first are applied")
        worker.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(worker.wait, 15) == 0
    state = await stream.state(0)
    assert state.pending == 0
    assert state.consumers == 0
    applied = int(await database.hget(keys.stats_key("default"), "docs"))
    assert applied + state.lag == 2000


async def test_the_group_comes_back_after_a_wipe(database, settings, stream):
    with running("jiyi_workers", settings):
        await append(database, settings, event="write", id="m1", content="before the wipe")
        await processed(stream)
        await database.flushdb()
        for i in range(10):
            await append(database, settings, event="write", id=f"n{i}", content="after the wipe")
        await processed(stream)
    assert await database.hget(keys.stats_key("default"), "docs") == b"10"
    assert await database.sismember(keys.NAMESPACES, "default")
    assert (await check_namespace(database, "default")).ok


async def test_processed_entries_are_trimmed_and_tombstones_forgotten(database, settings, stream):
    """Endless writing and deleting leaves nothing behind."""
    with running("jiyi_workers", settings):
        for i in range(50):
            await append(database, settings, event="write", id=f"m{i % 5}", content=f"text {i}")
            await append(database, settings, event="delete", id=f"m{i % 5}")
        await processed(stream)
        await append(database, settings, event="write", id="last", content="x")

        async def clean():
            left = {key async for key in database.scan_iter() if not key.startswith((b"ids", b"terms", b"journal"))}
            expected = {b"namespaces", b"stats:{default}", b"memory:{default}:last", settings.stream.encode()}
            expected.add(keys.processed_key(settings.stream).encode())
            return left == expected and await database.xlen(settings.stream) == 0

        await wait_until(clean, "the stream is trimmed and the tombstones are gone")


async def test_expired_memories_are_deleted(database, settings, stream):
    with running("jiyi_workers", settings):
        for name, end in (("old", "2026-01-01T00:00:00Z"), ("new", "9999-01-01T00:00:00Z")):
            await append(database, settings, event="write", id=name, content=f"{name} text", expires_at=end)

        async def only_new():
            return await database.hget(keys.stats_key("default"), "docs") == b"1"

        await wait_until(lambda: database.exists(keys.memory_key("default", "new")), "both are applied")
        await wait_until(only_new, "the old one is deleted")
    assert (await check_namespace(database, "default")).ok


@pytest.mark.skipif(not DATA.exists(), reason="the evaluation data are not here")
async def test_the_real_chat_goes_through(database, settings, stream):
    """All of the chat set, with two workers: every document is stored, and the index is right."""
    with gzip.open(DATA / "evermemos_chat" / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    async with Producer(settings.redis_url) as producer:
        await producer.write_many(documents)
    with running("jiyi_workers", settings, 2):
        await processed(stream)
    assert await database.hget(keys.stats_key("default"), "docs") == str(len(documents)).encode()
    report = await check_namespace(database, "default")
    assert report.ok
    assert report.documents == len(documents)


async def test_workers_run_on_a_cluster(cluster_url, settings):
    """Stream and namespaces on different nodes, two worker processes: applied, trimmed, and right."""
    settings = msgspec.structs.replace(settings, redis_url=cluster_url)
    database = await connect(settings)
    await database.flushall(target_nodes="primaries")
    names = [f"ns-{i}" for i in range(12)]
    assert len({database.get_node_from_key(keys.stats_key(ns)).name for ns in names}) == 3
    stream = EventStream(database, settings.stream, settings.group)
    async with Producer(cluster_url) as producer:
        await producer.write_many(
            {"id": f"m{i}", "ns": names[i % 12], "content": f"集群 number {i}"} for i in range(600)
        )
        await producer.delete("m0", ns="ns-0")
    with running("jiyi_workers", settings, 2):
        await processed(stream)

        async def trimmed():
            return await database.xlen(settings.stream) == 0

        await wait_until(trimmed, "the stream is trimmed")
    reports = await check(database)
    assert {report.namespace: report.documents for report in reports if report.namespace in names} == {
        ns: 49 if ns == "ns-0" else 50 for ns in names
    }
    assert all(report.ok for report in reports)
    await database.flushall(target_nodes="primaries")
    await database.aclose()


async def test_workers_live_through_a_crash_of_the_server(tmp_path, settings):
    """SIGKILL of the server in the middle of a load, and a restart: nothing is lost or doubled, no worker dies."""
    async with EmbeddedServer(tmp_path / "server") as server:
        settings = msgspec.structs.replace(settings, redis_url=server.url, redis_timeout_ms=1000)
        database = await connect(settings)
        stream = EventStream(database, settings.stream, settings.group)
        async with Producer(settings.redis_url) as producer:
            await producer.write_many({"id": f"m{i}", "content": f"记忆 number {i}"} for i in range(3000))
        with running("jiyi_workers", settings, 2) as workers:
            for count in (200, 1500):

                async def applied(count=count):
                    return int(await database.hget(keys.stats_key("default"), "docs") or 0) >= count

                await wait_until(applied, f"{count} are applied")
                os.kill(server.pid, signal.SIGKILL)
                await server.wait()
                await server.ensure_running()
                await database.connection_pool.disconnect()  # our own broken connections are not the matter here
            await processed(stream)
            assert [worker.poll() for worker in workers] == [None, None]
        assert await database.hget(keys.stats_key("default"), "docs") == b"3000"
        assert (await check_namespace(database, "default")).ok
        assert await database.exists(keys.dead_key("default")) == 0
        await database.aclose()


async def test_a_worker_without_a_server_waits_quietly_and_stops_when_told(settings, tmp_path):
    """It pauses longer and longer instead of spinning, and SIGTERM ends it with 0, with no traceback."""
    nowhere = msgspec.structs.replace(settings, redis_url=f"redis://127.0.0.1:{free_port()}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    with (tmp_path / "log").open("w+") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "jiyi_workers"], env=environment | nowhere.to_environment(), stderr=log
        )

        async def tried():
            return (tmp_path / "log").read_text().count("redis_unavailable") >= 3

        await wait_until(tried, "it has tried three times")
        worker.terminate()
        assert await anyio.to_thread.run_sync(worker.wait, 10) == 0
    lines = (tmp_path / "log").read_text()
    assert "Traceback" not in lines
    assert lines.count("redis_unavailable") < 20


async def test_the_pause_between_tries_is_bounded_however_long_the_outage(settings):
    worker = Worker(settings)
    worker._failures = 5_000
    worker.stop()  # so that the pause itself is not waited for
    await worker._back_off(UnavailableError("away"))
    assert worker._failures == 5_001


async def test_workers_wait_for_a_stream_whose_key_somebody_has_taken(database, stream, settings):
    """At the start and while they read: nothing that the server refuses ends a worker."""
    await database.set(settings.stream, "of the wrong type")

    async def applied():
        return await database.hget(keys.memory_key("default", "m"), "entry")

    with running("jiyi_workers", settings, 1) as workers:
        for _ in range(2):
            await anyio.sleep(1)
            assert [worker.poll() for worker in workers] == [None]
            await database.flushdb()
            async with Producer(settings=settings) as producer:
                await producer.write(id="m", content="x")
            await wait_until(applied, "the event is applied", timeout_s=40)
            await database.flushdb()
            await database.set(settings.stream, "of the wrong type")
        assert [worker.poll() for worker in workers] == [None]
