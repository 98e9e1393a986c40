"""Workers stand back behind the server and the readers, with their session where they lead one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, pathlib
from jiyi_workers.priority import stand_back

os.nice({before})
stand_back({nice})
group = pathlib.Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), group.read_text().split()[-1] if group.exists() else "none")
"""


def stood_back(nice, *, before=0, leads):
    script = SCRIPT.format(nice=nice, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, start_new_session=leads
    )
    return done.stdout.split()


def own_group():
    group = Path("/proc/self/autogroup")
    return group.read_text().split()[-1] if group.exists() else "none"


@pytest.mark.parametrize(("nice", "before"), [(10, 0), (0, 0), (5, 12)])
def test_niceness_is_raised_and_never_lowered(nice, before):
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    found, _ = stood_back(nice, before=before, leads=True)
    assert int(found) == max(nice, min(ours + before, 19))


def test_the_session_follows_only_its_leader():
    _, led = stood_back(7, leads=True)
    _, joined = stood_back(7, leads=False)
    assert led == ("none" if own_group() == "none" else "7")
    assert joined == own_group()
