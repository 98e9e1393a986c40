"""Blocks of ids: every document's number leads to its memory, and no other number leads anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jiyi import keys, scripts
from jiyi.repair.target import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jiyi.repair.documents import Documents
    from jiyi.repair.target import Target

_CHANGES = 200
"""Numbers that are mended in one call."""

Change = tuple[bytes, bytes, str, bool]
"""Number, id as it stands there, id that shall stand there, and whether to remove it whatever the memory says."""


async def mend_ids(target: Target, documents: Documents) -> None:
    """Mend all blocks by what `documents` has found. Numbers born since are right, and stay."""
    due: dict[int, dict[int, str]] = {}
    for number, memory_id in documents.owners.items():
        due.setdefault(number // keys.IDS_PER_BLOCK, {})[number] = memory_id
    blocks = set(due)
    async for names in target.keys(keys.ids_key(target.ns, 0)[:-1]):
        blocks |= {block for block in map(number_of, names) if block is not None}
    report = target.progress("ids")
    for done, block in enumerate(sorted(blocks)):
        stored = await target.fields(keys.ids_key(target.ns, block * keys.IDS_PER_BLOCK))
        changes = _changes(block, stored or {}, due.get(block, {}), documents.strangers)
        # A block of another type is replaced, also by nothing.
        for at in range(0, len(changes), _CHANGES) if stored is not None else range(0, len(changes) + 1, _CHANGES):
            part = changes[at : at + _CHANGES]
            target.done["ids"] += await scripts.repair_ids(target.database, target.ns, block, part)
        report(done + 1, len(blocks))


def _changes(block: int, stored: Mapping[bytes, bytes], due: Mapping[int, str], strangers: set[str]) -> list[Change]:
    changes = []
    for raw, current in stored.items():
        number = number_of(raw)
        belongs = number is not None and number // keys.IDS_PER_BLOCK == block
        wanted = due.get(number, "") if belongs and number is not None else ""
        if wanted.encode() != current or not wanted:
            changes.append((raw, current, wanted, not belongs or current.decode(errors="replace") in strangers))
    missing = due.keys() - {number_of(raw) for raw in stored}
    return changes + [(b"%d" % number, b"", due[number], False) for number in sorted(missing)]
