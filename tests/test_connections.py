"""Commands on shared connections: each is carried to its end, whatever becomes of its caller."""

from __future__ import annotations

import anyio
import anyio.to_thread
import msgspec
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until
from redis.asyncio import Redis, RedisCluster

from faults.proxy import Proxy
from faults.toxics import Toxic
from jiyi import Producer, SyncProducer
from jiyi.connections import connect, connect_blocking, execute, only_at, server_of, translated_errors
from jiyi.errors import UnavailableError

pytestmark = pytest.mark.anyio


async def test_the_command_of_a_cancelled_caller_is_carried_to_its_end(database, settings):
    """Its answer is read before anybody else gets the connection, which is therefore kept."""
    lonely = await connect(msgspec.structs.replace(settings, max_pool=1))
    connection = await execute(lonely, "CLIENT", "ID")

    async def waits():
        return (await database.info("clients"))["blocked_clients"] == 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execute, lonely, "BLPOP", "list", 4)
        await wait_until(waits, "the server has the command")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await database.rpush("list", "answer")
    assert await database.llen("list") == 0, "the command was executed"
    assert await execute(lonely, "CLIENT", "ID") == connection
    await lonely.aclose()


@pytest.fixture(params=["server", "cluster"])
def kind_of_settings(request, settings):
    if request.param == "server":
        return settings
    return msgspec.structs.replace(settings, redis_url=request.getfixturevalue("cluster_url"))


async def test_connections_are_closed_while_others_use_them(kind_of_settings):
    """As the library closes all when one caller learns that the cluster is down: the others see an outage at most."""
    shared = await connect(msgspec.structs.replace(kind_of_settings, max_pool=4))
    answers, outages, closed = 0, 0, 0

    async def use(number):
        nonlocal answers, outages
        for i in range(300):
            try:
                assert await execute(shared, "GET", f"{number} {i}") is None
                with translated_errors():
                    assert await shared.pipeline().get(f"{number} {i}").execute() == [None]
                answers += 1
            except UnavailableError:
                outages += 1

    async def close():
        nonlocal closed
        while True:
            if isinstance(shared, Redis):
                await shared.connection_pool.disconnect()
            else:
                await shared.nodes_manager.aclose()
            closed += 1
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as closing:
        closing.start_soon(close)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(use, number)
        closing.cancel_scope.cancel()
    assert answers > 0 < closed
    assert answers + outages == 8 * 300
    await shared.aclose()


@pytest.fixture
async def cluster(cluster_url, settings):
    client = await connect(msgspec.structs.replace(settings, redis_url=cluster_url))
    yield client
    await client.aclose()


async def slot_of(cluster, key):
    """Give the slot of a key, the node that has it, another one, and the names of both."""
    slot, first = cluster.keyslot(key), cluster.get_node_from_key(key)
    second = next(node for node in cluster.get_primaries() if node is not first)
    return slot, first, second, [(await node.execute_command("CLUSTER", "MYID")).decode() for node in (first, second)]


async def test_scripts_for_one_server_process_go_to_no_other(either):
    """Not on a connection that is there, nor on one that is made for them, nor in a pipeline."""
    count = ("EVAL", "return redis.call('INCR', KEYS[1])", 1, "key")
    right = server_of(either, "key")
    *node, _, history = right.split(" ")
    wrong = " ".join([*node, "0" * 40, history])
    pool = either.get_node_from_key("key") if isinstance(either, RedisCluster) else either.connection_pool
    for reconnect in (False, True):
        for process in (right, wrong):
            if reconnect:
                await pool.disconnect()
            with only_at(process):
                assert await in_pipeline(either, *count) is (process == right)
            if reconnect:
                await pool.disconnect()
            with only_at(process):
                assert await happens(execute(either, *count)) is (process == right)
    with only_at(""):
        assert await execute(either, *count) == 5
    assert await execute(either, *count) == 6, "it holds for the context alone"


async def happens(command):
    """Whether a command gets through to the server."""
    try:
        await command
    except UnavailableError:
        return False
    return True


async def in_pipeline(client, *command):
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command(*command)
    try:
        (reply,) = await pipeline.execute(raise_on_error=False)
    except redis.ConnectionError as error:
        reply = error
    return not isinstance(reply, Exception)


async def test_a_slot_on_its_way_to_a_node_that_is_not_known_yet(cluster):
    """Redis answers ASK with the node's address, the library does not find it: the cluster cannot do it now."""
    slot, source, target, names = await slot_of(cluster, "on its way")
    known = cluster.nodes_manager.nodes_cache
    try:
        await target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        await source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        assert await execute(cluster, "GET", "on its way") is None, "the library asks the node that it knows"
        del known[target.name]
        with pytest.raises(UnavailableError) as raised:
            await execute(cluster, "GET", "on its way")
        assert raised.value.code == "cluster"
    finally:
        known[target.name] = target
        for node in (source, target):
            await node.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


async def test_a_slot_that_the_client_does_not_know(cluster):
    cluster.nodes_manager.slots_cache.clear()
    with pytest.raises(UnavailableError):
        await execute(cluster, "GET", "key")
    with pytest.raises(UnavailableError):
        server_of(cluster, "key")


async def test_nodes_that_send_a_client_back_and_forth(cluster):
    """The first says that the second has the slot, and the second that the first has it: the library gives up."""
    slot, first, _, names = await slot_of(cluster, "back and forth")
    try:
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        with pytest.raises(UnavailableError) as raised:
            await execute(cluster, "GET", "back and forth")
        assert raised.value.code == "cluster"
    finally:
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])


class Replaced(Toxic):
    """Something else comes instead of each answer."""

    def __init__(self, other):
        self._other = other

    async def send(self, forward, data):
        await forward(self._other if data else data)


@pytest.mark.parametrize(
    ("other", "code"),
    [(b"\xe0K\r\n", "connection"), (b"-MOVED garbled\r\n", "cluster"), (b"-ASK 1 host:port\r\n", "cluster")],
)
async def test_what_is_no_answer_is_an_outage(database, settings, other, code):
    """The connection is out of step or broken: it is not used again, and the next one is right."""
    async with Proxy(settings.redis_url) as proxy:
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        client = await connect(through)
        async with Producer(settings=through) as producer:
            blocking = await anyio.to_thread.run_sync(lambda: SyncProducer.connect(settings=through))

            async def run(call, *arguments):
                return await anyio.to_thread.run_sync(call, *arguments)

            two = [{"id": "m", "content": "x"}, {"id": "n", "content": "x"}]
            for call, arguments in (
                (execute, (client, "GET", "key")),
                (producer.delete, ("m",)),
                (producer.write_many, (two,)),
                (run, (blocking.delete, "m")),
                (run, (blocking.write_many, two)),
            ):
                with proxy.toxic(Replaced(other), "downstream"), pytest.raises(UnavailableError) as raised:
                    await call(*arguments)
                assert raised.value.code == code
                await call(*arguments)
            await anyio.to_thread.run_sync(blocking.close)
        await client.aclose()


async def test_a_single_server_that_has_become_part_of_a_cluster(cluster_url):
    """Its MOVED says nothing about the command: an event must not be given up for it."""
    async with Redis.from_url(cluster_url, protocol=2) as client:
        codes = set()
        for i in range(20):
            try:
                assert await execute(client, "GET", f"key{i}") is None
            except UnavailableError as error:
                codes.add(error.code)
        assert codes == {"cluster"}


async def test_a_node_that_is_named_by_its_port_alone(cluster):
    """Such a MOVED leads nowhere, as far as the library can see."""
    slot, first, _, names = await slot_of(cluster, "named by port")
    option = ("CONFIG", "SET", "cluster-preferred-endpoint-type")
    try:
        await first.execute_command(*option, "unknown-endpoint")
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        with pytest.raises(UnavailableError) as raised:
            await execute(cluster, "GET", "named by port")
        assert raised.value.code == "cluster"
    finally:
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])
        await first.execute_command(*option, "ip")


@pytest.fixture
def node(tmp_path):
    """A cluster of one node: how to start it (again), a client of its own, and its URL."""
    port = free_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    processes = []

    def start():
        if processes:
            processes[-1].kill()
            processes[-1].wait()
        processes.append(start_server(tmp_path, port, *options))
        while b"cluster_state:ok" not in own.execute_command("CLUSTER", "INFO"):
            pass

    with redis.Redis(port=port, protocol=2) as own:
        processes.append(start_server(tmp_path, port, *options))
        own.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        processes[-1].kill()
        processes[-1].wait()
        start()
        yield start, own, f"redis://127.0.0.1:{port}"
        stop_server(processes[-1])


@pytest.mark.parametrize("kind", ["command", "pipeline"])
async def test_a_node_that_is_started_again_is_used_on_every_connection(node, settings, kind):
    """One of them learns first that another process answers now; the others connect anew as well."""
    start, _, url = node
    database = await connect(msgspec.structs.replace(settings, redis_url=url, max_pool=8))
    answers = 0

    async def use():
        nonlocal answers
        with translated_errors():
            if kind == "command":
                assert await database.get("key") is None
            else:
                assert await database.pipeline().get("key").get("key").execute() == [None, None]
        answers += 1

    async def all_at_once():
        nonlocal answers
        answers = 0

        async def try_it():
            try:
                await use()
            except UnavailableError:
                return

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(try_it)
        return answers == 8

    for _ in range(3):
        assert await all_at_once()
        await anyio.to_thread.run_sync(start)
        await wait_until(all_at_once, "all connections are used again", timeout_s=5)
    await database.aclose()


async def test_a_node_of_a_cluster_that_takes_no_more_clients(node, settings):
    """It says so in other words than a single server, and to AUTH."""
    _, own, url = node
    own.config_set("requirepass", "secret")
    own.execute_command("AUTH", "secret")
    limited = msgspec.structs.replace(settings, redis_url=url.replace("//", "//:secret@"))
    database = await connect(limited)
    try:
        own.config_set("maxclients", 1)
        own.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for _ in range(5):
            with pytest.raises(UnavailableError) as raised:
                await execute(database, "GET", "key")
            assert raised.value.code in {"connection", "cluster"}
        with pytest.raises(UnavailableError):
            await connect(limited)
        with pytest.raises(UnavailableError):
            await anyio.to_thread.run_sync(connect_blocking, limited)
    finally:
        own.config_set("maxclients", 1_000)
        own.config_set("requirepass", "")
    await database.aclose()


async def test_a_slot_on_its_way_is_served_at_its_new_place(cluster):
    """ASK holds for the next command of a connection only, so both must go on the same of many."""
    slot, source, target, names = await slot_of(cluster, "asked for")
    async with anyio.create_task_group() as tasks:
        for node in (source, target):
            for _ in range(4):
                tasks.start_soon(node.execute_command, "PING")
    try:
        await target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        await source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(execute, cluster, "SET", "asked for", i)
        assert await execute(cluster, "GET", "asked for") is not None
    finally:
        await target.execute_command("ASKING")
        await target.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        await source.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        await execute(cluster, "DEL", "asked for")
        await source.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])
        await target.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])
