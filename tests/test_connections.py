"""Commands on shared connections: each is carried to its end, whatever becomes of its caller."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from conftest import wait_until

from jiyi.connections import connect, execute

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
