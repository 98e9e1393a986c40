"""A server of our own that tests may kill, freeze, starve and damage, and worker processes whose log can be read."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import redis
from conftest import FAST, end, free_port, start_server, stop_server

from jiyi.settings import Settings

TIMEOUT_MS = 1_000
"""How long the processes of these tests wait for an answer of Redis: outages shall be noticed soon."""


class OwnServer:
    """A server on a port of its own. It keeps its folder and port over restarts."""

    def __init__(self, folder, *options):
        self.folder, self.port, self.options = folder, free_port(), options
        self.process = None
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self, *options):
        """Start, and wait until the data are loaded."""
        self.process = start_server(self.folder, self.port, *self.options, *options)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            stop_server(self.process)

    def command(self, *words, **options):
        with redis.Redis(port=self.port, protocol=2, **options) as client:
            return client.execute_command(*words)

    def last_entry(self, stream):
        """The newest entry id that a stream has ever had."""
        flat = self.command("XINFO", "STREAM", stream)
        return dict(zip(flat[::2], flat[1::2], strict=True))[b"last-generated-id"].decode()

    def append_only_files(self):
        """The files to which commands are appended now; one, except while they are rewritten."""
        return sorted(self.folder.glob("appendonlydir/*.incr.aof"))

    @contextmanager
    def full_disk(self):
        """No file may become longer than the append-only file is now: the limit of a process, as a full disk is."""
        limit = max(path.stat().st_size for path in self.append_only_files()) + 5_000
        pid = self.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            yield
        finally:
            if self.process.poll() is None:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    @property
    def settings(self):
        """Settings of impatient processes on this server."""
        return impatient(self.url, self.folder)

    @property
    def patient(self):
        """Settings of the test's own process, for servers that do not suffer while it asks."""
        return Settings(redis_url=self.url, data_dir=self.folder)


def impatient(url, folder):
    """Settings with which an outage is noticed, and entries of the dead are taken over, within a second."""
    return Settings(
        redis_url=url, data_dir=folder, redis_timeout_ms=TIMEOUT_MS, max_pool=10, confirm_ms=TIMEOUT_MS // 2, **FAST
    )  # fmt: skip


class WorkerProcess:
    """A worker whose log lines go to a file."""

    def __init__(self, settings, log):
        self.log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jiyi_workers"], env=environment | settings.to_environment(), stderr=out
            )

    def lines(self, event=None):
        """Log lines so far, decoded; those of one event where it is given."""
        found = []
        for line in self.log.read_text().splitlines():
            assert line.startswith("{"), f"not a log line: {line}"
            found.append(json.loads(line))
        return [line for line in found if event in (None, line["event"])]


@contextmanager
def running_workers(settings, folder, count=2):
    """Worker processes until the end of the context; there each must still be alive, and end in peace."""
    folder.mkdir(exist_ok=True)
    workers = [WorkerProcess(settings, folder / f"worker{i}.log") for i in range(count)]
    try:
        yield workers
        for worker in workers:
            assert worker.process.poll() is None, worker.log.read_text()[-5_000:]
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            end(worker.process)
    assert [worker.process.returncode for worker in workers] == [0] * count
