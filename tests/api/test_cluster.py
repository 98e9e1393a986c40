"""The whole reader on a cluster of three nodes, where stream and namespaces lie on different ones."""

import anyio
import pytest

from api.conftest import running_reader
from jiyi import keys
from jiyi.connections import connect
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_api.readiness import Wakeups
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster_settings(cluster_url, tmp_path_factory):
    return Settings(redis_url=cluster_url, data_dir=tmp_path_factory.mktemp("cluster"), max_pool=10)


@pytest.fixture(scope="module")
def cluster_reader(cluster_settings):
    with running_reader(cluster_settings, cluster_settings.data_dir / "log") as reader:
        yield reader


NAMESPACES = ["a", "b", "c", "d"]


@pytest.fixture
async def database(anyio_backend, cluster_settings):
    """A client of the emptied cluster, on whose nodes the namespaces are spread."""
    database = await connect(cluster_settings)
    await database.flushall(target_nodes="primaries")
    slots = {database.keyslot(keys.stats_key(ns)) // 5462 for ns in NAMESPACES}
    assert len(slots) > 1, "the namespaces must lie on different nodes"
    yield database
    await database.aclose()


@pytest.fixture
async def stream(database, cluster_settings):
    stream = EventStream(database, cluster_settings.stream, cluster_settings.group)
    await stream.ensure_group()
    return stream


@pytest.fixture
def pipeline(database, stream, analyzer, cluster_settings):
    return Pipeline(database, stream, analyzer, cluster_settings)


@pytest.fixture
def reader(cluster_reader):
    yield cluster_reader
    assert not cluster_reader.failures(), cluster_reader.log.read_text()


async def test_write_wait_search_and_delete_on_a_cluster(stream, pipeline, reader):
    entries = {}
    for ns in NAMESPACES:
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
        for ns in NAMESPACES:
            tasks.start_soon(wait, ns)
        await pipeline.process(await stream.read_new("test", 100, 100))
    assert {one["state"] for answer in answers.values() for one in answer["memories"]} == {"ready"}
    for ns in NAMESPACES:
        assert set(reader.found(f"redis {ns}", ns=ns)) == {"m0", "m1", "m2"}
        assert reader.request("DELETE", f"/memory/m1?ns={ns}").status == 202
    await pipeline.process(await stream.read_new("test", 100, 100))
    for ns in NAMESPACES:
        assert set(reader.found("redis", ns=ns)) == {"m0", "m2"}
        assert reader.state("m1", ns=ns) == "deleted"
        assert reader.get("/memory/m1", ns=ns).status == 404
        assert reader.get("/memory/m2", ns=ns).body["content"] == f"redis {ns}"
    health = reader.get("/readyz").body
    assert (health["status"], health["lag"], health["pending"]) == ("degraded", 0, 0), "the servers keep no file"


async def test_dead_letters_are_listed_shown_replayed_and_dropped_on_a_cluster(database, stream, pipeline, reader):
    async def work():
        entries = await stream.read_new("test", 100, 100)
        await pipeline.process(entries)
        return len(entries)

    def listed(ns):
        answer = reader.get("/dead", ns=ns)
        assert answer.status == 200, answer.raw
        return answer.body["letters"]

    for ns in NAMESPACES:
        for name in ("l", "m", "n", "o"):
            wrong = {"event": "write", "id": name, "ns": ns, "content": "redis", "importance": "9"}
            await database.xadd(stream.name, wrong)
    assert await work() == 4 * len(NAMESPACES)
    for ns in NAMESPACES:
        first, second, *_ = [one["letter"] for one in listed(ns)]
        shown = reader.get(f"/dead/{first}", ns=ns).body
        assert {one["name"]: one["value"] for one in shown["fields"]}["id"] == "l"
        assert reader.state("l", ns=ns) == "failed"
        assert reader.request("DELETE", f"/dead/{first}?ns={ns}").status == 200
        assert reader.state("l", ns=ns) == "unknown"
        assert reader.request("POST", f"/dead/{second}/replay?ns={ns}").status == 202
        assert reader.get(f"/dead/{second}", ns=ns).status == 404
        assert [one["id"] for one in listed(ns)] == ["n", "o"]
    assert await work() == len(NAMESPACES)
    for ns in NAMESPACES:
        assert [one["id"] for one in listed(ns)] == ["n", "o", "m"], "what fails again comes back"
        step = reader.request("POST", f"/dead/replay?ns={ns}&limit=2").body
        assert (step["count"], step["more"]) == (2, True)
        assert reader.request("POST", f"/dead/replay?ns={ns}&until={step['until']}").body["count"] == 1
        assert listed(ns) == []
    assert await work() == 3 * len(NAMESPACES)
    for ns in NAMESPACES:
        assert reader.request("DELETE", f"/dead?all=true&ns={ns}").body["count"] == 3
        assert listed(ns) == []
        assert (await database.hlen(keys.failed_key(ns)), await database.hlen(keys.letters_key(ns))) == (0, 0)


async def test_wakeups_live_through_a_time_in_which_no_node_is_known(database):
    """As while nodes are replaced: who waits looks by themselves meanwhile, and is woken again after."""
    wakeups = Wakeups(database)
    known = dict(database.nodes_manager.slots_cache)
    database.nodes_manager.slots_cache.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakeups.run)
        with wakeups.listening("a", ["m"]) as woken:
            await anyio.sleep(0.4)
            database.nodes_manager.slots_cache.update(known)
            with anyio.move_on_after(10) as patience:
                while not woken._event.is_set():
                    await database.execute_command("PUBLISH", keys.applied_channel("a"), "m")
                    await anyio.sleep(0.01)
            assert not patience.cancelled_caught
        tasks.cancel_scope.cancel()
