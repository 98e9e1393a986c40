"""A limit of wall-clock time for the analysis of one document, also for code that never comes back to Python."""

from __future__ import annotations

import faulthandler
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STANDARD_ERROR = 2


class Watchdog:
    """Ends the process when a watched block takes longer than the limit.

    Neither a thread nor a task could do it: native code may hold the interpreter for ever. So the kernel's alarm does:
    it prints where every thread stands (files and lines, no data) and ends the process by SIGALRM. The entry stays
    pending, is taken over alone, and is filed as dead letter after `JIYI_MAX_DELIVERIES`. There is one alarm a
    process, so there is one watchdog.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadlines: set[float] = set()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=_STANDARD_ERROR, chain=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context whose time is limited; several may overlap. Enter and leave it in the event loop's thread."""
        deadline = time.monotonic() + self._limit_s
        while deadline in self._deadlines:
            deadline += 1e-6
        self._deadlines.add(deadline)
        self._arm()
        try:
            yield
        finally:
            self._deadlines.discard(deadline)
            self._arm()

    def _arm(self) -> None:
        earliest = min(self._deadlines, default=None)
        left_s = 0.0 if earliest is None else max(1e-6, earliest - time.monotonic())  # 0 would disarm it
        signal.setitimer(signal.ITIMER_REAL, left_s)
