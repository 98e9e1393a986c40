"""The report: machine, method, tables with the engines side by side, and aims against what was measured."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from benchmarks.aims import judge
from benchmarks.machine import engine_versions, machine_facts
from benchmarks.method import BENCHES, METHOD
from benchmarks.plot import draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.aims import Verdict
    from benchmarks.results import Results, Row

_LATENCIES = ("mean_ms", "p50_ms", "p99_ms")
_QUERY_COLUMNS = (*_LATENCIES, "queries", "same_top_10", "server_cpu_us", "server_command_us")


def write_report(results: Results, folder: Path, facts: dict[str, str]) -> Path:
    """Write `benchmarks.md` and its picture into a folder; `facts` are of this run."""
    path = folder / "benchmarks.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = draw(results, folder / "benchmarks.svg")
    path.write_text("\n".join(_report(results, picture, facts)) + "\n")
    return path


def sizes_of(results: Results) -> list[int]:
    """Give the numbers of documents at which anything was measured."""
    return sorted({row.docs for row in results.rows})


def verdicts(results: Results) -> list[Verdict]:
    """Hold the aims against all rows."""
    return list(judge(results, sizes_of(results)))


def verdict_cells(verdict: Verdict) -> list[str]:
    """Give a verdict as text: aim, documents, measured, bound, outcome."""
    measured = "–" if verdict.measured is None else number(verdict.measured)
    outcome = {True: "met", False: "not met", None: "not measured"}[verdict.met]
    return [verdict.text, f"{verdict.docs:,}", measured, verdict.bound, outcome]


def number(value: float) -> str:
    """Write a number with three significant digits, or as a whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _report(results: Results, picture: str, facts: dict[str, str]) -> Iterator[str]:
    yield "# Benchmarks\n\nWritten by `make bench`; not to be edited. [Profiles and what was tried](profiles.md).\n"
    yield from _table(("", ""), ((f"**{name}**", value) for name, value in {**machine_facts(), **facts}.items()))
    versions = ", ".join(f"{name} {version}" for name, version in engine_versions().items())
    yield f"Versions: {versions}.\n"
    yield "## Aims\n"
    yield from _table(("aim", "documents", "measured", "bound", ""), map(verdict_cells, verdicts(results)))
    yield f"## Query latency\n\n{picture}\n"
    yield f"{BENCHES['query']}\n"
    for docs in sorted({row.docs for row in results.of("query")}):
        yield from _query_tables(results, docs)
    for bench, title in TITLES.items():
        yield f"## {title}\n\n{BENCHES[bench]}\n"
        yield from _side_by_side(list(results.of(bench)))
    yield METHOD


TITLES = {
    "http": "Over HTTP", "ingest": "Ingest", "memory": "Memory", "freshness": "Freshness",
    "under_load": "The reader beside workers", "rewrites": "After rewriting everything five times",
    "cold_start": "Cold start",
}  # fmt: skip
"""The benches that are told in plain tables, in this order."""


def _query_tables(results: Results, docs: int) -> Iterator[str]:
    rows = [row for row in results.of("query") if row.docs == docs]
    values = {(row.engine, row.metric): row.value for row in rows}
    ours = values.get(("jiyi", "mean_ms"))
    yield f"### {docs:,} documents\n"
    lines = []
    for engine in _engines(rows):
        mean = values.get((engine, "mean_ms"))
        ratio = number(mean / ours) if mean and ours else "–"
        lines.append([engine, *(_cell(values.get((engine, metric))) for metric in _QUERY_COLUMNS), ratio])
    yield from _table(("engine", *_QUERY_COLUMNS, "mean / jiyi"), lines)
    further = [row for row in rows if row.metric not in _QUERY_COLUMNS and row.value is not None]
    if further:
        yield "; ".join(f"{row.engine} {row.metric} {number(row.value or 0)} {row.unit}".rstrip() for row in further)
        yield ""
    yield from _notes(rows)


def _side_by_side(rows: list[Row]) -> Iterator[str]:
    """One table a size: metrics down, engines across, with their ratio to jiyi."""
    for docs, group in groupby(sorted(rows, key=lambda row: row.docs), key=lambda row: row.docs):
        of_size = list(group)
        engines = _engines(of_size)
        values = {(row.engine, row.metric): row for row in of_size}
        yield f"### {docs:,} documents\n"
        lines = []
        for metric in dict.fromkeys(row.metric for row in of_size):
            found = [values.get((engine, metric)) for engine in engines]
            unit = next((row.unit for row in found if row and row.unit), "")
            ours = found[0].value if found[0] and engines[0] == "jiyi" else None
            cells = [_cell(row.value if row else None, ours if row is not found[0] else None) for row in found]
            lines.append([metric, *cells, unit])
        yield from _table(("metric", *engines, "unit"), lines)
        yield from _notes(of_size)


def _notes(rows: Iterable[Row]) -> Iterator[str]:
    noted = list(dict.fromkeys(f"- {row.engine}, {row.metric}: {row.note}" for row in rows if row.note))
    if noted:
        yield from noted
        yield ""


def _engines(rows: Sequence[Row]) -> list[str]:
    """Give the engines of these rows, jiyi first."""
    return sorted(dict.fromkeys(row.engine for row in rows), key=lambda engine: engine != "jiyi")


def _cell(value: float | None, ours: float | None = None) -> str:
    if value is None:
        return "–"
    return f"{number(value)} ({number(value / ours)}×)" if ours else number(value)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"
    yield ""
