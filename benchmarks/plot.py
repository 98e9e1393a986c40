"""A picture of query latency against the number of documents, one line an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers import why_absent

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.results import Results

_COLOURS = {
    "jiyi": "#c1121f", "redisearch": "#1d4e89", "redisearch_chinese": "#6ba3d6", "bm25s": "#2a7f62",
    "bm25s_numba": "#8cc9a1", "tantivy": "#7b4b94", "sqlite_fts5": "#8a7f72", "rank_bm25": "#c9b79c",
}  # fmt: skip


def draw(results: Results, path: Path) -> str:
    """Draw the median and the 99th percentile as SVG; gives Markdown that shows it, or says why there is none."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - it may be absent
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return f"No plot: {why_absent('matplotlib')}."
    mpl.rcParams.update({"svg.hashsalt": "jiyi", "font.size": 9, "svg.fonttype": "none"})
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2, sharey=True), ("p50_ms", "p99_ms"), strict=True):
        for engine, points in _lines(results, metric).items():
            width = 2.4 if engine == "jiyi" else 1.3
            axes.plot(*zip(*points, strict=True), "o-", label=engine, color=_COLOURS[engine], lw=width, ms=4)
        axes.set(
            xscale="log", yscale="log", xlabel="documents", title=f"query {metric.removesuffix('_ms')}, index layer"
        )
        sizes = sorted({row.docs for row in results.of("query")})
        axes.set_xticks(sizes, [f"{docs:,}" for docs in sizes])
        axes.set_xticks([], minor=True)
        axes.grid(visible=True, which="major", color="#dddddd", lw=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    first = figure.axes[0]
    first.set_ylabel("milliseconds")
    figure.legend(*first.get_legend_handles_labels(), loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return f"![Query latency against the number of documents, by engine]({path.name})"


def _lines(results: Results, metric: str) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in results.of("query"):
        if row.metric == metric and row.value and row.engine in _COLOURS:
            lines.setdefault(row.engine, []).append((row.docs, row.value))
    return dict(sorted(lines.items(), key=lambda line: -line[1][-1][1]))
