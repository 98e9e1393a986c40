"""Copies of the checkout, and test runs in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import anyio
import anyio.abc

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {"jiyi": ".", "jiyi_workers": "workers", "jiyi_api": "api"}
"""The product's packages, and where in the checkout they lie."""
_KERNEL = "api/jiyi_api/kernel.py"
OWN_TEST = "tests/faults/test_sabotage.py"
"""It notices every patch that is applied, and so says nothing about the others."""
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest; any other means that tests did not run as they should."""
_GRACE_S = 20

_WHERE = """
import importlib, sys
from jiyi import scripts
print(scripts.folder())
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""


class CopyError(Exception):
    """A copy is not what would be tested, or its tests cannot be run."""


class Run(NamedTuple):
    """One run of tests: those that failed, in their order, or what kept the run from its end."""

    failed: list[str]
    seconds: float
    trouble: str  # "" when the run came to its end


class Copy:
    """A copy of the checkout: `folder`/checkout, with room for temporary files beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = folder / "checkout"
        self._temporary = folder / "t"  # short: paths of unix sockets have little room
        self._report = folder / "report.xml"
        self._output = folder / "output"
        folder.mkdir()

    def fill(self, root: Path) -> None:
        """Copy what git does not ignore, as it is on disk."""
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - as above
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                target = self.checkout / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target)

    def fill_like(self, other: Copy) -> None:
        """Copy another copy together with what was compiled there: numba takes many seconds."""
        shutil.copytree(other.checkout, self.checkout, symlinks=True)

    def forget_compiled(self, files: tuple[str, ...]) -> None:
        """Remove what was compiled from some files, whose times of change may not tell that they have changed."""
        for name in files:
            path = self.checkout / name
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()

    def environment(self) -> dict[str, str]:
        """Give the environment in which Python, and every process that it starts, takes the code of this copy."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JIYI_", "PYTEST_"))}
        places = [str((self.checkout / place).resolve()) for place in dict.fromkeys(PACKAGES.values())]
        return kept | {"PYTHONPATH": os.pathsep.join(places), "JIYI_TEST_PLANTED": "1"}

    async def verify(self) -> None:
        """Raise `CopyError` unless a process started anywhere runs the code and the scripts of this copy."""
        command = [sys.executable, "-c", _WHERE, *PACKAGES]
        done = await anyio.run_process(command, cwd="/", env=self.environment(), check=False)
        places = done.stdout.decode().splitlines()
        if done.returncode or not places:
            raise CopyError(f"the copy cannot be imported:\n{done.stderr.decode()}")
        if elsewhere := [place for place in places if not self._holds(place)]:
            raise CopyError(f"not the copy's code would be tested, but {' '.join(elsewhere)}")

    async def compile(self) -> None:
        """Fill numba's cache: in the first test that needs the kernel it would be a matter of patience."""
        if (self.checkout / _KERNEL).exists():
            command = [sys.executable, "-m", "jiyi_api.compiled"]
            await anyio.run_process(command, cwd="/", env=self.environment(), stdout=None, stderr=None)

    def _holds(self, place: str) -> bool:
        return Path(place).resolve().is_relative_to(self.checkout.resolve())

    async def test(self, targets: list[str], *, first_only: bool, limit_s: float) -> Run:
        """Run tests of this copy; up to the first failure, or all. Ends what it has started."""
        command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--basetemp={self._temporary}", f"--junitxml={self._report}", "-o", "junit_family=xunit1"]
        command += [f"--ignore={OWN_TEST}", *(["-x"] if first_only else []), *targets]
        self._report.unlink(missing_ok=True)
        started, status = time.monotonic(), None
        with self._output.open("wb") as output:
            process = await anyio.open_process(
                command,
                cwd=self.checkout,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                with anyio.move_on_after(limit_s):
                    status = await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
        seconds = time.monotonic() - started
        if status is None:
            return Run([], seconds, f"did not end within {limit_s:.0f} s")
        failed = self._failed() if self._report.exists() else []
        if status not in (_PASSED, _FAILED) or (status == _FAILED) != bool(failed):
            return Run([], seconds, f"pytest ended with status {status}:\n{self._tail()}")
        return Run(failed, seconds, "")

    def _failed(self) -> list[str]:
        cases = ET.parse(self._report).iter("testcase")  # noqa: S314 - pytest wrote it
        failed = (case for case in cases if case.find("failure") is not None or case.find("error") is not None)
        return list(dict.fromkeys(f"{case.get('file')}::{case.get('name')}" for case in failed))  # both may be there

    def _tail(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-15:])


async def _end(process: anyio.abc.Process) -> None:
    """End pytest, and all that it has left behind in its session."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)  # then it stops the servers that it has started
        with anyio.move_on_after(_GRACE_S):
            await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
