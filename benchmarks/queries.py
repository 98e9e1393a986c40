"""Query latency at the index layer: the engines take turns, a block of the same questions each."""

from __future__ import annotations

import gc
import time
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.results import console
from jiyi.analysis import Analyzer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.engines import Engine
    from benchmarks.load import Question
    from benchmarks.results import Results

BLOCK = 50
"""Questions that an engine answers before the next has its turn: a disturbance of the machine hits all alike."""
ENOUGH_S = 15.0
"""An engine that has taken so long drops out of further rounds; a row says how many questions it was asked."""
_CPU_S = 15.0
_CHECKED = 100


async def measure_queries(
    results: Results, docs: int, engines: Sequence[Engine], questions: Sequence[Question]
) -> None:
    """Time every engine: warm, interleaved, one question at a time."""
    _analysis(results, docs, questions)
    gc.collect()
    gc.freeze()  # what the indexes hold is not searched for garbage while a question is timed
    try:
        await _first_time(results, docs, engines, questions)
        times = await rounds(engines, questions)
        for engine in engines:
            results.about("query", engine.name, docs).times(times[engine.name])
            results.about("query", engine.name, docs).record("queries", len(times[engine.name]))
        await _agreement(results, docs, [one for one in engines if one.name != "fixed_loop"], questions[:_CHECKED])
        for engine in engines:
            await _server_side(results, docs, engine, questions)
    finally:
        gc.unfreeze()


def _analysis(results: Results, docs: int, questions: Sequence[Question]) -> None:
    """What comes before each search: the question's text to terms."""
    analyzer = Analyzer()
    analyzer.warm_up()
    times = [_timed(analyzer, question.text) for question in questions]
    results.about("query", "jiyi", docs).record("analyze_mean_ms", fmean(times), "ms")
    results.about("query", "jiyi", docs).record("terms_mean", fmean(len(one.terms) for one in questions))


def _timed(analyzer: Analyzer, text: str) -> float:
    started = time.perf_counter()
    analyzer.query_terms(text)
    return (time.perf_counter() - started) * 1000


async def _first_time(results: Results, docs: int, engines: Sequence[Engine], questions: Sequence[Question]) -> None:
    """Ask jiyi everything once, which fills its reader's columns, and the others one block."""
    for engine in engines:
        if engine.name == "jiyi":
            await asked(engine, questions[:1])  # compiles
            results.about("query", engine.name, docs).times(await asked(engine, questions[1:]), "cold_")
        else:
            await asked(engine, questions[:BLOCK])


async def rounds(engines: Sequence[Engine], questions: Sequence[Question]) -> dict[str, list[float]]:
    """Let engines take turns over blocks of the same questions; gives each one's times in milliseconds."""
    times: dict[str, list[float]] = {engine.name: [] for engine in engines}
    with console.status("asking …"):
        for at in range(0, len(questions), BLOCK):
            for engine in engines:
                if sum(times[engine.name]) < ENOUGH_S * 1000:
                    times[engine.name] += await asked(engine, questions[at : at + BLOCK])
    return times


async def asked(engine: Engine, questions: Sequence[Question]) -> list[float]:
    """Ask one question after the other; gives the times in milliseconds."""
    times = []
    for question in questions:
        started = time.perf_counter()
        await engine.search(question)
        times.append((time.perf_counter() - started) * 1000)
    return times


async def _agreement(results: Results, docs: int, engines: Sequence[Engine], questions: Sequence[Question]) -> None:
    """How much of jiyi's ten best each engine finds too: formulas and parameters differ, the task does not."""
    if (ours := next((engine for engine in engines if engine.name == "jiyi"), None)) is None:
        return
    expected = [set(await ours.places(one, await ours.search(one))) for one in questions]
    for engine in engines:
        asked = questions if engine.name != "rank_bm25" else questions[:20]
        shares = [
            len(best & set(await engine.places(one, await engine.search(one)))) / max(1, len(best))
            for one, best in zip(asked, expected, strict=False)
        ]
        results.about("query", engine.name, docs).record("same_top_10", fmean(shares))


async def _server_side(results: Results, docs: int, engine: Engine, questions: Sequence[Question]) -> None:
    """Processor and command time of the engine's server, per question, over a run without pauses."""
    if (before := await engine.server_load()) is None:
        return
    asked, end = 0, time.perf_counter() + _CPU_S
    for question in questions:
        await engine.search(question)
        asked += 1
        if time.perf_counter() > end:
            break
    after = await engine.server_load()
    assert after is not None
    rows = results.about("query", engine.name, docs)
    rows.record("server_cpu_us", (after.cpu_s - before.cpu_s) / asked * 1e6, "us")
    rows.record("server_command_us", (after.commands_s - before.commands_s) / asked * 1e6, "us")
