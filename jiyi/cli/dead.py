"""`jiyi dead`: events that could not be applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.markup import escape
from rich.table import Table

from jiyi import dead_letters
from jiyi.cli.context import (
    AllNamespaces,
    Json,
    Namespace,
    console,
    database,
    fail,
    friendly_errors,
    print_json,
    settings_with_server,
)
from jiyi.memories import DEFAULT_NAMESPACE, format_time

if TYPE_CHECKING:
    from jiyi.dead_letters import DeadLetter

app = typer.Typer(help="Events that could not be applied: look, replay, drop.", no_args_is_help=True)

Letters = Annotated[list[str] | None, typer.Argument(help="Ids of letters, as `jiyi dead list` shows them.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters of the namespace.")]


@app.command("list")
def list_letters(ns: AllNamespaces = None, as_json: Json = False) -> None:
    """List dead letters, oldest first."""
    found = _run(_collect, ns)
    if as_json:
        print_json([_facts(letter) for letter in found])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("letter", "namespace", "memory", "code", "when", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "letter")  # to be copied whole
    for letter in found:
        when = format_time(letter.dead_at_ms)[:19].replace("T", " ")
        table.add_row(
            letter.letter, escape(letter.ns), escape(letter.id or "-"), letter.code, when, escape(letter.reason)
        )
    console.print(table if found else "no dead letters")


@app.command("show")
def show(letter: Annotated[str, typer.Argument(help="Id of the letter.")], ns: Namespace = DEFAULT_NAMESPACE) -> None:
    """Show one dead letter with the fields of its event (this prints the memory's content), as JSON."""
    (found,) = _run(_find, ns, [letter])
    fields = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in found.fields}
    print_json({**_facts(found), "fields": fields})


@app.command("replay")
def replay(letters: Letters = None, ns: Namespace = DEFAULT_NAMESPACE, everything: Everything = False) -> None:
    """Put events back on the stream under their original version: they cannot undo newer writes."""
    count = _run(_replay, ns, _chosen(letters, everything=everything))
    console.print(f"{count} replayed; workers take them up now. Those that fail again come back to: jiyi dead list")


@app.command("drop")
def drop(letters: Letters = None, ns: Namespace = DEFAULT_NAMESPACE, everything: Everything = False) -> None:
    """Delete dead letters for good."""
    count = _run(_drop, ns, _chosen(letters, everything=everything))
    console.print(f"{count} dropped")


def _chosen(letters: list[str] | None, *, everything: bool) -> list[str] | None:
    if everything == bool(letters):
        fail("name letters (see: jiyi dead list), or give --all", status=2)
    return letters or None


def _run(action: Any, *arguments: Any) -> Any:
    async def connected() -> Any:
        settings = settings_with_server()
        async with database(settings) as client:
            return await action(client, settings, *arguments)

    with friendly_errors():
        return anyio.run(connected)


async def _collect(client: Any, _settings: Any, wanted: list[str] | None) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for ns in wanted or await dead_letters.namespaces(client):
        found += [letter async for letter in dead_letters.letters(client, ns)]
    return found


async def _find(client: Any, settings: Any, ns: str, wanted: list[str] | None) -> list[DeadLetter]:
    if wanted is None:
        return await _collect(client, settings, [ns])
    found = []
    for letter in wanted:
        one = await dead_letters.find(client, ns, letter)
        if one is None:
            fail(f"there is no dead letter {letter} in namespace {ns}; see: jiyi dead list")
        found.append(one)
    return found


async def _replay(client: Any, settings: Any, ns: str, wanted: list[str] | None) -> int:
    found = await _find(client, settings, ns, wanted)
    for letter in found:
        await dead_letters.replay(client, settings.stream, letter)
    return len(found)


async def _drop(client: Any, settings: Any, ns: str, wanted: list[str] | None) -> int:
    return sum([await dead_letters.drop(client, letter) for letter in await _find(client, settings, ns, wanted)])


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.letter,
        "ns": letter.ns,
        "id": letter.id,
        "entry": letter.entry,
        "code": letter.code,
        "reason": letter.reason,
        "deadAt": format_time(letter.dead_at_ms),
        "deliveries": letter.deliveries,
    }
