"""The embedded server: a Valkey that is started from a binary and keeps its data in one folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import anyio.to_thread

from jiyi.binaries import find_binary
from jiyi.data_directory import DataDirectory
from jiyi.errors import ServerStartError
from jiyi.launcher import PRIVATE_UMASK, kill_session, launch, terminate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from anyio.abc import Process

    from jiyi.launcher import EventCallback

STOP_TIMEOUT_S = 10.0
"""From SIGTERM to SIGKILL; a stop only has to write and sync the tail of the append-only file."""

ANSWER_TIMEOUT_S = 30.0
"""How long a starting server may be silent; one that says LOADING is not silent and may take as long as it needs."""

RESTART_DELAY_S = 1.0
"""The pause before a dead server is started again, so that one that always dies does not spin."""

SOCKET_PATH_BYTES = 100
"""`sun_path` has 108 bytes on Linux and 104 on macOS, with the final NUL."""

_POLL_S = 0.02
_LOG_LINES = 10


def _log_event(event: str, /, **fields: object) -> None:
    logging.getLogger(__name__).warning("%s %s", event, fields)


class EmbeddedServer:
    """A Valkey or Redis server as a child process, on a unix socket in its own data folder.

    Guarantees: one server a folder; what was written survives `stop` and, but for the last second, any crash of the
    server (append-only file, fsync every second; a killed server loses nothing that reached the operating system).
    The server has its own session, so a Ctrl-C in the terminal does not reach it before `stop` does. On Linux it is
    stopped by SIGTERM if this process dies; elsewhere it lives on, and the folder stays locked as long as it does.

    `port` adds a TCP port on 127.0.0.1 without a password: every user of the machine can connect to it. `extra` are
    further lines of the configuration file, directive to arguments, and win over ours. `on_event` receives
    `server_killed`, `server_exited` and `server_restarted`; by default they are logged as warnings.

    Start it in a thread that lives as long as the server shall: Linux ties the two together.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        extra: Mapping[str, str] | None = None,
        on_event: EventCallback = _log_event,
    ) -> None:
        if port is not None and not 1 <= port <= 65535:  # noqa: PLR2004
            raise ValueError(f"port is {port}: it must be 1..65535, or None for no TCP port")
        self.data_dir = data_dir.absolute()
        self._port = port
        self._extra = dict(extra or {})
        self._on_event = on_event
        self._directory = DataDirectory(self.data_dir)
        self._started = False
        self._log = self.data_dir / "valkey.log"
        self._socket = self.data_dir / "valkey.sock"
        self._socket_dir: Path | None = None
        self._binary = Path()
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The URL of the unix socket, for `redis.from_url`."""
        return f"unix://{quote(str(self._socket))}?db=0"

    @property
    def pid(self) -> int | None:
        """The process id of the server while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Start the server and return when it answers and has loaded its data.

        Raises `ServerNotFoundError`, `DataDirectoryInUseError`, or `ServerStartError` with the end of the server's log.
        Whatever was taken is given back when it raises or is cancelled.
        """
        if self._started:
            raise ServerStartError(f"the server of {self.data_dir} was started already")
        self._binary = await anyio.to_thread.run_sync(find_binary)
        try:
            self._directory.make()
            self._choose_socket()
            await self._directory.take(orphan_grace_s=STOP_TIMEOUT_S)
            self._started = True
            await self._launch()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server and release the folder; without effect if it does not run.

        SIGTERM, and after 10 s SIGKILL (event `server_killed`). SHUTDOWN is not used: it takes a client
        seconds. Cancellation does not interrupt it.
        """
        started, self._started = self._started, False  # from here on `keep_running` does not start it again
        with anyio.CancelScope(shield=True):
            if started:
                self._directory.withdraw()
                await self._end_process()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if started:
            self._directory.release()

    async def wait(self) -> int | None:
        """Return the exit code when the server process has ended, negative for a signal; None if there is none."""
        return None if self._process is None else await self._process.wait()

    async def ensure_running(self) -> bool:
        """Start a server that has died on its data again, and return whether that was necessary.

        Raises `ServerStartError`; the folder stays locked by this process. Only between `start` and `stop`.
        """
        if not self._started:
            raise ServerStartError(f"the server of {self.data_dir} was not started")
        if self.pid is not None:
            return False
        self._directory.withdraw()
        await self._launch()
        return True

    async def keep_running(self) -> None:
        """Start the server again whenever it dies; returns after `stop`.

        Raises `ServerStartError` when it cannot be started again.
        """
        while self._started:
            code = await self.wait()
            if not self._started:
                return
            self._on_event("server_exited", code=code, restart_in_s=RESTART_DELAY_S)
            await anyio.sleep(RESTART_DELAY_S)
            if self._started and await self.ensure_running():
                self._on_event("server_restarted", pid=self.pid)

    def _choose_socket(self) -> None:
        self._socket = self.data_dir / "valkey.sock"
        if len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="jiyi-"))  # mkdtemp makes it 0700
            self._socket = self._socket_dir / "valkey.sock"

    async def _launch(self) -> None:
        assert self._directory.lock is not None
        self._directory.write("valkey.conf", self._configuration())
        self._socket.unlink(missing_ok=True)
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab") as log:  # noqa: ASYNC230, PTH123 - a descriptor, and nothing is written here
            log_start = log.seek(0, os.SEEK_END)
            # The child inherits the lock: the folder stays locked as long as either of us lives, so that a server
            # whose owner was killed is never joined by a second one on the same files.
            self._process = await launch(
                [self._binary, self.data_dir / "valkey.conf"],
                output=log,  # what it says before it has read `logfile`, and after a crash
                umask=PRIVATE_UMASK,
                pass_fds=[self._directory.lock],
            )
        self._directory.name_server(self._process.pid)
        try:
            await self._wait_until_ready(log_start)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end_process()
            raise
        self._directory.announce(self.url, self.pid)

    async def _wait_until_ready(self, log_start: int) -> None:
        deadline = anyio.current_time() + ANSWER_TIMEOUT_S
        while (reply := await _ping(self._socket, deadline)) != "+PONG":
            if reply.startswith("-LOADING"):
                deadline = anyio.current_time() + ANSWER_TIMEOUT_S
            elif reply:
                raise ServerStartError(f"the server answered PING with {reply}")
            elif self.pid is None:
                raise ServerStartError(f"the server ended while it started:\n{_log_tail(self._log, log_start)}")
            elif anyio.current_time() > deadline:
                raise ServerStartError(
                    f"the server was silent for {ANSWER_TIMEOUT_S} s:\n{_log_tail(self._log, log_start)}"
                )
            await anyio.sleep(_POLL_S)

    async def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        terminate(process)
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        if process.returncode is None:
            self._on_event("server_killed", pid=process.pid, after_s=STOP_TIMEOUT_S)
            kill_session(process)  # with it a child that rewrites the file
            await process.wait()
        self._process = None

    def _configuration(self) -> str:
        directives = {
            "daemonize": "no",
            "bind": "127.0.0.1",
            "port": str(self._port or 0),
            "unixsocket": _quoted(self._socket),
            "unixsocketperm": "700",
            "dir": _quoted(self.data_dir),
            "logfile": _quoted(self._log),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',  # the append-only file is the one copy; snapshots would only cost forks
            "maxmemory-policy": "noeviction",  # an evicted key is a hole in the index
            "hash-max-listpack-value": "2048",  # a memory is one piece: a fifth less in all than with the default
        } | self._extra
        return "".join(f"{directive} {arguments}\n" for directive, arguments in directives.items())


async def _ping(socket: Path, deadline: float) -> str:
    """Return the first line that the server says to PING, or nothing if there is no answer by the deadline."""
    with (
        anyio.CancelScope(deadline=deadline),
        contextlib.suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError),
    ):
        async with await anyio.connect_unix(socket) as stream:
            await stream.send(b"PING\r\n")
            return (await stream.receive()).decode(errors="replace").partition("\r")[0]
    return ""


def _log_tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return b"\n".join(file.read().splitlines()[-_LOG_LINES:]).decode(errors="replace")


def _quoted(path: Path) -> str:
    """Quote a path for the configuration file, whose strings have C's escapes."""
    escaped = "".join(f"\\x{ord(char):02x}" if char in '\\"' or char < " " else char for char in str(path))
    return f'"{escaped}"'
