"""Processes of the service that are signalled at will, and started again whenever they end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from jiyi.launcher import kill_session, launch, terminate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import Process

    from faults.findings import Findings
    from faults.proxy import Proxy
    from jiyi.settings import Settings

ROOT = Path(__file__).parent.parent
PAUSE_S = 0.2
"""Between the end of a process and its next start."""
_STOP_S = 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ORDERLY = 0
_CUT_SHORT = 1
"""Exit status of a worker whose grace time is over; of anybody else it means a crash."""


class Usage(NamedTuple):
    """What a process uses: resident bytes, open files."""

    bytes: int
    files: int


def environment_of(settings: Settings) -> dict[str, str]:
    """Give the environment of a process with these settings that can import this checkout."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "workers", ROOT / "api")))
    return ours | settings.to_environment() | {"PYTHONPATH": path}


class Member:
    """One worker or reader process, in a session of its own; `line` is the proxy that it goes through, if any."""

    def __init__(  # noqa: PLR0913 - what a process is made of
        self,
        name: str,
        kind: Literal["worker", "reader"],
        command: Sequence[str],
        settings: Settings,
        log: Path,
        findings: Findings,
        line: Proxy | None = None,
    ) -> None:
        self.name, self.kind, self.settings, self.log, self.line = name, kind, settings, log, line
        self.lives = 0
        """Counts starts and signals: what was asked in another life may remain without an answer."""
        self.signals = 0
        self._command = [sys.executable, "-m", *command]
        self._findings = findings
        self._process: Process | None = None
        self._told = False  # that it ends is our doing
        self._stopped = False
        self._closing = False

    @property
    def running(self) -> bool:
        """Whether there is a process that is not stopped."""
        return self._process is not None and self._process.returncode is None and not self._stopped

    async def keep(self) -> None:
        """Start it, and again whenever it ends, until `close`."""
        with self.log.open("ab") as out:
            while not self._closing:
                self._told = self._stopped = False
                with anyio.CancelScope(shield=True):  # or the process would be nobody's
                    process = await launch(self._command, env=environment_of(self.settings), output=out)
                    self._process = process
                self.lives += 1
                try:
                    code = await process.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        kill_session(process)
                        await process.wait()
                self._judge(code)
                await anyio.sleep(PAUSE_S)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process is None or self._process.returncode is not None:
            return
        self.lives += 1
        self.signals += 1
        if signum in {signal.SIGKILL, signal.SIGTERM}:
            self._told = True
        self._stopped = signum == signal.SIGSTOP
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signum)

    async def close(self) -> None:
        """End it for good, in an orderly way if it lets us."""
        self._closing = self._told = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send(signal.SIGCONT)
        terminate(process)
        with anyio.move_on_after(_STOP_S):
            await process.wait()
        if process.returncode is None:
            self._findings.violate("stop", f"{self.name} did not end within {_STOP_S} s of SIGTERM")
            kill_session(process)
            await process.wait()

    def usage(self) -> Usage | None:
        """Measure the process; None while there is none."""
        if self._process is None or self._process.returncode is not None:
            return None
        proc = Path("/proc") / str(self._process.pid)
        with suppress(OSError):
            pages = int((proc / "statm").read_text().split()[1])
            return Usage(pages * _PAGE, len(list((proc / "fd").iterdir())))
        return None

    def _judge(self, code: int) -> None:
        """Nobody may end without reason: only our signals, and texts that kill workers, are one."""
        fine = {_ORDERLY, -signal.SIGKILL}
        if self.kind == "worker":
            fine |= {-signal.SIGALRM, -signal.SIGKILL}
        if self._told:
            fine |= {-signal.SIGTERM, _CUT_SHORT}
        text = f"{self.name} ended with status {code}"
        if code not in fine or (code == _ORDERLY and not self._told):
            self._findings.violate("exit", text)
        else:
            self._findings.note("exit", text)
