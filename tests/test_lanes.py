"""Lanes: questions in a row on one connection, and each caller gets the answer to their own."""

from __future__ import annotations

import asyncio
import gc

import anyio
import msgspec
import pytest
from conftest import wait_until
from redis.exceptions import ResponseError

from jiyi import keys
from jiyi.connections import connect, server_of
from jiyi.errors import UnavailableError
from jiyi.lanes import ask, lane_of
from jiyi.settings import Settings

pytestmark = pytest.mark.anyio


async def test_questions_that_overtake_nobody_get_their_own_answers(either):
    """Hundreds at once, of all sizes, on a server and on every node of a cluster."""
    values = {f"key{i}": bytes([i % 256]) * (i * 37 % 5_000) for i in range(300)}
    for name, value in values.items():
        await either.set(name, value)
    found = {}

    async def get(name):
        found[name] = await ask(either, name, "GET", name)

    async with anyio.create_task_group() as tasks:
        for name in values:
            tasks.start_soon(get, name)
    assert found == values
    assert {lane_of(either, name).is_open for name in values} == {True}


async def test_the_answer_to_a_caller_who_has_left_goes_to_nobody(database):
    await database.mset({f"key{i}": i for i in range(50)})
    await ask(database, "key0", "GET", "key0")
    lane, found = lane_of(database, "key0"), {}

    async def get(i):
        found[i] = await ask(database, f"key{i}", "GET", f"key{i}")

    for leaving in range(15):
        async with anyio.create_task_group() as tasks:
            scopes = {}

            async def leave(i, scopes=scopes):
                with anyio.CancelScope() as scopes[i]:
                    await ask(database, f"key{i}", "GET", f"key{i}")
                    found["left"] = i

            for i in range(50):
                tasks.start_soon(leave if i % 3 == leaving % 3 else get, i)
            await anyio.lowlevel.checkpoint()
            for scope in scopes.values():
                scope.cancel()
        assert "left" not in found
    assert found == {i: b"%d" % i for i in range(50)}
    assert lane_of(database, "key0") is lane, "the connection is still in order"


async def test_what_is_asked_in_one_turn_of_the_loop_is_sent_together(database):
    """The first goes at once, for most are alone; those behind it arrive as one."""
    await database.mset({f"key{i}": i for i in range(200)})
    await ask(database, "key0", "GET", "key0")
    lane = lane_of(database, "key0")
    before = await database.info("stats")
    answers = [lane.ask("GET", "key0")]
    assert lane.has_sent
    answers += [lane.ask("GET", f"key{i}") for i in range(1, 200)]
    assert not lane.has_sent
    await asyncio.sleep(0)
    assert lane.has_sent
    assert await asyncio.gather(*answers) == [b"%d" % i for i in range(200)]
    after = await database.info("stats")
    assert after["total_reads_processed"] - before["total_reads_processed"] < 20


async def test_a_lane_that_ends_before_the_turn_does_fails_what_was_not_sent(database):
    await ask(database, "key", "GET", "key")
    lane = lane_of(database, "key")
    answers = [lane.ask("GET", "key") for _ in range(3)]
    lane.close()
    for found in await asyncio.gather(*answers, return_exceptions=True):
        assert isinstance(found, UnavailableError)


async def test_a_lane_that_has_ended_takes_no_more_questions(either):
    """It may end between its opening and its first question: that is an outage, and not a broken event loop."""
    await ask(either, "key", "GET", "key")
    lane = lane_of(either, "key")
    lane.close()
    for _ in range(3):
        with pytest.raises(UnavailableError):
            lane.ask("GET", "key")
        await anyio.sleep(0.01)
    assert await ask(either, "key", "GET", "key") is None


async def test_what_the_server_refuses_is_raised_and_the_lane_stays_open(either):
    await either.set("text", "x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await ask(either, "text", "HGETALL", "text")
    assert lane_of(either, "text").is_open
    assert await ask(either, "text", "GET", "text") == b"x"


async def test_a_server_that_does_not_answer_is_given_up_and_asked_anew_later(database, settings):
    asking = await connect(msgspec.structs.replace(settings, redis_timeout_ms=700))
    assert await ask(asking, "k", "GET", "k") is None
    lane = lane_of(asking, "k")
    await database.client_pause(1_500, all=True)
    with pytest.raises(UnavailableError) as raised:
        await ask(asking, "k", "GET", "k")
    assert raised.value.code == "timeout"
    assert not lane.is_open, "its late answer would be taken for that of the next question"

    async def answers():
        try:
            return await ask(asking, "k", "GET", "k") is None
        except UnavailableError:
            return False

    await wait_until(answers, "the server answers again")
    assert lane_of(asking, "k") is not lane
    await asking.aclose()


async def test_a_connection_that_ends_fails_the_questions_on_it_and_no_later_ones(database, settings):
    asking = await connect(settings)
    await ask(asking, "k", "GET", "k")
    failures = []

    async def wait():
        try:
            await ask(asking, "list", "BLPOP", "list", 20)  # not one to ask, but one to wait for
        except UnavailableError as error:
            failures.append(error.code)

    async def waits():
        return (await database.info("clients"))["blocked_clients"] == 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await wait_until(waits, "the question is with the server")
        await database.client_kill_filter(_type="normal", skipme=True)
    assert failures == ["connection"]
    assert await ask(asking, "k", "GET", "k") is None
    await asking.aclose()


@pytest.mark.parametrize("answer", [b"?no RESP at all\r\n", b"$-7\r\n", b"+OK\r\n+OK\r\n"])
async def test_an_answer_that_is_none_ends_the_connection(database, answer):
    """Garbage, and an answer to nothing: after either, nobody could say which answer is whose."""
    await ask(database, "k", "GET", "k")
    lane = lane_of(database, "k")
    lane.data_received(answer)
    assert not lane.is_open
    assert await ask(database, "k", "GET", "k") is None
    assert lane_of(database, "k") is not lane


async def test_a_closed_client_leaves_no_connection_behind(database, settings):
    before = len(await database.client_list())
    asking = await connect(settings)
    await ask(asking, "k", "GET", "k")
    assert len(await database.client_list()) > before
    await asking.aclose()
    del asking
    gc.collect()

    async def gone():
        return len(await database.client_list()) == before

    await wait_until(gone, "the connections have ended")


async def test_a_node_that_does_not_have_the_slot_any_more_is_no_obstacle(cluster_url):
    """The lane is refused with MOVED; the library follows it."""
    database = await connect(Settings(redis_url=cluster_url))
    names = [f"key{i}" for i in range(20)]
    for name in names:
        await database.set(name, name)
        await ask(database, name, "GET", name)
    nodes = {database.get_node_from_key(name).name for name in names}
    assert len(nodes) == 3
    # As after a slot has moved: our map leads everything to one node.
    target = database.get_node_from_key(names[0])
    for slot in database.nodes_manager.slots_cache:
        database.nodes_manager.slots_cache[slot] = [target]
    assert [await ask(database, name, "GET", name) for name in names] == [name.encode() for name in names]
    for name in names:
        await database.delete(name)
    await database.aclose()


async def test_a_lane_knows_which_process_it_leads_to(database):
    await ask(database, keys.NAMESPACES, "SCARD", keys.NAMESPACES)
    lane = lane_of(database, keys.NAMESPACES)
    assert lane.server == server_of(database, keys.NAMESPACES)
    assert lane.server.startswith((await database.info("server"))["run_id"])
