"""Commands on shared connections: each is carried to its end, whatever becomes of its caller."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from conftest import wait_until
from redis.asyncio import Redis

from jiyi.connections import connect, execute, server_of, translated_errors
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


async def test_a_slot_on_its_way_to_a_node_that_is_not_known_yet(cluster_url, settings):
    """Redis answers ASK with the node's address, the library does not find it: the cluster cannot do it now."""
    database = await connect(msgspec.structs.replace(settings, redis_url=cluster_url))
    slot = database.keyslot("on its way")
    source = database.get_node_from_key("on its way")
    target = next(node for node in database.get_primaries() if node is not source)
    names = [(await node.execute_command("CLUSTER", "MYID")).decode() for node in (source, target)]
    known = database.nodes_manager.nodes_cache
    try:
        await target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        await source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        assert await execute(database, "GET", "on its way") is None, "the library asks the node that it knows"
        del known[target.name]
        with pytest.raises(UnavailableError) as raised:
            await execute(database, "GET", "on its way")
        assert raised.value.code == "cluster"
    finally:
        known[target.name] = target
        for node in (source, target):
            await node.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        await database.aclose()


async def test_a_slot_that_the_client_does_not_know(cluster_url, settings):
    database = await connect(msgspec.structs.replace(settings, redis_url=cluster_url))
    database.nodes_manager.slots_cache.clear()
    with pytest.raises(UnavailableError):
        await execute(database, "GET", "key")
    with pytest.raises(UnavailableError):
        server_of(database, "key")
    await database.aclose()


async def test_nodes_that_send_a_client_back_and_forth(cluster_url, settings):
    """The first says that the second has the slot, and the second that the first has it: the library gives up."""
    database = await connect(msgspec.structs.replace(settings, redis_url=cluster_url))
    slot = database.keyslot("back and forth")
    first = database.get_node_from_key("back and forth")
    second = next(node for node in database.get_primaries() if node is not first)
    names = [(await node.execute_command("CLUSTER", "MYID")).decode() for node in (first, second)]
    try:
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        with pytest.raises(UnavailableError) as raised:
            await execute(database, "GET", "back and forth")
        assert raised.value.code == "cluster"
    finally:
        await first.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])
        await database.aclose()
