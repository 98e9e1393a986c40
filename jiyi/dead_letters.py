"""Dead letters: events that could not be applied, kept with their reason until replayed or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import msgspec

from jiyi import keys, scripts
from jiyi.backlog import Backlog
from jiyi.connections import execute
from jiyi.errors import InvalidEventError
from jiyi.events import identify, parse_entry
from jiyi.memories import LATEST_MS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from jiyi.connections import Database

FOREIGN = "foreign"
"""Code of an entry that lies among the dead letters and is none."""

_PAGE = 500
_MOST_DELIVERIES = 2**63
_LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter. `letter` is its id in the dead-letter stream, `entry` the version of the event that failed.

    The version is the id of the event's stream entry, and stays that of the first one when it is replayed.

    What somebody else has put among them has the code `FOREIGN`, no `entry`, and its own fields as `fields`. It can be
    looked at and dropped, and is never replayed.
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

    @property
    def is_foreign(self) -> bool:
        """Whether no worker has filed it."""
        return not self.entry


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
            yield decode(ns, letter.decode(), flat)
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
    return decode(ns, letter, rows[0][1]) if rows else None


async def replay(database: Database, stream: str, letter: DeadLetter) -> str | None:
    """Append the event again; gives its new place on the stream, None when the letter is gone.

    The event keeps its version (`origin`), so it cannot undo what was written later; ask for readiness with that.
    The memory stays marked as failed until the event is processed. When this breaks off, the letter may be there
    still, and the event on the stream as well: replaying it once more is harmless.

    Raises `InvalidEventError` for a foreign one.
    """
    if letter.is_foreign:
        raise InvalidEventError(FOREIGN, "letter", f"{letter.reason}; it can be shown and dropped")
    if not await scripts.begin_replay(database, letter.ns, letter.letter, letter.entry):
        return None
    fields, versioned = _replayed(letter)
    entry = await execute(database, "XADD", stream, "*", *(part for pair in fields for part in pair))
    field = scripts.failed_field(letter.id, letter.entry)
    await scripts.drop_letter(database, letter.ns, letter.letter, field, letter.entry, replayed=versioned)
    return str(entry.decode())


class Replays:
    """Replays as far as the stream has room for them: many together would drown the workers, as writes would."""

    def __init__(self, database: Database, stream: str, max_backlog: int) -> None:
        self._database = database
        self._stream = stream
        self._backlog = Backlog(max_backlog)

    async def replay(self, letter: DeadLetter) -> str | None:
        """Append the event again, as `replay` does. Raises `BacklogFullError`, after which the letter is as before."""
        if self._backlog.must_look(1):
            self._backlog.looked(await execute(self._database, "XLEN", self._stream))
        if not self._backlog.has_room():
            raise self._backlog.full(0)
        entry = await replay(self._database, self._stream, letter)
        self._backlog.appended(1)
        return entry


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


def decode(ns: str, letter: str, flat: Sequence[bytes]) -> DeadLetter:
    """Decode an entry of the dead-letter stream: one that workers have filed, or a foreign one."""
    try:
        return _filed(ns, letter, dict(zip(flat[::2], flat[1::2], strict=True)))
    except (KeyError, ValueError, TypeError, RecursionError, msgpack.UnpackException, InvalidEventError):
        return DeadLetter(
            ns=ns,
            letter=letter,
            entry="",
            id=None,
            code=FOREIGN,
            reason="was not filed by jiyi, or has been changed since",
            dead_at_ms=min(parse_entry(letter)[0], LATEST_MS),
            deliveries=0,
            fields=tuple(zip(flat[::2], flat[1::2], strict=True)),
        )


def _filed(ns: str, letter: str, stored: dict[bytes, bytes]) -> DeadLetter:
    raw = msgpack.unpackb(stored[b"fields"], raw=True)
    fields = tuple(zip(raw[::2], raw[1::2], strict=True))
    if not all(isinstance(part, bytes) for part in raw):
        raise TypeError("a field is not bytes")
    entry = stored[b"entry"].decode()
    parse_entry(entry)
    dead_at_ms, deliveries = int(stored[b"dead_at"]), int(stored[b"deliveries"])
    if not 0 <= dead_at_ms <= LATEST_MS or not 0 <= deliveries <= _MOST_DELIVERIES:
        raise ValueError("a number is out of range")
    return DeadLetter(
        ns=ns,
        letter=letter,
        entry=entry,
        id=identify(fields)[1],
        code=stored[b"code"].decode(),
        reason=stored[b"reason"].decode(),
        dead_at_ms=dead_at_ms,
        deliveries=deliveries,
        fields=fields,
    )
