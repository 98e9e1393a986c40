"""Dead letters: events that could not be applied, kept with their reason until replayed or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import msgspec

from jiyi import keys, scripts
from jiyi.connections import execute
from jiyi.events import identify, parse_entry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from jiyi.connections import Database

_PAGE = 500
_LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter. `letter` is its id in the dead-letter stream, `entry` the version of the event that failed.

    The version is the id of the event's stream entry, and stays that of the first one when it is replayed.
    """

    ns: str
    letter: str
    entry: str
    id: str | None  # of the memory, where the event names one
    code: str
    reason: str
    dead_at_ms: int
    deliveries: int
    fields: tuple[tuple[bytes, bytes], ...]


async def namespaces(database: Database) -> list[str]:
    """All namespaces that can hold dead letters, sorted."""
    members = await execute(database, "SMEMBERS", keys.NAMESPACES)
    return sorted({raw.decode() for raw in members} | {"default"})


async def letters(
    database: Database, ns: str, *, after: str | None = None, until: str | None = None, page: int = _PAGE
) -> AsyncGenerator[DeadLetter, None]:
    """Dead letters of a namespace, oldest first: all, or those after the letter `after` up to the letter `until`.

    They are read `page` at a time, and so that many events are held in memory. Letters may be replayed and dropped
    meanwhile; without `until` those that come meanwhile are given too.
    """
    if after == _LAST_ID:  # nothing can follow, and Redis refuses to look for it
        return
    start = "-" if after is None else f"({after}"
    while True:
        rows = await execute(database, "XRANGE", keys.dead_key(ns), start, until or "+", "COUNT", page)
        for letter, flat in rows:
            yield _decode(ns, letter.decode(), flat)
        if len(rows) < page:
            return
        start = f"({rows[-1][0].decode()}"


async def newest(database: Database, ns: str) -> str | None:
    """Id of the newest dead letter, as the bound `until` of a walk that replays: what fails again comes after it."""
    rows = await execute(database, "XREVRANGE", keys.dead_key(ns), "+", "-", "COUNT", 1)
    return rows[0][0].decode() if rows else None


async def find(database: Database, ns: str, letter: str) -> DeadLetter | None:
    """One dead letter by its id in the dead-letter stream; `InvalidEventError` for what is no such id."""
    parse_entry(letter)
    rows = await execute(database, "XRANGE", keys.dead_key(ns), letter, letter)
    return _decode(ns, letter, rows[0][1]) if rows else None


async def replay(database: Database, stream: str, letter: DeadLetter) -> str | None:
    """Append the event again; gives its new place on the stream, None when the letter is gone.

    The event keeps its version (`origin`), so it cannot undo what was written later; ask for readiness with that.
    The memory stays marked as failed until the event is processed. When this breaks off, the letter may be there
    still, and the event on the stream as well: replaying it once more is harmless.
    """
    if not await scripts.begin_replay(database, letter.ns, letter.letter, letter.entry):
        return None
    fields, versioned = _replayed(letter)
    entry = await execute(database, "XADD", stream, "*", *(part for pair in fields for part in pair))
    field = scripts.failed_field(letter.id, letter.entry)
    await scripts.drop_letter(database, letter.ns, letter.letter, field, letter.entry, replayed=versioned)
    return str(entry.decode())


async def drop(database: Database, letter: DeadLetter) -> bool:
    """Remove a dead letter for good; False when it is gone already."""
    field = scripts.failed_field(letter.id, letter.entry)
    return await scripts.drop_letter(database, letter.ns, letter.letter, field, letter.entry)


def _replayed(letter: DeadLetter) -> tuple[Sequence[tuple[bytes, bytes]], bool]:
    """Give the fields to append, and whether they carry the version.

    What cannot be read cannot be given one: it will most likely fail again, as an event of its own. But for the version
    nothing is changed, so that an event which must be refused is refused again, and reaches no other namespace.
    """
    fields = dict(letter.fields)
    if b"payload" not in fields:
        origin = (b"origin", letter.entry.encode())
        return [*(pair for pair in letter.fields if pair[0] != b"origin"), origin], True
    if len(letter.fields) > 1:
        return letter.fields, False
    try:
        named = msgpack.unpackb(fields[b"payload"], raw=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return letter.fields, False
    if not isinstance(named, dict):
        return letter.fields, False
    return [(b"payload", msgpack.packb({**named, "origin": letter.entry}))], True


def _decode(ns: str, letter: str, flat: Sequence[bytes]) -> DeadLetter:
    stored = dict(zip(flat[::2], flat[1::2], strict=True))
    raw = msgpack.unpackb(stored[b"fields"], raw=True)
    fields = tuple(zip(raw[::2], raw[1::2], strict=True))
    return DeadLetter(
        ns=ns,
        letter=letter,
        entry=stored[b"entry"].decode(),
        id=identify(fields)[1],
        code=stored[b"code"].decode(),
        reason=stored[b"reason"].decode(),
        dead_at_ms=int(stored[b"dead_at"]),
        deliveries=int(stored[b"deliveries"]),
        fields=fields,
    )
