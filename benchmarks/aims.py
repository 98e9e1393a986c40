"""What is aimed at, and whether the rows of a run meet it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Results


class Source(NamedTuple):
    """Where a number stands: bench, engine, metric."""

    bench: str
    engine: str
    metric: str


class Aim(NamedTuple):
    """A number, or its ratio to another, that shall be at most (or at least) `limit`."""

    text: str
    source: Source
    limit: float
    reference: Source | None = None
    at_least: bool = False
    unit: str = ""


class Verdict(NamedTuple):
    """What came of an aim at one number of documents; None where a number is missing."""

    text: str
    docs: int
    measured: float | None
    bound: str
    met: bool | None


def _query(engine: str, metric: str) -> Source:
    return Source("query", engine, metric)


def _ours(bench: str, metric: str) -> Source:
    return Source(bench, "jiyi", metric)


_MEAN, _P99, _CPU = (_query("jiyi", metric) for metric in ("mean_ms", "p99_ms", "server_cpu_us"))
_SIZE, _ONE_WORKER = _ours("memory", "bytes_per_doc"), _ours("ingest", "1_worker_docs_per_s")
_TWO_WORKERS = _ours("ingest", "2_workers_docs_per_s")
_SPREAD = _ours("memory", "300_namespaces_bytes_per_doc")

AIMS = (
    Aim("query mean / redisearch", _MEAN, 1 / 10, _query("redisearch", "mean_ms")),
    Aim("query mean / bm25s", _MEAN, 1 / 10, _query("bm25s", "mean_ms")),
    Aim("query mean / bm25s_numba", _MEAN, 1 / 10, _query("bm25s_numba", "mean_ms")),
    Aim("query mean / tantivy", _MEAN, 2, _query("tantivy", "mean_ms")),
    Aim("query p99 / redisearch", _P99, 1 / 8, _query("redisearch", "p99_ms")),
    Aim("server's processor per query / redisearch", _CPU, 1 / 20, _query("redisearch", "server_cpu_us")),
    Aim("ingest, one worker / redisearch_chinese", _ONE_WORKER, 1,
        Source("ingest", "redisearch_chinese", "docs_per_s"), at_least=True),
    Aim("ingest, two workers / one worker", _TWO_WORKERS, 1.6, _ONE_WORKER, at_least=True),
    Aim("bytes per document / redisearch", _SIZE, 1, Source("memory", "redisearch", "bytes_per_doc")),
    Aim("bytes per document / redisearch_chinese", _SIZE, 1, Source("memory", "redisearch_chinese", "bytes_per_doc")),
    Aim("bytes in 300 namespaces / redisearch in one", _SPREAD, 1.3, Source("memory", "redisearch", "bytes_per_doc")),
    Aim("HTTP p50", _ours("http", "p50_ms"), 1.5, unit="ms"),
    Aim("HTTP requests per second", _ours("http", "16_connections_per_s"), 2_500, at_least=True, unit="1/s"),
    Aim("freshness p50", _ours("freshness", "applied_p50_ms"), 30, unit="ms"),
    Aim("freshness p99", _ours("freshness", "applied_p99_ms"), 200, unit="ms"),
    Aim("reader p99, under ingest / idle", _ours("under_load", "ingesting_p99_ms"), 3,
        _ours("under_load", "idle_p99_ms")),
    Aim("script p99 at the server, two workers", _ours("ingest", "2_workers_script_p99_ms"), 5, unit="ms"),
    Aim("memory, rewritten five times / fresh", _ours("rewrites", "memory_ratio"), 1.25),
    Aim("query mean, rewritten five times / fresh", _ours("rewrites", "query_ratio"), 1.25),
    Aim("cold start to first answer", _ours("cold_start", "first_answer_s"), 3, unit="s"),
)  # fmt: skip
_STEADY = 0.8
"""What the largest index shall keep of the smallest one's ingest rate."""


def judge(results: Results, sizes: list[int]) -> Iterator[Verdict]:
    """Hold every aim against the rows, at each number of documents for which something was measured."""
    for aim in AIMS:
        verdicts = [_judge(results, aim, docs) for docs in sizes]
        measured = [verdict for verdict in verdicts if verdict.measured is not None]
        yield from measured or verdicts[:1]
    for source in (_ONE_WORKER, _TWO_WORKERS):
        measured_at = [docs for docs in sizes if results.value(*source[:2], docs, source.metric)]
        if len(measured_at) > 1:
            yield _steady(results, source, measured_at[0], measured_at[-1])


def _judge(results: Results, aim: Aim, docs: int) -> Verdict:
    sign = "≥" if aim.at_least else "≤"
    bound = f"{sign} {round(aim.limit, 3):,} {aim.unit}".rstrip()
    measured = results.value(*aim.source[:2], docs, aim.source.metric)
    if aim.reference is not None:
        other = results.value(*aim.reference[:2], docs, aim.reference.metric)
        measured = measured / other if measured is not None and other else None
    met = None if measured is None else (measured >= aim.limit if aim.at_least else measured <= aim.limit)
    return Verdict(aim.text, docs, measured, bound, met)


def _steady(results: Results, source: Source, few: int, many: int) -> Verdict:
    rates = [results.value(*source[:2], docs, source.metric) or 0.0 for docs in (few, many)]
    workers = source.metric.removesuffix("_docs_per_s").replace("_", " ")
    ratio = rates[1] / rates[0]
    return Verdict(f"ingest, {workers}, {many:,} / {few:,} documents", many, ratio, f"≥ {_STEADY}", ratio >= _STEADY)
