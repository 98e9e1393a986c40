"""The stream of events and its consumer group: reading, taking over, acknowledging, trimming, measuring.

Replies are decoded here, from RESP2 as it comes off the wire.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from jiyi import scripts
from jiyi.connections import execute
from jiyi.events import next_entry, parse_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database

START = "0-0"
_END = f"{2**64 - 1}-{2**64 - 2}"
"""No entry can be after it but the very last one, whose id `XREADGROUP` takes for `>`."""


class Entry(NamedTuple):
    """One stream entry as it was appended: fields keep their order and their doubles."""

    id: str
    fields: list[tuple[bytes, bytes]]


class Claim(NamedTuple):
    """Result of one step of taking over idle entries."""

    cursor: str
    entries: list[Entry]
    deleted: list[str]  # pending entries that no longer exist in the stream


class Sweep(NamedTuple):
    """What `sweep` removed and found. What was lost unread lay between `read` and `first`."""

    removed: int
    lost: int  # entries that somebody else removed before they were processed, found now
    read: str  # the last entry read at the last look
    first: str  # the first entry that is there now, "" for none


class Group(IntEnum):
    """What `ensure_group` found: the group was there, is new, or had been removed and is made again."""

    EXISTS = 0
    NEW = 1
    AGAIN = 2


class GroupState(NamedTuple):
    """How far a consumer group is behind. Ages are milliseconds against the caller's clock, never negative."""

    lag: int | None  # unread entries; None when the server cannot tell
    pending: int
    oldest_unapplied_ms: int  # 0 when nothing is unread or pending
    consumers: int
    floor: str  # every entry before this id has been processed


class EventStream:
    """The event stream as seen by one consumer group."""

    def __init__(self, database: Database, stream: str, group: str) -> None:
        self._database = database
        self.name = stream
        self._group = group

    async def _run(self, *command: str | int) -> Any:
        return await execute(self._database, *command)

    async def ensure_group(self) -> Group:
        """Create the group, and the stream, at the very beginning, unless it is there already.

        Never at `$`: that would skip what was accepted before the first worker came.
        """
        return Group(int((await scripts.create_group(self._database, self.name, self._group))[0]))

    async def read_new(self, consumer: str, count: int, block_ms: int) -> list[Entry]:
        """Read entries that nobody has read yet; waits up to `block_ms` for the first."""
        reply = await self._run(
            "XREADGROUP", "GROUP", self._group, consumer, "COUNT", count, "BLOCK", block_ms, "STREAMS", self.name, ">"
        )
        return _entries(reply[0][1]) if reply else []

    async def read_own(self, consumer: str, count: int, after: str = START) -> list[Entry]:
        """Read again what this consumer holds, from after an entry id; trimmed entries come without fields."""
        reply = await self._run(
            "XREADGROUP", "GROUP", self._group, consumer, "COUNT", count, "STREAMS", self.name, after
        )
        return _entries(reply[0][1]) if reply else []

    async def attend(self, consumer: str) -> None:
        """Be heard of as a consumer, and read nothing.

        Up to Redis 7.0 a read of new entries that gets none leaves no trace: who waits is not in the list of consumers.
        """
        await self.read_own(consumer, 1, _END)

    async def claim(self, consumer: str, idle_ms: int, cursor: str, count: int) -> Claim:
        """Take over up to `count` entries that have been pending for `idle_ms`; carry the cursor on."""
        reply = await self._run("XAUTOCLAIM", self.name, self._group, consumer, idle_ms, cursor, "COUNT", count)
        return Claim(reply[0].decode(), _entries(reply[1]), [entry.decode() for entry in reply[2]])

    async def renew(self, consumer: str, entries: Sequence[str]) -> None:
        """Start the idle time of entries that we hold anew, without counting a delivery."""
        if entries:
            await self._run("XCLAIM", self.name, self._group, consumer, 0, *entries, "JUSTID")

    async def deliveries(self, entry: str) -> int:
        """How often Redis has delivered a pending entry; 0 when it is not pending."""
        reply = await self._run("XPENDING", self.name, self._group, entry, entry, 1)
        return int(reply[0][3]) if reply else 0

    async def acknowledge(self, entries: Sequence[str]) -> None:
        """Mark entries as processed."""
        if entries:
            await scripts.acknowledge(self._database, self.name, self._group, entries)

    async def give_up(self, entries: Sequence[str]) -> None:
        """Let go of pending entries that no longer exist; `sweep` counts them as lost."""
        if entries:
            await self._run("XACK", self.name, self._group, *entries)

    async def get(self, entry: str) -> Entry | None:
        """Read one entry, whoever has processed it; None when it was never there or is trimmed."""
        reply = await self._run("XRANGE", self.name, entry, entry)
        return _entries(reply)[0] if reply else None

    async def is_unprocessed(self, entry: str) -> bool:
        """Tell whether an entry is still to be read or pending."""
        group = await self._group_info()
        if group is None or parse_entry(entry) > parse_entry(group["last-delivered-id"].decode()):
            return True
        return await self.deliveries(entry) > 0

    async def state(self, now_ms: int) -> GroupState | None:
        """Measure the group; None when the stream or the group does not exist."""
        group = await self._group_info()
        if group is None:
            return None
        delivered = group["last-delivered-id"].decode()
        pending = await self._run("XPENDING", self.name, self._group)
        unread = await self._run("XRANGE", self.name, f"({delivered}", "+", "COUNT", 1)
        waiting = [raw.decode() for raw in (pending[1], unread[0][0] if unread else None) if raw is not None]
        oldest = min(waiting, key=parse_entry, default=None)
        age_ms = 0 if oldest is None else max(0, now_ms - parse_entry(oldest)[0])
        lag = group.get("lag") if unread else 0  # the server may have miscounted, see `sweep`
        floor = pending[1].decode() if pending[1] is not None else next_entry(delivered)
        return GroupState(None if lag is None else int(lag), int(pending[0]), age_ms, int(group["consumers"]), floor)

    async def consumers(self) -> list[dict[str, Any]]:
        """Name, pending and idle (ms) of every consumer of the group."""
        return [_pairs(row) for row in await self._run("XINFO", "CONSUMERS", self.name, self._group)]

    async def sweep(self) -> Sweep | None:
        """Remove what every group on the stream has processed, and find out what somebody else has removed.

        Never an unread or pending entry. Also sets right the lag that the server tells, where a failover or a restart
        has falsified it (see `sweep_stream.lua`). None when the stream or the group does not exist.
        """
        reply = await scripts.sweep_stream(self._database, self.name, self._group)
        return Sweep(int(reply[0]), int(reply[1]), reply[2].decode(), reply[3].decode()) if reply else None

    async def after(self, entry: str, count: int) -> list[Entry]:
        """Read up to `count` entries after this one, whoever has read or processed them."""
        return _entries(await self._run("XRANGE", self.name, f"({entry}", "+", "COUNT", count))

    async def _groups(self) -> list[dict[str, Any]]:
        try:
            return [_pairs(row) for row in await self._run("XINFO", "GROUPS", self.name)]
        except ResponseError as error:
            if "no such key" in str(error):
                return []
            raise

    async def _group_info(self) -> dict[str, Any] | None:
        name = self._group.encode()
        return next((group for group in await self._groups() if group["name"] == name), None)


def _pairs(flat: Sequence[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _entries(rows: Sequence[Any]) -> list[Entry]:
    """Decode rows of (id, flat fields); an entry that was removed while pending has no fields."""
    entries = []
    for entry, flat in rows:
        fields = [] if flat is None else list(zip(flat[::2], flat[1::2], strict=True))
        entries.append(Entry(entry.decode(), fields))
    return entries
