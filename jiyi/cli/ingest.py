"""`jiyi ingest`: put the lines of a file, or a repository's commits, on the stream as memories."""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jiyi import dead_letters
from jiyi.appending import encode
from jiyi.cli.context import (
    INTERRUPTED,
    Json,
    console,
    database,
    fail,
    friendly_errors,
    messages,
    print_json,
    run,
    settings_with_server,
)
from jiyi.errors import InvalidEventError
from jiyi.events import parse_entry
from jiyi.importers import BadLine, Line, read_git, read_jsonl
from jiyi.memories import from_camel
from jiyi.producer import Producer
from jiyi.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jiyi.appending import EncodedEvent
    from jiyi.connections import Database
    from jiyi.settings import Settings

_LINES_AT_ONCE = 500
_LETTERS_AT_ONCE = 50
_SHOWN_ERRORS = 20
_NO_WORKER_S = 5.0
_CLOCKS_APART_MS = 60_000
"""How much the clocks of two nodes of a cluster may differ, of which one dates events and the other dead letters."""


class Tally(msgspec.Struct, rename="camel"):
    """What became of the lines. `unsure` were on their way when something broke off: the server may have them."""

    accepted: int = 0
    unsure: int = 0
    refused: int = 0
    seconds: float = 0.0
    first_entry: str | None = None
    last_entry: str | None = None
    waited_seconds: float | None = None
    dead: int | None = None


def ingest(
    source: Annotated[
        str | None, typer.Argument(help="A JSONL file, plain or gzipped; - reads standard input.")
    ] = None,
    git: Annotated[Path | None, typer.Option("--git", help="Take the commit log of this repository instead.")] = None,
    ns: Annotated[str | None, typer.Option("--ns", help="Namespace for lines that name none.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many memories.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="End when workers have applied all of them.")] = False,
    as_json: Json = False,
) -> None:
    """Write many memories. Bad lines are reported with their number; the others go on.

    Each line is a JSON object: id, content, and where known author, tags, source_system, timestamp, user_id,
    session_id, kind, importance, expires_at, metadata, ns. Exit status 0 only when every line was accepted (and, with
    --wait, applied).
    """
    if (source is None) == (git is None):
        fail("name a file, or - for standard input, or a repository with --git", status=2)
    tally = Tally()
    try:
        with friendly_errors(lambda: _so_far(tally)):
            run(_ingest, tally, source, git, ns, limit, wait)
    except typer.Exit as broken_off:
        if as_json:
            print_json(tally)
        if broken_off.exit_code == INTERRUPTED and source == "-":
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # the thread that waits for standard input would keep us until something comes
        raise
    if as_json:
        print_json(tally)
    else:
        rate = tally.accepted / tally.seconds if tally.seconds else 0.0
        console.print(f"{tally.accepted} accepted, {tally.refused} refused, {tally.seconds:.1f} s ({rate:,.0f}/s)")
        if tally.waited_seconds is not None:
            told = f"{tally.dead} failed; see: jiyi dead list" if tally.dead else "none failed"
            console.print(f"applied after {tally.waited_seconds:.1f} s more: {told}")
    raise typer.Exit(0 if not tally.refused and not tally.dead else 1)


def _so_far(tally: Tally) -> str:
    """Say what was reached when something broke off."""
    if not tally.accepted and not tally.unsure:
        return ""
    perhaps = f", {tally.unsure} more perhaps" if tally.unsure else ""
    return f"{tally.accepted} accepted{perhaps} (to ingest them again is harmless where they have ids), then: "


async def _ingest(
    tally: Tally, source: str | None, git: Path | None, ns: str | None, limit: int | None, wait: bool
) -> None:
    settings = settings_with_server()
    lines: Any
    if git is not None:
        lines = read_git(git, max_count=limit, max_content_bytes=settings.max_content_bytes)
    else:
        lines = read_jsonl(source or "-")
    touched = set[str]()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TextColumn("{task.fields[count]:,} memories, {task.fields[rate]:,.0f}/s"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    async with Producer(settings=settings, when_full="wait") as producer:
        started = time.perf_counter()
        with Progress(*columns, console=messages, transient=True) as progress:
            task = progress.add_task("appending", total=getattr(lines, "bytes_total", None), count=0, rate=0.0)
            while chunk := await anyio.to_thread.run_sync(_chunk, lines, limit, tally.accepted, abandon_on_cancel=True):
                events = list(_encoded(chunk, ns, settings, tally))
                tally.unsure = len(events)
                accepted = await producer.send(events)
                tally.unsure = 0
                touched.update(one.ns for one in accepted)
                if accepted:
                    tally.first_entry = tally.first_entry or accepted[0].entry
                    tally.last_entry = max(accepted[-1].entry, tally.last_entry or "0-0", key=parse_entry)
                tally.accepted += len(accepted)
                tally.seconds = time.perf_counter() - started
                read = getattr(lines, "bytes_read", None)
                progress.update(task, completed=read, count=tally.accepted, rate=tally.accepted / tally.seconds)
    if wait and tally.last_entry is not None:
        async with database(settings) as client:
            tally.waited_seconds = await _wait(client, settings, tally)
            tally.dead = await _count_dead(client, touched, tally)


def _chunk(lines: Iterator[Line | BadLine], limit: int | None, so_far: int) -> list[Line | BadLine]:
    """Read the next lines (in a thread: a pipe may make us wait)."""
    count = _LINES_AT_ONCE if limit is None else min(_LINES_AT_ONCE, limit - so_far)
    return list(islice(lines, count))


def _encoded(chunk: list[Line | BadLine], ns: str | None, settings: Settings, tally: Tally) -> Iterator[EncodedEvent]:
    for line in chunk:
        if isinstance(line, BadLine):
            _refuse(tally, line.number, line.reason)
            continue
        try:
            fields = from_camel(line.fields)
            if ns is not None and fields.get("ns") is None:  # null is no name, as it is no author
                fields["ns"] = ns
            yield encode(fields, settings.max_content_bytes)
        except InvalidEventError as error:
            _refuse(tally, line.number, str(error))


def _refuse(tally: Tally, number: int, reason: str) -> None:
    tally.refused += 1
    if tally.refused <= _SHOWN_ERRORS:
        messages.print(f"line {number}: {reason}", markup=False, soft_wrap=True)
    elif tally.refused == _SHOWN_ERRORS + 1:
        messages.print("further bad lines are counted, but not shown")


async def _wait(client: Database, settings: Settings, tally: Tally) -> float:
    """Wait until every entry up to our last one has been processed."""
    stream = EventStream(client, settings.stream, settings.group)
    last, started, told = parse_entry(tally.last_entry or "0-0"), time.perf_counter(), False
    columns = (TextColumn("indexing "), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("", total=tally.accepted)
        while True:
            state = await stream.state(time.time_ns() // 10**6)
            if state is not None and parse_entry(state.floor) > last:
                return time.perf_counter() - started
            if state is not None and state.lag is not None:
                progress.update(task, completed=max(0, tally.accepted - state.lag - state.pending))
            idle = time.perf_counter() - started > _NO_WORKER_S and (state is None or not state.consumers)
            if idle and not told:
                messages.print("no worker reads the stream; start one with: jiyi worker")
                told = True
            await anyio.sleep(0.05)


async def _count_dead(client: Database, namespaces: set[str], tally: Tally) -> int:
    """Count our events among the dead letters, which are filed after them, and dated by the server as they are."""
    first, last = parse_entry(tally.first_entry or "0-0"), parse_entry(tally.last_entry or "0-0")
    after = f"{max(first[0] - _CLOCKS_APART_MS, 0)}-0"
    dead = 0
    for ns in sorted(namespaces):
        async for letter in dead_letters.letters(client, ns, after=after, page=_LETTERS_AT_ONCE):
            dead += not letter.is_foreign and first <= parse_entry(letter.entry) <= last
    return dead
