"""`jiyi eval` and `jiyi tune`: how well questions find what they need, and with which settings they would best."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jiyi.analysis import Analyzer
from jiyi.cli.context import Json, console, friendly_errors, messages, print_json
from jiyi.evaluation import read_judged
from jiyi.evaluation.evaluate import ask_all, scores_of, write_all
from jiyi.evaluation.service import private_service
from jiyi.evaluation.trials import Trial, try_all
from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHOWN = 10
_WORST = 5
Documents = Annotated[str, typer.Argument(help="Documents, JSON lines: id, content, and other fields of a memory.")]
Queries = Annotated[str, typer.Argument(help="Questions, JSON lines: id, query, relevant (a list of ids), user_id.")]


class Missed(msgspec.Struct, frozen=True):
    """A question none of whose answers was among the first ten."""

    id: str
    query: str
    relevant: list[str]
    found: list[str]


def evaluate(
    documents: Documents,
    queries: Queries,
    k1: Annotated[float, typer.Option(help="BM25: how soon repetition stops counting.")] = DEFAULT_K1,
    b: Annotated[float, typer.Option(help="BM25: how much long memories are held back, 0 to 1.")] = DEFAULT_B,
    as_json: Json = False,
) -> None:
    """Measure on your own documents and questions how well jiyi finds what it should.

    A service of its own, with your settings and without your data, indexes the documents and answers the questions
    over HTTP. With user_id in the questions, each user is a namespace.
    """
    with friendly_errors():
        judged = read_judged(documents, queries)
        with private_service(Settings.from_environment()) as service, _progress() as on_step:
            write_all(service, judged, on_step)
            found = ask_all(service, judged.queries, k1=k1, b=b, on_step=on_step)
    scores = scores_of(judged.queries, found)
    missed = [
        Missed(query.id, query.query, sorted(query.relevant), ids[:10])
        for query, ids in zip(judged.queries, found, strict=True)
        if not query.relevant.intersection(ids[:10])
    ]
    if as_json:
        print_json({**msgspec.to_builtins(scores), "missed": missed})
        return
    console.print(
        f"{len(judged.documents)} documents, {scores.questions} questions\n"
        f"nDCG@10 [bold]{scores.ndcg_10:.4f}[/]  recall@10 {scores.recall_10:.4f}  recall@100 {scores.recall_100:.4f}  "
        f"MRR@10 {scores.mrr_10:.4f}"
    )
    if missed:
        console.print(f"{len(missed)} questions found none of their answers among the first ten, among them:")
        for one in missed[:_WORST]:
            console.print(f"  {one.id}: {one.query}", markup=False, soft_wrap=True)
        console.print("all of them: --json")


def tune(documents: Documents, queries: Queries, as_json: Json = False) -> None:
    """Look for the k1, b and bigrams that find best, on half of the questions, and prove it on the other half."""
    with friendly_errors():
        judged = read_judged(documents, queries)
        settings = Settings.from_environment()
        trials: list[tuple[bool, Trial]] = []
        with _progress() as on_step:
            for bigrams in (False, True):
                analyzer = Analyzer.from_settings(msgspec.structs.replace(settings, han_bigrams=bigrams))
                name = f"trying {'with' if bigrams else 'without'} bigrams"
                trials += [(bigrams, one) for one in try_all(judged, analyzer, on_step=_named(on_step, name))]
    trials.sort(key=lambda trial: trial[1].tuned.ndcg_10, reverse=True)
    if as_json:
        print_json([{"han_bigrams": bigrams, **trial._asdict()} for bigrams, trial in trials])
        return
    current = next(
        trial for trial in trials if trial[0] == settings.han_bigrams and trial[1][:2] == (DEFAULT_K1, DEFAULT_B)
    )
    table = Table(box=None, pad_edge=False)
    for name in ("", "JIYI_HAN_BIGRAMS", "k1", "b", "nDCG@10, tuned on", "nDCG@10, held out"):
        table.add_column(name, justify="left" if not name else "right")
    shown = trials[:_SHOWN] + ([current] if current not in trials[:_SHOWN] else [])
    for trial in shown:
        bigrams, one = trial
        table.add_row(
            "now" if trial is current else "", str(int(bigrams)), f"{one.k1:g}", f"{one.b:g}",
            f"{one.tuned.ndcg_10:.4f}", f"{one.held_out.ndcg_10:.4f}",
        )  # fmt: skip
    console.print(table)
    best = trials[0][1]
    gain = best.held_out.ndcg_10 - current[1].held_out.ndcg_10
    console.print(
        f"{best.tuned.questions} questions to tune on, {best.held_out.questions} held out. The best of the first half "
        f"gains {gain:+.4f} on the other half" + (": nothing to change" if gain <= 0 else "")
    )


def _named(on_step: Callable[[str, int, int], None], name: str) -> Callable[[int, int], None]:
    return lambda done, of: on_step(name, done, of)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=messages, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def on_step(doing: str, done: int, of: int) -> None:
            if doing not in tasks:
                tasks[doing] = progress.add_task(doing, total=of)
            progress.update(tasks[doing], completed=done)

        yield on_step
