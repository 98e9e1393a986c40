"""What was measured on: the machine and the versions of the engines."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jiyi.binaries import find_binary


def machine_facts() -> dict[str, str]:
    """Give processor, cores, memory, kernel and Python."""
    cpu = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        cpu = next(
            (line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line), ""
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": cpu,
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def engine_versions() -> dict[str, str]:
    """Give the version of each engine; one that is not installed is left to the rows that say so."""
    said = subprocess.run([find_binary(), "--version"], capture_output=True, check=True).stdout.decode().split()
    server = f"{said[0]} {next((word for word in said if word.startswith('v=')), '')[2:]}"
    found = {"jiyi": f"{version('jiyi')} on {server}", "sqlite_fts5": f"SQLite {sqlite3.sqlite_version}"}
    for name in ("bm25s", "rank-bm25", "tantivy", "numba", "numpy", "redis", "hiredis"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
