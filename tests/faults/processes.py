"""Real processes of the service for the fault tests, and how they die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from multiprocessing import forkserver

import anyio
import msgspec
from conftest import end
from nursery import run_worker

from faults.proxy import Proxy

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["nursery"])


@cache
def _start_fork_server():
    """Start it with our search path: before Python 3.13 it forgets the one that it is given, and loads nothing."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def environment_of(settings):
    """The environment of a process of the service with these settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    return ours | settings.to_environment()


@asynccontextmanager
async def worker_of(settings, log, target=run_worker, *arguments):
    """Run a worker process that writes into `log`; it is ended at the end of the context.

    The event loop goes on while it ends: its way to Redis may lead through this process.
    """
    _start_fork_server()
    process = _FORKS.Process(target=target, args=(environment_of(settings), log, *arguments))
    process.start()
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
                if await ended(process, 10) is None:
                    process.kill()
                    await ended(process)
        process.close()


@asynccontextmanager
async def program_of(command, settings, log):
    """Run any other program of the service in the same way."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=environment_of(settings), stdout=out, stderr=out)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            process.terminate()
            await anyio.to_thread.run_sync(end, process)


async def ended(process, timeout_s=60):
    """Wait for the end of a worker; gives its exit status, None if it goes on."""
    await anyio.to_thread.run_sync(process.join, timeout_s)
    return process.exitcode


class Pair:
    """A worker to which something happens, and its heir, which is ready but looks on until it may work.

    Each has a proxy of its own: `proxy` and `heirs_proxy`. The worker is there as `worker` after `start`.
    """

    def __init__(self, stack, proxies, settings, folder):
        self._stack, self._folder = stack, folder
        self._settings = [msgspec.structs.replace(settings, redis_url=proxy.url) for proxy in proxies]
        self.proxy, self.heirs_proxy = proxies
        self._held = self.heirs_proxy.failpoint("XREADGROUP", "XAUTOCLAIM", times=None)

    async def start(self):
        self.worker, self.heir = [
            await self._stack.enter_async_context(worker_of(settings, self._folder / f"worker{i}.log"))
            for i, settings in enumerate(self._settings)
        ]

    def let_heir_work(self):
        self._held.disarm()

    def kill(self, request):
        """An action of a fail-point: the worker dies here and now, and this connection brings nothing more."""
        self.worker.kill()
        request.connection.cut()

    def freeze(self, _request):
        """An action of a fail-point: the worker stands still from here on."""
        os.kill(self.worker.pid, signal.SIGSTOP)

    def log(self):
        """What the worker has said."""
        return (self._folder / "worker0.log").read_text()


@asynccontextmanager
async def pair(settings, folder):
    """A `Pair`, not yet started."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(settings.redis_url)) for _ in range(2)]
        two = Pair(stack, proxies, settings, folder)
        try:
            yield two
        finally:
            two.let_heir_work()
