"""Lanes: connections on which questions follow each other without waiting for the answers before.

A search asks the server one short question, and the client library's way of asking (a connection out of a pool, the
answer through a stream with a timer of its own) takes longer than the server. A lane is opened by the library, with
its authentication, encryption and addresses, and then spoken on directly. Answers come in the order of the questions;
that to a caller who has left is dropped, so nobody gets another's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import anyio
import hiredis
from redis.asyncio import Redis
from redis.exceptions import RedisClusterException

from jiyi.connections import Closing, execute, server_of, translated_errors
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from jiyi.connections import Database


_FOREVER_S = 86_400.0
"""Patience of a connection that has no time limit."""


class Refused(Exception):  # noqa: N818 - an answer of the server like others
    """The server answered with an error."""


class Lane(asyncio.Protocol):
    """A connection that is spoken on in the order of the questions.

    `server` is the process at its other end, as `server_of` names it.
    """

    def __init__(self, connection: AbstractConnection, timeout_s: float) -> None:
        self.server = ""
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._failure = ("connection", "ConnectionError")
        # The library's writer would close the transport if it went away.
        self._writer = cast("Any", connection)._writer  # noqa: SLF001 - there is no other way to the transport
        connection._writer = connection._reader = None  # noqa: SLF001
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether questions can be sent."""
        return not self._transport.is_closing()

    @property
    def has_sent(self) -> bool:
        """Whether all that was asked is on its way; if not, it will be when the event loop gets a turn."""
        return not self._unsent

    def ask(self, *command: Any) -> asyncio.Future[Any]:
        """Send a command, which must change nothing; gives the future of its answer.

        The future raises `UnavailableError` when the connection ends or the answer takes too long. So does the call
        when it has ended already: it may have been reset right behind the answer that opened it.
        """
        if not self.is_open:
            raise UnavailableError("Redis does not answer: ConnectionError")
        future: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + self._timeout_s
        self._waiting.append((future, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look_at_the_clock)
        packed = hiredis.pack_command(command)
        if len(self._waiting) == 1:
            self._transport.write(packed)
            return future
        # Among others, what is asked in one turn of the loop is sent together: a write costs as much as an answer.
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(packed)
        return future

    def _send(self) -> None:
        if self.is_open:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        """End the connection; what is unanswered fails."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand out answers (called by the event loop)."""
        try:
            self._parser.feed(data)
            while (answer := self._parser.gets()) is not False:
                future, _ = self._waiting.popleft()
                if future.done():
                    continue  # its caller has left
                if isinstance(answer, hiredis.ReplyError):
                    future.set_exception(Refused())
                else:
                    future.set_result(answer)
        except (hiredis.ProtocolError, IndexError):  # not RESP, or an answer to nothing
            self.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Let fail what is unanswered (called by the event loop)."""
        if self._timer is not None:
            self._timer.cancel()
        code, name = self._failure
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(UnavailableError(f"Redis does not answer: {name}", code=code))
        self._waiting.clear()

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        _, deadline = self._waiting[0]
        if deadline > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._look_at_the_clock)
        else:
            self._failure = ("timeout", "TimeoutError")
            self.close()


class _Lanes:
    """The lanes of a client, one for each address."""

    def __init__(self) -> None:
        self.by_address: dict[str, Lane] = {}
        self.opening: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def close(self) -> None:
        for lane in self.by_address.values():
            lane.close()


_LANES: WeakKeyDictionary[Database, _Lanes] = WeakKeyDictionary()


def lane_of(database: Database, key: str) -> Lane | None:
    """Give the open lane to the server that answers for a key; None if there is none now."""
    lanes = _LANES.get(database)
    lane = lanes.by_address.get(_address(database, key)) if lanes is not None else None
    return lane if lane is not None and lane.is_open and lane.server == server_of(database, key) else None


async def ask(database: Database, key: str, *command: Any) -> Any:
    """Run a command that changes nothing and whose first key is `key`, on a lane if there can be one.

    Raises what `execute` raises: what the server refuses on the lane is given to the library, which knows what is
    to be done about a script that is missing or a slot that has moved.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    lane = None
    if isinstance(database, Closing):  # not some stand-in
        try:
            lane = lane_of(database, key) or await _opened(database, key)
        except UnavailableError:
            if isinstance(database, Redis):
                raise
            # The node may have gone for good: the library looks for the one that has taken its place.
    if lane is not None:
        try:
            return await lane.ask(*command)
        except Refused:
            pass
    return await execute(database, *command)


def _address(database: Database, key: str) -> str:
    if isinstance(database, Redis):
        return ""
    try:
        node = database.get_node_from_key(key)
    except RedisClusterException:  # a slot that nobody serves
        return ""
    return node.name if node else ""


def _made(database: Database, address: str) -> AbstractConnection | None:
    """Make a connection like those of the client's pool, not yet connected; None to a node that is gone."""
    if isinstance(database, Redis):
        pool: Any = database.connection_pool
        return cast("AbstractConnection", pool.make_connection())
    node: Any = database.get_node(node_name=address)
    return None if node is None else cast("AbstractConnection", node.connection_class(**node.connection_kwargs))


async def _opened(database: Closing, key: str) -> Lane | None:
    """Open a lane; None where the library has to find the server first."""
    address = _address(database, key)
    if not (address or isinstance(database, Redis)):
        return None
    if (lanes := _LANES.get(database)) is None:
        lanes = _LANES[database] = _Lanes()
        database.on_close.append(lanes.close)
    async with lanes.opening[address]:
        if (lane := lane_of(database, key)) is not None:
            return lane
        if (old := lanes.by_address.pop(address, None)) is not None:
            old.close()
        with translated_errors():  # the library reads a file for each connection that it makes
            connection = _made(database, address)
        if connection is None:
            return None
        try:
            with translated_errors():
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
            raise
        lane = Lane(connection, connection.socket_timeout or _FOREVER_S)
        lane.server = server_of(database, key)
        lanes.by_address[address] = lane
        return lane
