"""`jiyi ready`: tell whether memories can be found yet."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from jiyi.cli.context import Json, Namespace, console, friendly_errors, print_json
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings
from jiyi.sync_client import SyncClient

STATE_COLOURS = {"ready": "green", "pending": "yellow", "deleted": "blue", "failed": "red", "unknown": "dim"}


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
            console.print(
                f"[{STATE_COLOURS[answer.state]}]{answer.state:8}[/] {escape(answer.id)}  [dim]{escape(told)}[/]"
            )
    raise typer.Exit(0 if all(answer.ready for answer in answers) else 1)
