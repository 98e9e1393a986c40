"""`jiyi dead`: events that could not be applied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.markup import escape
from rich.table import Table

from jiyi import dead_letters
from jiyi.backlog import WAIT_S
from jiyi.cli.context import (
    AllNamespaces,
    Json,
    Namespace,
    console,
    database,
    fail,
    friendly_errors,
    messages,
    print_json,
    run,
    settings_with_server,
)
from jiyi.cli.hits import plain
from jiyi.dead_letters import DeadLetter, Replays
from jiyi.errors import BacklogFullError
from jiyi.events import parse_letter
from jiyi.letter_views import LetterFacts, LetterView
from jiyi.memories import DEFAULT_NAMESPACE, parse_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jiyi.connections import Database
    from jiyi.settings import Settings

app = typer.Typer(help="Events that could not be applied: look, replay, drop.", no_args_is_help=True)

Act = Callable[[DeadLetter], Awaitable[None]]
"""What is done with each letter that is meant."""
Letters = Annotated[list[str] | None, typer.Argument(help="Ids of letters, as `jiyi dead list` shows them.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters of the namespace.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Show at most this many.")]
_PAGE = 50
"""Letters that are read at once; their events, of any size, come with them."""


@app.command("list")
def list_letters(ns: AllNamespaces = None, limit: Limit = None, as_json: Json = False) -> None:
    """List dead letters, oldest first, one namespace after the other. Shows no contents."""
    found, more = _run(_collect, ns, limit)
    if as_json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("letter", "namespace", "memory", "code", "when (UTC)", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "letter")  # to be copied whole
    for letter in found:
        when = letter.dead_at[:19].replace("T", " ")
        table.add_row(
            letter.letter, escape(letter.ns), escape(letter.id or "-"), letter.code, when, escape(letter.reason)
        )
    console.print(table if found else "no dead letters")
    if more:
        messages.print("there are more; give a higher --limit, or none")


@app.command("show")
def show(
    letter: Annotated[str, typer.Argument(help="Id of the letter.")],
    ns: Namespace = DEFAULT_NAMESPACE,
    as_json: Json = False,
) -> None:
    """Show one dead letter with the fields of its event (this prints the memory's content)."""
    (found,) = _run(_find, ns, [letter])
    view = LetterView.of(found)
    if as_json:
        print_json(view)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    facts = {"letter": view.letter, "namespace": view.ns, "memory": view.id or "-", "entry": view.entry}
    facts |= {"code": view.code, "reason": view.reason, "when": view.dead_at, "deliveries": str(view.deliveries)}
    for name, value in facts.items():
        table.add_row(name, escape(value), style="dim")
    for field in view.fields:
        table.add_row(escape(plain(field.name)), escape(plain(str(field.value))))
    console.print(table)
    if not all(field.exact for field in view.fields):
        messages.print("some bytes are no text, and are shown as \N{REPLACEMENT CHARACTER}")


@app.command("replay")
def replay(
    letters: Letters = None, ns: Namespace = DEFAULT_NAMESPACE, everything: Everything = False, as_json: Json = False
) -> None:
    """Put events back on the stream under their original version: they cannot undo newer writes.

    Waits while more events than JIYI_MAX_BACKLOG are on the stream. What no worker has filed stays.
    """
    wanted, done, left = _chosen(letters, everything=everything), list[dict[str, Any]](), list[str]()

    def replaying(client: Database, settings: Settings) -> Act:
        replays = Replays(client, settings.stream, settings.max_backlog)

        async def again(letter: DeadLetter) -> None:
            if letter.is_foreign and everything:
                left.append(letter.letter)
            elif (entry := await _replay_with_room(replays, letter)) is not None:
                done.append({"letter": letter.letter, "ns": ns, "id": letter.id, "entry": entry})

        return again

    _run(_each, ns, wanted, replaying, so_far=lambda: f"{len(done)} replayed, then: " if done else "")
    if as_json:
        print_json(done)
    else:
        told = "workers take them up now. Those that fail again come back to: jiyi dead list"
        console.print(f"{len(done)} replayed; {told}" if done else "0 replayed")
    if left:
        messages.print(f"{len(left)} left that no worker has filed; look at them: jiyi dead list")


@app.command("drop")
def drop(
    letters: Letters = None, ns: Namespace = DEFAULT_NAMESPACE, everything: Everything = False, as_json: Json = False
) -> None:
    """Delete dead letters for good."""
    wanted, done = _chosen(letters, everything=everything), list[dict[str, Any]]()

    def dropping(client: Database, _settings: Settings) -> Act:
        async def away(letter: DeadLetter) -> None:
            if await dead_letters.drop(client, letter):
                done.append({"letter": letter.letter, "ns": ns, "id": letter.id})

        return away

    _run(_each, ns, wanted, dropping, so_far=lambda: f"{len(done)} dropped, then: " if done else "")
    if as_json:
        print_json(done)
    else:
        console.print(f"{len(done)} dropped")


def _chosen(letters: list[str] | None, *, everything: bool) -> list[str] | None:
    if everything == bool(letters):
        fail("name letters (see: jiyi dead list), or give --all", status=2)
    return letters or None


def _run(action: Any, *arguments: Any, so_far: Any = str) -> Any:
    async def connected() -> Any:
        settings = settings_with_server()
        async with database(settings) as client:
            return await action(client, settings, *arguments)

    with friendly_errors(so_far):
        return run(connected)


async def _collect(
    client: Database, _settings: Settings, wanted: list[str] | None, limit: int | None
) -> tuple[list[LetterFacts], bool]:
    """Give the facts of at most `limit` letters, and whether there are more."""
    found: list[LetterFacts] = []
    for ns in map(parse_namespace, wanted or await dead_letters.namespaces(client)):
        async for letter in dead_letters.letters(client, ns, page=_PAGE):
            if len(found) == limit:
                return found, True
            found.append(LetterFacts.of(letter))
    return found, False


async def _find(client: Database, _settings: Settings, ns: str, wanted: list[str]) -> list[DeadLetter]:
    found = []
    for letter in dict.fromkeys(map(parse_letter, wanted)):
        one = await dead_letters.find(client, parse_namespace(ns), letter)
        if one is None:
            fail(f"there is no dead letter {letter} in namespace {ns}; see: jiyi dead list")
        found.append(one)
    return found


async def _each(
    client: Database, settings: Settings, ns: str, wanted: list[str] | None, acting: Callable[[Database, Settings], Act]
) -> None:
    """Do something with the letters that are named (nothing unless all are there), or with all that there are now."""
    act = acting(client, settings)
    if wanted is not None:
        for letter in await _find(client, settings, ns, wanted):
            await act(letter)
        return
    async for letter in _all(client, parse_namespace(ns)):
        await act(letter)


async def _replay_with_room(replays: Replays, letter: DeadLetter) -> str | None:
    """Replay a letter as soon as the stream has room for it."""
    told = False
    while True:
        try:
            return await replays.replay(letter)
        except BacklogFullError:
            if not told:
                messages.print("waiting until workers have caught up (JIYI_MAX_BACKLOG) …")
                told = True
            await anyio.sleep(WAIT_S)


async def _all(client: Database, ns: str) -> AsyncIterator[DeadLetter]:
    """Give the letters up to the newest; those that come back while we replay are not taken again."""
    if (last := await dead_letters.newest(client, ns)) is not None:
        async for letter in dead_letters.letters(client, ns, until=last, page=_PAGE):
            yield letter
