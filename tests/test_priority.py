"""Workers stand back behind the server and the readers, with their session where they lead one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, pathlib
from jiyi_workers.priority import stand_back

def session():
    try:
        return pathlib.Path("/proc/self/autogroup").read_text().split()[-1]
    except (OSError, IndexError):  # no such file, or an empty one: this session is in no group
        return "none"

os.nice({before})
before = session()
stand_back({nice})
print(os.getpriority(os.PRIO_PROCESS, 0), before, session())
"""


def stood_back(nice, *, before=0, leads):
    """The niceness of a process that has stood back; its session's before it did, and after: "none" in no group."""
    script = SCRIPT.format(nice=nice, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, start_new_session=leads
    )
    return done.stdout.split()


@pytest.mark.parametrize(("nice", "before"), [(10, 0), (0, 0), (5, 12)])
def test_niceness_is_raised_and_never_lowered(nice, before):
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    found, *_ = stood_back(nice, before=before, leads=True)
    assert int(found) == max(nice, min(ours + before, 19))


def test_the_session_follows_only_its_leader():
    _, before, led = stood_back(7, leads=True)
    assert led == ("none" if before == "none" else "7")
    _, before, joined = stood_back(7, leads=False)
    assert joined == before


def test_a_worker_has_the_niceness_of_its_setting():
    """From its start, while it still looks for its server: nobody listens on that port."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment |= {"JIYI_REDIS_URL": "redis://127.0.0.1:1", "JIYI_WORKER_NICE": "17"}
    with subprocess.Popen(
        [sys.executable, "-m", "jiyi_workers"], env=environment, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert "redis_unavailable" in worker.stderr.readline()
        niceness = os.getpriority(os.PRIO_PROCESS, worker.pid)
        worker.terminate()
    assert niceness == max(17, os.getpriority(os.PRIO_PROCESS, 0))
