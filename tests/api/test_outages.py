"""The reader while its Redis is away, hangs, evicts or is wiped: says so at once, and recovers by itself."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import anyio
import msgspec
import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until

from api.conftest import Index, running_reader
from faults.proxy import Proxy
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.index import IndexWriter
from jiyi.settings import Settings
from jiyi_api.service import Service

pytestmark = pytest.mark.anyio

TIMEOUT_MS = 400


class Server:
    """A server of our own on a fixed port, to be stopped, frozen and started again."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self, *options):
        self.process = start_server(self.folder, self.port, *options)

    def stop(self):
        stop_server(self.process)

    def command(self, *words):
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*words)

    @property
    def settings(self):
        return Settings(
            redis_url=f"redis://127.0.0.1:{self.port}", data_dir=self.folder, redis_timeout_ms=TIMEOUT_MS, max_pool=10
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("own"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def own_reader(server, tmp_path_factory):
    with running_reader(server.settings, tmp_path_factory.mktemp("own-reader") / "log") as reader:
        yield reader


@pytest.fixture
async def own(server, own_reader, analyzer):
    """(server, reader, index) of a healthy set with an empty database."""
    database = await connect(server.settings)
    await database.flushall()
    own_reader.wait_for("/readyz", 200)
    yield server, own_reader, Index(database, analyzer)
    await database.aclose()
    assert not own_reader.failures(), own_reader.log.read_text()


def assert_unavailable(answer):
    assert answer.error[:2] == (503, "unavailable")
    assert int(answer.headers["Retry-After"]) >= 1


async def test_while_redis_is_away_every_answer_is_503_and_then_all_is_well(own):
    server, reader, index = own
    await index.write("m", "redis")
    assert reader.found("redis") == ["m"]
    server.stop()
    for _ in range(2):
        for answer in (
            reader.post("/memory/search", {"q": "redis"}),
            reader.get("/memory/search", q="redis"),
            reader.get("/memory/m"),
            reader.get("/memory/ready", id="m", wait="5s"),
            reader.post("/memory/write", {"content": "x"}),
            reader.request("DELETE", "/memory/m"),
        ):
            assert_unavailable(answer)
    red = reader.get("/readyz")
    assert (red.status, red.body["status"]) == (503, "not ready")
    assert "Redis does not answer" in red.body["checks"]["redis"]
    assert reader.get("/healthz").body == {"status": "alive"}
    assert reader.get("/metrics").status == 200
    assert reader.post("/memory/search", {"q": ""}).error[0] == 400, "what is wrong stays wrong"
    server.start()
    green = reader.wait_for("/readyz", 200)
    assert set(green.body["checks"].values()) == {"ok"}
    assert reader.found("redis") == [], "the server came back empty"
    await index.database.connection_pool.disconnect()  # our own client, not the reader's
    await index.write("n", "redis")
    assert reader.found("redis") == ["n"]
    assert reader.post("/memory/write", {"content": "x"}).status == 202


async def test_a_hanging_redis_keeps_nobody_waiting(own):
    """Searches of one namespace take turns: they must not wait for each other's timeouts one after the other."""
    server, reader, index = own
    await index.write("m", "redis")
    assert reader.found("redis") == ["m"]
    started = time.monotonic()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(30) as threads:
            answers = list(threads.map(lambda _: reader.post("/memory/search", {"q": "redis"}), range(30)))
            took_s = time.monotonic() - started
            for answer in answers:
                assert_unavailable(answer)
            assert_unavailable(reader.get("/memory/ready", id="m", wait="1s"))
            assert reader.get("/readyz").status == 503
            assert reader.get("/healthz").status == 200
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert took_s < 30 * TIMEOUT_MS / 1000 / 2, "thirty timeouts in a row would take twelve seconds"
    reader.wait_for("/readyz", 200)
    assert reader.found("redis") == ["m"]


async def test_a_server_that_refuses_to_be_asked_is_told_and_asked_again(own, tmp_path):
    """A missing permission is neither the end of a starting reader nor a failure of a running one."""
    server, reader, _ = own
    server.command("ACL", "SETUSER", "default", "-info")
    try:
        red = reader.get("/readyz")
        assert red.status == 503
        assert "permission" in red.body["checks"]["redis"]
        with running_reader(server.settings, tmp_path / "log", status=503) as starting:
            with anyio.fail_after(20):
                while "permission" not in starting.get("/readyz").body["checks"]["redis"]:
                    await anyio.sleep(0.05)
            server.command("ACL", "SETUSER", "default", "+info")
            starting.wait_for("/readyz", 200)
    finally:
        server.command("ACL", "SETUSER", "default", "+@all")
    assert reader.get("/readyz").status == 200


async def test_an_evicting_server_turns_readiness_red(own):
    server, reader, _ = own
    assert reader.get("/readyz").body["checks"]["eviction"] == "ok"
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        red = reader.get("/readyz")
        assert red.status == 503
        assert "allkeys-lru" in red.body["checks"]["eviction"]
        assert "noeviction" in red.body["checks"]["eviction"]
    finally:
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert reader.get("/readyz").status == 200


async def test_the_backlog_is_told_and_turns_nothing_red(own):
    server, reader, _ = own
    health = reader.get("/readyz").body
    assert health.pop("warnings")[0].startswith("the server's append-only file is off")
    assert health | {"checks": {}} == {
        "status": "degraded", "checks": {}, "lag": None, "pending": None, "oldestUnappliedMs": None, "kernel": "numba",
    }  # fmt: skip
    server.command("XGROUP", "CREATE", "stream:memory:write", "jiyi", "0", "MKSTREAM")
    for _ in range(3):
        reader.post("/memory/write", {"content": "x"})
    server.command("XREADGROUP", "GROUP", "jiyi", "w", "COUNT", 1, "STREAMS", "stream:memory:write", ">")
    health = reader.get("/readyz")
    assert health.status == 200
    assert (health.body["lag"], health.body["pending"]) == (2, 1)
    assert health.body["oldestUnappliedMs"] >= 0
    metrics = reader.get("/metrics").raw.decode()
    assert "\njiyi_stream_lag_entries 2.0" in metrics
    assert "\njiyi_pending_entries 1.0" in metrics


async def test_an_index_of_another_analyzer_is_refused_with_the_way_out(own):
    _, reader, index = own
    await index.write("m", "redis", ns="ours")
    other = IndexWriter(index.database, "0123456789abcdef")
    await other.apply("theirs", [index.change("m", "redis")])
    for answer in (reader.post("/memory/search", {"q": "redis", "ns": "theirs"}),
                   reader.get("/memory/search", q="redis", ns="theirs")):  # fmt: skip
        status, code, message = answer.error
        assert (status, code) == (503, "analyzer_mismatch")
        assert "jiyi reindex" in message
        assert answer.headers["Retry-After"]
    assert reader.found("redis", ns="ours") == ["m"]
    assert reader.get("/memory/m", ns="theirs").body["content"] == "redis", "what is stored can still be read"
    assert reader.get("/readyz").status == 200


async def test_scripts_that_the_server_forgot_are_sent_again(own):
    """B21: no client sees SCRIPT FLUSH."""
    server, reader, index = own
    await index.write("m", "redis")
    for _ in range(5):
        server.command("SCRIPT", "FLUSH")
        assert reader.found("redis") == ["m"]
        server.command("SCRIPT", "FLUSH")
        assert reader.ready("m")["ready"]
        server.command("SCRIPT", "FLUSH")
        assert reader.get("/readyz").status == 200


async def test_a_full_server_refuses_writes_and_still_answers(own):
    """B56: out of memory is "not now" for writes, and reads go on."""
    server, reader, index = own
    await index.write("m", "redis")
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        assert_unavailable(reader.post("/memory/write", {"content": "x"}))
        assert reader.found("redis") == ["m"]
        assert reader.get("/memory/m").status == 200
        assert reader.ready("m")["ready"]
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert reader.post("/memory/write", {"content": "x"}).status == 202


@pytest.mark.parametrize("size", [20, 60, 200])
async def test_a_wiped_and_rebuilt_namespace_answers_as_the_new_one(own, size):
    """The new journal and postings begin with the same generation, and are shorter, as long, or longer.

    What the reader has decoded belongs to another life of the namespace, and only the epoch tells.
    """
    _, reader, index = own
    await index.write_all({f"old{i}": f"redis word{i} extra text" for i in range(60)})
    assert reader.search("redis")["total"] == 60
    assert reader.search("word3")["total"] == 1
    await index.database.flushall()
    assert reader.ready("old1")["state"] == "unknown"
    await index.write_all({f"new{i}": f"redis word{i + 1}" for i in range(size)})
    body = reader.search("redis", limit=100)
    assert (body["total"], body["index"]) == (size, {"docs": size, "avgdl": 2.0})
    assert all(hit["id"].startswith("new") for hit in body["hits"])
    assert reader.found("word3") == ["new2"]
    assert reader.found("extra") == []
    await index.database.flushall()
    body = reader.search("redis")
    assert (body["hits"], body["index"]) == ([], {"docs": 0, "avgdl": 0.0})


async def test_a_reader_that_starts_before_redis_serves_when_it_comes(tmp_path):
    """It says why it is not ready, and holds no connections while it tries again."""
    server = Server(tmp_path)
    server.stop()
    with running_reader(server.settings, tmp_path / "log", status=503) as reader:
        assert_unavailable(reader.post("/memory/search", {"q": "redis"}))
        assert reader.get("/healthz").status == 200
        server.start("--maxmemory-policy", "allkeys-lru")
        try:
            with anyio.fail_after(20):
                while "allkeys-lru" not in reader.get("/readyz").body["checks"]["redis"]:
                    await anyio.sleep(0.05)
            for _ in range(4):
                attempts = reader.log.read_text().count("reader_waits")

                async def tried_again(attempts=attempts):
                    return reader.log.read_text().count("reader_waits") > attempts

                await wait_until(tried_again, "the reader tries again")
            ours = [line for line in server.command("CLIENT", "LIST").splitlines() if b"cmd=client" not in line]
            assert len(ours) <= 1, "each attempt must close what it opened"
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            reader.wait_for("/readyz", 200)
            assert reader.search("redis")["hits"] == []
        finally:
            server.stop()


def test_a_bad_setting_ends_the_process_with_the_status_for_it():
    bad = {**os.environ, "JIYI_API_PORT": "many"}
    done = subprocess.run([sys.executable, "-m", "jiyi_api"], env=bad, capture_output=True, timeout=30, check=False)
    assert done.returncode == 78
    assert b"JIYI_API_PORT" in done.stderr
    assert b"Traceback" not in done.stderr


async def test_sigterm_ends_the_process_in_peace(server, tmp_path):
    with running_reader(server.settings, tmp_path / "log") as reader:
        reader.process.terminate()
        assert reader.process.wait(15) in (0, -signal.SIGTERM)
        assert "Traceback" not in reader.log.read_text()


async def test_a_line_that_breaks_at_any_moment_of_the_start(server):
    """The reader tries again until it has everything; it does not end."""
    for nth in count(1):
        async with Proxy(f"redis://127.0.0.1:{server.port}") as proxy:
            service = Service(msgspec.structs.replace(server.settings, redis_url=proxy.url))
            point = proxy.failpoint("INFO", do="reset", nth=nth)

            async def started(service=service):
                with suppress(UnavailableError):
                    return service.parts

            async with service.running():
                await wait_until(started, "the reader has started")
        if not point.hits:
            break
    assert nth > 3
