"""The proxy before a real server: each fault does what its name says, and nothing else."""

from __future__ import annotations

import random
import socket
import time
from contextlib import AsyncExitStack, suppress

import anyio
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from faults.proxy import Proxy, serving
from faults.resp import ProtocolError, Splitter
from faults.toxics import Bandwidth, Latency, LimitData, Slicer, Timeout
from jiyi import scripts

pytestmark = pytest.mark.anyio

BINARY = bytes(range(256)) + b"\r\n$5\r\n*3\r\n" + "记忆".encode()


@pytest.fixture
async def proxy(database, settings):
    async with Proxy(settings.redis_url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy):
    """A client that goes through the proxy, and repeats nothing."""
    async with client_of(proxy) as client:
        yield client


def client_of(proxy, **options):
    return Redis.from_url(proxy.url, **{"protocol": 2, "socket_timeout": 20, "retry": Retry(NoBackoff(), 0)} | options)


async def test_everything_passes_in_both_protocols(proxy, database):
    for protocol in (2, 3):
        async with client_of(proxy, protocol=protocol) as client:
            await client.hset("h", mapping={BINARY: BINARY, "": "", "n": 1})
            assert await client.hget("h", BINARY) == BINARY
            assert await client.hlen("h") == 3
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                await client.get("h")
            assert await client.get("absent") is None
            assert await client.config_get("maxmemory") == {"maxmemory": "0"}
            assert await client.eval("return {1, {2, {}}, 'x', false}", 0) == [1, [2, []], b"x", None]
            async with client.pipeline(transaction=True) as pipeline:
                assert (await pipeline.set("a", "b").get("a").execute())[1] == b"b"
            big = BINARY * 20_000
            await client.set("big", big)
            assert await client.get("big") == big
    assert await database.hget("h", BINARY) == BINARY


async def test_inline_commands_pass(proxy):
    async with await anyio.connect_tcp("127.0.0.1", proxy.port) as stream:
        await stream.send(b"SET inline 1\r\nGET inline\r\n")
        answer = b""
        while answer.count(b"\r\n") < 3:
            answer += await stream.receive()
        assert answer == b"+OK\r\n$1\r\n1\r\n"
    assert proxy.counts == {"SET": 1, "GET": 1}


async def test_subscriptions_pass(proxy, client, database):
    async with client.pubsub() as subscription:
        await subscription.psubscribe("p*")
        await subscription.subscribe("c")
        for _ in range(2):
            assert await subscription.get_message(timeout=5)
        for channel in ("c", "p1"):
            assert await database.publish(channel, BINARY) == 1
            assert (await subscription.get_message(timeout=5))["data"] == BINARY
        assert await client.ping(), "another connection is paired as before"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_slices_lose_and_mix_nothing(proxy, client, size):
    """Pipelines, binary values and big replies, sliced at any byte."""
    values = [BINARY[i:] + bytes([i]) for i in range(20)]
    with proxy.toxic(Slicer(size)):
        async with client.pipeline(transaction=False) as pipeline:
            for i, value in enumerate(values):
                pipeline.set(f"k{i}", value)
                pipeline.get(f"k{i}")
            assert (await pipeline.execute())[1::2] == values
        assert await client.mget([f"k{i}" for i in range(20)]) == values


def test_the_splitter_finds_the_same_messages_however_the_bytes_are_sliced():
    messages = [
        *(
            b"+OK\r\n",
            b"-ERR x\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$0\r\n\r\n",
            b"*0\r\n",
            b"_\r\n",
            b"(123\r\n",
        ),
        *(b"*2\r\n*1\r\n$4\r\n\r\n$1\r\n*0\r\n", b"%1\r\n+a\r\n~1\r\n:2\r\n", b">2\r\n+x\r\n,1.5\r\n"),
        *(b"|1\r\n+ttl\r\n:1\r\n*1\r\n#t\r\n", b"=7\r\ntxt:a\r\n\r\n", b"$260\r\n" + bytes(260) + b"\r\n"),
    ]
    stream = b"".join(messages)
    rng = random.Random(7)
    for _ in range(300):
        splitter, found, at = Splitter(), [], 0
        while at < len(stream):
            step = rng.choice([1, 2, 5, 40])
            found += [message.raw for message in splitter.feed(stream[at : at + step])]
            at += step
        assert found == messages
    for junk in (b"!x\r\n", b"\x00\r\n", b"*a\r\n"):
        with pytest.raises(ProtocolError):
            Splitter().feed(junk)


async def test_a_lost_reply_belongs_to_an_executed_request(proxy, client, database):
    proxy.failpoint("INCRBY", at="reply", do="cut")
    with pytest.raises(redis.ConnectionError):
        await client.incr("n")
    assert await database.get("n") == b"1"
    assert await client.incr("n") == 2, "only once"


async def test_a_request_that_is_cut_never_reaches_the_server(proxy, client, database):
    proxy.failpoint("INCRBY", do="cut")
    with pytest.raises(redis.ConnectionError):
        await client.incr("n")
    assert await database.get("n") is None


async def test_the_rest_of_a_pipeline_is_lost_from_the_nth_request_on(proxy, client, database):
    proxy.failpoint("INCRBY", do="cut", nth=4)
    pipeline = client.pipeline(transaction=False)
    for _ in range(10):
        pipeline.incr("n")
    with pytest.raises(redis.ConnectionError):
        await pipeline.execute()

    async def executed():
        return await database.get("n") == b"3"

    await wait_until(executed, "three are executed")


@pytest.mark.parametrize(("do", "error"), [("cut", b""), ("reset", ConnectionResetError)])
async def test_an_end_and_a_reset_are_what_they_say(proxy, do, error):
    proxy.failpoint("PING", do=do)
    with socket.create_connection(("127.0.0.1", proxy.port)) as raw:
        raw.sendall(b"PING\r\n")
        if error:
            with pytest.raises(error):
                await anyio.to_thread.run_sync(raw.recv, 10)
        else:
            assert await anyio.to_thread.run_sync(raw.recv, 10) == error
    assert proxy.connections == []


async def test_a_held_reply_waits_for_its_release(proxy, client, database):
    answers = []

    async def ask():
        answers.append(await client.incr("n"))

    held = proxy.failpoint("INCRBY", at="reply")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        request = await held.reached()
        assert (request.name, request.arguments) == ("INCRBY", [b"INCRBY", b"n", b"1"])
        assert await database.get("n") == b"1"
        assert answers == []
        assert await client.get("n") == b"1", "other connections are free"
        held.release()
    assert answers == [1]


async def test_a_held_request_waits_for_its_release_also_when_its_client_has_gone(proxy, client, database):
    """What a process had sent when it died arrives late, as it may on a network."""
    held = proxy.failpoint("INCRBY")
    with anyio.move_on_after(5), suppress(redis.ConnectionError):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.incr, "n")
            await held.reached()
            assert await database.get("n") is None
            tasks.cancel_scope.cancel()
    held.release()

    async def executed():
        return await database.get("n") == b"1"

    await wait_until(executed, "it arrives")


async def test_scripts_are_known_by_name_by_digest_and_by_source(proxy, client, database):
    await database.script_flush()
    names = []
    proxy.failpoint("read_readiness", "EVAL", times=None, do=lambda request: names.append(request.name))
    script = scripts.load("read_readiness")
    with pytest.raises(redis.exceptions.NoScriptError):
        await client.evalsha(script.sha, 1, "failed:{x}")
    await client.eval(script.source, 1, "failed:{x}")
    await client.eval("return 1", 0)
    assert names == ["read_readiness", "read_readiness", "EVAL"]


async def test_a_function_is_called_at_its_point_and_may_wait(proxy, client, database):
    seen = []

    async def look(request):
        seen.append((request.number, request.reply, await database.get("n")))

    proxy.failpoint("INCRBY", do=look, times=None)
    proxy.failpoint("INCRBY", at="reply", do=look, times=None)
    assert await client.incr("n") == 1
    number = seen[0][0]
    assert seen == [(number, b"", None), (number, b":1\r\n", b"1")]


async def test_a_failpoint_acts_as_often_as_it_was_told(proxy, client):
    point = proxy.failpoint("PING", do="cut", nth=2, times=2)
    assert await client.ping()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            await client.ping()
    assert await client.ping()
    assert (point.seen, point.hits) == (4, 2)
    with proxy.failpoint("PING", do="cut", times=None), pytest.raises(redis.ConnectionError):
        await client.ping()
    assert await client.ping()


async def test_latency_and_bandwidth_slow_down_what_they_are_told_to(proxy, client):
    async def took():
        started = time.monotonic()
        assert await client.echo("x" * 1000) == b"x" * 1000
        return time.monotonic() - started

    await took()
    with proxy.toxic(Latency(150, 50, seed=1), "upstream"):
        assert await took() >= 0.1
    with proxy.toxic(Latency(80)):
        assert await took() >= 0.16
    with proxy.toxic(Bandwidth(10_000), "downstream"):
        assert await took() >= 0.09


async def test_a_toxic_can_be_for_one_connection(proxy):
    async with client_of(proxy, socket_timeout=0.3) as slow, client_of(proxy) as free:
        assert await slow.ping()
        (connection,) = proxy.connections
        assert await free.ping()
        with proxy.toxic(Timeout(), connection=connection):
            with pytest.raises(redis.TimeoutError):
                await slow.ping()
            assert await free.ping()


@pytest.mark.parametrize("direction", ["upstream", "downstream", None])
async def test_half_open_passes_nothing_and_closes_nothing(proxy, database, direction):
    async with client_of(proxy, socket_timeout=0.2) as client:
        assert await client.ping()
        with proxy.toxic(Timeout(), direction):
            with pytest.raises(redis.TimeoutError):
                await client.incr("n")
            assert await database.get("n") == (b"1" if direction == "downstream" else None)
            # The client has closed its side by now; with the way up shut the server does not know.
            assert len(proxy.connections) == (0 if direction == "downstream" else 1)

        async def late():
            return await database.get("n") == b"1" and not proxy.connections

        await wait_until(late, "what was held back, and the end, have passed")
        assert await client.ping()


async def test_data_end_in_the_middle_of_a_reply(proxy, client):
    await client.set("k", "x" * 1000)
    with proxy.toxic(LimitData(500), "downstream"), pytest.raises(redis.ConnectionError):
        await client.get("k")
    assert await client.get("k") == b"x" * 1000


async def test_refused_connections_and_their_return(proxy, client):
    assert await client.ping()
    proxy.refuse()
    assert await client.ping(), "what is open stays open"
    proxy.cut()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            await client.ping()
    proxy.accept()
    assert await client.ping()
    assert proxy.accepted == 2


async def test_a_server_that_is_away_ends_the_connection():
    async with Proxy(f"redis://127.0.0.1:{free_port()}") as proxy, client_of(proxy) as client:
        with pytest.raises(redis.ConnectionError):
            await client.ping()


async def test_new_connections_go_to_the_new_target(proxy, client, tmp_path):
    """A failover, and a server on a unix socket."""
    port, path = free_port(), tmp_path / "s"
    process = start_server(tmp_path, port, "--unixsocket", str(path))
    try:
        await client.set("who", "old")
        proxy.target = f"unix://{path}"
        assert await client.get("who") == b"old"
        proxy.cut()
        async with client_of(proxy) as later:
            await later.set("who", "new")
        with redis.Redis(port=port) as direct:
            assert direct.get("who") == b"new"
    finally:
        stop_server(process)


async def test_the_url_keeps_user_password_and_database():
    async with Proxy("redis://u:p%40@127.0.0.1:1/3?x=1") as proxy:
        assert proxy.url == f"redis://u:p%40@127.0.0.1:{proxy.port}/3?x=1"
    async with Proxy("unix:///tmp/s?db=2") as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}?db=2"


async def test_hundreds_of_connections_come_and_go(proxy, database):
    before = len(await database.client_list())
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(proxy)) for _ in range(200)]

        async def ask(client, number):
            for i in range(5):
                key = f"{number}-{i}"
                assert await client.echo(key) == key.encode()

        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(clients):
                tasks.start_soon(ask, client, number)
        assert len(proxy.connections) == 200

    async def gone():
        return not proxy.connections and len(await database.client_list()) == before

    await wait_until(gone, "all are closed, on both sides")
    assert proxy.counts["ECHO"] == 1000


def test_without_an_event_loop_it_runs_in_a_thread(redis_url):
    with serving(redis_url) as (proxy, portal):
        point = proxy.failpoint("PING", at="reply")
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(b"PING\r\n")
            assert portal.call(point.reached).name == "PING"
            portal.call(point.release)
            assert client.recv(10) == b"+PONG\r\n"
            portal.call(proxy.cut)
            assert client.recv(10) == b""
