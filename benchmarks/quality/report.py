"""The rows of an evaluation, and the page that shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.quality.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AIMS = {
    "cmrc2018_zh": 0.940,
    "xquad_zh": 0.905,
    "scifact_en": 0.692,
    "cranfield_en": 0.520,
    "xquad_en": 0.967,
    "locomo_en": 0.46,
    "gitissue_zh_hard": 0.86,
}
"""nDCG@10 that jiyi means to reach on each set, with one configuration for all."""
MOST_POSTINGS = 2.2
"""Postings of a document, as a multiple of those that the segmenter's words alone would make."""
METRICS = ("ndcg_10", "recall_10", "recall_100", "mrr_10")
_INTRODUCTION = """# Search quality

Written by `make eval`; not to be edited. Every engine gets the same documents and questions, in one run; jiyi over its
stream and over HTTP, with its default settings for all sets. `recall_100` is the share of the relevant documents among
the first hundred. `rank_bm25_jieba` is what most build today: jieba's words and rank_bm25. `bm25s` has its own
defaults, `redisearch_chinese` its own Chinese analysis.
"""


class Row(NamedTuple):
    """One number; None with a note for what is absent."""

    set: str
    engine: str
    metric: str
    value: float | None
    note: str = ""


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write all rows as JSON, one a line."""
    kept = ({name: value for name, value in row._asdict().items() if name != "note" or value} for row in rows)
    lines = [json.dumps(row, ensure_ascii=False) for row in kept]
    path.parent.mkdir(exist_ok=True)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def report(rows: Sequence[Row]) -> str:
    """Give the page: the aims, and every number."""
    values = {(row.set, row.engine, row.metric): row.value for row in rows}
    sets = list(dict.fromkeys(row.set for row in rows))
    lines = [
        _INTRODUCTION,
        "## Aims",
        "",
        "| nDCG@10 | jiyi | aim | best other |  |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in sets:
        ours = values.get((name, "jiyi", "ndcg_10"))
        others = [values.get((name, engine, "ndcg_10")) for engine in ENGINES if engine != "jiyi"]
        best = max((value for value in others if value is not None), default=None)
        if ours is None:
            lines.append(f"| {name} | – | {AIMS.get(name, '–')} | – | absent |")
            continue
        aim = AIMS.get(name)
        is_met = (aim is None or ours >= aim) and (best is None or ours > best)
        shown = "–" if best is None else f"{best:.4f}"
        lines.append(f"| {name} | {ours:.4f} | {'–' if aim is None else aim} | {shown} | {_verdict(is_met)} |")
    for name in sets:
        ratio = values.get((name, "jiyi", "postings_ratio"))
        if ratio is not None:
            is_met = ratio <= MOST_POSTINGS
            lines.append(f"| postings, {name} | {ratio:.2f} times | ≤ {MOST_POSTINGS} times | – | {_verdict(is_met)} |")
    for name in sets:
        lines += ["", f"## {name}", "", f"| engine | {' | '.join(METRICS)} |", f"| --- |{' --- |' * len(METRICS)}"]
        for engine in ENGINES:
            numbers = [values.get((name, engine, metric)) for metric in METRICS]
            if numbers[0] is not None:
                lines.append(f"| {engine} | {' | '.join(f'{number:.4f}' for number in numbers)} |")
    absent = [f"- {row.set}, {row.engine}: {row.note}" for row in rows if row.value is None]
    if absent:
        lines += ["", "## Absent", "", *absent]
    return "\n".join(lines) + "\n"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "not met"
