"""`jiyi analyze`: show what the analysis makes of a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from jiyi.analysis import Analyzer, TooManyTerms
from jiyi.cli.context import Json, console, fail, friendly_errors, open_analyzer, print_json
from jiyi.settings import Settings


def analyze(
    text: Annotated[str, typer.Argument(help="The text, as it is written or asked; - reads standard input.")],
    question: Annotated[
        bool, typer.Option("--question", help="Show what it asks for as a question: weights, synonyms.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the terms by which a text is found, and which rule made each. Needs no server; uses your settings."""
    with friendly_errors():
        analyzer = open_analyzer(Settings.from_environment())
    text = sys.stdin.read() if text == "-" else text
    if question:
        _show_question(analyzer, text, as_json=as_json)
        return
    tokens = analyzer.explain(text)
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


def _show_question(analyzer: Analyzer, text: str, *, as_json: bool) -> None:
    try:
        terms = analyzer.explain_question(text)
    except TooManyTerms as error:
        fail(str(error))
    if as_json:
        told = [dict(zip(("term", "rule", "weight", "synonymOf"), term, strict=True)) for term in terms]
        print_json({"question": told, "analyzer": analyzer.fingerprint})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("term", "rule", "weight", "synonym of"):
        table.add_column(name, justify="right" if name == "weight" else "left")
    for term in terms:
        table.add_row(
            escape(term.term), f"[cyan]{term.rule}[/]", f"{term.weight:g}", f"[dim]{escape(term.synonym_of or '')}[/]"
        )
    console.print(table)
    console.print(f"[dim]{len(terms)} terms; analyzer {analyzer.fingerprint}[/]")
