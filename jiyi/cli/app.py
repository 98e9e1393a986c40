"""The command table."""

from __future__ import annotations

from typing import Annotated

import typer

from jiyi import __version__
from jiyi.cli import analyze, dead, evaluation, ingest, inspection, listing, ready, search, services, why

app = typer.Typer(
    name="jiyi",
    help="记忆: the memory service for LLM agents on plain Redis or Valkey.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(services.up)
app.command("worker")(services.worker)
app.command("api")(services.api)
app.command("ingest")(ingest.ingest)
app.command("search")(search.search)
app.command("why")(why.why)
app.command("list")(listing.list_memories)
app.command("ready")(ready.ready)
app.command("stats")(inspection.stats)
app.command("check")(inspection.check)
app.command("reindex")(inspection.reindex)
app.command("analyze")(analyze.analyze)
app.command("eval")(evaluation.evaluate)
app.command("tune")(evaluation.tune)
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
