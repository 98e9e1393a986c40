"""Connections to Redis or Valkey, with every default that matters set explicitly.

Replies are RESP2 and raw bytes. Nothing is repeated in silence: an XADD that is sent again behind the caller's back
would append twice, and a caller that knows of the failure can back off. In a cluster, what a node refuses with MOVED,
ASK or TRYAGAIN (and so has not done) is sent to the right one. One thing remains that the library does not let us
switch off: when a pipeline of the blocking cluster client breaks, it sends what has no answer once more, one by one.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import redis
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from jiyi.connection_classes import (
    REQUIRED_RUN_ID,
    ServerProcesses,
    identifying,
    noticing_resets,
    packing_in_c,
)
from jiyi.errors import ServerNotFoundError, SettingsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jiyi.settings import Settings

Database = Redis | RedisCluster
"""A client of one server or of a cluster; every command of jiyi names keys of one slot."""
BlockingDatabase = redis.Redis | redis.RedisCluster
"""The same on blocking sockets."""
_Pool = TypeVar("_Pool", BlockingConnectionPool, redis.BlockingConnectionPool)

_MARGIN_MS = 5_000
"""How much longer than BLOCK the client waits for a blocking read."""

_AWAY: tuple[tuple[type[Exception], str, float], ...] = (
    (exceptions.BusyLoadingError, "loading", 1.0),
    (exceptions.TimeoutError, "timeout", 1.0),
    (exceptions.ReadOnlyError, "readonly", 2.0),
    (exceptions.OutOfMemoryError, "oom", 10.0),
    (exceptions.NoPermissionError, "noperm", 5.0),
    (exceptions.ClusterError, "cluster", 2.0),  # also when nodes send a client back and forth
    (exceptions.TryAgainError, "cluster", 1.0),
    (exceptions.AskError, "cluster", 2.0),  # and MOVED: the one server that a client knows is part of a cluster now
    (exceptions.ConnectionError, "connection", 1.0),  # also a pool that stays empty
    (exceptions.InvalidResponse, "connection", 1.0),  # not RESP: a line that is broken, or out of step
    (OSError, "connection", 1.0),
)
"""What the library raises when a server cannot answer now: our code for it, and when to ask again, in seconds."""
_RAW_COMMANDS = (
    "XREADGROUP",
    "XAUTOCLAIM",
    "XCLAIM",
    "XRANGE",
    "XREVRANGE",
    "XPENDING",
    "XINFO GROUPS",
    "XINFO CONSUMERS",
)
"""Commands whose replies `jiyi.streams` decodes itself: the library's dicts would hide a field given twice."""
_AWAY_CODES = {
    "BUSY": ("busy", 1.0),
    "UNKILLABLE": ("busy", 2.0),
    "MISCONF": ("misconf", 5.0),
    "NOREPLICAS": ("noreplicas", 2.0),
    "CLUSTERDOWN": ("cluster", 2.0),
    "OOM": ("oom", 10.0),
    "ACL": ("noperm", 5.0),  # "ACL failure in script"
    "max": ("connection", 1.0),  # "max number of clients + cluster connections reached", to AUTH
}
"""The same by the first words of error replies for which the library has no class (it has taken away an ERR)."""
_CLUSTER_CLIENTS = (redis.asyncio.cluster.__name__, redis.cluster.__name__, exceptions.__name__)
"""Modules of the library that know of clusters; the last reads MOVED and ASK."""
_EXPLAINED = {
    "loading": "it is loading its data",
    "readonly": "it is a replica; writes go to the primary",
    "oom": "its memory is full (maxmemory); writes wait until there is room, deletes and reads go on",
    "busy": "it is busy with a long script or command",
    "misconf": "it cannot write its data to disk (MISCONF)",
    "noperm": "the user of JIYI_REDIS_URL lacks a permission for a command or key (NOPERM); ACL LOG names it",
    "noreplicas": "too few replicas are connected to it (min-replicas-to-write)",
    "cluster": "no node of the cluster serves the key now",
}


class _Single(Redis):
    """Calls what `on_close` holds when it is closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_close: list[Callable[[], None]] = []

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        for close in self.on_close:
            close()
        await anyio.lowlevel.cancel_shielded_checkpoint()  # the loop does the rest of it
        await super().aclose(close_connection_pool)


class _LastFirst(deque[Any]):
    """The free connections of a node, of which the one that came back last is taken first.

    ASKING holds for the next command on its connection, but the library sends the two by way of the pool. It awaits
    nothing in between, so nobody else comes before.
    """

    popleft = deque.pop


class _Cluster(RedisCluster):
    """The same; closes its connections also after a failure, when the library takes the client for closed already."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_close: list[Callable[[], None]] = []

    async def initialize(self, *arguments: Any, **options: Any) -> RedisCluster:
        await super().initialize(*arguments, **options)
        for node in self.nodes_manager.nodes_cache.values():
            if not isinstance(node._free, _LastFirst):  # noqa: SLF001 - the library has no other place
                node._free = _LastFirst(node._free, node.max_connections)  # noqa: SLF001
        return self

    async def aclose(self) -> None:
        for close in self.on_close:
            close()
        await anyio.lowlevel.cancel_shielded_checkpoint()
        await super().aclose()
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")


Closing = _Single | _Cluster
"""A client that was made by `connect`, and calls what its `on_close` holds."""


async def connect(settings: Settings, *, block_ms: int = 0) -> Database:
    """Open a client for `settings.redis_url`, a cluster client where the server is part of one.

    `block_ms` > 0 makes a client for blocking reads: one connection whose read timeout outlasts the block.
    Raises `ServerNotFoundError` without a URL, `SettingsError` for a bad one and for wrong credentials, and
    `UnavailableError` when nobody answers.
    """
    options = _options(settings, Retry(NoBackoff(), 0), block_ms)
    pool = _pool(BlockingConnectionPool, settings, 1 if block_ms else settings.max_pool, options)
    processes = ServerProcesses()
    pool.connection_class = identifying(noticing_resets(packing_in_c(pool.connection_class)), processes)
    client = _Single(connection_pool=pool)
    client.auto_close_connection_pool = True
    try:
        with _connecting():
            mode: Any = await client.info("cluster")
    except BaseException:
        await client.aclose()
        raise
    if not mode.get("cluster_enabled"):
        _PROCESSES[client] = processes
        return _with_raw_streams(client)
    await client.aclose()
    with _connecting():
        cluster = _Cluster.from_url(settings.redis_url, max_connections=settings.max_pool, **options)
        kind: Any = pool.connection_class
        cluster.connection_kwargs["connection_class"] = kind  # of the nodes that it will find
        for node in cluster.startup_nodes:
            node.connection_class = kind
        await cluster.initialize()
    _PROCESSES[cluster] = processes
    return _with_raw_streams(cluster)


def connect_blocking(settings: Settings) -> BlockingDatabase:
    """Open a client on blocking sockets; otherwise as `connect`."""
    options = _options(settings, redis.retry.Retry(NoBackoff(), 0))
    client = redis.Redis.from_pool(_pool(redis.BlockingConnectionPool, settings, settings.max_pool, options))
    try:
        with _connecting():
            mode: Any = client.info("cluster")
    except BaseException:
        client.close()
        raise
    if not mode.get("cluster_enabled"):
        return client
    client.close()
    with _connecting():
        return redis.RedisCluster.from_url(settings.redis_url, max_connections=settings.max_pool, **options)
    raise AssertionError  # the context swallows nothing; the type checker cannot know


def _options(settings: Settings, retry: Any, block_ms: int = 0) -> dict[str, Any]:
    """Arguments that a pool and a cluster client share."""
    return {
        "protocol": 2,
        "socket_timeout": (settings.redis_timeout_ms + (block_ms + _MARGIN_MS if block_ms else 0)) / 1000,
        "socket_connect_timeout": settings.redis_timeout_ms / 1000,
        "retry": retry,
    }


def _pool(kind: type[_Pool], settings: Settings, size: int, options: dict[str, Any]) -> _Pool:
    if not settings.redis_url:
        raise ServerNotFoundError(
            "no Redis or Valkey is known. Start everything with `jiyi up`, or name a server: "
            "JIYI_REDIS_URL=redis://127.0.0.1:6379 (a server of version 7.0 or later)"
        )
    try:
        return kind.from_url(
            settings.redis_url, max_connections=size, timeout=settings.redis_timeout_ms / 1000, **options
        )
    except ValueError:  # its message may show a part of the password
        raise SettingsError(
            "JIYI_REDIS_URL is no usable URL; it must be like redis://user:password@127.0.0.1:6379/0, rediss://… or "
            "unix:///path, with special characters of a password as %40"
        ) from None


@contextmanager
def _connecting() -> Iterator[None]:
    """`translated_errors`, and what a new connection may meet besides: wrong credentials."""
    with translated_errors():
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:  # NOAUTH, WRONGPASS, NOPERM
            raise SettingsError(
                f"the server refuses the user or the password of JIYI_REDIS_URL ({type(error).__name__}); "
                "the user needs the permission to run INFO and the commands of jiyi"
            ) from None


_PROCESSES: WeakKeyDictionary[Database, ServerProcesses] = WeakKeyDictionary()


def server_of(database: Database, key: str) -> str:
    """Name the server process that answers for a key by its run id, and the history of its data by its replication id.

    Another name than before means that what was read earlier may belong to a history that is lost: a server that
    was restarted or replaced, or was a replica meanwhile, may lack the last writes of the one before it, and has had
    others since. The name is right as of the last answer: each new connection asks, and no connection to an earlier
    process is used again. Raises `UnavailableError` when no node of a cluster serves the key.
    """
    if (known := _PROCESSES.get(database)) is None:
        return ""  # not made by `connect`
    if isinstance(database, Redis):
        return " ".join([*known.run_ids.values(), *known.histories.values()])  # of one address
    with translated_errors():
        node = database.get_node_from_key(key)
    if node is None:
        return ""
    return f"{node.name} {known.run_ids.get(node.name, '')} {known.histories.get(node.name, '')}"


@contextmanager
def only_at(process: str) -> Iterator[None]:
    """Context in which scripts and SET go to the server process that is named as by `server_of`, or nowhere.

    Where another one answers meanwhile, they raise `UnavailableError`, and nothing has been sent. "" stands for any.
    """
    run_id = process.split(" ")[-2] if process else ""
    token = REQUIRED_RUN_ID.set(run_id)
    try:
        yield
    finally:
        REQUIRED_RUN_ID.reset(token)


def live_together(database: Database, key: str, other: str) -> bool:
    """Whether one server has both keys. Raises `UnavailableError` when no node of a cluster serves one of them."""
    if not isinstance(database, RedisCluster):
        return True
    with translated_errors():
        node = database.get_node_from_key(key)
        return bool(node and node == database.get_node_from_key(other))
    raise AssertionError  # the context swallows nothing; the type checker cannot know


def _with_raw_streams(client: Database) -> Database:
    for command in _RAW_COMMANDS:
        client.set_response_callback(command, _as_it_came)  # type: ignore[arg-type] # wants an exact protocol
    return client


def _as_it_came(reply: Any, **_options: Any) -> Any:
    return reply


async def execute(database: Database, *command: Any) -> Any:
    """Run one command to its end, also when the caller is cancelled.

    A cancelled caller would otherwise leave an unread answer on a connection that others use. How long it can
    take is bounded by the read timeout. Raises `UnavailableError` when the server cannot answer now.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()  # behind the shield nobody would notice
    with translated_errors(), anyio.CancelScope(shield=True):
        try:
            return await database.execute_command(*command)
        except exceptions.ReadOnlyError:
            # Our address may lead to another server by now, but only new connections get there.
            if isinstance(database, Redis):
                await database.connection_pool.disconnect(inuse_connections=False)
            raise
    raise AssertionError  # a shielded scope swallows nothing; the type checker cannot know


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the client library's "not now" errors into `UnavailableError`; others pass."""
    try:
        yield
    except exceptions.RedisClusterException:
        # Without the cause: its message may show the command, and so a memory.
        raise _unavailable("cluster", 2.0, "") from None
    except (AttributeError, LookupError, ValueError, exceptions.DataError) as error:
        if _stumbled(error):
            raise _unavailable("cluster", 2.0, "") from error
        raise
    except (exceptions.RedisError, OSError) as error:
        for kind, code, retry_after_s in _AWAY:
            if isinstance(error, kind):
                raise _unavailable(code, retry_after_s, type(error).__name__) from error
        if isinstance(error, exceptions.ResponseError):
            word = str(error).partition(" ")[0]
            if word in _AWAY_CODES:
                raise _unavailable(*_AWAY_CODES[word], type(error).__name__) from error
        raise


def _stumbled(error: Exception) -> bool:
    """Whether the library's cluster client itself raised it.

    It does not expect to meet a node or slot that it does not know: an ASK that names a node without slots, a MOVED
    that names only a port or that is garbled, or a command while another caller has it look for the nodes anew.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") in _CLUSTER_CLIENTS


def _unavailable(code: str, retry_after_s: float, name: str) -> UnavailableError:
    if code in _EXPLAINED:
        return UnavailableError(f"Redis cannot do it now: {_EXPLAINED[code]}", retry_after_s, code=code)
    return UnavailableError(f"Redis does not answer: {name}", retry_after_s, code=code)
