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
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self
from urllib.parse import urlsplit, urlunsplit

import anyio
from anyio.from_thread import start_blocking_portal

from faults.connections import BROKEN, Connection, Direction
from faults.failpoints import Failpoint, Request, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskGroup
    from anyio.from_thread import BlockingPortal

    from faults.failpoints import Action, Predicate
    from faults.toxics import Toxic


class _Active(NamedTuple):
    toxic: Toxic
    directions: tuple[Direction, ...]
    connection: Connection | None


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
                with suppress(*BROKEN):
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
