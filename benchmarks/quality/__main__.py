"""`python -m benchmarks.quality [SET …]`: measure, and write build/eval.json and docs/quality.md.

jiyi is asked as a user asks it: documents go over the stream, questions over HTTP, with the default settings for all
sets. The others get the same documents and questions in the same run. A set whose questions name a user is searched
user by user: a namespace each, an index each.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.engines import AbsentError
from benchmarks.load import BUILD, DATA, ROOT
from benchmarks.quality.engines import ENGINES
from benchmarks.quality.report import METRICS, Row, report, write_rows
from jiyi.analysis import Analyzer
from jiyi.evaluation import JudgedQuery, JudgedSet, read_judged
from jiyi.evaluation.evaluate import scores_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.quality.engines import Found

SETS = ("cmrc2018_zh", "xquad_zh", "scifact_en", "cranfield_en", "xquad_en", "locomo_en", "gitissue_zh")
HARD = "gitissue_zh"
"""Most of its questions repeat their commit word by word; those that do not are a set of their own, `_hard`."""
console = Console(highlight=False)


def read_set(name: str) -> tuple[JudgedSet, set[str]]:
    """Read a set and the ids of its hard questions, if it has some."""
    folder = DATA / name
    queries = folder / "queries.jsonl.gz"
    hard = set()
    if name == HARD:
        with gzip.open(queries, "rt", encoding="utf-8") as lines:
            hard = {row["id"] for row in map(json.loads, lines) if not row["exact"]}
    return read_judged(folder / "docs.jsonl.gz", queries), hard


def rows_of(name: str, engine: str, judged: JudgedSet, found: Found, hard: set[str]) -> list[Row]:
    """Measure what an engine has found in a set, and in its hard part."""
    parts: list[tuple[str, list[tuple[JudgedQuery, list[str]]]]] = []
    pairs = list(zip(judged.queries, found, strict=True))
    parts.append((name, pairs))
    if hard:
        parts.append((f"{name}_hard", [pair for pair in pairs if pair[0].id in hard]))
    rows = []
    for part, asked in parts:
        scores = scores_of([query for query, _ in asked], [ids for _, ids in asked])
        rows += [Row(part, engine, metric, round(getattr(scores, metric), 5)) for metric in METRICS]
    return rows


def postings(judged: JudgedSet) -> float:
    """Give the postings of jiyi's analysis, as a multiple of those of the segmenter's words alone."""
    texts = [row["content"] for row in judged.documents]
    ours, words = Analyzer(), Analyzer(han_bigrams=False)
    return sum(len(ours.terms(text)) for text in texts) / sum(len(words.terms(text)) for text in texts)


def measure_all(names: Iterable[str]) -> list[Row]:
    """Measure all engines on some sets; rows of what cannot be had have no value and a note."""
    rows: list[Row] = []
    for name in names:
        if not (DATA / name / "queries.jsonl.gz").exists():
            rows.append(Row(name, "jiyi", METRICS[0], None, f"{DATA / name} is not there"))
            continue
        judged, hard = read_set(name)
        console.print(f"{name}: {len(judged.documents):,} documents, {len(judged.queries):,} questions")
        rows.append(Row(name, "jiyi", "postings_ratio", round(postings(judged), 3)))
        for engine, ask in ENGINES.items():
            try:
                found = ask(judged)
            except AbsentError as error:
                rows.append(Row(name, engine, METRICS[0], None, str(error)))
                continue
            measured = rows_of(name, engine, judged, found, hard)
            rows += measured
            for at in range(0, len(measured), len(METRICS)):
                told = "  ".join(f"{row.metric} {row.value:.4f}" for row in measured[at : at + len(METRICS)])
                console.print(f"  {engine:<19} {told}  {measured[at].set if at else ''}", soft_wrap=True)
    return rows


def main() -> None:
    """Measure the sets that are named, or all."""
    rows = measure_all(sys.argv[1:] or SETS)
    page = BUILD / "quality.md" if sys.argv[1:] else ROOT / "docs" / "quality.md"
    write_rows(rows, BUILD / "eval.json")
    page.write_text(report(rows), encoding="utf-8")
    console.print(f"written: {BUILD / 'eval.json'}, {page}", soft_wrap=True)


if __name__ == "__main__":
    main()
