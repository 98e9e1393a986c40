"""Workers and operators, each on a wire of its own, taken step by step: any of them can die or stall anywhere."""

from __future__ import annotations

import asyncio
from enum import Enum

from jiyi.errors import AnalyzerMismatchError, UnavailableError
from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline
from jiyi_workers.worker import Worker

from .mishaps import Died, Wire


class End(Enum):
    """How far a job has come."""

    DONE = "done"
    FAILED = "failed"  # the connection was cut, the process lives
    DEAD = "dead"
    STALLED = "stalled"


class Process:
    """Does one job at a time. A job that stalls stays where it is until it is resumed or killed."""

    def __init__(self, database):
        self.wire = Wire(database)
        self._job = None

    async def run(self, job, mishap=None):
        """Run a coroutine until it ends, dies or stalls."""
        self.wire.expect(mishap)
        self._job = asyncio.ensure_future(job)
        stalled = asyncio.ensure_future(self.wire.stalled.wait())
        await asyncio.wait({self._job, stalled}, return_when=asyncio.FIRST_COMPLETED)
        stalled.cancel()
        return await self._end() if self._job.done() else End.STALLED

    async def resume(self):
        """Let the stalled job go on to its end."""
        self.wire.resume()
        return await self._end()

    async def kill(self):
        """End the process where it stands."""
        self.wire.kill()
        if self._job is not None:
            await asyncio.wait({self._job})
            self._job.exception()

    @property
    def is_stalled(self):
        return self._job is not None and not self._job.done()

    async def _end(self):
        try:
            await self._job
        except BaseException as error:
            kinds = set(_kinds(error))
            if kinds <= {UnavailableError}:
                return End.FAILED
            # A worker whose analyzer is no longer that of the index ends; its supervisor starts another.
            if kinds <= {Died, AnalyzerMismatchError, UnavailableError}:
                self.wire.kill()
                return End.DEAD
            raise
        return End.DONE


def _kinds(error):
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _kinds(part)
    else:
        yield type(error)


class _Watched(Pipeline):
    """Tells the ledger which entries may have had an effect, and which may have been filed as dead letters."""

    def __init__(self, *arguments, ledger):
        super().__init__(*arguments)
        self._ledger = ledger

    async def process(self, entries):
        self._ledger.start([entry.id for entry in entries])
        await super().process(entries)

    async def bury(self, entry, *arguments):
        self._ledger.file(entry.id)
        await super().bury(entry, *arguments)


class WorkerProcess(Process):
    """A worker of the product, step by step: each method is what its loops do in one turn."""

    def __init__(self, database, name, settings, analyzer, ledger):
        super().__init__(database)
        self.held = []  # batches that were read and are not processed yet
        self.worker = worker = Worker(settings)
        worker.consumer = name
        worker._stream = worker._blocking = EventStream(self.wire, settings.stream, settings.group)
        worker._pipeline = _Watched(self.wire, worker._stream, analyzer, settings, ledger=ledger)
        worker._housekeeping = Housekeeping(self.wire, worker._stream, analyzer.fingerprint, settings)
        worker._housekeeping._consumer_idle_ms = -1  # nobody is too young to be dropped

    async def read(self):
        if entries := await self.worker._read():
            self.held.append(entries)

    async def process(self):
        """Process the oldest batch that we hold, or else one that is read now; tells whether there was one."""
        if not self.held:
            await self.read()
        if self.held:
            await self.worker._finish(self.held.pop(0))
            return True
        return False

    async def read_own(self):
        self.worker._recover = True
        await self.read()

    async def sweep(self):
        await self.worker._take_over()
        await self.worker._housekeeping.sweep()
