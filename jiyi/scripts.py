"""The Lua scripts of `lua/`, each as one typed coroutine whose signature is the script's contract.

Scripts are called by their SHA-1 and sent whole once when the server does not know them (after a restart,
a failover or SCRIPT FLUSH). Status codes are those of the scripts' headers; a test compares them.

A script that writes with several commands begins with a look at the user's permissions for these (`_LOOK`): one that is
missing must not end it half-way. Permissions for keys show before the first write, in what the script reads.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError

from jiyi import keys
from jiyi.connections import execute
from jiyi.lanes import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.resources.abc import Traversable

    from jiyi.connections import Database

Argument = str | bytes | int | float

WRITES = frozenset(
    ("APPEND", "DEL", "HDEL", "HINCRBY", "HSET", "PERSIST", "RENAME", "SET", "SETRANGE",
     "XACK", "XADD", "XDEL", "XTRIM", "ZADD", "ZREM", "ZREMRANGEBYSCORE")
)  # fmt: skip
"""The commands with which scripts write, besides XGROUP, which has subcommands."""
_LOOK = (
    "for _, command in ipairs({%s}) do if not redis.acl_check_cmd(command, KEYS[1]) then return "
    "redis.error_reply('NOPERM this user has no permissions to run the command ' .. command) end end"
)
_command = re.compile(r"'([A-Z]{3,})'").findall


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
    RESERVATION_LOST = 4


class JournalStatus(IntEnum):
    """Answer of `repair_journal`; anything but OK means that nothing was written."""

    OK = 0
    MOVED = 1
    BEHIND = 2


class Filing(IntEnum):
    """What became of an event that was to be filed as dead letter."""

    FILED_BEFORE = 0
    FILED = 1
    APPLIED_BEFORE = 2


class Script(NamedTuple):
    """Source and SHA-1 of one script."""

    source: str
    sha: str


def folder() -> Traversable:
    """The folder of the scripts: inside the installed package, else beside it in a checkout."""
    packaged = files("jiyi") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "lua"


@cache
def load_all() -> Mapping[str, Script]:
    """Read all scripts at once, by name: a process that has no file descriptor left must not have to open a file."""
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder().iterdir() if file.name.endswith(".lua")}
    return {name.removesuffix(".lua"): _script(_permitted(source)) for name, source in sources.items()}


def _script(source: str) -> Script:
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _permitted(source: str) -> str:
    """Put the look at permissions into the empty line behind the header, so that the numbers of lines stay right."""
    writes = sorted(WRITES.intersection(_command(source)))
    if len(writes) <= 1:
        return source
    look = _LOOK % ", ".join(map(repr, writes))
    return source.replace("\n\n", f"\n{look}\n", 1)


def load(name: str) -> Script:
    """Give a script by its name."""
    return load_all()[name]


@cache
def allowing_oom(name: str) -> Script:
    """Give the variant of a script that also runs while the server's memory is full: the same code, another flag."""
    return _script(load(name).source.replace("#!lua\n", "#!lua flags=allow-oom\n", 1))


async def call(  # noqa: PLR0913 - two of them are for few
    database: Database,
    name: str,
    key_names: Sequence[str | bytes],
    arguments: Sequence[Argument],
    *,
    allow_oom: bool = False,
    reads: bool = False,
) -> Any:
    """Run a script. Raises `UnavailableError` when the server cannot answer now.

    `allow_oom` is for calls that free more memory than they take, `reads` for those that change nothing.
    """
    script = allowing_oom(name) if allow_oom else load(name)
    command = ("EVALSHA", script.sha, len(key_names), *key_names, *arguments)
    try:
        return await (ask(database, str(key_names[0]), *command) if reads else execute(database, *command))
    except NoScriptError:
        return await execute(database, "EVAL", script.source, len(key_names), *key_names, *arguments)


async def prepare_events(  # noqa: PLR0913 - the script's contract
    database: Database,
    ns: str,
    *,
    token: str,
    now_ms: int,
    analyzer: str,
    again: bool,
    ids: Sequence[str],
    versions: Sequence[tuple[str, str]],
    allow_oom: bool = False,
) -> list[Any]:
    """Answer of `prepare_events.lua` for (version, version hash) pairs of the memories `ids`."""
    key_names = [keys.stats_key(ns), keys.reservations_key(ns)]
    key_names += [keys.memory_key(ns, memory_id) for memory_id in ids]
    arguments: list[Argument] = [token, now_ms, analyzer, "1" if again else "0"]
    for version, version_hash in versions:
        arguments += (version, version_hash)
    reply: list[Any] = await call(database, "prepare_events", key_names, arguments, allow_oom=allow_oom)
    return reply


async def apply_events(
    database: Database, key_names: Sequence[str], arguments: Sequence[Argument], *, allow_oom: bool = False
) -> ApplyStatus:
    """Run `apply_events.lua` on what `jiyi.packing` packed."""
    return ApplyStatus(await call(database, "apply_events", key_names, arguments, allow_oom=allow_oom))


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
    reply: list[Any] = await call(database, "read_index", key_names, arguments, reads=True)
    return reply


async def read_ids(database: Database, ns: str, docs: Sequence[int], *, epoch: str) -> list[bytes | None]:
    """Memory ids of an epoch's document numbers, None where the document has died or the epoch is over."""
    key_names = [keys.stats_key(ns), *(keys.ids_key(ns, doc) for doc in docs)]
    reply: list[bytes | None] = await call(database, "read_ids", key_names, [epoch, *docs], reads=True)
    return reply


async def read_documents(
    database: Database, ns: str, ids: Sequence[str], fields: Sequence[str], *, epoch: str = ""
) -> list[list[bytes | None]]:
    """Values of `fields` of the memories `ids`, all as they are at one instant; all None after the `epoch` given."""
    key_names = [keys.stats_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    reply: list[list[bytes | None]] = await call(database, "read_documents", key_names, [epoch, *fields], reads=True)
    return reply


async def read_readiness(database: Database, ns: str, ids: Sequence[str]) -> list[list[bytes | None]]:
    """(entry, indexed_at, deleted_at, expires_at, dead letter) of the memories `ids`."""
    key_names = [keys.failed_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    reply: list[list[bytes | None]] = await call(database, "read_readiness", key_names, ids, reads=True)
    return reply


async def dead_letter(  # noqa: PLR0913 - the script's contract
    database: Database,
    ns: str,
    memory_id: str | None,
    *,
    version: str,
    code: str,
    reason: str,
    now_ms: int,
    deliveries: int,
    fields: Sequence[tuple[bytes, bytes]],
) -> Filing:
    """File an event as dead letter, unless it has been filed or applied before."""
    arguments: list[Argument] = [failed_field(memory_id, version), version, code, reason, now_ms, deliveries]
    for name, value in fields:
        arguments += (name, value)
    key_names = _letter_keys(ns)
    if memory_id is not None:
        key_names.append(keys.memory_key(ns, memory_id))
    return Filing(await call(database, "dead_letter", key_names, arguments))


def _letter_keys(ns: str) -> list[str]:
    return [keys.dead_key(ns), keys.failed_key(ns), keys.letters_key(ns)]


def failed_field(memory_id: str | None, version: str) -> str:
    """Field of `failed:{ns}` for a dead letter; no memory id holds a zero byte."""
    return memory_id if memory_id is not None else f"\0{version}"


async def drop_letter(  # noqa: PLR0913 - the script's contract
    database: Database, ns: str, letter: str, field: str, version: str, *, replayed: bool = False
) -> bool:
    """Remove a dead letter, and unless it was `replayed` what marks its memory; False when it was gone."""
    arguments = [letter, field, version, "1" if replayed else "0"]
    return bool(await call(database, "drop_letter", _letter_keys(ns), arguments))


async def begin_replay(database: Database, ns: str, letter: str, version: str) -> bool:
    """Note that a dead letter's event is about to be appended again; False when there is no such letter."""
    key_names = [keys.dead_key(ns), keys.letters_key(ns)]
    return bool(await call(database, "begin_replay", key_names, [letter, version]))


async def settle_replay(database: Database, ns: str, memory_id: str, version: str) -> bool:
    """Note that a replayed event has been processed; False when nothing had to be changed."""
    return bool(await call(database, "settle_replay", _letter_keys(ns), [memory_id, version]))


async def append_delete(database: Database, stream: str, fields: Mapping[str, bytes]) -> bytes:
    """Append a delete event to the stream, also while the server's memory is full; gives the entry id."""
    flat = [part for pair in fields.items() for part in pair]
    reply: bytes = await call(database, "append_delete", [stream], flat)
    return reply


async def create_group(database: Database, stream: str, group: str) -> list[Any]:
    """Answer of `create_group.lua`."""
    reply: list[Any] = await call(database, "create_group", [stream, keys.processed_key(stream)], [group])
    return reply


async def acknowledge(database: Database, stream: str, group: str, entries: Sequence[str]) -> int:
    """Acknowledge processed entries; gives how many were pending until now."""
    key_names = [stream, keys.processed_key(stream)]
    return int(await call(database, "acknowledge", key_names, [group, *entries]))


async def sweep_stream(database: Database, stream: str, group: str) -> list[Any]:
    """Answer of `sweep_stream.lua`."""
    reply: list[Any] = await call(database, "sweep_stream", [stream, keys.processed_key(stream)], [group])
    return reply


async def remove_consumer(database: Database, stream: str, group: str, consumer: str | bytes, *, idle_ms: int) -> bool:
    """Remove a consumer that holds nothing and has been idle for `idle_ms`."""
    return bool(await call(database, "remove_consumer", [stream], [group, consumer, idle_ms]))


async def drop_tombstones(database: Database, ns: str, ids: Sequence[str], *, floor: str) -> int:
    """Forget the tombstones among `ids` whose version lies before the entry id `floor`."""
    key_names = [keys.stats_key(ns), keys.tombstones_key(ns)]
    key_names += [keys.memory_key(ns, memory_id) for memory_id in ids]
    return int(await call(database, "drop_tombstones", key_names, [floor, *ids]))


async def begin_reindex(database: Database, ns: str, *, analyzer: str, force: bool) -> tuple[int, int]:
    """Switch a namespace's analyzer; documents with numbers in [first, second) are to be analysed again."""
    cursor, end = await call(database, "begin_reindex", [keys.stats_key(ns)], [analyzer, "1" if force else "0"])
    return int(cursor), int(end)


async def advance_reindex(database: Database, ns: str, *, analyzer: str, end: int, cursor: int) -> bool:
    """Record that the documents below `cursor` are done; False when this run is over."""
    return bool(await call(database, "advance_reindex", [keys.stats_key(ns)], [analyzer, end, cursor]))


def is_repaired(epoch: str, before: str) -> bool:
    """Tell whether a new epoch comes from a repair of the namespace that had the one `before`, and not from a wipe."""
    return epoch.partition("~")[0] == before.partition("~")[0]


async def repair_counters(database: Database, ns: str, *, revision: str, analyzer: str, floor: int) -> int:
    """Make counters and journal usable, `next_doc` at least `floor`; 1 mended, 0 sound, -1 another analyzer."""
    key_names = [keys.stats_key(ns), keys.journal_key(ns)]
    return int(await call(database, "repair_counters", key_names, [revision, analyzer, floor]))


async def repair_memories(
    database: Database, ns: str, ids: Sequence[str], changes: Sequence[Sequence[Argument]], *, revision: str
) -> list[bytes | None]:
    """Mend fields of memories; gives their document numbers, None for one that has moved on, [] without counters."""
    key_names = [keys.stats_key(ns), *(keys.memory_key(ns, memory_id) for memory_id in ids)]
    arguments = [revision, *(argument for change in changes for argument in change)]
    reply: list[bytes | None] = await call(database, "repair_memories", key_names, arguments)
    return reply


async def repair_ids(database: Database, ns: str, block: int, changes: Sequence[tuple[bytes, bytes, str, bool]]) -> int:
    """Mend (number, id as read, id that it shall have, remove anyway) of one block of ids; gives how many were."""
    key_names = [keys.ids_key(ns, block * keys.IDS_PER_BLOCK).encode()]
    arguments: list[Argument] = []
    for number, current, memory_id, anyway in changes:
        key_names.append(keys.memory_key(ns, "").encode() + (memory_id.encode() or current))
        arguments += (number, current, memory_id, "1" if anyway else "0")
    return int(await call(database, "repair_ids", key_names, arguments))


async def repair_journal(  # noqa: PLR0913 - the script's contract
    database: Database,
    ns: str,
    rebuild: str,
    *,
    epoch: bytes,
    journal: tuple[bytes, int],
    missing: tuple[int, int],
    size: int,
) -> JournalStatus:
    """Put the journal in the key `rebuild` in place; `journal` says (generation, bytes) of the old one as read.

    `missing` is what (docs, tokens) were short of at the instant of that reading.
    """
    key_names = [keys.stats_key(ns), keys.journal_key(ns), rebuild]
    return JournalStatus(await call(database, "repair_journal", key_names, [epoch, *journal, *missing, size]))


async def repair_terms(
    database: Database,
    ns: str,
    epoch: bytes,
    terms: Sequence[tuple[int, str, str]],
    changes: Sequence[Sequence[Argument]],
) -> list[int]:
    """Replace postings of (bucket, term, rebuild key or "") as the script's eight arguments say; 1 where it was done.

    Gives [] in another epoch.
    """
    key_names = [keys.stats_key(ns)]
    for bucket, term, rebuild in terms:
        index = keys.index_key(ns, term)
        key_names += (keys.bucket_key(ns, bucket), index, rebuild or index)
    arguments = [epoch, *(argument for change in changes for argument in change)]
    reply: list[int] = await call(database, "repair_terms", key_names, arguments)
    return reply


async def note_sealing(database: Database, ns: str, epoch: bytes, number: int) -> bool:
    """Note that the long lists have been sealed up to a document number; False in another epoch."""
    return bool(await call(database, "note_sealing", [keys.stats_key(ns)], [epoch, number]))


async def repair_marks(database: Database, ns: str, ids: Sequence[str | bytes]) -> int:
    """Set tombstones' and expiries' marks of memories by what these say; gives how many were mended."""
    prefix = keys.memory_key(ns, "").encode()
    raw = [memory_id.encode() if isinstance(memory_id, str) else memory_id for memory_id in ids]
    key_names: list[str | bytes] = [keys.tombstones_key(ns), keys.expiries_key(ns)]
    key_names += (prefix + memory_id for memory_id in raw)
    return int(await call(database, "repair_marks", key_names, raw))


async def repair_failed(database: Database, ns: str, field: bytes, mark: bytes) -> bool:
    """Take back the mark of a dead letter that does not exist; False when the mark has changed."""
    return bool(await call(database, "repair_failed", _letter_keys(ns), [field, mark]))


async def repair_letters(  # noqa: PLR0913 - the script's contract
    database: Database, ns: str, version: bytes, *, name: bytes, named: bytes, letter: bytes
) -> bool:
    """Name a dead letter by its version, or take a name back (`letter` is b""); False when it has changed."""
    key_names = [keys.dead_key(ns), keys.letters_key(ns)]
    return bool(await call(database, "repair_letters", key_names, [version, name, letter, named]))
