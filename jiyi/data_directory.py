"""The folder of an embedded server: who holds it, where its server answers, and that its files are private.

`lock` is held (flock) by the owner and by its server, and names both. `server.json` names the server while it answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING

import anyio

from jiyi.errors import DataDirectoryInUseError, ServerStartError

if TYPE_CHECKING:
    from pathlib import Path

PROBE_GRACE_S = 0.5
"""`find_running` holds the lock for an instant; a refusal within this time may be only that."""

_POLL_S = 0.02


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


class DataDirectory:
    """A folder that one process holds at a time. `lock` is the descriptor of the lock while it is ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = None

    def make(self) -> None:
        """Make the folder, for its owner alone. Raises `ServerStartError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServerStartError(f"cannot make the data folder {self.path}: {error.strerror}") from error
        # A mounted volume may belong to somebody else and still be ours to write; the umask keeps the files private.
        with contextlib.suppress(PermissionError):
            self.path.chmod(0o700)

    async def take(self, orphan_grace_s: float) -> None:
        """Take the lock; a server whose owner was killed is just stopping and gets this time to end.

        Raises `DataDirectoryInUseError` that says who holds the folder, and `ServerStartError`.
        """
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerStartError(f"cannot write to the data folder {self.path}: {error.strerror}") from error
        started = anyio.current_time()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lock)
            while not _try_lock(lock):
                owner, server = _holders(lock)
                if anyio.current_time() - started > (PROBE_GRACE_S if _is_alive(owner) else orphan_grace_s):
                    raise DataDirectoryInUseError(_in_use(self.path, owner, server))
                await anyio.sleep(_POLL_S)
            stack.pop_all()
        self.lock = lock
        self.withdraw()

    def release(self) -> None:
        """Give the folder back; without effect if it is not ours."""
        if self.lock is not None:
            # Not only closed: a rewriting child that a crashed server left behind has inherited the lock too.
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            os.close(self.lock)
            self.lock = None

    def name_server(self, pid: int) -> None:
        """Write into the lock which server holds it besides us."""
        assert self.lock is not None
        os.pwrite(self.lock, f"{os.getpid()} {pid}\n".encode(), 0)

    def announce(self, url: str, pid: int | None) -> None:
        """Let `find_running` find the server."""
        self.write("server.json", json.dumps({"url": url, "pid": pid}) + "\n")

    def withdraw(self) -> None:
        """Let `find_running` find nothing."""
        (self.path / "server.json").unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Replace a file as a whole, readable by its owner alone."""
        new = self.path / f"{name}.new"
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(os.fsencode(text))
        new.replace(self.path / name)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return True


def _holders(lock: int) -> tuple[int | None, int | None]:
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


def _in_use(path: Path, owner: int | None, server: int | None) -> str:
    holder, pid = f"process {owner or '(unknown)'}", owner
    if server is not None and not _is_alive(owner):
        holder, pid = f"server process {server}, whose owner {owner} has died", server
    stop = f"Stop it (kill {pid})" if pid else "Stop it"
    return f"{path} is in use by {holder}. {stop}, or choose another folder with JIYI_DATA_DIR."
