"""A reader process on a free port, an index to fill, and workers that run when a test says so."""

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from conftest import free_port

from jiyi.analysis import Analyzer
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_workers.pipeline import Pipeline

JSON = {"Content-Type": "application/json"}


def resident_bytes(process):
    """Memory of a process that is in use."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)

    @property
    def error(self):
        """(status, code, message) of a failure; every failure has this shape and no other field."""
        assert self.headers["Content-Type"] == "application/json"
        body = self.body
        assert set(body) == {"error"}
        assert set(body["error"]) == {"code", "message"}
        assert body["error"]["message"]
        return self.status, body["error"]["code"], body["error"]["message"]


class Reader:
    """A running `python -m jiyi_api`, spoken to over a socket of its own for each request."""

    def __init__(self, port, process, log):
        self.port, self.process, self.log = port, process, log
        self.may_fail = False

    def request(self, method, target, body=None, headers=JSON, timeout_s=20):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path, **parameters):
        return self.request("GET", path + (f"?{urlencode(parameters, doseq=True)}" if parameters else ""))

    def post(self, path, body):
        return self.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))

    def search(self, q, **fields):
        """Hits by id and the whole answer's body, which must be a success."""
        answer = self.post("/memory/search", {"q": q, **fields})
        assert answer.status == 200, answer.raw
        return answer.body

    def found(self, q, **fields):
        return [hit["id"] for hit in self.search(q, **fields)["hits"]]

    def ready(self, memory_id, **parameters):
        answer = self.get("/memory/ready", id=memory_id, **parameters)
        assert answer.status == 200, answer.raw
        return answer.body

    def state(self, memory_id, **parameters):
        return self.ready(memory_id, **parameters)["state"]

    def wait_for(self, path, status, timeout_s=90):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answer = self.get(path)
            except OSError:
                answer = None
            if answer is not None and answer.status == status:
                return answer
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{path} never gave {status}: {answer}\n{self.log.read_text()}"
            time.sleep(0.02)

    def failures(self):
        return self.log.read_text().count('"event": "request_failed"')


@contextmanager
def running_reader(settings, log, *, status=200, descriptors=None):
    """Run a reader with these settings until the end of the context; waits until /readyz gives `status`.

    `descriptors` is the limit of its files and connections.
    """
    port = free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    variables |= settings.to_environment() | {"JIYI_API_PORT": str(port)}
    command = [sys.executable, "-m", "jiyi_api"]
    if descriptors is not None:
        limit = f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors})); "
        command = [sys.executable, "-c", f"{limit}os.execv({sys.executable!r}, {command!r})"]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=out)
    reader = Reader(port, process, log)
    try:
        reader.wait_for("/readyz", status)
        yield reader
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def reader_process(redis_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    settings = Settings(redis_url=redis_url, data_dir=folder, max_wait_ms=5_000, max_pool=20, drain_ms=1_000)
    with running_reader(settings, folder / "log") as reader:
        yield reader


@pytest.fixture
def reader(reader_process):
    """The reader that all tests share; no request may fail in it unless a test says `may_fail`."""
    before = reader_process.failures()
    reader_process.may_fail = False
    yield reader_process
    if not reader_process.may_fail:
        assert reader_process.failures() == before, Path(reader_process.log).read_text()


@pytest.fixture(scope="session")
def analyzer():
    return Analyzer()


class Index:
    """Writes memories into the index as a worker does, in the order of the calls."""

    def __init__(self, database, analyzer):
        self.database, self.analyzer = database, analyzer
        self.writer = IndexWriter(database, analyzer.fingerprint)
        self.clock = count(1)

    def change(self, memory_id, content, **fields):
        memory = Memory.from_fields({"content": content, **fields}, 65_536)
        return Change(
            id=memory_id, version=f"{next(self.clock)}-0", memory=memory, version_hash=memory.version_hash(),
            terms=self.analyzer.terms(content),
        )  # fmt: skip

    async def write(self, memory_id, content, ns="default", **fields):
        change = self.change(memory_id, content, **fields)
        await self.writer.apply(ns, [change])
        return change.version

    async def write_all(self, contents, ns="default"):
        await self.writer.apply(ns, [self.change(memory_id, content) for memory_id, content in contents.items()])

    async def delete(self, memory_id, ns="default"):
        await self.writer.apply(ns, [Change(id=memory_id, version=f"{next(self.clock)}-0", memory=None)])


@pytest.fixture
def index(database, analyzer):
    return Index(database, analyzer)


@pytest.fixture
async def work(database, analyzer, settings):
    """A coroutine that does what workers do with everything on the stream; gives the number of entries."""
    stream = EventStream(database, settings.stream, settings.group)
    pipeline = Pipeline(database, stream, analyzer, settings)

    async def work():
        await stream.ensure_group()
        entries = [*await stream.read_own("test", 1000), *await stream.read_new("test", 1000, 1)]
        await pipeline.process(entries)
        return len(entries)

    return work
