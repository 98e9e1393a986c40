"""`jiyi list`: memories without a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jiyi.cli.context import Json, console, fail, friendly_errors, messages, print_json
from jiyi.cli.hits import show_memory
from jiyi.cli.options import FilterOptions, Given, Namespaces, taking, where
from jiyi.settings import Settings
from jiyi.sync_client import PAGE_SIZE, SyncClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jiyi.answers import MemoryPage

_LIMIT = 20
_COLUMNS = (TextColumn("listing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn())  # fmt: skip


@taking(FilterOptions)
def list_memories(
    given: Given,
    ns: Namespaces = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-k", min=0, help=f"Most memories, {_LIMIT} unless given; 0: only the total."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, page by page.")] = False,
    as_json: Json = False,
) -> None:
    """List memories by their timestamp, newest first. --json prints a line for each. Times are UTC."""
    if everything and limit is not None:
        fail("give --all or --limit, not both", status=2)
    wanted = None if everything else _LIMIT if limit is None else limit
    done = total = 0
    # On a terminal the memories themselves show how far it is.
    quiet = console.is_terminal or not messages.is_terminal
    with (
        friendly_errors(),
        Progress(*_COLUMNS, console=messages, transient=True, redirect_stdout=False, disable=quiet) as progress,
    ):
        task = progress.add_task("", total=None)
        for page in _pages(wanted, given | where(ns)):
            for memory in page.memories:
                if as_json:
                    print_json(memory)
                else:
                    show_memory(memory)
            done, total = done + len(page.memories), page.total
            progress.update(task, completed=done, total=total if wanted is None else min(wanted, total))
    if not as_json:
        console.print(f"[dim]{done} of {total} memories[/]")


def _pages(wanted: int | None, asked: Given) -> Iterator[MemoryPage]:
    """Ask for page after page until there are enough, or no more."""
    settings = Settings.from_environment()
    most, cursor = min(PAGE_SIZE, settings.max_limit), None
    with SyncClient(settings.api_url) as client:
        while True:
            page = client.list_memories(limit=most if wanted is None else min(most, wanted), cursor=cursor, **asked)
            yield page
            cursor = page.next
            wanted = None if wanted is None else wanted - len(page.memories)
            if cursor is None or wanted == 0:
                return
