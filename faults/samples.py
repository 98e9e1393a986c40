"""Sizes over time: whatever runs for long must come to a plateau."""

from __future__ import annotations

import time
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from redis.exceptions import RedisError

from jiyi.connections import execute
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from faults.findings import Findings
    from faults.service import Service

_LEAST = 30
"""Samples below which nothing can be said."""
_GROWTH = 1.5
"""The median of the last third may be so many times that of the second, and `_SLACK` more."""
_SLACK = {"worker bytes": 30e6, "reader bytes": 60e6, "worker files": 20, "reader files": 40, "connections": 40}
_KEPT = 4_000
_MUCH, _LITTLE, _PATIENCE_S = 1_000, 200, 20


class Plateau(msgspec.Struct, frozen=True):
    """One size: the greatest, and the medians of the second and the last third of the time."""

    most: float
    middle: float
    last: float


class Samples:
    """Measures the stream, the server and the processes; the newest values are attributes."""

    def __init__(self, service: Service, findings: Findings, every_s: float) -> None:
        self.length = self.pending = 0
        self._service, self._findings, self._every_s = service, findings, every_s
        self._series: dict[str, list[float]] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            with suppress(UnavailableError, RedisError):
                await self._measure()
            await anyio.sleep(self._every_s)

    async def _measure(self) -> None:
        service = self._service
        info: Any = await service.database.info()
        self.length = int(await execute(service.database, "XLEN", service.settings.stream))
        self._add("stream entries", self.length)
        self._add("server bytes", info["used_memory"])
        self._add("connections", info["connected_clients"])
        if (state := await service.stream.state(time.time_ns() // 10**6)) is not None:
            self.pending = state.pending
            self._add("pending entries", state.pending)
            self._add("consumers", state.consumers)
        for kind, members in (("worker", service.workers), ("reader", service.readers)):
            usages = [usage for member in members if (usage := member.usage()) is not None]
            if usages:
                self._add(f"{kind} bytes", max(usage.bytes for usage in usages))
                self._add(f"{kind} files", max(usage.files for usage in usages))

    async def catching_up(self) -> float:
        """Wait while much too much is on the stream, but not for ever; gives how long, in seconds.

        On a slow machine workers would else be killed before they have begun, and nothing would be tested.
        """
        started = time.monotonic()
        if self.length > _MUCH:
            with anyio.move_on_after(_PATIENCE_S):
                while True:
                    if self.length < _LITTLE:
                        break
                    await anyio.sleep(self._every_s)
        return time.monotonic() - started

    def _add(self, name: str, value: float) -> None:
        series = self._series.setdefault(name, [])
        series.append(value)
        if len(series) > _KEPT:
            del series[::2]

    def plateaus(self) -> dict[str, Plateau]:
        """Summarise each size."""
        return {
            name: Plateau(
                max(series), median(series[len(series) // 3 : 2 * len(series) // 3 + 1]),
                median(series[2 * len(series) // 3 :]),
            )
            for name, series in self._series.items()
        }  # fmt: skip

    def judge(self) -> None:
        """Report as a violation what still grows."""
        for name, plateau in self.plateaus().items():
            slack = _SLACK.get(name)
            if slack is None or len(self._series[name]) < _LEAST:
                continue
            if plateau.last > _GROWTH * plateau.middle + slack:
                self._findings.violate(
                    "growth", f"{name}: {plateau.middle:,.0f} in the middle, {plateau.last:,.0f} last"
                )
