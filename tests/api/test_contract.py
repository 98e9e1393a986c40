"""Our own clients against the real reader: what one side sends and gives, the other takes."""

from datetime import UTC, datetime

import anyio
import pytest

from jiyi.client import Client, SyncClient
from jiyi.errors import ApiError, InvalidEventError
from jiyi.producer import Producer

pytestmark = pytest.mark.anyio


async def test_a_memory_goes_round_through_the_client(reader, work):
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write(
            id="dir/ü //x", ns="team 一", content="redis 流", tags=["t"], importance=0.7, metadata={"snake_case": [1]},
            timestamp=datetime(2026, 5, 4, tzinfo=UTC), source_system="chat",
        )  # fmt: skip
        (pending,) = await client.ready(accepted.id, accepted.entry, ns=accepted.ns)
        assert pending.state == "pending"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            (ready,) = await client.wait_ready(accepted, 10)
        assert (ready.ready, ready.entry) == (True, accepted.entry)
        result = await client.search("redis", ns="team 一", explain=True, source_system="chat", min_importance=0.7)
        (hit,) = result.hits
        assert (hit.id, hit.content, hit.source_system) == ("dir/ü //x", "redis 流", "chat")
        assert (hit.metadata, list(hit.tags)) == ({"snake_case": [1]}, ["t"])
        assert hit.score == sum(part.score for part in hit.matched_terms)
        assert hit.explanation.docs == result.index.docs == 1
        assert (await client.get(accepted.id, ns="team 一")).entry == accepted.entry
        deletion = await client.delete(accepted.id, ns="team 一")
        await work()
        assert [one.state for one in await client.wait_ready([deletion, accepted], 10)] == ["deleted", "deleted"]
        with pytest.raises(ApiError) as missing:
            await client.get(accepted.id, ns="team 一")
        assert (missing.value.status, missing.value.code) == (404, "not_found")
        with pytest.raises(ApiError, match="limit: is 101") as refused:
            await client.search("redis", limit=101)
        assert (refused.value.status, refused.value.code) == (400, "invalid_query")


async def test_many_long_ids_are_asked_for_in_requests_of_a_size_that_is_read(reader, work):
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write_many([{"id": "记" * 84 + f"{i:03}", "content": "redis"} for i in range(150)])
        await work()
        assert {one.state for one in await client.wait_ready(accepted, 10)} == {"ready"}


async def test_the_producer_and_the_client_write_the_same(reader, work, settings, database):
    """The same memory by Redis and by HTTP is the same version: the second write changes nothing."""
    fields = {"id": "m", "content": "redis", "author": "chen", "tags": ["a"], "importance": 0.25, "expires_at": 10**13}
    async with Producer(settings=settings) as producer:
        await producer.write(**fields, metadata={"k": 1.5})
    await work()
    first = reader.get("/memory/m").body
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write(**fields, metadata={"k": 1.5})
    await work()
    second = reader.get("/memory/m").body
    assert second.pop("entry") == accepted.entry
    assert first.pop("entry") != accepted.entry
    assert first == second
    assert int(await database.hget("stats:{default}", "next_doc")) == 1


async def test_the_client_without_asyncio_speaks_to_it_too(reader, work):
    with SyncClient(f"http://127.0.0.1:{reader.port}") as client:
        accepted = client.write_many([{"content": f"redis {i}"} for i in range(3)])
        await work()
        found = await anyio.to_thread.run_sync(lambda: client.wait_ready(accepted, 10))
        assert {one.state for one in found} == {"ready"}
        assert client.search("redis").total == 3
        with pytest.raises((InvalidEventError, ApiError), match="importance"):
            client.write(content="x", importance=2)
