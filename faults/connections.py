"""One connection through the proxy: forwards in both directions, and stops at fail-points."""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
import anyio.lowlevel

from faults.failpoints import Failpoint, Request, name_of
from faults.resp import ProtocolError, Splitter
from faults.toxics import CutError, Toxic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Direction = Literal["upstream", "downstream"]
"""`upstream` is from client to server."""

BROKEN = (OSError, ValueError, anyio.ClosedResourceError, ProtocolError, CutError)
"""What ends a connection; ValueError is what a closed socket gives."""
_CHUNK_BYTES = 262_144
_UNPAIRED = {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"}


class Faults(Protocol):
    """What a connection asks its proxy."""

    def arrived(self, request: Request) -> list[Failpoint]:
        """Count a request; give the fail-points that shall act on it."""

    def toxics(self, direction: Direction, connection: Connection) -> list[Toxic]:
        """Give the toxics that apply now."""


class Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Faults, number: int, client: socket.socket, server: socket.socket) -> None:
        self.number = number
        """Counts the proxy's connections from 1."""
        self.requests = 0
        """Requests that have come."""
        self.closed = False
        self._proxy, self._client, self._server = proxy, client, server
        self._waiting: deque[tuple[Request, list[Failpoint]]] = deque()  # for their replies
        self._scope = anyio.CancelScope()

    @property
    def unanswered(self) -> int:
        """Requests whose replies the client waits for; 0 while it listens to channels."""
        return 0 if self._listens() else len(self._waiting)

    def cut(self) -> None:
        """Close both sides in order: the client reads the end of the stream (FIN)."""
        self._close(reset=False)

    def reset(self) -> None:
        """Close both sides; the client gets "connection reset by peer" (RST)."""
        self._close(reset=True)

    def _close(self, *, reset: bool) -> None:
        if self.closed:
            return
        self.closed = True
        if reset:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_WR)  # so that the end comes first even if we leave data unread
        for side in (self._client, self._server):
            anyio.notify_closing(side)
            side.close()
        self._scope.cancel()

    async def run(self) -> None:
        """Forward until one side ends."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pump, self._upstream)
                    tasks.start_soon(self._pump, self._downstream)
        finally:
            self.cut()

    async def _pump(self, forward: Callable[[], Awaitable[None]]) -> None:
        with suppress(*BROKEN):
            await forward()
        self.cut()

    async def _upstream(self) -> None:
        splitter = Splitter(requests=True)
        while data := await _receive(self._client):
            complete: list[bytes] = []
            for raw, arguments in splitter.feed(data):
                if arguments:
                    before = self._arrived(arguments)
                    if before:
                        await self._send("upstream", b"".join(complete))
                        complete = []
                        await self._hit(before)
                complete.append(raw)
            await self._send("upstream", b"".join(complete))
        await self._send("upstream", b"", end=True)

    def _arrived(self, arguments: list[bytes]) -> list[tuple[Request, Failpoint]]:
        """Note a request; gives the fail-points that act on it before it is forwarded."""
        self.requests += 1
        request = Request(self, self.requests, name_of(arguments), arguments)
        points = self._proxy.arrived(request)
        self._waiting.append((request, [point for point in points if point.at == "reply"]))
        return [(request, point) for point in points if point.at == "request"]

    async def _downstream(self) -> None:
        splitter = Splitter()
        while data := await _receive(self._server):
            complete: list[bytes] = []
            for raw, _ in splitter.feed(data):
                if self._waiting and not self._listens() and not raw.startswith(b">"):
                    request, points = self._waiting[0]
                    if points:
                        await self._send("downstream", b"".join(complete))
                        complete = []
                        await self._hit([(request._replace(reply=raw), point) for point in points])
                    self._waiting.popleft()
                complete.append(raw)
            await self._send("downstream", b"".join(complete))
        await self._send("downstream", b"", end=True)

    def _listens(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0].name in _UNPAIRED

    async def _hit(self, points: list[tuple[Request, Failpoint]]) -> None:
        for request, point in points:
            try:
                await point.hit(request)
            except BROKEN as error:  # of a test's own function: it must not pass for a broken connection
                raise RuntimeError(f"the fail-point at {request.name} failed") from error
        if self.closed:
            raise CutError

    async def _send(self, direction: Direction, data: bytes, *, end: bool = False) -> None:
        """Pass a chunk, or the end, through the toxics of this moment."""
        if not data and not end:
            return
        send: Callable[[bytes], Awaitable[None]] = partial(
            _send_all, self._server if direction == "upstream" else self._client
        )
        for toxic in self._proxy.toxics(direction, self):
            send = partial(toxic.send, send)
        await send(data)


async def _receive(side: socket.socket) -> bytes:
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return side.recv(_CHUNK_BYTES)
        except BlockingIOError:
            await anyio.wait_readable(side)


async def _send_all(side: socket.socket, data: bytes) -> None:
    """Send everything; nothing stands for the end."""
    if not data:
        raise CutError
    view = memoryview(data)
    while view:
        try:
            view = view[side.send(view) :]
        except BlockingIOError:
            await anyio.wait_writable(side)
