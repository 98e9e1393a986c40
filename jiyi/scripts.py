"""The Lua scripts of `lua/`, each as one typed coroutine whose signature is the script's contract.

Scripts are called by their SHA-1 and sent whole once when the server does not know them (after a restart,
a failover or SCRIPT FLUSH). Status codes are those of the scripts' headers; a test compares them.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError

from jiyi import keys
from jiyi.connections import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

    from jiyi.connections import Database

Argument = str | bytes | int | float


class PrepareStatus(IntEnum):
    """What `prepare_events` found for an event."""

    NEW = 0
    REPLACES = 1
    APPLIED = 2
    SUPERSEDED = 3
    UNCHANGED = 4


class ApplyStatus(IntEnum):
    """Answer of `apply_events`; anything but OK means that nothing was written."""

    OK = 0
    CONFLICT = 1
    EPOCH_CHANGED = 2
    ANALYZER_CHANGED = 3


class Script(NamedTuple):
    """Source and SHA-1 of one script."""

    source: str
    sha: str


def folder() -> Traversable:
    """The folder of the scripts: inside the installed package, else beside it in a checkout."""
    packaged = files("jiyi") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "lua"


@cache
def load(name: str) -> Script:
    """Read a script by its name."""
    source = (folder() / f"{name}.lua").read_text(encoding="utf-8")
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


async def call(database: Database, name: str, key_names: Sequence[str], arguments: Sequence[Argument]) -> Any:
    """Run a script. Raises `UnavailableError` when the server cannot answer now."""
    script = load(name)
    try:
        return await execute(database, "EVALSHA", script.sha, len(key_names), *key_names, *arguments)
    except NoScriptError:
        return await execute(database, "EVAL", script.source, len(key_names), *key_names, *arguments)


async def prepare_events(  # noqa: PLR0913 - the script's contract
    database: Database,
    ns: str,
    *,
    epoch: str,
    analyzer: str,
    again: bool,
    ids: Sequence[str],
    versions: Sequence[tuple[str, str]],
) -> list[Any]:
    """Answer of `prepare_events.lua` for (version, version hash) pairs of the memories `ids`."""
    key_names = [keys.stats_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    arguments: list[Argument] = [epoch, analyzer, "1" if again else "0"]
    for version, version_hash in versions:
        arguments += (version, version_hash)
    reply: list[Any] = await call(database, "prepare_events", key_names, arguments)
    return reply


async def apply_events(database: Database, key_names: Sequence[str], arguments: Sequence[Argument]) -> ApplyStatus:
    """Run `apply_events.lua` on what `jiyi.packing` packed."""
    return ApplyStatus(await call(database, "apply_events", key_names, arguments))


async def read_index(
    database: Database,
    ns: str,
    *,
    limit: int,
    journal: tuple[bytes, int],
    terms: Sequence[tuple[str, bytes, int]],
) -> list[Any]:
    """Answer of `read_index.lua`; `journal` and `terms` say (generation, bytes) that the reader has."""
    key_names = [keys.stats_key(ns), keys.journal_key(ns)]
    arguments: list[Argument] = [limit, *journal]
    bucket_prefix, index_prefix = keys.bucket_prefix(ns), keys.index_prefix(ns)
    for term, generation, have in terms:
        key_names += (f"{bucket_prefix}{keys.bucket_of(term)}", index_prefix + term)
        arguments += (term, generation, have)
    reply: list[Any] = await call(database, "read_index", key_names, arguments)
    return reply


async def read_ids(database: Database, ns: str, docs: Sequence[int]) -> list[bytes | None]:
    """Memory ids of document numbers, None where the document has died."""
    reply: list[bytes | None] = await call(database, "read_ids", [keys.ids_key(ns, doc) for doc in docs], docs)
    return reply


async def read_documents(
    database: Database, ns: str, ids: Sequence[str], fields: Sequence[str]
) -> list[list[bytes | None]]:
    """Values of `fields` of the memories `ids`, all as they are at one instant."""
    key_names = [keys.memory_key(ns, memory_id) for memory_id in ids]
    reply: list[list[bytes | None]] = await call(database, "read_documents", key_names, fields)
    return reply


async def read_readiness(database: Database, ns: str, ids: Sequence[str]) -> list[list[bytes | None]]:
    """(entry, indexed_at, deleted_at, expires_at, dead letter) of the memories `ids`."""
    key_names = [keys.failed_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    reply: list[list[bytes | None]] = await call(database, "read_readiness", key_names, ids)
    return reply


async def dead_letter(  # noqa: PLR0913 - the script's contract
    database: Database,
    ns: str,
    memory_id: str | None,
    *,
    entry: str,
    code: str,
    reason: str,
    now_ms: int,
    deliveries: int,
    fields: Sequence[tuple[bytes, bytes]],
) -> bool:
    """File an event as dead letter; False when it was filed before."""
    arguments: list[Argument] = [failed_field(memory_id, entry), entry, code, reason, now_ms, deliveries]
    for name, value in fields:
        arguments += (name, value)
    return bool(await call(database, "dead_letter", [keys.dead_key(ns), keys.failed_key(ns)], arguments))


def failed_field(memory_id: str | None, entry: str) -> str:
    """Field of `failed:{ns}` for a dead letter; no memory id holds a zero byte."""
    return memory_id if memory_id is not None else f"\0{entry}"


async def drop_letter(database: Database, ns: str, letter: str, field: str, entry: str) -> bool:
    """Remove a dead letter and its memory's mark; False when neither was there."""
    key_names = [keys.dead_key(ns), keys.failed_key(ns)]
    return bool(await call(database, "drop_letter", key_names, [letter, field, entry]))


async def remove_consumer(database: Database, stream: str, group: str, consumer: str, *, idle_ms: int) -> bool:
    """Remove a consumer that holds nothing and has been idle for `idle_ms`."""
    return bool(await call(database, "remove_consumer", [stream], [group, consumer, idle_ms]))


async def drop_tombstones(database: Database, ns: str, ids: Sequence[str], *, floor: str) -> int:
    """Forget the tombstones among `ids` whose version lies before the entry id `floor`."""
    key_names = [keys.tombstones_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    return int(await call(database, "drop_tombstones", key_names, [floor, *ids]))


async def begin_reindex(database: Database, ns: str, *, analyzer: str, force: bool) -> tuple[int, int]:
    """Switch a namespace's analyzer; documents with numbers in [first, second) are to be analysed again."""
    cursor, end = await call(database, "begin_reindex", [keys.stats_key(ns)], [analyzer, "1" if force else "0"])
    return int(cursor), int(end)


async def advance_reindex(database: Database, ns: str, *, analyzer: str, end: int, cursor: int) -> bool:
    """Record that the documents below `cursor` are done; False when this run is over."""
    return bool(await call(database, "advance_reindex", [keys.stats_key(ns)], [analyzer, end, cursor]))
