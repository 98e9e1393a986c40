"""The server of the chaos: append-only file, everysec, in a folder of its own, killed and started on its files."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from jiyi.binaries import find_binary
from jiyi.events import parse_entry
from jiyi.launcher import kill_session, launch, terminate

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import Process

_START_S = 60
_STOP_S = 20
_POLL_S = 0.02


class Cut(NamedTuple):
    """A stretch of the stream that the server lost when it was killed: after the one version, up to the other.

    Also a killed process can lose accepted entries under `everysec`: while an fsync is under way, Redis answers before
    it has written. What is left is the state of one earlier instant, so it is known exactly which entries went.
    """

    after: tuple[int, int]
    until: tuple[int, int]


class ChaosServer:
    """One server process; `port` is served from the moment on at which its losses are known."""

    def __init__(self, folder: Path, log: Path, port: int, stream: str) -> None:
        self.port = port
        self.lives = 0
        """Counts starts: what was seen in another life may be lost."""
        self.cuts: list[Cut] = []
        self._folder, self._log, self._stream = folder, log, stream
        self._socket = folder / "s"
        self._process: Process | None = None
        self._killed_at_ms = 0

    @property
    def url(self) -> str:
        """The URL that clients use."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def has_lost(self, entry: str) -> bool:
        """Tell whether an accepted entry was lost by a server that was killed."""
        version = parse_entry(entry)
        return any(cut.after < version <= cut.until for cut in self.cuts)

    async def start(self) -> None:
        """Start on the files that are there, find out what they lack, and open the port."""
        self._socket.unlink(missing_ok=True)
        with self._log.open("ab") as out:
            self._process = await launch(
                [
                    find_binary(), "--port", "0", "--bind", "127.0.0.1", "--unixsocket", self._socket,
                    "--dir", self._folder, "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
                    "--maxmemory-policy", "noeviction", "--enable-debug-command", "local",
                ],
                output=out,
            )  # fmt: skip
        async with Redis(unix_socket_path=str(self._socket), protocol=2) as client:
            await self._wait(client)
            if self._killed_at_ms:
                self.cuts.append(Cut(await self._last(client), (self._killed_at_ms, 2**64)))
            await client.config_set("port", self.port)
        self.lives += 1

    async def kill(self) -> None:
        """Kill it without warning, with the child that rewrites its file."""
        assert self._process is not None
        self.lives += 1
        kill_session(self._process)
        await self._process.wait()
        self._killed_at_ms = time.time_ns() // 10**6

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    async def stop(self) -> None:
        """Stop it for good."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send(signal.SIGCONT)
        terminate(process)
        with anyio.move_on_after(_STOP_S):
            await process.wait()
        kill_session(process)
        await process.wait()

    async def _wait(self, client: Redis) -> None:
        with anyio.fail_after(_START_S):
            while True:
                if self.pid is None:
                    raise RuntimeError(f"the server did not start; see {self._log}")
                try:
                    await client.ping()
                except (RedisError, OSError):
                    await anyio.sleep(_POLL_S)
                else:
                    return

    async def _last(self, client: Redis) -> tuple[int, int]:
        try:
            info = await client.xinfo_stream(self._stream)
        except ResponseError:  # no stream
            return (0, 0)
        return parse_entry(info["last-generated-id"].decode())
