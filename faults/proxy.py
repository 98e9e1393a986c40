"""A TCP proxy before a Redis or Valkey server that understands requests and replies, and breaks them on purpose.

    async with Proxy("redis://127.0.0.1:6379") as proxy:
        settings = Settings(redis_url=proxy.url)                        # whoever connects here goes through it
        with proxy.toxic(Latency(300, 200)): ...                        # a slow line
        lost = proxy.failpoint("apply_events", at="reply", do="cut")    # executed, and the answer is lost
        held = proxy.failpoint("XACK", "acknowledge", do="hold")
        await held.reached()
        os.kill(pid, signal.SIGKILL)

Give each process that must be told apart a proxy of its own. Requests and replies are forwarded when they are complete.
Replies are paired with requests by their order; after SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE or MONITOR they pass unpaired.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter, deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Self
from urllib.parse import urlsplit, urlunsplit

import anyio
import anyio.lowlevel
from anyio.from_thread import start_blocking_portal

from faults.failpoints import Failpoint, Request, Stage, name_of
from faults.resp import ProtocolError, Splitter
from faults.toxics import CutError, Toxic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import TaskGroup
    from anyio.from_thread import BlockingPortal

    from faults.failpoints import Action, Predicate

Direction = Literal["upstream", "downstream"]
"""`upstream` is from client to server."""

_CHUNK_BYTES = 262_144
_UNPAIRED = {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"}
_BROKEN = (OSError, ValueError, anyio.ClosedResourceError, ProtocolError, CutError)
"""What ends a connection; ValueError is what a closed socket gives."""


class _Active(NamedTuple):
    toxic: Toxic
    directions: tuple[Direction, ...]
    connection: Connection | None


class Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, number: int, client: socket.socket, server: socket.socket) -> None:
        self.number = number
        """Counts the proxy's connections from 1."""
        self.requests = 0
        """Requests that have come."""
        self.closed = False
        self._proxy, self._client, self._server = proxy, client, server
        self._waiting: deque[tuple[Request, list[Failpoint]]] = deque()  # for their replies
        self._scope = anyio.CancelScope()

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
        with suppress(*_BROKEN):
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
                after = self._answered(raw)
                if after:
                    await self._send("downstream", b"".join(complete))
                    complete = []
                    await self._hit(after)
                complete.append(raw)
            await self._send("downstream", b"".join(complete))
        await self._send("downstream", b"", end=True)

    def _answered(self, raw: bytes) -> list[tuple[Request, Failpoint]]:
        """Pair a reply with its request; gives the fail-points that act on it before it is forwarded."""
        if raw.startswith(b">") or not self._waiting or self._waiting[0][0].name in _UNPAIRED:
            return []
        request, points = self._waiting.popleft()
        return [(request, point) for point in points]

    async def _hit(self, points: list[tuple[Request, Failpoint]]) -> None:
        for request, point in points:
            try:
                await point.hit(request)
            except _BROKEN as error:  # of a test's own function: it must not pass for a broken connection
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


class Proxy:
    """Listens on a free port of 127.0.0.1 while its context is open; see the module.

    `target` is the redis:// or unix:// URL of a server without TLS. Not thread-safe: with `serving` from a thread,
    call its methods through the portal.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        """Where new connections go; assign another server's URL for a failover (and `cut` what there is)."""
        self.accepted = 0
        """Connections that have ever come."""
        self.counts: Counter[str] = Counter()
        """Requests that have come, by `Request.name`."""
        self._connections: list[Connection] = []
        self._failpoints: list[Failpoint] = []
        self._toxics: list[_Active] = []
        self._port = 0
        self._listener: socket.socket | None = None

    @property
    def connections(self) -> list[Connection]:
        """Those that are open, oldest first."""
        return [connection for connection in self._connections if not connection.closed]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    @property
    def url(self) -> str:
        """The target's URL with our address in it; user, password and database stay."""
        parts = urlsplit(self.target)
        user, at, _ = parts.netloc.rpartition("@")
        path = "" if parts.scheme == "unix" else parts.path
        return urlunsplit(("redis", f"{user}{at}127.0.0.1:{self._port}", path, parts.query, ""))

    async def __aenter__(self) -> Self:
        self._tasks: TaskGroup = anyio.create_task_group()
        await self._tasks.__aenter__()
        self.accept()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.refuse()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def failpoint(
        self,
        *match: str | Predicate,
        at: Stage = "request",
        do: Literal["hold", "cut", "reset"] | Action = "hold",
        nth: int = 1,
        times: int | None = 1,
    ) -> Failpoint:
        """Arm a fail-point.

        It acts on the n-th request from now whose name is one of `match` (a script's name, `apply_events`, or a
        command, `XADD`) or for which a predicate is true, and on as many more until it has acted `times` times (None:
        on all). `at="request"`: before the server sees it. `at="reply"`: the server has executed it, and the client
        has not got the answer.

        `do="hold"` holds it, and everything behind it in its direction, until `release`; "cut" and "reset" close its
        connection; a function is called with the request, and what it returns is awaited if it can be. Unless the
        connection was closed, the request or the reply is forwarded afterwards.
        """
        point = Failpoint(match, at, do, nth, times)
        self._failpoints.append(point)
        return point

    def arrived(self, request: Request) -> list[Failpoint]:
        """Count a request; gives the fail-points that shall act on it."""
        self.counts[request.name] += 1
        return [point for point in self._failpoints if point.takes(request)]

    @contextmanager
    def toxic(
        self, toxic: Toxic, direction: Direction | None = None, connection: Connection | None = None
    ) -> Iterator[Toxic]:
        """Apply a toxic until the end of the context, in one direction or both, to one connection or all."""
        active = _Active(toxic, (direction,) if direction else ("upstream", "downstream"), connection)
        self._toxics.append(active)
        try:
            yield toxic
        finally:
            self._toxics.remove(active)
            toxic.end()

    def toxics(self, direction: Direction, connection: Connection) -> list[Toxic]:
        """Give the toxics that apply now."""
        return [
            active.toxic
            for active in self._toxics
            if direction in active.directions and active.connection in {None, connection}
        ]

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            anyio.notify_closing(listener)
            listener.close()

    def accept(self) -> None:
        """Accept new connections (again, on the same port)."""
        if self._listener is None:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(("127.0.0.1", self._port))
            listener.listen(1024)
            self._port = listener.getsockname()[1]
            self._listener = listener
            self._tasks.start_soon(self._accept_from, listener)

    def cut(self) -> None:
        """Cut every open connection."""
        for connection in self.connections:
            connection.cut()

    def reset(self) -> None:
        """Reset every open connection."""
        for connection in self.connections:
            connection.reset()

    async def _accept_from(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                with suppress(*_BROKEN):
                    await anyio.wait_readable(listener)
            except OSError:
                return
            else:
                self.accepted += 1
                self._tasks.start_soon(self._serve, client, self.accepted)

    async def _serve(self, client: socket.socket, number: int) -> None:
        with client:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = await _connect(self.target)
            except OSError:
                return
            with server:
                connection = Connection(self, number, client, server)
                self._connections.append(connection)
                try:
                    await connection.run()
                finally:
                    self._connections.remove(connection)


@contextmanager
def serving(target: str) -> Iterator[tuple[Proxy, BlockingPortal]]:
    """Run a proxy in a thread of its own, for callers without an event loop; `portal.call(proxy.cut)` and so on."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Proxy(target)) as proxy:
        yield proxy, portal


async def _connect(target: str) -> socket.socket:
    parts = urlsplit(target)
    unix = parts.scheme == "unix"
    server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    try:
        server.setblocking(False)
        if unix:
            server.connect(parts.path)
        else:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                server.connect((parts.hostname or "127.0.0.1", parts.port or 6379))
            await anyio.wait_writable(server)
            if code := server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, "the server refuses the connection")  # noqa: TRY301
    except BaseException:
        server.close()
        raise
    return server


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
