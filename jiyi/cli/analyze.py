"""`jiyi analyze`: show what the analysis makes of a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from jiyi.analysis import Analyzer
from jiyi.cli.context import Json, console, friendly_errors, print_json
from jiyi.settings import Settings


def analyze(
    text: Annotated[str, typer.Argument(help="The text, as it is written or asked; - reads standard input.")],
    as_json: Json = False,
) -> None:
    """Show the terms by which a text is found, and which rule made each. Needs no server; uses your settings."""
    with friendly_errors():
        settings = Settings.from_environment()
    analyzer = Analyzer(settings.segmenter, settings.han_bigrams, settings.max_terms)
    tokens = analyzer.explain(sys.stdin.read() if text == "-" else text)
    if as_json:
        told = [token._asdict() for token in tokens]
        print_json({"tokens": told, "length": len(tokens), "analyzer": analyzer.fingerprint})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("term", "rule", "from"):
        table.add_column(name)
    for token in tokens:
        table.add_row(escape(token.term), f"[cyan]{token.rule}[/]", f"[dim]{escape(token.source)}[/]")
    console.print(table)
    distinct = len({token.term for token in tokens})
    console.print(f"[dim]{len(tokens)} tokens, {distinct} terms; analyzer {analyzer.fingerprint}[/]")
