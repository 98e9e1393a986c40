"""The metrics of a worker over HTTP: whoever scrapes, however badly, the next one is answered."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from urllib.request import urlopen

from conftest import free_port

SERVING = """
import resource, sys, time
from jiyi import metrics
port = int(sys.argv[1])
metrics.serve("127.0.0.1", port)
print("serving", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (4, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
before = time.process_time()
print("exhausted", flush=True)
sys.stdin.readline()
print(time.process_time() - before, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.stdin.readline()
"""


def scraped(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return b"jiyi_events_total" in answer.read()


def test_bad_scrapers_and_a_lack_of_descriptors_do_no_harm():
    """One says nothing, one leaves at once; without a descriptor the server pauses, instead of trying all the time."""
    port = free_port()
    command = [sys.executable, "-c", SERVING, str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:

        def told(line=None):
            if line is not None:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            return process.stdout.readline().strip()

        assert told() == "serving"
        with socket.create_connection(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()
            assert scraped(port)
        assert told("no descriptors") == "exhausted"
        with socket.create_connection(("127.0.0.1", port)):
            time.sleep(2)
            assert float(told("how much time")) < 0.5
        assert scraped(port)
        _, errors = process.communicate("end\n", timeout=20)
    assert errors == ""
