"""Producers are held back before the stream outgrows its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
import anyio.to_thread
import msgspec
import pytest
from api.conftest import running_reader
from conftest import free_port, running, wait_until

from jiyi import Client, SyncClient, dead_letters, keys, scripts
from jiyi.backlog import LOOK_S, Backlog
from jiyi.errors import BacklogFullError, UnavailableError
from jiyi.producer import Producer
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi.sync_producer import SyncProducer

pytestmark = pytest.mark.anyio

LIMIT = 20


@pytest.fixture
def tight(settings):
    return msgspec.structs.replace(settings, max_backlog=LIMIT)


@pytest.fixture
async def full(database, settings):
    """The database with as many events on the stream as are allowed."""
    async with Producer(settings=settings) as producer:
        await producer.write_many({"id": f"old{i}", "content": "x"} for i in range(LIMIT))
    return database


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_write_beyond_the_limit_is_refused_and_nothing_written(full, tight, kind):
    def sync():
        with SyncProducer(settings=tight) as producer:
            with pytest.raises(BacklogFullError, match=f"is {LIMIT}: workers are behind. Nothing was written"):
                producer.write(content="x")
            producer.delete("old0")

    if kind is SyncProducer:
        await anyio.to_thread.run_sync(sync)
    else:
        async with Producer(settings=tight) as producer:
            with pytest.raises(BacklogFullError, match=f"is {LIMIT}: workers are behind. Nothing was written"):
                await producer.write(content="x")
            await producer.delete("old0")
    assert await full.xlen(tight.stream) == LIMIT + 1, "the delete alone: deletes make room"


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_producer_that_waits_goes_on_when_workers_have_caught_up(full, tight, kind):
    stream = EventStream(full, tight.stream, tight.group)
    await stream.ensure_group()

    async def write():
        if kind is Producer:
            async with Producer(settings=tight, when_full="wait") as producer:
                await producer.write(id="new", content="x")
        else:
            with await anyio.to_thread.run_sync(lambda: SyncProducer.connect(settings=tight, when_full="wait")) as one:
                await anyio.to_thread.run_sync(lambda: one.write(id="new", content="x"))
        done.set()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        with anyio.move_on_after(3 * LOOK_S):
            await done.wait()
        assert not done.is_set()
        entries = await stream.read_new("c", 100, 10)
        await stream.acknowledge([entry.id for entry in entries])
        await stream.sweep()
        with anyio.fail_after(10):
            await done.wait()
    assert await full.xlen(tight.stream) == 1


async def test_a_call_of_moderate_size_is_accepted_as_a_whole_or_not_at_all(database, tight):
    async with Producer(settings=tight) as producer:
        assert len(await producer.write_many({"content": "x"} for _ in range(1_000))) == 1_000
        with pytest.raises(BacklogFullError):
            await producer.write(content="x")
    assert await database.xlen(tight.stream) == 1_000


async def test_a_huge_call_stops_in_the_middle_and_says_where(database, tight):
    async with Producer(settings=tight) as producer:
        with pytest.raises(BacklogFullError, match="Only the first 5000 events were written"):
            await producer.write_many({"content": "x"} for _ in range(6_000))
    assert await database.xlen(tight.stream) == 5_000


async def test_over_http_it_is_429_with_the_time_to_come_again(full, tight):
    settings = msgspec.structs.replace(tight, api_port=free_port())
    url = f"http://127.0.0.1:{settings.api_port}"
    with running("jiyi_api", settings):
        async with Client(url) as client:

            async def refused():
                try:
                    await client.write(id="n", content="x")
                except BacklogFullError as error:
                    return error
                except UnavailableError:  # the reader is still starting
                    return None

            error = await wait_until(refused, "a write is refused", timeout_s=60)
            assert error.retry_after_s >= 1
            assert (await client.delete("old0")).id == "old0"
        with SyncClient(url) as client, pytest.raises(BacklogFullError, match="JIYI_MAX_BACKLOG"):
            await anyio.to_thread.run_sync(lambda: client.write(id="n", content="x"))
    assert await full.xlen(tight.stream) == LIMIT + 1


async def test_ingest_waits_for_the_workers(database, tight, tmp_path):
    lines = "\n".join(json.dumps({"id": f"m{i}", "content": "x"}) for i in range(12_000))
    (tmp_path / "many.jsonl").write_text(lines)
    command = [sys.executable, "-m", "jiyi", "ingest", str(tmp_path / "many.jsonl"), "--wait", "--json"]
    with running("jiyi_workers", tight):
        done = await anyio.run_process(
            command, env={**os.environ, **tight.to_environment()}, check=False, stderr=subprocess.PIPE
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accepted"] == 12_000


async def file(database, count):
    """File so many dead letters, whose events can be applied when they are replayed."""
    for i in range(count):
        memory_id = f"dead{i}"
        await scripts.dead_letter(
            database, "default", memory_id, version=f"{i + 1}-0", code="bad", reason="r", now_ms=1, deliveries=1,
            fields=[(b"event", b"write"), (b"id", memory_id.encode()), (b"content", b"x")],
        )  # fmt: skip
    await database.sadd(keys.NAMESPACES, "default")
    return [letter async for letter in dead_letters.letters(database, "default")]


async def test_a_replay_beyond_the_limit_is_refused_and_its_letter_stays_as_it_is(full, tight):
    (letter,) = await file(full, 1)
    with pytest.raises(BacklogFullError, match="Nothing was written"):
        await dead_letters.Replays(full, tight.stream, LIMIT).replay(letter)
    assert await full.xlen(tight.stream) == LIMIT
    assert await full.hgetall(keys.letters_key("default")) == {letter.entry.encode(): letter.letter.encode()}
    assert await dead_letters.Replays(full, tight.stream, LIMIT + 1).replay(letter)
    assert await full.xlen(keys.dead_key("default")) == 0


async def test_many_replays_count_themselves(database, tight):
    replays = dead_letters.Replays(database, tight.stream, LIMIT)
    letters = await file(database, LIMIT + 5)
    for letter in letters[:LIMIT]:
        assert await replays.replay(letter)
    with pytest.raises(BacklogFullError):
        await replays.replay(letters[LIMIT])
    assert await database.xlen(tight.stream) == LIMIT


async def test_replays_over_http_are_429_while_there_is_no_room(database, tight, tmp_path):
    letters = await file(database, LIMIT + 10)
    with running_reader(tight, tmp_path / "log") as reader, SyncClient(f"http://127.0.0.1:{reader.port}") as client:
        step = reader.request("POST", "/dead/replay")
        assert (step.status, step.body["count"], step.body["more"]) == (202, LIMIT, True)
        assert step.body["until"] == letters[-1].letter
        for target in ("/dead/replay", f"/dead/{letters[-1].letter}/replay"):
            refused = reader.request("POST", target)
            assert refused.error[:2] == (429, "backlog_full")
            assert int(refused.headers["Retry-After"]) >= 1
        for call in (client.replay_all, lambda: client.replay(letters[-1].letter)):
            with pytest.raises(BacklogFullError, match="JIYI_MAX_BACKLOG"):
                await anyio.to_thread.run_sync(call)
        assert await database.xlen(tight.stream) == LIMIT
        assert await database.xlen(keys.dead_key("default")) == 10
        await database.xtrim(tight.stream, maxlen=0)
        assert await anyio.to_thread.run_sync(client.replay_all) == 10
        assert reader.request("DELETE", "/dead?all=true").status == 200, "who drops needs no room"
        assert not reader.failures()


async def test_the_command_line_waits_with_its_replays_for_the_workers(full, tight, tmp_path):
    await file(full, LIMIT + 10)
    command = [sys.executable, "-m", "jiyi", "dead", "replay", "--all", "--json"]
    told = tmp_path / "told"
    with told.open("wb") as out:
        process = await anyio.open_process(command, env={**os.environ, **tight.to_environment()}, stderr=out)
    async with process:

        async def waits():
            return "waiting" in told.read_text()

        await wait_until(waits, "it says that it waits", timeout_s=60)
        assert process.returncode is None
        assert await full.xlen(tight.stream) == LIMIT
        with running("jiyi_workers", tight):
            printed = b"".join([piece async for piece in process.stdout])
            assert await process.wait() == 0
    assert len(json.loads(printed)) == LIMIT + 10
    assert told.read_text().count("waiting") <= 3


def test_without_a_limit_nobody_looks():
    backlog = Backlog(0)
    backlog.looked(10**9)
    assert not backlog.must_look(10**9)
    assert backlog.has_room()


def test_a_look_is_good_for_a_while_and_for_what_fits(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("jiyi.backlog.time.monotonic", lambda: now[0])
    backlog = Backlog(10)
    assert backlog.must_look(1)
    backlog.looked(5)
    assert not backlog.must_look(5)
    assert backlog.must_look(6), "more than there is room for"
    backlog.appended(4)
    assert backlog.must_look(2)
    assert not backlog.must_look(1)
    now[0] += LOOK_S
    assert backlog.must_look(1), "others have appended meanwhile"


def test_the_limit_may_be_off_but_not_negative():
    Settings.from_environment({"JIYI_MAX_BACKLOG": "0"})
