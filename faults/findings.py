"""What a run has found: violations, and a log of everything that was done."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from pathlib import Path

MOST = 200
"""Violations that are spelt out; the rest is counted."""


class Findings:
    """Collects violations and counts, and writes a log, a line for each event, with seconds since the start.

    `spoilt` is set at the first violation.
    """

    def __init__(self, log: Path) -> None:
        self.violations: list[str] = []
        self.count = 0
        self.faults: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.spoilt = anyio.Event()
        self._started = time.monotonic()
        self._log = log.open("w", buffering=1)

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started

    def note(self, what: str, text: str = "") -> None:
        """Log something that happened."""
        self._log.write(f"{self.seconds:9.3f} {what:18} {text}\n")

    def did(self, what: str, text: str = "") -> None:
        """Log and count something that was done."""
        self.done[what] += 1
        self.note(what, text)

    def violate(self, what: str, text: str) -> None:
        """Record something that must not be."""
        self.count += 1
        self.note("VIOLATION", f"{what}: {text}")
        if len(self.violations) < MOST:
            self.violations.append(f"at {self.seconds:.1f} s, {what}: {text}")
        self.spoilt.set()

    def close(self) -> None:
        """Close the log."""
        self._log.close()
