"""`jiyi search`: ask the reader."""

from __future__ import annotations

from typing import Annotated

import typer

from jiyi.cli.context import Json, friendly_errors, print_json
from jiyi.cli.hits import SHOWN, show_result
from jiyi.cli.options import Given, Namespaces, SearchOptions, named, taking, where
from jiyi.settings import Settings
from jiyi.sync_client import SyncClient

Limit = Annotated[int, typer.Option("--limit", "-k", min=1, max=100, help="Most hits.")]


@taking(SearchOptions)
def search(
    query: Annotated[str, typer.Argument(help="The question, as a person asks it.")],
    given: Given,
    ns: Namespaces = None,
    limit: Limit = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each score comes about.")] = False,
    as_json: Json = False,
) -> None:
    """Search memories and say why each was found. Times are UTC."""
    asked: Given = ({} if as_json else {"snippet": SHOWN}) | named(given) | where(ns)
    with friendly_errors(), SyncClient(Settings.from_environment().api_url) as client:
        result = client.search(query, limit=limit, explain=explain, **asked)
    if as_json:
        print_json(result)
    else:
        show_result(result, explain=explain)
