"""A document that takes for ever ends the process, whatever it is stuck in; one that is done in time does not."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import re, sys, threading, time
from jiyi_workers.watchdog import Watchdog

watchdog = Watchdog({limit})
{body}
print("survived")
"""

STUCK = {
    "in Python": "def stuck_here():\n    while True:\n        pass\nwith watchdog.watching():\n    stuck_here()",
    "in native code that never lets go of the interpreter": (
        "def stuck_here():\n    re.match(r'(a+)+$', 'a' * 60 + 'b')\nwith watchdog.watching():\n    stuck_here()"
    ),
    "in a thread": (
        "def stuck_here():\n    time.sleep(60)\nthread = threading.Thread(target=stuck_here)\n"
        "with watchdog.watching():\n    thread.start(); thread.join()"
    ),
    "while a later one is done": (
        "def stuck_here():\n    time.sleep(60)\n"
        "with watchdog.watching():\n    with watchdog.watching():\n        pass\n    stuck_here()"
    ),
}


def run(limit, body):
    script = SCRIPT.format(limit=limit, body=body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=False)


@pytest.mark.parametrize("body", STUCK.values(), ids=STUCK.keys())
def test_the_process_ends_and_says_where_it_was(body):
    done = run(0.2, body)
    assert done.returncode == -signal.SIGALRM
    assert b"stuck_here" in done.stderr
    assert b"survived" not in done.stdout


def test_who_is_done_in_time_is_left_alone():
    body = (
        "for _ in range(3):\n    with watchdog.watching():\n        time.sleep(0.05)\n"
        "try:\n    with watchdog.watching():\n        raise ValueError\nexcept ValueError:\n    pass\n"
        "time.sleep(1)"
    )
    done = run(0.5, body)
    assert (done.returncode, done.stdout) == (0, b"survived\n"), done.stderr
