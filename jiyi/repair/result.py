"""What a repair has done, and what it has left to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jiyi.check.report import ADVICE, BY_HAND, Kind, Report

if TYPE_CHECKING:
    from collections.abc import Mapping

LEFT = {
    Kind.FENCE: f"Nobody can tell which version is stored. {BY_HAND}",
    Kind.MEMORY: f"What is stored there is neither a complete memory nor a deleted one. {BY_HAND}",
    Kind.FORWARD_LIST: f"The content cannot be analysed any more, so its terms are not known. {BY_HAND}",
    Kind.TOMBSTONE: f"Nobody can tell when it was deleted. {BY_HAND}",
    Kind.JOURNAL: f"A field of the memory cannot be right, such as an importance that is no number. {BY_HAND}",
    Kind.STRAY_KEY: "This key is no data of jiyi, or hides some. Find out which program wrote it, and remove it.",
    Kind.STRAY_LETTER: ADVICE[Kind.STRAY_LETTER],
}
"""What to do about problems that a repair leaves, because mending them would be guessing."""
_AGAIN = "Run jiyi check --repair once more; if it stays, restore the database from a backup."


class Repair(msgspec.Struct, kw_only=True):
    """The result of repairing one namespace.

    `report` is that of the check afterwards. `repaired` counts the problems by kind that are gone, `unrepaired` those
    that are left; their advice in the report says what a person can do. `done` counts what was mended: memories,
    ids, marks, namespaces (announced again), terms, and 1 for each rewriting of counters and journal.
    `refused` says why nothing more was tried, if so.
    """

    report: Report
    repaired: dict[Kind, int] = {}
    unrepaired: dict[Kind, int] = {}
    done: dict[str, int] = {}
    refused: str = ""

    @property
    def ok(self) -> bool:
        """Whether all holds now."""
        return self.report.ok and not self.refused


def result(report: Report, repaired: Mapping[Kind, int], done: Mapping[str, int], refused: str = "") -> Repair:
    """Put a result together."""
    problems = [msgspec.structs.replace(problem, advice=LEFT.get(problem.kind, _AGAIN)) for problem in report.problems]
    return Repair(
        report=msgspec.structs.replace(report, problems=problems),
        repaired={kind: count for kind, count in repaired.items() if count},
        unrepaired=dict(report.counts),
        done={what: count for what, count in done.items() if count},
        refused=refused,
    )
