"""Writes that wait until the server has them on disk, or a replica has them."""

from __future__ import annotations

import inspect
from contextlib import contextmanager

import anyio
import anyio.to_thread
import msgspec
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until

from jiyi import keys
from jiyi.analysis import Analyzer
from jiyi.connections import connect
from jiyi.errors import NotConfirmedError, SettingsError, UnavailableError
from jiyi.producer import Producer
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi.sync_producer import SyncProducer
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
CONFIRM_MS, TIMEOUT_MS = 20_000, 30_000  # a disk of a busy machine takes its time


@contextmanager
def server_on(folder, *options):
    port = free_port()
    folder.mkdir()
    process = start_server(folder, port, *options)
    client = redis.Redis(port=port, protocol=2)
    try:
        url = f"redis://127.0.0.1:{port}"
        yield client, Settings(redis_url=url, confirm_ms=CONFIRM_MS, redis_timeout_ms=TIMEOUT_MS)
    finally:
        client.close()
        stop_server(process)


def knows_waitaof(client):
    try:
        client.execute_command("WAITAOF", 0, 0, 0)
    except redis.ResponseError as error:
        return "unknown command" not in str(error)
    return True


async def use(kind, settings, confirm, action):
    """Run an action with an open producer of either kind."""
    if kind is Producer:
        async with Producer(settings=settings, confirm=confirm) as producer:
            result = action(producer)
            return await result if inspect.isawaitable(result) else result

    def sync():
        with SyncProducer(settings=settings, confirm=confirm) as producer:
            return action(producer)

    return await anyio.to_thread.run_sync(sync)


@pytest.fixture(params=[Producer, SyncProducer], ids=["async", "sync"])
def kind(request):
    return request.param


async def flushed_once_asked_for(client, write):
    """Run a write beside a server that flushes nothing, and let it flush once it is asked to; give the result."""
    client.config_set("appendfsync", "no")
    result = None

    async def run():
        nonlocal result
        result = await write

    async def is_waited_for():
        return client.info("clients")["blocked_clients"] == 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await wait_until(is_waited_for, "the producer waits for what is not flushed")
        assert result is None
        client.config_set("appendfsync", "everysec")
    return result


@pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])
async def test_a_confirmed_write_is_on_disk(tmp_path, kind, cluster):
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port())) if cluster else ()
    with server_on(tmp_path / "s", *AOF, *options) as (client, settings):
        if cluster:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                pass
        if not knows_waitaof(client):
            pytest.skip("this server has no WAITAOF")
        one = use(kind, settings, "fsync", lambda producer: producer.write(id="m", content="x"))
        accepted = await flushed_once_asked_for(client, one)
        several = use(kind, settings, "fsync", lambda producer: producer.write_many([{"content": "y"}] * 1_200))
        many = await flushed_once_asked_for(client, several)
        # The very files, as a crash of the machine would leave them at worst: nothing is flushed by us.
        written = b"".join(path.read_bytes() for path in (tmp_path / "s" / "appendonlydir").glob("*.incr.aof"))
        for event in (accepted, many[0], many[-1]):
            assert event.id.encode() in written
        assert client.xlen(settings.stream) == 1_201


async def test_what_the_server_does_not_flush_is_not_confirmed(tmp_path, kind):
    with server_on(tmp_path / "s", "--appendonly", "yes", "--appendfsync", "no") as (client, patient):
        if not knows_waitaof(client):
            pytest.skip("this server has no WAITAOF")
        settings = Settings(redis_url=patient.redis_url, confirm_ms=50)
        with pytest.raises(NotConfirmedError, match="did not confirm within 50 ms that they are written to disk"):
            await use(kind, settings, "fsync", lambda producer: producer.write(content="x"))


async def test_without_a_file_a_confirmation_is_refused_before_the_first_write(tmp_path, kind):
    with (
        server_on(tmp_path / "s") as (_, settings),
        pytest.raises(SettingsError, match=r"append-only file is off|does not know WAITAOF"),
    ):
        await use(kind, settings, "fsync", lambda producer: producer.write(content="x"))


async def test_a_server_without_the_command_is_named(tmp_path, kind):
    with (
        server_on(tmp_path / "s", *AOF, "--rename-command", "WAITAOF", "") as (_, settings),
        pytest.raises(SettingsError, match=r"does not know WAITAOF, which came with Redis 7\.2"),
    ):
        await use(kind, settings, "fsync", lambda producer: producer.write(content="x"))


async def test_what_no_replica_has_is_accepted_but_not_confirmed(tmp_path, kind):
    with server_on(tmp_path / "s") as (client, patient):
        settings = Settings(redis_url=patient.redis_url, confirm_ms=50)
        with pytest.raises(NotConfirmedError, match="did not confirm within 50 ms that they are copied") as caught:
            await use(kind, settings, "replicated", lambda producer: producer.write(content="x"))
        (entry,) = caught.value.entries
        assert [row[0].decode() for row in client.execute_command("XRANGE", settings.stream, "-", "+")] == [entry]


async def test_what_a_replica_has_is_confirmed(tmp_path, kind):
    with (
        server_on(tmp_path / "p", "--repl-diskless-sync-delay", "0") as (primary, settings),
        server_on(tmp_path / "r") as (replica, _),
    ):
        replica.execute_command("REPLICAOF", "127.0.0.1", primary.connection_pool.connection_kwargs["port"])
        while replica.info("replication")["master_link_status"] != "up":
            pass
        await use(kind, settings, "replicated", lambda producer: producer.write(id="m", content="x"))
        assert replica.xlen(settings.stream) == 1


@pytest.mark.parametrize("confirm", ["replicated", "fsync"])
async def test_a_primary_that_has_become_a_replica_is_no_wrong_setting(tmp_path, kind, confirm):
    """As after a failover, until the address leads to the new one."""
    with server_on(tmp_path / "p") as (primary, _), server_on(tmp_path / "r", *AOF) as (replica, settings):
        replica.execute_command("REPLICAOF", "127.0.0.1", primary.connection_pool.connection_kwargs["port"])
        if confirm == "fsync" and not knows_waitaof(replica):
            pytest.skip("this server has no WAITAOF")
        with pytest.raises(UnavailableError, match="it is a replica") as raised:
            await use(kind, settings, confirm, lambda producer: producer.write(id="m", content="x"))
        assert raised.value.code == "readonly"


async def test_the_error_of_an_append_is_not_hidden_by_its_confirmation(tmp_path, kind):
    with server_on(tmp_path / "s") as (client, settings):
        client.set(settings.stream, "no stream")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            await use(kind, settings, "replicated", lambda producer: producer.delete("m"))


@pytest.fixture
async def cluster(anyio_backend, cluster_url):
    """Settings and an emptied cluster, whose nodes have neither replicas nor files; and what a worker does there."""
    settings = Settings(redis_url=cluster_url, redis_timeout_ms=TIMEOUT_MS)
    database = await connect(settings)
    await database.flushall(target_nodes="primaries")
    stream = EventStream(database, settings.stream, settings.group)
    await stream.ensure_group()

    async def work(ns, confirm, confirm_ms=50):
        """Write a memory, let a worker process it, and give what it raised, and how many entries are not done."""
        asked = msgspec.structs.replace(settings, confirm=confirm, confirm_ms=confirm_ms)
        async with Producer(settings=settings) as producer:
            await producer.write(id="m", content="redis", ns=ns)
        held = await stream.read_new("worker", 100, 1) + await stream.read_own("worker", 100, "0-0")
        raised = None
        try:
            await Pipeline(database, stream, Analyzer(), asked).process(held)
        except* (SettingsError, UnavailableError) as errors:
            (raised,) = errors.exceptions
        assert await database.hget(keys.memory_key(ns, "m"), "entry") == held[0].id.encode(), "it is applied"
        return raised, (await stream.state(0)).pending

    work.database, work.settings = database, settings
    yield work
    await database.flushall(target_nodes="primaries")
    await database.aclose()


def namespaces(database, stream):
    """A namespace on the node that has the stream, and one on another."""
    node = database.get_node_from_key(stream)
    names = sorted(f"ns-{i}" for i in range(50))
    here = [ns for ns in names if database.get_node_from_key(keys.stats_key(ns)) == node]
    return here[0], next(ns for ns in names if ns not in here)


async def test_what_lies_apart_from_the_stream_is_confirmed_before_it_is_done(cluster):
    """The stream's server would take it for done when the other one has forgotten it."""
    here, there = namespaces(cluster.database, cluster.settings.stream)
    assert await cluster(here, "replicated") == (None, 0), "both are forgotten, or none"
    assert await cluster(there, "accepted") == (None, 0)
    for pending in (1, 2):
        raised, left = await cluster(there, "replicated")
        assert (raised.code, left) == ("not_confirmed", pending)
        assert "does not confirm within 50 ms that the changes of a namespace are at a replica" in str(raised)
    assert await cluster.database.exists(keys.confirmed_key(there)) == 0


async def test_where_it_cannot_be_confirmed_a_worker_says_so(cluster):
    _, there = namespaces(cluster.database, cluster.settings.stream)
    raised, left = await cluster(there, "fsync")
    assert isinstance(raised, SettingsError)
    assert "JIYI_CONFIRM is fsync, but the server cannot confirm that" in str(raised)
    assert left == 1


async def test_what_is_confirmed_is_done(cluster):
    _, there = namespaces(cluster.database, cluster.settings.stream)
    node = cluster.database.get_node_from_key(keys.stats_key(there))
    with redis.Redis(node.host, node.port, protocol=2) as client:
        if not knows_waitaof(client):
            pytest.skip("this server has no WAITAOF")
        client.config_set("appendonly", "yes")
        try:
            assert await cluster(there, "fsync", confirm_ms=CONFIRM_MS) == (None, 0)
        finally:
            client.config_set("appendonly", "no")


def test_a_confirmation_must_come_before_the_connection_gives_up():
    with pytest.raises(SettingsError, match="JIYI_CONFIRM_MS is 5000; it must be below JIYI_REDIS_TIMEOUT_MS"):
        Settings.from_environment({"JIYI_CONFIRM": "fsync", "JIYI_CONFIRM_MS": "5000"})
    Settings.from_environment({"JIYI_CONFIRM_MS": "5000"})  # nobody waits for anything
