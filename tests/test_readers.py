"""Several reader processes on one port: each answers, and one that dies is missed by nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from conftest import free_port

from jiyi.settings import Settings
from jiyi.sync_producer import SyncProducer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")


@contextmanager
def readers(redis_url, processes):
    port = free_port()
    settings = Settings(redis_url=redis_url, api_port=port, drain_ms=2_000)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    command = [sys.executable, "-m", "jiyi", "api", "--processes", str(processes)]
    with subprocess.Popen(command, env=environment | settings.to_environment(), stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: len(children(parent)) == processes and all(served(port) for _ in range(20)), "all answer")
            yield port, parent
        finally:
            parent.send_signal(signal.SIGTERM)
            assert parent.wait(30) == 0


def children(parent):
    """Ids of the reader processes."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(rest.split()[1]) == parent.pid and b"jiyi_api" in command:
            found.add(int(stat.parent.name))
    return found


def served(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except HTTPError:
        return False


def metrics(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def until(true, description, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {description}"
        time.sleep(0.05)


def test_readers_share_a_port_and_their_metrics_and_one_that_dies_is_started_again(redis_url, database):
    with SyncProducer(redis_url) as producer:
        producer.write(id="m", content="redis")
    with readers(redis_url, 2) as (port, parent):

        def search():
            with urlopen(f"http://127.0.0.1:{port}/memory/search?q=redis", timeout=20) as answer:
                return json.loads(answer.read())

        for _ in range(40):
            search()
        counted = metrics(port)
        assert counted['jiyi_http_requests_total{route="/memory/search",status="200"}'] == 40
        before = children(parent)
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        for _ in range(40):
            search()
        until(lambda: len(children(parent) - {killed}) == 2, "the one that died is started again")
        assert before < children(parent)
        for _ in range(40):
            search()


def test_a_port_that_is_taken_is_said_at_once(redis_url):
    with readers(redis_url, 2) as (port, _):
        environment = dict(os.environ) | Settings(redis_url=redis_url, api_port=port).to_environment()
        command = [sys.executable, "-m", "jiyi", "api", "--processes", "2"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert told.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in told.stderr.replace("\n", " ")
