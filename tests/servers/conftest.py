"""Fixtures of the tests in which the server itself suffers."""

from __future__ import annotations

import os
import secrets
import sys
from typing import NamedTuple

import pytest
import structlog
from api.conftest import Reader, running_reader

from jiyi.analysis import Analyzer
from jiyi.connections import connect
from servers.consumer import Consumer
from servers.load import Load
from servers.processes import OwnServer, impatient, running_workers


class Service(NamedTuple):
    """A server of our own with two workers and a reader that stay up whatever is done to it."""

    server: OwnServer
    workers: list
    reader: Reader

    def load(self, ns, **options):
        return Load(self.server.settings, ns, **options)

    def worker_lines(self, event=None):
        return [line for worker in self.workers for line in worker.lines(event)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    # Written before the answer, always: with `everysec` a slow fsync can make even that wait, and a kill loses it.
    file = ("--appendonly", "yes", "--appendfsync", "no")
    server = OwnServer(folder / "server", *file, "--enable-debug-command", "yes")
    try:
        with (
            running_workers(server.settings, folder / "workers") as workers,
            running_reader(server.settings, folder / "reader.log") as reader,
        ):
            yield Service(server, workers, reader)
    finally:
        server.stop()


@pytest.fixture
async def client(anyio_backend, service):
    """A client of the service's server with a pool of its own, patient enough for what is done to it."""
    connected = await connect(service.server.settings)
    yield connected
    await connected.aclose()


@pytest.fixture(scope="session")
def analyzer():
    return Analyzer()


@pytest.fixture
async def consumer(database, settings, analyzer):
    """A consumer on the shared test server, its group made."""
    consumer = Consumer(database, settings, analyzer)
    await consumer.stream.ensure_group()
    return consumer


@pytest.fixture(scope="session")
def reader_process(redis_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    with running_reader(impatient(redis_url, folder), folder / "log") as reader:
        yield reader


@pytest.fixture
def reader(reader_process):
    """A reader on the shared test server; no request may fail in it."""
    before = reader_process.failures()
    yield reader_process
    assert reader_process.failures() == before, reader_process.log.read_text()


@pytest.fixture(autouse=True)
def _quiet():
    """What the parts of workers log in our own process is not rendered: tracebacks take long."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def seed():
    """Seed of a test that rolls dice: `JIYI_TEST_SEED`, else another one each time; pytest shows it on a failure."""
    seed = int(os.environ.get("JIYI_TEST_SEED", secrets.randbelow(10**6)))
    sys.stdout.write(f"JIYI_TEST_SEED={seed}\n")
    return seed
