"""What can be wrong with a connection without breaking it. The names are toxiproxy's.

A toxic gets each chunk of bytes and passes it on late, slowly, in pieces or not at all. The empty chunk stands for
the end of the connection and passes through the same toxics.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Forward = Callable[[bytes], Awaitable[None]]

_TICKS_PER_S = 20


class CutError(Exception):
    """Raised by a toxic that ends the connection."""


class Toxic:
    """Passes everything on as it came; the base of the others. One toxic can serve any number of connections."""

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on."""
        await forward(data)

    def end(self) -> None:
        """Called when the toxic has been removed: what it holds back has to go on."""


class Latency(Toxic):
    """Every chunk comes `ms` later, give or take `jitter_ms` (uniformly; `seed` makes it repeatable)."""

    def __init__(self, ms: float, jitter_ms: float = 0, *, seed: int | None = None) -> None:
        self._ms, self._jitter_ms, self._random = ms, jitter_ms, random.Random(seed)  # noqa: S311 - jitter

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on."""
        jitter_ms = self._random.uniform(-self._jitter_ms, self._jitter_ms)
        await anyio.sleep(max(0.0, self._ms + jitter_ms) / 1000)
        await forward(data)


class Bandwidth(Toxic):
    """At most `bytes_per_s` on each connection and direction."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on."""
        size = max(1, self._bytes_per_s // _TICKS_PER_S)
        for piece in _pieces(data, size):
            await anyio.sleep(len(piece) / self._bytes_per_s)
            await forward(piece)


class Slicer(Toxic):
    """Pieces of `size` bytes, each sent by itself, with `delay_ms` between them."""

    def __init__(self, size: int = 1, delay_ms: float = 0) -> None:
        self._size, self._delay_ms = size, delay_ms

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on."""
        for piece in _pieces(data, self._size):
            await forward(piece)
            await anyio.sleep(self._delay_ms / 1000)


class LimitData(Toxic):
    """Ends the connection after `limit` bytes, counted over all connections that it serves: a message cut in half."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on. Raises `CutError` behind the last byte."""
        passed = data[: self._left]
        self._left -= len(passed)
        if passed or not data:
            await forward(passed)
        if not self._left:
            raise CutError


class Timeout(Toxic):
    """Half-open: nothing passes, not even the end of the connection, until the toxic is removed; then everything."""

    def __init__(self) -> None:
        self._removed = anyio.Event()

    async def send(self, forward: Forward, data: bytes) -> None:
        """Pass one chunk on, when the time has come."""
        await self._removed.wait()
        await forward(data)

    def end(self) -> None:
        """Let everything go on."""
        self._removed.set()


def _pieces(data: bytes, size: int) -> list[bytes]:
    """Cut into pieces of `size` bytes; the end of the connection is one."""
    return [data[at : at + size] for at in range(0, max(1, len(data)), size)]
