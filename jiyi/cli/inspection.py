"""`jiyi stats`, `jiyi check`, `jiyi reindex`: look at the index, prove it, analyse it anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import anyio.to_thread
import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jiyi import keys
from jiyi.check import check as check_index
from jiyi.cli.context import (
    AllNamespaces,
    Json,
    console,
    database,
    friendly_errors,
    messages,
    open_analyzer,
    print_json,
    run,
    settings_with_server,
)
from jiyi.connections import execute
from jiyi.dead_letters import namespaces as all_namespaces
from jiyi.reindex import reindex_namespace
from jiyi.repair import Repair
from jiyi.repair import repair as repair_index
from jiyi.scoring import average_length
from jiyi.streams import EventStream

if TYPE_CHECKING:
    from jiyi.check import Report
    from jiyi.connections import Database

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn())  # fmt: skip
_READER_S = 2.0
_NOTHING_TO_DO = "analysed with these settings already, nothing to do (--force does it all the same)"


def stats(ns: AllNamespaces = None, as_json: Json = False) -> None:
    """Show namespaces, index sizes, the backlog of the stream, and the reader at JIYI_API_URL."""

    async def collect() -> dict[str, Any]:
        settings = settings_with_server()
        async with database(settings) as client:
            stream = EventStream(client, settings.stream, settings.group)
            state = await stream.state(time.time_ns() // 10**6)
            rows = [await _figures(client, one) for one in ns or await all_namespaces(client)]
            memory: Any = await client.info("memory")
        reader = await anyio.to_thread.run_sync(_reader, settings.api_url)
        backlog = None
        if state is not None:
            backlog = {"lag": state.lag, "pending": state.pending, "oldestUnappliedMs": state.oldest_unapplied_ms,
                       "consumers": state.consumers}  # fmt: skip
        return {"stream": backlog, "usedMemoryBytes": memory.get("used_memory"), "reader": reader,
                "namespaces": [row for row in rows if row is not None]}  # fmt: skip

    with friendly_errors():
        found = run(collect)
    if as_json:
        print_json(found)
        return
    backlog = found["stream"]
    if backlog is None:
        console.print("no worker has read the stream yet; start one with: jiyi worker")
    else:
        lag = "unknown" if backlog["lag"] is None else backlog["lag"]
        console.print(f"stream: {lag} unread, {backlog['pending']} pending, {backlog['consumers']} consumers, "
                      f"oldest waits {backlog['oldestUnappliedMs'] / 1000:.1f} s")  # fmt: skip
    reader = found["reader"]
    told = f"{reader['status']}, kernel {reader['kernel'] or 'not known yet'}" if reader["status"] else "nobody answers"
    console.print(f"reader: {told} ({escape(reader['url'])})", soft_wrap=True)
    if found["usedMemoryBytes"] is not None:  # a cluster has one figure a node
        console.print(f"server: {found['usedMemoryBytes'] / 1e6:,.1f} MB of memory in use")
    table = Table(box=None, pad_edge=False)
    for name in ("namespace", "memories", "tokens", "average length", "dead letters", "analyzer"):
        table.add_column(name, justify="left" if name in {"namespace", "analyzer"} else "right")
    for row in found["namespaces"]:
        table.add_row(escape(row["ns"]), f"{row['docs']:,}", f"{row['tokens']:,}", f"{row['avgdl']:.2f}",
                      f"{row['deadLetters']:,}", row["analyzer"])  # fmt: skip
    console.print(table if found["namespaces"] else "no memories yet")


def _reader(url: str) -> dict[str, Any]:
    """What the reader says of itself; `status` None when nobody answers."""
    try:
        with urlopen(f"{url}/readyz", timeout=_READER_S) as answer:  # noqa: S310 - the configured address
            body = answer.read()
    except HTTPError as error:  # also 503 has a body
        body = error.read()
    except (URLError, OSError, ValueError):
        return {"url": url, "status": None, "kernel": None}
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:  # somebody else
        told = {}
    return {"url": url, "status": told.get("status"), "kernel": told.get("kernel")}


async def _figures(client: Database, ns: str) -> dict[str, Any] | None:
    raw = await execute(client, "HMGET", keys.stats_key(ns), "docs", "tokens", "analyzer")
    dead = await execute(client, "XLEN", keys.dead_key(ns))
    if raw[0] is None and not dead:
        return None
    docs, tokens = int(raw[0] or 0), int(raw[1] or 0)
    return {"ns": ns, "docs": docs, "tokens": tokens, "avgdl": average_length(tokens, docs),
            "deadLetters": int(dead), "analyzer": (raw[2] or b"").decode()}  # fmt: skip


def check(
    ns: AllNamespaces = None,
    mend: Annotated[bool, typer.Option("--repair", help="Mend what follows from the stored memories.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the index with the stored memories. Exit status 0 only when everything agrees, at the end.

    With --repair whatever can be worked out from the stored memories is, also while workers write; what cannot be
    stays as it is and is reported.
    """

    async def work() -> list[Any]:
        settings = settings_with_server()
        async with database(settings) as client:
            with Progress(*_COLUMNS, console=messages, transient=True) as progress:
                tasks: dict[str, Any] = {}

                def on_progress(done: int, total: int, phase: str) -> None:
                    if phase not in tasks:
                        tasks[phase] = progress.add_task(phase)
                    progress.update(tasks[phase], completed=done, total=total)

                if not mend:
                    return await check_index(client, ns, stream=settings.stream, on_progress=on_progress)
                return await repair_index(
                    client, open_analyzer(settings), ns, stream=settings.stream, on_progress=on_progress
                )

    with friendly_errors():
        found = run(work)
    if as_json:
        print_json([_as_json(one) for one in found])
    else:
        for one in found:
            if isinstance(one, Repair):
                _print_repair(one)
            else:
                _print_report(one)
    raise typer.Exit(0 if all(one.ok for one in found) else 1)


def _as_json(found: Report | Repair) -> dict[str, Any]:
    if isinstance(found, Repair):
        fields = msgspec.to_builtins(found)
        return {**fields.pop("report"), **fields, "ok": found.ok}
    return {**msgspec.to_builtins(found), "ok": found.ok}


def _print_repair(repair: Repair) -> None:
    _print_report(repair.report)
    for title, counts in (("repaired", repair.repaired), ("mended", repair.done), ("not repaired", repair.unrepaired)):
        if counts:
            console.print(f"  {title}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if repair.refused:
        console.print(f"  [bold red]refused[/]: {escape(repair.refused)}", soft_wrap=True)


def _print_report(report: Report) -> None:
    name = escape(report.namespace) if report.namespace else "server"
    if report.ok:
        console.print(f"[green]ok[/]  {name}: {report.documents:,} memories, {report.terms:,} terms, "
                      f"{report.live_postings:,} postings, {report.seconds:.1f} s")  # fmt: skip
        return
    console.print(f"[bold red]damaged[/]  {name}")
    for problem in report.problems:
        console.print(f"  {problem.kind}: {escape(problem.where)}: expected {escape(str(problem.expected))}, "
                      f"found {escape(str(problem.found))}. {problem.advice}", soft_wrap=True)  # fmt: skip
    console.print("  in all: " + ", ".join(f"{count} {kind}" for kind, count in report.counts.items()))


def reindex(
    ns: AllNamespaces = None,
    force: Annotated[bool, typer.Option("--force", help="Also where the analyzer has not changed.")] = False,
    as_json: Json = False,
) -> None:
    """Analyse stored memories again, live, with the analyzer of these settings. Can be stopped and resumed.

    Workers with other settings are refused from the start of it; start them again with the same settings.
    """

    async def work() -> dict[str, Any]:
        settings = settings_with_server()
        analyzer = open_analyzer(settings)
        done: dict[str, Any] = {}
        async with database(settings) as client:
            with Progress(*_COLUMNS, console=messages, transient=True) as progress:
                for one in ns or await all_namespaces(client):
                    task = progress.add_task(escape(one))

                    def on_progress(at: int, total: int, task: Any = task) -> None:
                        progress.update(task, completed=at, total=total)

                    done[one] = await reindex_namespace(client, one, analyzer, force=force, on_progress=on_progress)
        return done

    with friendly_errors():
        done = run(work)
    if as_json:
        print_json(done)
        return
    for one, result in done.items():
        told = f"{result.documents:,} memories analysed again in {result.seconds:.1f} s"
        done_before = not (force or result.documents or result.failed)
        console.print(f"{escape(one)}: {_NOTHING_TO_DO if done_before else told}", soft_wrap=True)
        for failure in result.failed:
            console.print(f"  [yellow]{failure.code}[/]: memory {failure.id_hash} keeps its old terms")
