"""`jiyi why`: say why a question finds a memory, or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from jiyi.cli.context import Json, Namespace, console, friendly_errors, print_json
from jiyi.cli.hits import SHOWN, plain, show_hit
from jiyi.cli.options import Given, SearchOptions, named, taking
from jiyi.cli.ready import STATE_COLOURS
from jiyi.cli.search import Limit
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings
from jiyi.sync_client import SyncClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.answers import Why

_COLOURS = STATE_COLOURS | {"found": "green", "filtered": "red", "no_shared_term": "red"}
_TERMS = 60
"""Terms of a memory that are shown; those of the question go first."""


@taking(SearchOptions)
def why(
    memory_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the memory.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, as it was asked.")],
    given: Given,
    ns: Namespace = DEFAULT_NAMESPACE,
    limit: Limit = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Also for the hits before it.")] = False,
    as_json: Json = False,
) -> None:
    """Say why a memory is, or is not, among the hits of a search with these very options. Times are UTC."""
    asked: Given = ({} if as_json else {"snippet": SHOWN}) | named(given)
    with friendly_errors(), SyncClient(Settings.from_environment().api_url) as client:
        answer = client.why(memory_id, question, ns, limit=limit, explain=explain or not as_json, **asked)
    if as_json:
        print_json(answer)
    else:
        _show(answer, explain=explain)


def _show(answer: Why, *, explain: bool) -> None:
    verdict = Text(answer.verdict.replace("_", " "), f"bold {_COLOURS.get(answer.verdict, 'yellow')}")
    place = f" (number {answer.rank} of {answer.total})" if answer.verdict == "found" else ""
    console.print(verdict.append_text(Text(f"  {answer.id}: {plain(answer.reason)}{place}", "not bold default")),
                  soft_wrap=True)  # fmt: skip
    for one in answer.conditions:
        told = f"    {one.parameter}: {plain(one.wanted)} is asked for, it has {plain(one.has)}"
        console.print(Text(told), soft_wrap=True)
    if answer.hit is not None:
        show_hit(f"{answer.rank:2}.", answer.hit, explain=True)
    if answer.lost_to:
        console.print("folded into" if answer.verdict == "folded" else "before it")
        for rank, hit in enumerate(answer.lost_to, 1):
            show_hit(" -." if answer.verdict == "folded" else f"{rank:2}.", hit, explain=explain)
    if answer.question_terms:
        _show_terms("terms of the question", answer.question_terms, answer.memory_terms)
        _show_terms("terms of the memory", answer.memory_terms, answer.question_terms)


def _show_terms(title: str, terms: Sequence[str], others: Sequence[str]) -> None:
    """Print terms, those that the others have first and highlighted."""
    shared = set(others)
    ordered = sorted(terms, key=lambda term: term not in shared)
    line = Text(f"{title}:", "dim")
    for term in ordered[:_TERMS]:
        line.append(f" {plain(term)}", "not dim bold yellow" if term in shared else "not dim")
    if len(ordered) > _TERMS:
        line.append(f" … {len(ordered)} in all")
    console.print(line, soft_wrap=True)
