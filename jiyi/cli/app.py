"""The command table."""

from __future__ import annotations

from typing import Annotated

import typer

from jiyi import __version__
from jiyi.cli import analyze, dead, evaluation, ingest, inspection, listing, ready, search, services, why
from jiyi.cli.context import flowing

app = typer.Typer(
    name="jiyi",
    help="记忆: the memory service for LLM agents on plain Redis or Valkey.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _function in (
    ("up", services.up),
    ("worker", services.worker),
    ("api", services.api),
    ("ingest", ingest.ingest),
    ("search", search.search),
    ("why", why.why),
    ("list", listing.list_memories),
    ("ready", ready.ready),
    ("stats", inspection.stats),
    ("check", inspection.check),
    ("reindex", inspection.reindex),
    ("analyze", analyze.analyze),
    ("eval", evaluation.evaluate),
    ("tune", evaluation.tune),
):
    app.command(_name, help=flowing(_function))(_function)
app.add_typer(dead.app, name="dead")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jiyi {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """记忆: the memory service for LLM agents on plain Redis or Valkey."""
    del version
