"""The state of the server itself: what would damage the index, and what endangers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from redis.asyncio import RedisCluster

from jiyi.connections import translated_errors
from jiyi.errors import UnavailableError, UnsafeServerError

if TYPE_CHECKING:
    from jiyi.connections import Database

CONDITIONS = ("eviction", "replica", "aof_off", "disk_error", "memory_nearly_full")
"""Names of all conditions: stable words for programs and metrics."""
_NEARLY_FULL = 0.9


class Condition(msgspec.Struct, frozen=True):
    """Something that endangers the index or what was accepted; the message says what to do."""

    name: str
    message: str


async def server_conditions(database: Database) -> list[Condition]:
    """Look at the server, or at every primary of the cluster, and give what is wrong with any; each condition once.

    What one cannot tell while it is loading its data is left out: it says then that it has no append-only file.
    """
    return _each_once(await _nodes(database))


async def check_server(database: Database) -> list[Condition]:
    """Give the conditions under which it is still right to work.

    Raises `UnsafeServerError` if the server would evict index keys when its memory is full, and `UnavailableError`
    while it is a replica: what is written there is refused, and what is read there may be old. The same while it is
    loading its data.
    """
    nodes = await _nodes(database)
    found = {condition.name: condition for condition in _each_once(nodes)}
    if "eviction" in found:
        raise UnsafeServerError(found["eviction"].message)
    if "replica" in found:
        raise UnavailableError(found["replica"].message, 2.0, code="readonly")
    if any(node.get("loading") for node in nodes):
        raise UnavailableError("the server is loading its data", code="loading")
    return list(found.values())


async def _nodes(database: Database) -> list[dict[str, Any]]:
    """What the server, or every primary of the cluster, says of itself."""
    with translated_errors():
        if not isinstance(database, RedisCluster):
            return [await database.info()]
        info: Any = await database.info(target_nodes=RedisCluster.PRIMARIES)
    return list(info.values()) if _per_node(info) else [info]


def _each_once(nodes: list[dict[str, Any]]) -> list[Condition]:
    found: dict[str, Condition] = {}
    for node in nodes:
        for condition in _conditions(node):
            found.setdefault(condition.name, condition)
    return list(found.values())


def _conditions(node: dict[str, Any]) -> list[Condition]:
    found = []
    if (policy := node.get("maxmemory_policy", "noeviction")) != "noeviction":
        found.append(
            Condition(
                "eviction",
                f"the server's maxmemory-policy is {policy}: it would evict parts of the index. "
                "Set it with: CONFIG SET maxmemory-policy noeviction",
            )
        )
    if node.get("role") == "slave":
        found.append(Condition("replica", "the server is a replica; JIYI_REDIS_URL must lead to the primary"))
    if not node.get("aof_enabled", 1) and not node.get("loading"):  # while it reads that file, it says that it has none
        found.append(
            Condition(
                "aof_off",
                "the server's append-only file is off: when it crashes, what was accepted since its last snapshot "
                "is lost. Set it with: CONFIG SET appendonly yes",
            )
        )
    if node.get("aof_last_write_status", "ok") != "ok" or node.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append(Condition("disk_error", "the server cannot write its data to disk; look at its log and its disk"))
    used, most = node.get("used_memory", 0), node.get("maxmemory", 0)
    if most and used >= _NEARLY_FULL * most:
        found.append(
            Condition(
                "memory_nearly_full",
                f"the server uses {100 * used // most} % of its maxmemory; at 100 % writes are refused. "
                "Raise maxmemory, or delete memories",
            )
        )
    return found


def _per_node(info: dict[str, Any]) -> bool:
    """Tell the answers of several nodes (node → fields) from that of one (field → value)."""
    return "redis_version" not in info
