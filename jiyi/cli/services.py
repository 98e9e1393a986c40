"""`jiyi up`, `jiyi worker`, `jiyi api`: start the services as processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import anyio
import anyio.to_thread
import msgspec
import typer

from jiyi import metrics
from jiyi.cli.context import console, friendly_errors, messages, settings_with_server
from jiyi.errors import ServerStartError, SettingsError
from jiyi.logs import configure, get_logger
from jiyi.server import EmbeddedServer
from jiyi.settings import Settings
from jiyi.supervisor import Child, Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jiyi.launcher import EventCallback

_KILL_MARGIN_S = 5.0
"""A child leaves by itself at the end of its drain time; only one that hangs is killed."""
_BACKLOG = 2_048
"""Connections that may wait to be accepted."""

_WORTH_TELLING = {"child_exited", "child_killed", "server_exited", "server_killed", "server_restarted"}
"""What went wrong, not each start and stop."""

Processes = Annotated[int, typer.Option("--processes", "-n", min=1, max=64, help="Worker processes.")]
Readers = Annotated[int, typer.Option("--readers", min=1, max=64, help="Processes of the HTTP interface.")]
Port = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port of the HTTP interface.")]


def up(
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, max=64, help="Worker processes.")] = 2,
    readers: Readers = 1,
    port: Port = None,
    redis_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Also open the embedded server on this loopback port.")
    ] = None,
) -> None:
    """Run everything: server, workers and HTTP interface, until Ctrl-C. The data stay.

    Uses the server that JIYI_REDIS_URL names; without it, an embedded Valkey keeps its data in JIYI_DATA_DIR.
    """
    with friendly_errors():
        settings = Settings.from_environment(api_port=port, redis_port=redis_port, log_format=_log_format())
        if settings.redis_url and settings.redis_port:
            raise SettingsError(
                "JIYI_REDIS_PORT (--redis-port) is a port of the embedded server, but JIYI_REDIS_URL names another "
                "server, so none is started. Unset one of the two"
            )
        raise typer.Exit(anyio.run(_up, settings, workers, readers))


def worker(
    processes: Processes = 1,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve /metrics of all workers on this port.")
    ] = None,
) -> None:
    """Run worker processes: they read the stream and keep the index up to date. SIGTERM drains."""
    with friendly_errors():
        settings = settings_with_server(metrics_port=metrics_port, log_format=_log_format())
        if processes == 1:
            _become("jiyi_workers", settings)
        raise typer.Exit(anyio.run(_workers, settings, processes))


def api(
    port: Port = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; the default is loopback only.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", "-n", min=1, max=64, help="Reader processes; they share the port.")
    ] = 1,
) -> None:
    """Run the HTTP interface: search, readiness, writes, /metrics."""
    with friendly_errors():
        settings = settings_with_server(api_port=port, api_host=host, log_format=_log_format())
        if processes > 1:
            raise typer.Exit(anyio.run(_readers, settings, processes))
        _listening(settings).close()
        _become("jiyi_api", settings)


def _log_format() -> str | None:
    """People at a terminal read console lines; everything else gets JSON unless told otherwise."""
    return "console" if "JIYI_LOG_FORMAT" not in os.environ and sys.stderr.isatty() else None


def _become(module: str, settings: Settings) -> None:
    """Replace this process by a service, so that signals and the process id are the service's own."""
    os.execve(sys.executable, [sys.executable, "-m", module], {**os.environ, **settings.to_environment()})  # noqa: S606


def _listening(settings: Settings) -> socket.socket:
    """Listen on the reader's address. Raises `SettingsError` when that cannot be."""
    family = socket.AF_INET6 if ":" in settings.api_host else socket.AF_INET
    try:
        return socket.create_server((settings.api_host, settings.api_port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.api_host}:{settings.api_port} ({error.strerror}). Choose another port: --port"
        ) from None


def _child(name: str, module: str, settings: Settings, extra: Mapping[str, str]) -> Child:
    return Child(
        name=name,
        command=[sys.executable, "-m", module],
        env={**settings.to_environment(), **extra},
        stop_timeout_s=settings.drain_ms / 1000 + _KILL_MARGIN_S,
    )


def _reading(processes: int, listening: socket.socket, settings: Settings, extra: Mapping[str, str]) -> list[Child]:
    """Reader processes that take connections from one socket. It is ours: while one starts again, nobody is refused."""
    number = listening.fileno()
    children = [_child(f"api-{i + 1}", "jiyi_api", settings, extra) for i in range(processes)]
    return [
        dataclasses.replace(child, command=[*child.command, "--fd", str(number)], pass_fds=(number,))
        for child in children
    ]


def _reporter(settings: Settings) -> EventCallback:
    """What tells of the processes: sentences for people; where the log is JSON, lines of it, as theirs are."""
    if settings.log_format == "console":
        return _report
    configure(settings)
    log = get_logger()

    def report(event: str, /, **fields: Any) -> None:
        if event in _WORTH_TELLING:
            log.warning(event, **fields)

    return report


def _report(event: str, /, **fields: Any) -> None:
    """Tell what people should know of the processes: what went wrong, not each start and stop."""
    name = fields.get("name", "the server")
    if event in {"child_exited", "server_exited"}:
        pause_s = fields["restart_in_s"]
        then = "not started again" if pause_s is None else f"starting it again in {pause_s:g} s"
        told = f"{name} {_ending(fields['code'])}, {then}"
    elif event in {"child_killed", "server_killed"}:
        told = f"{name} (process {fields['pid']}) did not stop in time and was killed"
    elif event == "server_restarted":
        told = f"{name} runs again (process {fields['pid']})"
    else:
        return
    messages.print(f"[yellow]{told}[/]", soft_wrap=True)


def _ending(code: int) -> str:
    """How a process ended: a negative code is the number of the signal that killed it."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


async def _workers(settings: Settings, processes: int) -> int:
    with tempfile.TemporaryDirectory(prefix="jiyi-metrics-") as folder:
        extra = {metrics.MULTIPROCESS_VARIABLE: folder, "JIYI_METRICS_PORT": "0"}
        stop_serving = None
        if settings.metrics_port:
            os.environ[metrics.MULTIPROCESS_VARIABLE] = folder
            stop_serving = metrics.serve("0.0.0.0", settings.metrics_port)  # noqa: S104 - scraped from other hosts
        children = [_child(f"worker-{i + 1}", "jiyi_workers", settings, extra) for i in range(processes)]
        try:
            return await Supervisor([children], on_event=_reporter(settings)).run()
        finally:
            if stop_serving is not None:
                stop_serving()


async def _readers(settings: Settings, processes: int) -> int:
    with tempfile.TemporaryDirectory(prefix="jiyi-metrics-") as folder, _listening(settings) as listening:
        extra = {metrics.MULTIPROCESS_VARIABLE: folder}
        return await Supervisor([_reading(processes, listening, settings, extra)], on_event=_reporter(settings)).run()


async def _up(settings: Settings, workers: int, readers: int) -> int:
    report = _reporter(settings)
    async with AsyncExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="jiyi-metrics-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = None
        if not settings.redis_url:
            server = await stack.enter_async_context(
                EmbeddedServer(settings.data_dir, port=settings.redis_port or None, on_event=report)
            )
            settings = msgspec.structs.replace(settings, redis_url=server.url)
        # After the folder: who holds that is the better answer to a second start.
        listening = stack.enter_context(_listening(settings))
        # The reader's /metrics covers all of us; workers would fight for a port of their own.
        extra = {metrics.MULTIPROCESS_VARIABLE: folder, "JIYI_METRICS_PORT": "0"}
        children = [_child(f"worker-{i + 1}", "jiyi_workers", settings, extra) for i in range(workers)]
        children += _reading(readers, listening, settings, extra)
        supervisor = Supervisor([children], on_event=report)
        async with anyio.create_task_group() as tasks:
            if server is not None:
                tasks.start_soon(_keep, server, supervisor)
            tasks.start_soon(_announce, settings, server, workers)
            code = await supervisor.run()
            tasks.cancel_scope.cancel()
        messages.print("stopped; everything is kept" if code == 0 else f"stopped with status {code}")
        return code


async def _keep(server: EmbeddedServer, supervisor: Supervisor) -> None:
    """Keep the server alive; if it cannot be, stop the rest in order."""
    try:
        await server.keep_running()
    except ServerStartError as error:
        messages.print(f"[bold red]{error}[/]")
        supervisor.stop(1)


async def _announce(settings: Settings, server: EmbeddedServer | None, workers: int) -> None:
    """Say where everything is, once the reader can answer."""
    base = f"http://{settings.api_host}:{settings.api_port}"
    messages.print(f"starting {workers} workers and the HTTP interface …")
    while not await anyio.to_thread.run_sync(_answers, f"{base}/readyz", abandon_on_cancel=True):  # noqa: ASYNC110 - another process
        await anyio.sleep(0.1)
    console.print(f"[bold green]jiyi is ready[/]  {base}  (API description: {base}/schema)", soft_wrap=True)
    if server is not None:
        path = settings.redis_url.removeprefix("unix://").partition("?")[0]
        how = f"redis-cli -p {settings.redis_port}" if settings.redis_port else f"redis-cli -s {path}"
        console.print(f"  data    {settings.data_dir}", soft_wrap=True)
        console.print(
            f"  stream  {how} XADD {settings.stream} '*' event write id m1 content '你好 Redis'", soft_wrap=True
        )
    console.print(
        f'  write   curl -X POST {base}/memory/write -d \'{{"id": "m1", "content": "你好 Redis"}}\'', soft_wrap=True
    )
    console.print(f"  search  curl '{base}/memory/search?q=Redis'", soft_wrap=True)
    console.print("Ctrl-C stops; the data stay.")


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:  # noqa: S310 - our own loopback address
            return bool(response.status == 200)  # noqa: PLR2004
    except (URLError, OSError):
        return False
