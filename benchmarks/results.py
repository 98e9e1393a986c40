"""Rows: every number that was measured, and every one that could not be."""

from __future__ import annotations

import json
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

console = Console(highlight=False)


class Row(NamedTuple):
    """One number. `value` is None for what is absent or was left out; `note` then says why."""

    bench: str
    engine: str
    docs: int
    metric: str
    value: float | None
    unit: str
    note: str = ""


class Results:
    """All rows of a run, in the order in which they were measured."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def about(self, bench: str, engine: str, docs: int) -> Section:
        """Give what rows of one bench, engine and size are added to."""
        return Section(self, bench, engine, docs)

    def value(self, bench: str, engine: str, docs: int, metric: str) -> float | None:
        """Give a number that was measured, or None."""
        for row in self.rows:
            if (row.bench, row.engine, row.docs, row.metric) == (bench, engine, docs, metric):
                return row.value
        return None

    def of(self, bench: str) -> Iterator[Row]:
        """Give the rows of one bench."""
        return (row for row in self.rows if row.bench == bench)

    def write(self, path: Path) -> None:
        """Write all rows as JSON, one a line; rows of what was absent have the value null and a note."""
        rows = [row._asdict() for row in self.rows]
        lines = (json.dumps({k: v for k, v in row.items() if k != "note" or v}, ensure_ascii=False) for row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")

    def add(self, row: Row) -> None:
        """Keep a row and show it."""
        self.rows.append(row)
        shown = f"[yellow]{row.note}[/]" if row.value is None else f"{row.value:,.3f} {row.unit}  {row.note}"
        console.print(f"  {row.bench:<11} {row.engine:<19} {row.docs:>8,}  {row.metric:<32} {shown}", soft_wrap=True)


class Section(NamedTuple):
    """Where the numbers of one bench, engine and number of documents go."""

    results: Results
    bench: str
    engine: str
    docs: int

    def record(self, metric: str, value: float, unit: str = "", note: str = "") -> None:
        """Keep a number."""
        self.results.add(Row(self.bench, self.engine, self.docs, metric, round(value, 5), unit, note))

    def absent(self, metric: str, note: str) -> None:
        """Keep that something has no number, and why."""
        self.results.add(Row(self.bench, self.engine, self.docs, metric, None, "", note))

    def times(self, values_ms: Sequence[float], prefix: str = "") -> None:
        """Keep mean, median and 99th percentile of times in milliseconds."""
        percentiles = quantiles(values_ms, n=100, method="inclusive")
        for name, value in (("mean", fmean(values_ms)), ("p50", percentiles[49]), ("p99", percentiles[98])):
            self.record(f"{prefix}{name}_ms", value, "ms")
