"""What lies beside the index: tombstones, expiries, marks of dead letters, the set of namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.known_keys import KnownKeys
from jiyi.check.letters import Letters
from jiyi.check.marks import Marks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jiyi.repair.target import Target

_PAGE = 250


async def mend_marks(target: Target, stream: str | None) -> None:
    """Set all marks by what the memories say. `stream` as in `check_namespace`."""
    if await target.command("EXISTS", keys.stats_key(target.ns)):
        target.done["namespaces"] += await target.command("SADD", keys.NAMESPACES, target.ns)
    # A set of another type is replaced by the first call; so it comes before the memories.
    target.done["marks"] += await scripts.repair_marks(target.database, target.ns, ())
    async for ids in target.ids("marks"):
        target.done["marks"] += await scripts.repair_marks(target.database, target.ns, ids)
    for key in (keys.tombstones_key(target.ns), keys.expiries_key(target.ns)):
        async for members in _members(target, key):
            target.done["marks"] += await scripts.repair_marks(target.database, target.ns, members)
    await _mend_failed(target, stream)
    await _mend_letters(target, stream)


async def _members(target: Target, key: str) -> AsyncIterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, pairs = await target.command("ZSCAN", key, cursor, "COUNT", _PAGE)
        members = [member for member, _ in pairs]
        for at in range(0, len(members), _PAGE):  # a compact sorted set comes whole
            yield members[at : at + _PAGE]
        if cursor == 0:
            return


async def _mend_failed(target: Target, stream: str | None) -> None:
    marks = Marks(target.source(), KnownKeys(), stream)
    try:
        async for field, mark in marks.lost_letters():
            target.done["marks"] += await scripts.repair_failed(target.database, target.ns, field, mark)
    except ResponseError:
        return  # a key of another type holds events, or hides them: the check reports it


async def _mend_letters(target: Target, stream: str | None) -> None:
    letters = Letters(target.source(), stream)
    try:
        async for found in letters.misfits():
            target.done["marks"] += await scripts.repair_letters(
                target.database, target.ns, found.version, name=found.name, named=found.named, letter=found.letter
            )
    except ResponseError:
        return  # as above
