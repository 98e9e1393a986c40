"""`jiyi search` and `jiyi ready`: ask the reader."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from jiyi.answers import Hit
from jiyi.cli.context import Json, Namespace, console, friendly_errors, print_json
from jiyi.client import SyncClient
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings

_SHOWN = 160
"""Characters of a memory that are shown to people; `--json` has all of it."""
_COLOURS = {"ready": "green", "pending": "yellow", "deleted": "blue", "failed": "red", "unknown": "dim"}


def search(
    query: Annotated[str, typer.Argument(help="The question, as a person asks it.")],
    ns: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, typer.Option("--limit", "-k", min=1, max=100, help="Most hits.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each score comes about.")] = False,
    author: Annotated[list[str] | None, typer.Option(help="Only by this author; may be given again.")] = None,
    source_system: Annotated[list[str] | None, typer.Option(help="Only from this system.")] = None,
    user_id: Annotated[list[str] | None, typer.Option(help="Only of this user.")] = None,
    session_id: Annotated[list[str] | None, typer.Option(help="Only of this session.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only of this kind.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with any of these tags.")] = None,
    since: Annotated[str | None, typer.Option(help="Only from this time on (ISO 8601, UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time (ISO 8601, UTC).")] = None,
    as_json: Json = False,
) -> None:
    """Search memories and say why each was found. Times are UTC."""
    filters: dict[str, Any] = {
        "author": author, "source_system": source_system, "user_id": user_id, "session_id": session_id,
        "kind": kind, "tags": tag, "since": since, "until": until,
    }  # fmt: skip
    given = {name: value for name, value in filters.items() if value}
    with friendly_errors(), SyncClient(Settings.from_environment().api_url) as client:
        result = client.search(query, ns, limit, explain=explain, **given)
    if as_json:
        print_json(result)
        return
    for rank, hit in enumerate(result.hits, 1):
        _show(rank, hit, explain=explain)
    figures = f"{result.total} of {result.index.docs} memories match, {result.took_ms:.1f} ms"
    console.print(f"[dim]{figures}[/]" if result.hits else f"nothing found: {figures}")


def ready(
    ids: Annotated[list[str], typer.Argument(help="Ids of memories.")],
    ns: Namespace = DEFAULT_NAMESPACE,
    entry: Annotated[
        list[str] | None, typer.Option(help="Entry id that the write answered with; one for each id.")
    ] = None,
    wait: Annotated[str, typer.Option(help="Wait this long until they are ready: 2s, 500ms.")] = "0s",
    as_json: Json = False,
) -> None:
    """Tell whether memories can be found yet. Exit status 0 only when all are ready."""
    with friendly_errors(), SyncClient(Settings.from_environment().api_url) as client:
        answers = client.ready(ids, entry, ns=ns, wait=wait)
    if as_json:
        print_json(answers)
    else:
        for answer in answers:
            told = answer.reason or (answer.indexed_at and f"since {answer.indexed_at:%Y-%m-%d %H:%M:%S %Z}") or ""
            console.print(f"[{_COLOURS[answer.state]}]{answer.state:8}[/] {escape(answer.id)}  [dim]{escape(told)}[/]")
    raise typer.Exit(0 if all(answer.ready for answer in answers) else 1)


def _show(rank: int, hit: Hit, *, explain: bool) -> None:
    text = " ".join(hit.content.split())
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    about = "  ".join(part for part in (hit.author, hit.timestamp and f"{hit.timestamp:%Y-%m-%d %H:%M} UTC") if part)
    console.print(f"[bold]{rank:2}. {hit.score:.3f}[/]  {escape(hit.id)}  [dim]{escape(about)}[/]", soft_wrap=True)
    console.print(f"    {escape(text)}", soft_wrap=True)
    if not explain or hit.explanation is None:
        matched = "  ".join(f"{term.term} {term.score:.2f}" for term in hit.matched_terms)
        console.print(f"    [cyan]{escape(matched)}[/]", soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("    term", "tf", "df", "idf", "weight", "score"):
        table.add_column(name, justify="left" if "term" in name else "right")
    for term in hit.matched_terms:
        table.add_row(
            f"    {escape(term.term)}" + (f" [dim]for {escape(term.synonym_of)}[/]" if term.synonym_of else ""),
            f"{term.tf}",
            f"{term.df}",
            f"{term.idf:.4f}",
            f"{term.weight:g}",
            f"{term.score:.4f}",
        )
    console.print(table)
    facts = hit.explanation
    console.print(
        f"    [dim]length {facts.length} tokens, average {facts.avgdl:.2f} over {facts.docs} memories, "
        f"k1 {facts.k1:g}, b {facts.b:g}[/]"
    )
