"""`python -m jiyi_workers`: one worker process, configured by `JIYI_*` variables."""

from __future__ import annotations

import os
import signal
import sys

import anyio
import structlog

from jiyi import metrics
from jiyi.errors import JiyiError
from jiyi.logs import configure, get_logger
from jiyi.settings import Settings
from jiyi_workers.priority import stand_back
from jiyi_workers.worker import Worker

EX_CONFIG = 78
"""Exit status that tells a supervisor that starting again will not help (sysexits.h)."""


async def _run(settings: Settings) -> int:
    worker, status = Worker(settings), 0
    structlog.contextvars.bind_contextvars(consumer=worker.consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, worker, settings.drain_ms / 1000)
        try:
            await worker.run()
        except* JiyiError as errors:
            for error in _leaves(errors):
                get_logger().error("worker_refused", error=str(error))
            status = EX_CONFIG
        tasks.cancel_scope.cancel()
    return status


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Flatten an exception group."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _stop_on_signal(worker: Worker, drain_s: float) -> None:
    """First signal: drain. SIGINT after it, or the end of the grace time: go at once; the rest is taken over.

    SIGTERM says the same however often it comes: a supervisor that is killed sends it once for each of its threads.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            worker.stop()
            break
        with anyio.move_on_after(drain_s):
            async for signum in signals:
                if signum == signal.SIGINT:
                    break
        get_logger().warning("worker_cut_short")
        os._exit(1)


def main() -> int:
    """Run one worker; gives the exit status."""
    try:
        settings = Settings.from_environment()
        configure(settings)
        stand_back(settings.worker_nice)
        if settings.metrics_port:
            metrics.serve("0.0.0.0", settings.metrics_port)  # noqa: S104 - scraped from other hosts
        return anyio.run(_run, settings, backend_options={"use_uvloop": True})
    except JiyiError as error:
        sys.stderr.write(f"jiyi worker: {error}\n")
        return EX_CONFIG


if __name__ == "__main__":
    sys.exit(main())
