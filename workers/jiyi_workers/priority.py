"""The priority of a worker: on a busy machine, what people wait for goes first, the server and the readers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def stand_back(nice: int) -> None:
    """Raise the niceness of this process to `nice`; one that is higher already stays.

    Where Linux shares the processor out among sessions first (autogroup, see sched(7)), that counts within a session
    only. So a worker that leads a session of its own, as every child of `jiyi up` and `jiyi worker` does, gives the
    session the same niceness.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # another system, or not allowed: then the first line has to do
            _AUTOGROUP.write_text(str(nice))
