"""The report of a run, for people and for programs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from faults.samples import Plateau  # noqa: TC001 - msgspec reads the annotations
from faults.verification import Verdict  # noqa: TC001 - as above

if TYPE_CHECKING:
    from faults.findings import Findings
    from faults.ledger import Ledger

_SHOWN = 20


class Report(msgspec.Struct, kw_only=True):
    """What was done, what became of it, and what was found."""

    seed: int
    seconds: float
    interrupted: bool = False
    verdict: Verdict | None = None
    """None when the run ended before anything could be accounted for."""
    unchanged: int = 0
    """Of the accepted writes: those with the content that the memory had already."""
    refused: int = 0
    malformed: int = 0
    innocent: int = 0
    """Of the dead letters: those of events that do no harm."""
    rest_s: float = 0.0
    answers: int = 0
    faults: dict[str, int] = {}
    done: dict[str, int] = {}
    plateaus: dict[str, Plateau] = {}
    violations: list[str] = []
    violation_count: int = 0
    folder: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was a whole run, and nothing was found."""
        return not self.interrupted and not self.violation_count and self.verdict is not None and self.verdict.ok

    def __str__(self) -> str:
        lines = ["", f"faults: {_listed(self.faults)}", f"events: {_listed(self.done)}"]
        for name, plateau in self.plateaus.items():
            lines.append(
                f"{name}: at most {plateau.most:,.0f}; median {plateau.middle:,.0f} in the second third, "
                f"{plateau.last:,.0f} in the last"
            )
        lines.append(f"answers of readers judged: {self.answers:,}")
        if self.verdict is not None:
            lines += ["", *self._account(self.verdict)]
        lines += [f"VIOLATION {violation}" for violation in self.violations[:_SHOWN]]
        if self.violation_count > _SHOWN:
            lines.append(f"… and {self.violation_count - _SHOWN} more")
        return "\n".join([*lines, ""])

    def _account(self, verdict: Verdict) -> list[str]:
        counts = {
            "sent": verdict.sent, "outcome unknown": verdict.unknown, "applied": verdict.applied,
            "superseded": verdict.superseded, "dead-lettered": verdict.dead_lettered, "dropped by us": verdict.dropped,
            "lost by the server itself": verdict.vanished, "still pending": len(verdict.pending),
            "lost": len(verdict.lost), "wrong": len(verdict.wrong), "check failures": len(verdict.problems),
        }  # fmt: skip
        beside = {
            "unchanged rewrites among them": self.unchanged, "refused for sure": self.refused,
            "malformed besides": self.malformed,
            "dead without fault": self.innocent,
        }  # fmt: skip
        return [
            *(f"{name:>28} {count:8,}" for name, count in counts.items()),
            *(f"{name:>28} {count:8,}" for name, count in beside.items()),
            f"{'at rest after':>28} {self.rest_s:8.1f} s",
        ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts))


def unchanged_among(ledger: Ledger) -> int:
    """Count accepted writes that follow a write of the same content."""
    count = 0
    for history in ledger.histories().values():
        events = history.accepted
        count += sum(one.op == other.op == "write" and one.digest == other.digest for one, other in pairwise(events))
    return count


def fill(report: Report, findings: Findings) -> None:
    """Take over what was found."""
    report.faults, report.done = dict(findings.faults), dict(findings.done)
    report.violations, report.violation_count = findings.violations, findings.count
    report.seconds = findings.seconds
