"""Real servers for the tests: one Valkey or Redis of our own, and a cluster of three nodes.

`JIYI_TEST_REDIS_URL` names another server to test against; its database must be empty and is emptied again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import anyio
import hypothesis
import pytest
import redis

from jiyi.binaries import find_binary
from jiyi.connections import connect
from jiyi.settings import Settings

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


# No test fails because the machine is slow, nor, with a seed, because of dice that the change at hand did not throw.
# For a defect that was planted it is enough that a test fails: to find the shortest example would take minutes.
_PLANTED = bool(os.environ.get("JIYI_TEST_PLANTED"))
hypothesis.settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("JIYI_TEST_SEED")) or _PLANTED,
    phases=[phase for phase in hypothesis.Phase if not _PLANTED or phase.name not in ("shrink", "explain")],
)
hypothesis.settings.load_profile("patient")

FAST = {"claim_idle_ms": 400, "document_timeout_ms": 350, "sweep_ms": 100, "block_ms": 200, "worker_nice": 0}
"""Settings of workers that take over soon what another one held; no text of a test takes long to analyse, unless the
worker stands back behind the tests."""


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def wait_until(predicate, description, timeout_s=20.0, poll_s=0.01):
    """Wait until an async predicate gives something true, and give that; fail with the description if never."""
    with anyio.move_on_after(timeout_s):
        while True:
            if result := await predicate():
                return result
            await anyio.sleep(poll_s)
    pytest.fail(f"not within {timeout_s} s: {description}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(folder, port, *options):
    process = subprocess.Popen(
        [find_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
         "--logfile", f"{folder}/server.log", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        restore_signals=False,  # Python ignores SIGXFSZ: a server that may not write more shall get an error
    )  # fmt: skip
    client = redis.Redis(port=port, protocol=2)
    deadline = time.monotonic() + 60
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                pytest.fail(f"server on port {port} did not start")
            assert process.poll() is None, Path(folder, "server.log").read_text(errors="replace")
            time.sleep(0.02)
        else:
            client.close()
            return process


def stop_server(process):
    process.terminate()
    end(process)


def end(process):
    """Wait for a process that has been told to stop, and kill it if it does not."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_jieba_dictionary = []


@pytest.fixture
def quick_jieba(monkeypatch):
    """Many tokenizers of jieba: its dictionary, which takes a second to read, is read once and copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jieba = import_module("jieba")

    class Copied(jieba.Tokenizer):
        def gen_pfdict(self, file):
            with file:
                if not _jieba_dictionary:
                    _jieba_dictionary.extend(super().gen_pfdict(file))
            frequencies, total = _jieba_dictionary
            return dict(frequencies), total

    monkeypatch.setattr(jieba, "Tokenizer", Copied)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """URL of a server with an empty database."""
    if url := os.environ.get("JIYI_TEST_REDIS_URL"):
        client = redis.Redis.from_url(url, protocol=2)
        assert client.dbsize() == 0, f"{url} is not empty: the tests would destroy its data"
        client.close()
        yield url
        return
    port = free_port()
    process = start_server(tmp_path_factory.mktemp("server"), port)
    yield f"redis://127.0.0.1:{port}"
    stop_server(process)


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory):
    """URL of one node of a cluster of three, all slots served."""
    ports = [free_port() for _ in range(3)]
    processes = [
        start_server(tmp_path_factory.mktemp(f"node{i}"), port, "--cluster-enabled", "yes",
                     "--cluster-port", str(free_port()), "--cluster-node-timeout", "2000")
        for i, port in enumerate(ports)
    ]  # fmt: skip
    nodes = [redis.Redis(port=port, protocol=2) for port in ports]
    bounds = [0, 5461, 10923, 16384]
    for i, node in enumerate(nodes):
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
    for port, process in zip(ports[1:], processes[1:], strict=True):
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, _bus_port(process))
    deadline = time.monotonic() + 20
    while not all(_knows_all(node) for node in nodes):
        assert time.monotonic() < deadline, "the cluster did not form"
        time.sleep(0.05)
    for node in nodes:
        node.close()
    yield f"redis://127.0.0.1:{ports[0]}"
    for process in processes:
        stop_server(process)


def _bus_port(process):
    arguments = process.args
    return arguments[arguments.index("--cluster-port") + 1]


def _knows_all(node):
    info = node.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info


@pytest.fixture
def settings(redis_url, tmp_path):
    """Settings of a fast pipeline on the test server."""
    return Settings(redis_url=redis_url, data_dir=tmp_path / "data", **FAST)


@pytest.fixture
async def database(anyio_backend, settings):
    """A client of the test server with an empty database."""
    client = await connect(settings)
    await client.flushdb()
    yield client
    await client.flushdb()
    await client.aclose()


@pytest.fixture(params=["server", "cluster"])
async def either(request, anyio_backend, settings):
    """A client of the test server, and in a second run one of the three-node cluster; emptied."""
    if request.param == "server":
        client = await connect(settings)
        empty = client.flushdb
    else:
        client = await connect(Settings(redis_url=request.getfixturevalue("cluster_url")))
        empty = partial(client.flushall, target_nodes="primaries")
    await empty()
    yield client
    await empty()
    await client.aclose()


@contextmanager
def running(module, settings, count=1):
    """Processes of a service, ended at the end of the context; gives them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment |= settings.to_environment()
    started = [subprocess.Popen([sys.executable, "-m", module], env=environment) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            end(process)
