"""The whole reader on a cluster of three nodes, where stream and namespaces lie on different ones."""

import anyio
import pytest

from api.conftest import running_reader
from jiyi import keys
from jiyi.connections import connect
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster_settings(cluster_url, tmp_path_factory):
    return Settings(redis_url=cluster_url, data_dir=tmp_path_factory.mktemp("cluster"), max_pool=10)


@pytest.fixture(scope="module")
def cluster_reader(cluster_settings):
    with running_reader(cluster_settings, cluster_settings.data_dir / "log") as reader:
        yield reader


async def test_write_wait_search_and_delete_on_a_cluster(anyio_backend, cluster_settings, cluster_reader, analyzer):
    database = await connect(cluster_settings)
    await database.flushall(target_nodes="primaries")
    stream = EventStream(database, cluster_settings.stream, cluster_settings.group)
    await stream.ensure_group()
    pipeline = Pipeline(database, stream, analyzer, cluster_settings)
    reader = cluster_reader
    namespaces = ["a", "b", "c", "d"]
    slots = {database.keyslot(keys.stats_key(ns)) // 5462 for ns in namespaces}
    assert len(slots) > 1, "the namespaces must lie on different nodes"
    entries = {}
    for ns in namespaces:
        memories = [{"id": f"m{i}", "ns": ns, "content": f"redis {ns}"} for i in range(3)]
        accepted = reader.post("/memory/write", {"memories": memories}).body["accepted"]
        entries[ns] = [one["entry"] for one in accepted]
        assert reader.state("m0", ns=ns, entry=entries[ns][0]) == "pending"
    answers = {}

    async def wait(ns):
        answers[ns] = await anyio.to_thread.run_sync(
            lambda: reader.get("/memory/ready", id=["m0", "m1", "m2"], entry=entries[ns], ns=ns, wait="10s").body
        )

    async with anyio.create_task_group() as tasks:
        for ns in namespaces:
            tasks.start_soon(wait, ns)
        await pipeline.process(await stream.read_new("test", 100, 100))
    assert {one["state"] for answer in answers.values() for one in answer["memories"]} == {"ready"}
    for ns in namespaces:
        assert set(reader.found(f"redis {ns}", ns=ns)) == {"m0", "m1", "m2"}
        assert reader.request("DELETE", f"/memory/m1?ns={ns}").status == 202
    await pipeline.process(await stream.read_new("test", 100, 100))
    for ns in namespaces:
        assert set(reader.found("redis", ns=ns)) == {"m0", "m2"}
        assert reader.state("m1", ns=ns) == "deleted"
        assert reader.get("/memory/m1", ns=ns).status == 404
        assert reader.get("/memory/m2", ns=ns).body["content"] == f"redis {ns}"
    health = reader.get("/readyz").body
    assert (health["status"], health["lag"], health["pending"]) == ("degraded", 0, 0), "the servers keep no file"
    assert not reader.failures(), reader.log.read_text()
    await database.aclose()
