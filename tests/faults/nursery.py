"""What the fork server of `processes` loads once, so that a process is up in an instant. Importing this warms it up."""

import os
import resource
import signal
import sys
from pathlib import Path

import anyio

from faults.ledger import Ledger
from jiyi import Producer
from jiyi.analysis import Analyzer
from jiyi.settings import Settings
from jiyi_workers.__main__ import main

DEADLY = "this-text-kills"
ENDLESS = "this-text-never-ends"
GREEDY = "this-text-takes-all-memory"

HEADROOM_BYTES = 512 << 20
"""Address space that a limited worker has beyond what it begins with: threads reserve a lot and use little."""

_terms = Analyzer.terms
Analyzer().warm_up()


def run_worker(environment, log):
    """Be a worker process with this environment, as `python -m jiyi_workers`."""
    _become(environment, log)
    sys.exit(main())


def run_poisoned_worker(environment, log):
    """Be a worker whose analyzer meets its master in certain texts."""
    Analyzer.terms = poisoned
    run_worker(environment, log)


def run_limited_worker(environment, log):
    """Be such a worker, which gets no more memory than `HEADROOM_BYTES`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_BYTES, used + HEADROOM_BYTES))
    run_poisoned_worker(environment, log)


def run_producer(environment, log, ledger, count):
    """Write memories one by one on the record, as far as it goes."""
    _become(environment, log)

    async def write():
        async with Producer(settings=Settings.from_environment()) as producer:
            book = Ledger(Path(ledger))
            for i in range(count):
                await book.write(producer, "default", f"m{i}", f"记忆 number {i}")

    anyio.run(write)


def poisoned(self, text):
    """`Analyzer.terms`, until the text is one of the three."""
    if DEADLY in text:
        os.kill(os.getpid(), signal.SIGKILL)
    while ENDLESS in text:
        pass
    hoard = []
    while GREEDY in text:
        hoard.append(bytes(16 << 20))  # zeros, which take address space alone
    return _terms(self, text)


def _become(environment, log):
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(out, stream.fileno())
