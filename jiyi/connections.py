"""Connections to Redis or Valkey, with every default that matters set explicitly.

Replies are RESP2 and raw bytes. Nothing is retried in silence: an XADD that is repeated behind the caller's
back would append twice, and a caller that knows of the failure can back off.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import anyio
import hiredis
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from jiyi.errors import ServerNotFoundError, SettingsError, UnavailableError, UnsafeServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio.connection import AbstractConnection

    from jiyi.settings import Settings

Database = Redis | RedisCluster
"""A client of one server or of a cluster; every command of jiyi names keys of one slot."""

_MARGIN_MS = 5_000
"""How much longer than BLOCK the client waits for a blocking read."""

_AWAY = (
    exceptions.ConnectionError,  # also LOADING (BusyLoadingError) and a pool that stays empty
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    OSError,
)
_RAW_COMMANDS = ("XREADGROUP", "XAUTOCLAIM", "XRANGE", "XREVRANGE", "XPENDING", "XINFO GROUPS", "XINFO CONSUMERS")
"""Commands whose replies `jiyi.streams` decodes itself: the library's dicts would hide a field given twice."""
_AWAY_CODES = frozenset({"BUSY", "MISCONF", "UNKILLABLE", "CLUSTERDOWN", "NOREPLICAS", "OOM"})
"""First words of error replies for which the library has no class."""


async def connect(settings: Settings, *, block_ms: int = 0) -> Database:
    """Open a client for `settings.redis_url`, a cluster client where the server is part of one.

    `block_ms` > 0 makes a client for blocking reads: one connection whose read timeout outlasts the block.
    Raises `ServerNotFoundError` without a URL, `SettingsError` for a bad one, `UnavailableError` when nobody
    answers.
    """
    if not settings.redis_url:
        raise ServerNotFoundError(
            "no Redis or Valkey is known. Start everything with `jiyi up`, or name a server: "
            "JIYI_REDIS_URL=redis://127.0.0.1:6379 (a server of version 7.0 or later)"
        )
    timeout_s = (settings.redis_timeout_ms + (block_ms + _MARGIN_MS if block_ms else 0)) / 1000
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": settings.redis_timeout_ms / 1000,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        pool = BlockingConnectionPool.from_url(
            settings.redis_url,
            max_connections=1 if block_ms else settings.max_pool,
            timeout=settings.redis_timeout_ms / 1000,
            **options,
        )
    except ValueError as error:
        raise SettingsError(f"JIYI_REDIS_URL is no usable URL: {error}") from None
    pool.connection_class = packing_in_c(pool.connection_class)
    client = Redis.from_pool(pool)
    with translated_errors():
        try:
            mode: Any = await client.info("cluster")
        except BaseException:
            await client.aclose()
            raise
    if not mode.get("cluster_enabled"):
        return _with_raw_streams(client)
    await client.aclose()
    options.pop("retry")  # the cluster client needs its retries to follow slots that move
    cluster = RedisCluster.from_url(settings.redis_url, max_connections=settings.max_pool, **options)
    with translated_errors():
        await cluster.initialize()
    return _with_raw_streams(cluster)


@lru_cache
def packing_in_c(connection: type[AbstractConnection]) -> type[AbstractConnection]:
    """Derive a connection class that packs commands with hiredis.

    The asyncio client packs in Python, at about a microsecond an argument: for a batch of thousands of postings
    that is more than the analysis of its texts. The synchronous client uses hiredis by itself.
    """

    def pack_command(_self: AbstractConnection, *arguments: str | bytes | float) -> list[bytes]:
        command = arguments[0]
        if isinstance(command, str) and " " in command:  # "CONFIG GET" is two words on the wire
            arguments = (*command.split(), *arguments[1:])
        return [hiredis.pack_command(arguments)]

    return type(connection.__name__, (connection,), {"pack_command": pack_command})


def _with_raw_streams(client: Database) -> Database:
    for command in _RAW_COMMANDS:
        client.set_response_callback(command, _as_it_came)  # type: ignore[arg-type] # wants an exact protocol
    return client


def _as_it_came(reply: Any, **_options: Any) -> Any:
    return reply


async def check_server(database: Database) -> None:
    """Raise `UnsafeServerError` if the server would evict index keys when its memory is full."""
    with translated_errors():
        memory: Any = await database.info("memory")
    nodes = memory.values() if _per_node(memory) else [memory]
    policies = {node.get("maxmemory_policy", "noeviction") for node in nodes}
    if policies != {"noeviction"}:
        raise UnsafeServerError(
            f"the server's maxmemory-policy is {', '.join(sorted(policies))}: it would evict parts of the index. "
            "Set it with: CONFIG SET maxmemory-policy noeviction"
        )


def _per_node(info: dict[str, Any]) -> bool:
    """Tell a cluster's answer (node → section) from one server's (field → value)."""
    return bool(info) and all(isinstance(value, dict) for value in info.values())


async def execute(database: Database, *command: Any) -> Any:
    """Run one command to its end, also when the caller is cancelled.

    A cancelled caller would otherwise leave an unread answer on a connection that others use. How long it can
    take is bounded by the read timeout. Raises `UnavailableError` when the server cannot answer now.
    """
    with translated_errors(), anyio.CancelScope(shield=True):
        return await database.execute_command(*command)
    raise AssertionError  # a shielded scope swallows nothing; the type checker cannot know


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the client library's "not now" errors into `UnavailableError`; others pass."""
    try:
        yield
    except _AWAY as error:
        raise UnavailableError(f"Redis does not answer: {type(error).__name__}") from error
    except exceptions.ResponseError as error:
        code = str(error).partition(" ")[0]
        if code in _AWAY_CODES:
            raise UnavailableError(f"Redis refuses for now: {code}", retry_after_s=2.0) from error
        raise
