"""Servers, workers and readers as child processes: each ends with its context, and with us, however we end."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import redis.asyncio
from redis.exceptions import RedisError

from benchmarks.engines import AbsentError
from jiyi.connections import connect
from jiyi.launcher import kill_session, launch, terminate
from jiyi.server import EmbeddedServer
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from anyio.abc import Process

    from jiyi.connections import Database

_STOP_S = 20
CONFIGURATION = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "hash-max-listpack-value": "2048"}
"""What jiyi's embedded server does; every other server is told to do the same."""


@asynccontextmanager
async def scratch() -> AsyncIterator[Path]:
    """Give an empty folder with a short path, as unix sockets need, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="jiyi-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def running(command: Sequence[str | Path], env: dict[str, str] | None = None) -> AsyncIterator[Process]:
    """Run a command as long as the context lasts: SIGTERM at its end, and SIGKILL where that does not do."""
    process = await launch(command, env=env)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            terminate(process)
            with anyio.move_on_after(_STOP_S):
                await process.wait()
            if process.returncode is None:
                kill_session(process)
                await process.wait()


@asynccontextmanager
async def service(module: str, settings: Settings, count: int = 1) -> AsyncIterator[None]:
    """Run `count` processes of a service of jiyi, `jiyi_workers` or `jiyi_api`."""
    environment = {**os.environ, **settings.to_environment()}
    async with _all_of([running([sys.executable, "-m", module], environment) for _ in range(count)]):
        yield


@asynccontextmanager
async def _all_of(contexts: Sequence[Any]) -> AsyncIterator[None]:
    if not contexts:
        yield
        return
    async with contexts[0], _all_of(contexts[1:]):
        yield


@asynccontextmanager
async def jiyi_server(**options: Any) -> AsyncIterator[tuple[Settings, Database]]:
    """Give an empty embedded server: the settings of its services, and a connection."""
    async with scratch() as folder, EmbeddedServer(folder / "data") as server:
        # Everything is written before a worker starts, which an agent would not do: hence no limit of the backlog.
        settings = Settings(redis_url=server.url, max_backlog=0, sweep_ms=1000, log_level="error", **options)
        database = await connect(settings)
        try:
            yield settings, database
        finally:
            await database.aclose()


@asynccontextmanager
async def module_server(binary: Path, module: Path) -> AsyncIterator[str]:
    """Run a Redis with a module on a unix socket; gives the path of the socket."""
    async with scratch() as folder:
        path = folder / "redis.sock"
        options = [part for name, value in CONFIGURATION.items() for part in (f"--{name}", value)]
        options += ["--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--logfile", str(folder / "log")]
        async with running([binary, *options, "--loadmodule", module]) as process:
            client = redis.asyncio.Redis(unix_socket_path=str(path))
            await _answering(client, process, folder / "log")
            yield str(path)


async def _answering(client: Any, process: Process, log: Path) -> None:
    with anyio.fail_after(30):
        while process.returncode is None:
            try:
                if await client.ping():
                    await client.aclose()
                    return
            except (RedisError, OSError):
                await anyio.sleep(0.05)
    said = await anyio.Path(log).read_text() if await anyio.Path(log).exists() else ""
    raise AbsentError(f"the server ended while it started: {' / '.join(said.splitlines()[-5:])}")


def free_port() -> int:
    """Give a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
