"""Child processes that end with us: how the embedded server and the services are started and signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process

PRIVATE_UMASK = 0o077
"""What the child makes is for its owner alone."""

# Runs in the child before its command. It is a program of its own because Python code between fork and exec
# (`preexec_fn`) can deadlock in a process with threads, and neither anyio nor uvloop offers it.
# PR_SET_PDEATHSIG (1): the kernel sends the signal when the thread that started us ends; a parent that was gone
# before the call is seen by the second look at it.
_LAUNCHER = """
import os, sys
parent, umask, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if umask >= 0:
    os.umask(umask)
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, *map(ctypes.c_ulong, (signal.SIGTERM, 0, 0, 0)))
    if os.getppid() != parent:
        sys.exit(1)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""


class EventCallback(Protocol):
    """Receives what an operator should know: a name and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Report one event; it must not block."""


async def launch(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    umask: int = -1,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a command in a session of its own, without input; on Linux it gets SIGTERM when our thread ends.

    `output` takes what it prints and `umask` is its umask; by default it shares ours. A command that cannot be run is
    a process that ends with status 1 and prints why.
    """
    return await anyio.open_process(
        [sys.executable, "-P", "-S", "-c", _LAUNCHER, str(os.getpid()), str(umask), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def terminate(process: Process) -> None:
    """Send SIGTERM, unless the process has ended."""
    # Not Process.send_signal: it may reap the child before the event loop does, which then never learns the code.
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)


def kill_session(process: Process) -> None:
    """Send SIGKILL to the process and to those that it has started, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
