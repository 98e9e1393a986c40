"""The supervisor: runs the processes of the service, starts them again, and stops them in order."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from jiyi.launcher import kill_session, launch, terminate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import Process

    from jiyi.launcher import EventCallback

FATAL_EXIT_CODES = frozenset({78})
"""EX_CONFIG: the child has refused its configuration, and starting it again would not help."""

FIRST_DELAY_S = 0.5
"""The pause before the first restart; each further one is twice as long."""

MAX_DELAY_S = 30.0
"""The longest pause before a restart."""

STEADY_S = 60.0
"""A child that has lived so long has recovered: its next pause is the first one again."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running: `env` is added to our environment, `stop_timeout_s` is from SIGTERM to SIGKILL.

    It inherits the open files `pass_fds`, under the same numbers.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_timeout_s: float = 10.0
    pass_fds: Sequence[int] = ()


class Supervisor:
    """Keeps children running until SIGINT, SIGTERM, SIGHUP, `stop`, or a fatal exit; then stops them group by group.

    Guarantees: a child that ends is started again, after a pause that doubles from 0.5 s to 30 s and falls back once
    the child has lived for 60 s. The groups are stopped in their order, each when the one before has ended; within a
    group all at once, by SIGTERM and after the child's own timeout by SIGKILL. A second signal kills at once.
    Every child has its own session, so a Ctrl-C in the terminal reaches only us. On Linux the children get SIGTERM if
    this process dies, perhaps once for each of its threads. They inherit our standard output and error.

    `on_event` receives `child_started` (name, pid), `child_exited` (name, code, restart_in_s, which is None for a
    fatal exit), `stopping` (signal, None for `stop` and a fatal exit), `child_stopped` (name, code) and
    `child_killed` (name, pid).

    A supervisor runs once, in the main thread.
    """

    def __init__(self, groups: Sequence[Sequence[Child]], *, on_event: EventCallback) -> None:
        self._groups = groups
        self._on_event = on_event
        self._stopping = anyio.Event()
        self._kill_now = anyio.Event()
        self._exit_code = 0

    def stop(self, exit_code: int = 0) -> None:
        """Begin to stop, as the first signal does; `run` returns the exit code of the first call that is not 0."""
        self._exit_code = self._exit_code or exit_code
        self._begin_to_stop(signal_name=None)

    def _begin_to_stop(self, signal_name: str | None) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._on_event("stopping", signal=signal_name)

    async def run(self) -> int:
        """Run the children and return the exit code for this process once all have ended.

        0 after an orderly stop, 1 if a child had to be killed, or the code of the fatal exit. When it is cancelled, it
        stops the children too, but all groups at the same time.
        """
        stops = [(anyio.Event(), anyio.Event()) for _ in self._groups]
        with anyio.open_signal_receiver(*_stop_signals()) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, signals)
                for group, (stop, stopped) in zip(self._groups, stops, strict=True):
                    tasks.start_soon(self._keep_group, group, stop, stopped)
                await self._stopping.wait()
                for stop, stopped in stops:
                    stop.set()
                    await stopped.wait()
                tasks.cancel_scope.cancel()
        return self._exit_code

    async def _listen(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for signum in signals:
            if self._stopping.is_set():
                self._kill_now.set()
            else:
                self._begin_to_stop(signum.name)

    async def _keep_group(self, group: Sequence[Child], stop: anyio.Event, stopped: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            for child in group:
                tasks.start_soon(self._keep, child, stop)
        stopped.set()

    async def _keep(self, child: Child, stop: anyio.Event) -> None:
        """Keep one child running until its group stops or it exits with a fatal code."""
        delay_s = FIRST_DELAY_S
        while not stop.is_set():
            process = await launch(child.command, env=os.environ | child.env, pass_fds=child.pass_fds)
            started = anyio.current_time()
            self._on_event("child_started", name=child.name, pid=process.pid)
            try:
                await _first(process.wait, stop.wait)
            finally:
                if process.returncode is None:
                    with anyio.CancelScope(shield=True):
                        await self._end(child, process)
            if stop.is_set():
                break
            if process.returncode in FATAL_EXIT_CODES:
                self._on_event("child_exited", name=child.name, code=process.returncode, restart_in_s=None)
                self.stop(process.returncode)
                break
            if anyio.current_time() - started >= STEADY_S:
                delay_s = FIRST_DELAY_S
            self._on_event("child_exited", name=child.name, code=process.returncode, restart_in_s=delay_s)
            with anyio.move_on_after(delay_s):
                await stop.wait()
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _end(self, child: Child, process: Process) -> None:
        terminate(process)
        with anyio.move_on_after(child.stop_timeout_s):
            await _first(process.wait, self._kill_now.wait)
        if process.returncode is None:
            self._on_event("child_killed", name=child.name, pid=process.pid)
            self._exit_code = self._exit_code or 1
            kill_session(process)
            await process.wait()
        self._on_event("child_stopped", name=child.name, code=process.returncode)


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of these has returned; the others are cancelled."""

    async def run(wait: Callable[[], Awaitable[object]]) -> None:
        await wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for wait in waits:
            tasks.start_soon(run, wait)


def _stop_signals() -> list[signal.Signals]:
    # SIGHUP is a closed terminal; under nohup it is ignored, and stays so.
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]
