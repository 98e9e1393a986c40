"""Producers against a real server and a real cluster."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until
from redis.asyncio import RedisCluster
from redis.crc import key_slot

from jiyi import appending, memories
from jiyi.appending import encode
from jiyi.connections import connect
from jiyi.errors import InvalidEventError, ServerNotFoundError, SettingsError, UnavailableError
from jiyi.events import decode_event, parse_entry
from jiyi.memories import FIELDS, MemoryFields, new_id
from jiyi.producer import Producer
from jiyi.settings import Settings
from jiyi.sync_producer import SyncProducer

pytestmark = pytest.mark.anyio

FULL = {
    "id": "m1",
    "ns": "team",
    "content": "记忆 works",
    "author": "Chen",
    "source_system": "chat",
    "user_id": "u1",
    "session_id": "s1",
    "kind": "note",
    "tags": ("a", "b"),
    "timestamp": datetime(2026, 5, 4, 10, 30, tzinfo=UTC),
    "importance": 0.75,
    "expires_at": "2030-01-01T00:00:00Z",
    "metadata": {"深": [1, {"x": None}]},
}


@pytest.fixture(params=["server", "cluster"])
def url(request):
    return request.getfixturevalue("redis_url" if request.param == "server" else "cluster_url")


@pytest.fixture
async def stream(anyio_backend, url):
    """A stream of our own: its name, and a function that reads its entries."""
    database = await connect(Settings(redis_url=url))
    name = f"stream:{uuid.uuid4()}"

    async def entries():
        found = await database.execute_command("XRANGE", name, "-", "+")
        return [(entry, list(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in map(_pair, found)]

    entries.name = name
    yield entries
    await database.delete(name)
    await database.aclose()


def _pair(reply):
    entry, fields = reply
    if isinstance(fields, dict):
        fields = [part for pair in fields.items() for part in pair]
    return entry.decode(), fields


async def decoded(stream):
    return [decode_event(entry, fields, 65_536) for entry, fields in await stream()]


async def test_a_write_arrives_with_every_field(url, stream):
    async with Producer(url, stream=stream.name) as producer:
        accepted = await producer.write(**FULL)
    (event,) = await decoded(stream)
    assert (accepted.id, accepted.ns, accepted.entry) == ("m1", "team", event.entry)
    assert (event.kind, event.id, event.ns) == ("write", "m1", "team")
    memory = event.memory
    assert [getattr(memory, name) for name in FIELDS] == [
        "记忆 works", "Chen", "chat", "u1", "s1", "note", ("a", "b"),
        1_777_890_600_000, 0.75, 1_893_456_000_000, '{"深":[1,{"x":null}]}',
    ]  # fmt: skip


async def test_only_content_is_required(url, stream):
    async with Producer(url, stream=stream.name) as producer:
        first = await producer.write(content="a")
        second = await producer.write(content="b")
    assert first.id < second.id
    assert parse_entry(first.entry) < parse_entry(second.entry)
    events = await decoded(stream)
    assert [(event.id, event.ns) for event in events] == [(first.id, "default"), (second.id, "default")]


async def test_a_delete_arrives(url, stream):
    async with Producer(url, stream=stream.name) as producer:
        accepted = await producer.delete("m1", ns="team")
    (event,) = await decoded(stream)
    assert (event.kind, event.ns, event.id, event.entry) == ("delete", "team", "m1", accepted.entry)
    assert event.memory is None


async def test_both_producers_send_the_same_bytes(url, stream):
    many = [{"id": f"m{i}", "content": "x" * i, "timestamp": datetime(2026, 1, 1)} for i in range(20)]  # noqa: DTZ001
    async with Producer(url, stream=stream.name) as producer:
        await producer.write(**FULL)
        await producer.write_many(many)
        await producer.delete("m1")
    from_async = [fields for _, fields in await stream()]
    with SyncProducer(url, stream=stream.name) as producer:
        producer.write(**FULL)
        accepted = producer.write_many(many)
        producer.delete("m1")
    entries = (await stream())[len(from_async) :]
    assert [fields for _, fields in entries] == from_async
    assert [one.entry for one in accepted] == [entry for entry, _ in entries][1:-1]


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_write_many_keeps_the_order_over_many_round_trips(url, stream, kind, monkeypatch):
    """The same id may be in the list twice: then the later one has to win."""
    monkeypatch.setattr(appending, "PIPELINE_EVENTS", 7)
    memories = [{"id": f"m{i % 3}", "content": str(i)} for i in range(100)]
    if kind is Producer:
        async with Producer(url, stream=stream.name) as writer:
            accepted = await writer.write_many(iter(memories))
    else:
        with SyncProducer(url, stream=stream.name) as writer:
            accepted = writer.write_many(iter(memories))
    events = await decoded(stream)
    assert [event.memory.content for event in events] == [str(i) for i in range(100)]
    assert [(one.id, one.entry) for one in accepted] == [(event.id, event.entry) for event in events]


def test_round_trips_are_bounded_in_number_and_bytes():
    small, large = encode({"content": "x"}, 10**6), encode({"content": "x" * 400_000}, 10**6)
    sizes = [len(chunk) for chunk in appending.chunks([small] * 1_001)]
    assert sizes == [500, 500, 1]
    assert [len(chunk) for chunk in appending.chunks([large] * 5)] == [2, 2, 1]
    assert list(appending.chunks([])) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "content"),
        ({"content": None}, "content"),
        ({"content": "x" * 65_537}, "content"),
        ({"content": "\ud800"}, "content"),
        ({"content": "x", "id": ""}, "id"),
        ({"content": "x", "id": 7}, "id"),
        ({"content": "x", "id": "a\nb"}, "id"),
        ({"content": "x", "ns": ""}, "ns"),
        ({"content": "x", "importance": float("nan")}, "importance"),
        ({"content": "x", "importance": 1.5}, "importance"),
        ({"content": "x", "timestamp": 1.5}, "timestamp"),
        ({"content": "x", "timestamp": "yesterday"}, "timestamp"),
        ({"content": "x", "expires_at": True}, "expires_at"),
        ({"content": "x", "tags": [1]}, "tags"),
        ({"content": "x", "metadata": [1]}, "metadata"),
        ({"content": "x", "metadata": {"a": object()}}, "metadata"),
        ({"content": "x", "autor": "typo"}, "autor"),
    ],
)
async def test_nothing_is_sent_when_a_field_is_wrong(redis_url, fields, field):
    """No server is asked: the producer is not even open."""
    writer, sync_writer = Producer(redis_url), SyncProducer(redis_url)
    with pytest.raises(InvalidEventError) as caught:
        await writer.write(**fields)
    assert caught.value.field == field
    with pytest.raises(InvalidEventError) as caught:
        sync_writer.write(**fields)
    assert caught.value.field == field
    for attempt in (writer, sync_writer):
        with pytest.raises(InvalidEventError) as caught:
            attempt.encode_many([{"content": "fine"}, fields])
        assert caught.value.field == f"memories[1].{field}"
        assert str(caught.value).startswith(f"memories[1].{field}: ")
        assert str(caught.value).count(f"{field}: ") == 1


async def test_write_many_sends_nothing_when_the_last_one_is_wrong(url, stream):
    async with Producer(url, stream=stream.name) as writer:
        with pytest.raises(InvalidEventError, match=r"memories\[2\]\.importance: "):
            await writer.write_many([{"content": "a"}, {"content": "b"}, {"content": "c", "importance": 2}])
        with pytest.raises(InvalidEventError, match=r"memories\[1\]: .*mapping"):
            await writer.write_many([{"content": "a"}, "b"])
        assert await writer.write_many([]) == []
    assert await stream() == []


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(2026, 5, 4, 10, 30), 1_777_890_600_000),  # noqa: DTZ001 - naive: UTC
        (datetime(2026, 5, 4, 10, 30, tzinfo=UTC), 1_777_890_600_000),
        (datetime(2026, 5, 4, 18, 30, 0, 1999, tzinfo=timezone(timedelta(hours=8))), 1_777_890_600_001),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
        ("2026-05-04T10:30:00Z", 1_777_890_600_000),
        (1_777_890_600_000, 1_777_890_600_000),
    ],
)
def test_times_become_milliseconds(moment, ms):
    fields = encode({"content": "x", "timestamp": moment, "expires_at": moment}, 100).fields
    memory = decode_event("1-0", [(b"payload", fields["payload"])], 100).memory
    assert (memory.timestamp, memory.expires_at) == (ms, ms)


async def test_url_and_stream_come_from_the_environment(redis_url, url, stream, monkeypatch):
    monkeypatch.setenv("JIYI_REDIS_URL", url)
    monkeypatch.setenv("JIYI_STREAM", stream.name)
    writer = await Producer.connect()
    await writer.write(content="a")
    await writer.aclose()
    sync_writer = SyncProducer.connect()
    sync_writer.write(content="b")
    sync_writer.close()
    assert [event.memory.content for event in await decoded(stream)] == ["a", "b"]
    assert Producer(redis_url).settings.redis_url == redis_url
    assert Producer(settings=Settings(stream="other")).settings.stream == "other"


async def test_a_closed_producer_says_so_and_can_be_opened_again(redis_url):
    writer = Producer(redis_url, stream="stream:reopened")
    with pytest.raises(RuntimeError, match="not open"):
        await writer.write(content="a")
    async with writer:
        await writer.write(content="a")
    with pytest.raises(RuntimeError, match="not open"):
        await writer.delete("a")
    sync_writer = SyncProducer(redis_url, stream="stream:reopened")
    with pytest.raises(RuntimeError, match="not open"):
        sync_writer.write(content="a")
    async with writer:
        await writer.write(content="a")
    redis.Redis.from_url(redis_url).delete("stream:reopened")


async def test_a_missing_or_wrong_url_is_a_clear_error(monkeypatch):
    monkeypatch.delenv("JIYI_REDIS_URL", raising=False)
    for wrong, error in (("", ServerNotFoundError), ("http://x", SettingsError)):
        with pytest.raises(error, match="JIYI_REDIS_URL"):
            await Producer.connect(wrong)
        with pytest.raises(error, match="JIYI_REDIS_URL"):
            SyncProducer.connect(wrong)


@pytest.mark.parametrize("user", ["", ":wrong@", "nobody:right@", "poor:right@"])
async def test_wrong_credentials_are_a_settings_error_that_shows_no_password(tmp_path, user):
    """They do not come right by waiting. `poor` may connect, but not run INFO."""
    port = free_port()
    process = start_server(tmp_path, port)
    with redis.Redis(port=port, protocol=2) as server:
        server.execute_command("ACL", "SETUSER", "poor", "on", ">right", "~*", "+ping")
        server.execute_command("ACL", "SETUSER", "default", ">right")
    try:
        for connect_now in (Producer.connect, SyncProducer.connect):
            with pytest.raises(SettingsError, match="JIYI_REDIS_URL") as caught:
                await _maybe_awaited(connect_now(f"redis://{user}127.0.0.1:{port}"))
            assert "wrong" not in str(caught.value)
    finally:
        stop_server(process)


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_url_that_cannot_be_read_shows_no_part_of_its_password(kind):
    with pytest.raises(SettingsError, match="JIYI_REDIS_URL") as caught:
        await _maybe_awaited(kind.connect("redis://:secret/word@localhost"))
    assert "secret" not in str(caught.value)


async def _maybe_awaited(result):
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_cluster_without_its_slots_is_unavailable(tmp_path, kind):
    port = free_port()
    process = start_server(tmp_path, port, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    try:
        with pytest.raises(UnavailableError):
            await _maybe_awaited(kind.connect(f"redis://127.0.0.1:{port}"))
    finally:
        stop_server(process)


async def test_commands_are_packed_in_c_also_in_a_cluster(url, stream):
    async with Producer(url, stream=stream.name) as writer:
        await writer.write(content="a")
        database = writer._database
        if isinstance(database, RedisCluster):
            connections = [one for node in database.get_nodes() for one in node._connections]
        else:
            connections = [await database.connection_pool.get_connection()]
            await database.connection_pool.release(connections[0])
        assert connections
        assert all("pack_command" in vars(type(one)) for one in connections)


async def test_nobody_there_is_unavailable():
    nowhere = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError):
        await Producer.connect(nowhere)
    with pytest.raises(UnavailableError):
        SyncProducer.connect(nowhere)


async def write_through(kind, settings, memories, then=lambda: None):
    """Open a producer, call `then`, write; gives the seconds that the writing took."""
    if kind is Producer:
        async with Producer(settings=settings) as writer:
            then()
            started = time.monotonic()
            try:
                await writer.write_many(memories)
            finally:
                taken_s = time.monotonic() - started
                assert taken_s < 20, taken_s
    else:
        with SyncProducer(settings=settings) as writer:
            then()
            await anyio.to_thread.run_sync(writer.write_many, memories)


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("trouble", ["killed", "silent", "full"])
async def test_trouble_is_unavailable_and_shows_no_content(tmp_path, kind, cluster, count, trouble):
    port = free_port()
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())] if cluster else []
    process = start_server(tmp_path, port, *options)
    server = redis.Redis(port=port, protocol=2)
    if cluster:
        server.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await wait_until(lambda: _cluster_is_ok(server), "the cluster serves all slots")
    settings = Settings(redis_url=f"redis://127.0.0.1:{port}", redis_timeout_ms=300)

    def cause():
        if trouble == "killed":
            process.kill()
            process.wait()
        elif trouble == "silent":
            server.execute_command("CLIENT", "PAUSE", 60_000, "ALL")
        else:
            server.config_set("maxmemory", 1)

    try:
        with pytest.raises(UnavailableError) as caught:
            await write_through(kind, settings, [{"content": f"secret {i}"} for i in range(count)], cause)
    finally:
        server.close()
        stop_server(process)
    shown = repr(caught.value) + repr(caught.value.__cause__ or "")
    assert "secret" not in shown
    gc.collect()  # a connection that `aclose` has left open would warn now


async def _cluster_is_ok(server):
    return b"cluster_state:ok" in server.execute_command("CLUSTER", "INFO")


@pytest.mark.parametrize("kind", [Producer, SyncProducer])
async def test_a_stream_that_moves_to_another_node_is_followed(tmp_path_factory, kind):
    """The producer knows the old node; MOVED leads it and its pipeline to the new one, in order."""
    ports, bus = [free_port(), free_port()], [free_port(), free_port()]
    processes = [
        start_server(tmp_path_factory.mktemp("n"), port, "--cluster-enabled", "yes", "--cluster-port", str(extra))
        for port, extra in zip(ports, bus, strict=True)
    ]
    old, new = (redis.Redis(port=port, protocol=2) for port in ports)
    old.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8_191)
    new.execute_command("CLUSTER", "ADDSLOTSRANGE", 8_192, 16_383)
    old.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1], bus[1])
    settings = Settings(redis_url=f"redis://127.0.0.1:{ports[0]}", stream=_name_in_slots(0, 8_191))

    def move():
        owner = new.execute_command("CLUSTER", "MYID")
        for node in (new, old):
            node.execute_command("CLUSTER", "SETSLOT", key_slot(settings.stream.encode()), "NODE", owner)

    try:
        for node in (old, new):
            await wait_until(lambda node=node: _cluster_is_ok(node), "the cluster formed")
        await write_through(kind, settings, [{"content": str(i)} for i in range(50)], move)
        entries = new.execute_command("XRANGE", settings.stream, "-", "+")
    finally:
        for node, process in zip((old, new), processes, strict=True):
            node.close()
            stop_server(process)
    fields = [list(fields.items()) if isinstance(fields, dict) else [tuple(fields)] for _, fields in entries]
    assert [decode_event("1-0", one, 100).memory.content for one in fields] == [str(i) for i in range(50)]


def _name_in_slots(first, last):
    return next(name for i in range(1000) if first <= key_slot((name := f"stream:{i}").encode()) <= last)


async def test_more_tasks_than_connections_wait_for_each_other(url, stream):
    settings = Settings(redis_url=url, stream=stream.name, max_pool=3)
    async with Producer(settings=settings) as writer, anyio.create_task_group() as tasks:
        for i in range(300):
            tasks.start_soon(lambda i=i: writer.write(id=str(i), content="x"))
    assert {event.id for event in await decoded(stream)} == {str(i) for i in range(300)}


async def test_threads_share_a_sync_producer(url, stream):
    settings = Settings(redis_url=url, stream=stream.name, max_pool=3)
    with SyncProducer(settings=settings) as writer:
        threads = [
            threading.Thread(target=writer.write_many, args=([{"id": f"{t}-{i}", "content": "x"} for i in range(20)],))
            for t in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
    assert {event.id for event in await decoded(stream)} == {f"{t}-{i}" for t in range(12) for i in range(20)}


async def test_a_sync_producer_that_is_closed_under_its_threads(url, stream):
    """What they are sending is through first; the next call says what is wrong, and nothing is in between."""
    settings = Settings(redis_url=url, stream=stream.name, max_pool=3)
    accepted, raised = [], []

    def write(writer):
        try:
            while True:
                accepted.append(writer.write(content="x").id)
        except BaseException as error:  # noqa: BLE001 - whatever it may be
            raised.append(str(error))

    for _ in range(10):
        writer = SyncProducer.connect(settings=settings)
        threads = [threading.Thread(target=write, args=(writer,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        await anyio.sleep(0.05)
        await anyio.to_thread.run_sync(writer.close)
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
    assert set(raised) == {"the producer is not open: use `with SyncProducer(url) as producer`"}
    assert len(raised) == 60
    assert sorted(event.id for event in await decoded(stream)) == sorted(accepted)


def test_new_ids_are_uuids_of_version_7_with_the_time():
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1_000


def test_new_ids_grow_within_a_millisecond_and_when_the_clock_goes_back(monkeypatch):
    monkeypatch.setattr(memories, "_last", memories._Last())
    moments = iter([10**15, 10**15, 10**15 - 10**12, *[10**15] * 5_000])
    monkeypatch.setattr(memories.time, "time_ns", lambda: next(moments))
    made = [new_id() for _ in range(5_003)]
    assert made == sorted(set(made))


def test_new_ids_differ_between_threads():
    made = []
    threads = [threading.Thread(target=lambda: made.extend(new_id() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_the_typed_fields_are_those_of_a_memory():
    assert set(MemoryFields.__annotations__) == {"id", "ns", *FIELDS}


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is no dependency of plain jiyi")

allowed = {"jiyi", "redis", "hiredis", "anyio", "msgpack", "msgspec", "idna", "sniffio", "typing_extensions"}
from importlib.metadata import packages_distributions
BLOCKED = set(packages_distributions()) - allowed
sys.meta_path.insert(0, Blocker())
"""


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_everything_that_an_agent_imports_needs_no_server_extra():
    names = "Producer, SyncProducer, Client, SyncClient, errors, JiyiError, UnavailableError"
    output = run_python(
        f"{BLOCKED}\nfrom jiyi import {names}\nimport jiyi.importers, jiyi.keys\nprint(sorted(BLOCKED))"
    )
    assert {"structlog", "numpy", "litestar", "typer", "jieba"} <= set(eval(output))


def test_importing_jiyi_alone_imports_nothing_else():
    code = """
import sys, jiyi
jiyi.__version__
print([name for name in sys.modules if name.startswith(("jiyi.", "redis", "anyio", "msgspec"))])
"""
    assert eval(run_python(code)) == []


def test_the_package_lists_what_it_gives():
    import jiyi

    for name in jiyi.__all__:
        assert getattr(jiyi, name) is not None
    assert set(jiyi.__all__) <= set(dir(jiyi))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = jiyi.nonsense
