"""`make chaos`, `make soak`: break a running service at random, and prove that nothing is lost, doubled or wrong.

    python -m faults.chaos --seed 7 --seconds 150

Real processes, a real server, real sockets. Producers write, rewrite and delete; users ask and verify every answer;
faults come in a sequence that follows from the seed. Then the faults end, everything comes to rest, and every event
is accounted for. The exit status is 0 only when nothing was lost, nothing was wrong, the index is right and no answer
was. Faults after which something may be lost (eviction, a wipe, trimming by others, failover) are not among them.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import anyio
import msgspec

from faults import plan
from faults.disturbances import Disturbances
from faults.errands import Errands
from faults.findings import Findings
from faults.ledger import Ledger
from faults.members import ROOT
from faults.pollers import Poller
from faults.report import Report, fill, unchanged_among
from faults.samples import Samples
from faults.service import Service, running, sick_workers
from faults.settlement import Settlement, read_logs
from faults.traffic import IDS, Traffic
from faults.ways import Asynchronous, Http, Plain, Threaded, Way
from faults.witness import Witness
from jiyi.analysis import Analyzer
from jiyi.connections import connect
from jiyi.producer import Producer
from jiyi.sync_producer import SyncProducer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anyio.abc import TaskGroup

_POLLERS = 3
_PAUSE_AFTER_FAILURE_S = 0.2
_PROVE_S = 30
_PROGRESS_S = 0.5
_INTERRUPTED = 130


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. `rate` is in events a second, `pace_s` between two faults on average."""

    seed: int
    seconds: float = 150
    workers: int = 4
    rate: float = 60
    pace_s: float = 0.6
    weights: Mapping[str, float] = msgspec.field(default_factory=lambda: plan.WEIGHTS)
    commands: Sequence[Sequence[str]] | None = None
    """Commands of the workers (arguments of Python's -m) in place of the usual ones."""
    keep_going: bool = False
    soak: bool = False
    progress: bool = False
    folder: Path = ROOT / "build"

    @property
    def logs(self) -> Path:
        """Where the logs of this run lie."""
        return self.folder / f"chaos-{self.seed}"


async def run(options: Options) -> Report:
    """Do one run. Whatever was started has ended when it returns; of files only its logs stay."""
    shutil.rmtree(options.logs, ignore_errors=True)
    options.logs.mkdir(parents=True)
    findings, report = Findings(options.logs / "faults.log"), Report(seed=options.seed, seconds=0)
    report.folder = str(options.logs)
    commands = options.commands or sick_workers(options.workers)
    with tempfile.TemporaryDirectory(prefix="jiyi-chaos-") as name:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_interrupt_on_signal, tasks, report)
                async with running(Path(name), options.logs, findings, commands) as service:
                    await _Run(options, service, findings, report).all()
                tasks.cancel_scope.cancel()
            read_logs(options.logs, findings)
        finally:
            fill(report, findings)
            findings.close()
            if not report.ok and not report.interrupted:
                shutil.copytree(name, options.logs / "data", dirs_exist_ok=True, ignore=shutil.ignore_patterns("s"))
    if report.ok:
        for file in set(options.logs.iterdir()) - {options.logs / "faults.log"}:
            file.unlink()
    (options.logs / "report.json").write_bytes(msgspec.json.encode(report))
    return report


async def _interrupt_on_signal(tasks: TaskGroup, report: Report) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            report.interrupted = True
            tasks.cancel_scope.cancel()
            return


class _Run:
    """One run on a service that is up."""

    def __init__(self, options: Options, service: Service, findings: Findings, report: Report) -> None:
        self._options, self._service, self._findings, self._report = options, service, findings, report
        self._ledger = Ledger(options.logs / "ledger.jsonl")
        self._analyzer = Analyzer()
        self._analyzer.warm_up()
        limit = service.settings.max_content_bytes
        self._traffic = Traffic(self._ledger, findings, self._random("traffic"), limit)
        self._witness = Witness(self._ledger, service.server, self._analyzer, IDS, findings)
        self._samples = Samples(service, findings, 5 if options.soak else 1)
        self._phase = "faults"

    def _random(self, name: str) -> Random:
        return Random(f"{name} {self._options.seed}")  # noqa: S311 - to be repeated

    async def all(self) -> None:
        """Faults, rest, account."""
        async with AsyncExitStack() as stack:
            stack.callback(self._ledger.close)
            producer = await self._producer(stack)
            ways = await self._ways(stack, producer)
            errands = Errands(self._service, self._traffic, producer, self._options.logs, self._findings)
            disturbances = Disturbances(self._service, self._findings)
            async with anyio.create_task_group() as observers:
                observers.start_soon(self._samples.run)
                observers.start_soon(self._show)
                for i in range(_POLLERS):
                    random = self._random(f"poller {i}")
                    poller = Poller(self._service, self._traffic, self._witness, self._findings, random)
                    observers.start_soon(poller.run)
                await self._break(ways, disturbances, errands)
                if self._options.keep_going or not self._findings.count:
                    self._phase = "coming to rest"
                    await disturbances.release_memory()
                    settlement = Settlement(self._service, self._traffic, self._analyzer, self._findings)
                    await settlement.rest()
                    await errands.prove("check")
                    self._report.rest_s = settlement.seconds
                    self._phase = "accounting"
                    self._report.verdict = await settlement.account()
                    self._report.innocent = settlement.innocent
                observers.cancel_scope.cancel()
        self._fill()

    async def _producer(self, stack: AsyncExitStack) -> Producer:
        settings = self._service.settings
        through = msgspec.structs.replace(settings, redis_url=self._service.lines["producer"].url)
        return await stack.enter_async_context(Producer(settings=through))

    async def _ways(self, stack: AsyncExitStack, producer: Producer) -> list[Way]:
        settings = self._service.settings
        blocking = stack.enter_context(SyncProducer(settings=settings))
        database = await connect(settings)
        stack.push_async_callback(database.aclose)
        clients = [Http(client) for client in self._service.clients]
        return [Asynchronous(producer), Threaded(blocking), Plain(database, settings), *clients]

    async def _break(self, ways: Sequence[Way], disturbances: Disturbances, errands: Errands) -> None:
        """Write and break until the time is over, or something was found."""
        options = self._options
        with anyio.move_on_after(options.seconds):
            async with anyio.create_task_group() as tasks:
                for i, way in enumerate(ways):
                    tasks.start_soon(self._write, way, options.rate / len(ways), self._random(f"way {i}"))
                tasks.start_soon(self._inflict, disturbances, errands)
                if options.soak:
                    tasks.start_soon(self._prove, errands)
                if not options.keep_going:
                    await self._findings.spoilt.wait()
                    tasks.cancel_scope.cancel()

    async def _write(self, way: Way, rate: float, random: Random) -> None:
        while True:
            await anyio.sleep(random.expovariate(rate))
            if not await self._traffic.step(way):
                await anyio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _inflict(self, disturbances: Disturbances, errands: Errands) -> None:
        options, started = self._options, anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for step in plan.steps(options.seed, pace_s=options.pace_s, weights=options.weights):
                await anyio.sleep_until(started + step.at_s)
                started += await self._samples.catching_up()
                fault = getattr(disturbances, step.name, None) or getattr(errands, step.name)
                self._findings.faults[step.name] += 1
                tasks.start_soon(fault, Random(step.seed))  # noqa: S311 - to be repeated

    async def _prove(self, errands: Errands) -> None:
        while True:
            await anyio.sleep(_PROVE_S)
            await errands.prove("check")

    async def _show(self) -> None:
        """Show one line on a terminal."""
        while self._options.progress and sys.stderr.isatty():
            verdicts = f"violations {self._findings.count}"
            line = (
                f"{self._phase} {self._findings.seconds:5.0f} s of {self._options.seconds:.0f}, seed "
                f"{self._options.seed}: sent {len(self._ledger.sent):,}, on the stream {self._samples.length:,}, "
                f"answers {self._witness.answers:,}, server starts {self._service.server.lives}, {verdicts}"
            )
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()
            await anyio.sleep(_PROGRESS_S)

    def _fill(self) -> None:
        report = self._report
        self._samples.judge()
        report.plateaus = self._samples.plateaus()
        report.unchanged, report.refused = unchanged_among(self._ledger), self._ledger.refused
        report.malformed, report.answers = len(self._traffic.strange.accepted), self._witness.answers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; gives the exit status."""
    given = _parse(arguments)
    options = Options(
        seed=given.seed, seconds=given.seconds, workers=given.workers, keep_going=given.keep_going, soak=given.soak,
        folder=given.folder, progress=True,
    )  # fmt: skip
    print(f"seed {options.seed}", file=sys.stderr)  # noqa: T201
    report = anyio.run(run, options)
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if given.json else f"{report}\n")
    if report.interrupted:
        print(f"interrupted, seed {options.seed}", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    if not report.ok:
        again = f"make chaos SEED={options.seed} SECONDS={options.seconds:g} WORKERS={options.workers}"
        print(f"Logs, ledger and data: {report.folder}\nThe same once more: {again}", file=sys.stderr)  # noqa: T201
    print(f"{'passed' if report.ok else 'failed'}, seed {options.seed}", file=sys.stderr)  # noqa: T201
    return 0 if report.ok else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults.chaos", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=secrets.randbelow(10**6), help="of what happens; by default another every time")
    add("--seconds", type=float, default=150, help="how long things break (150); rest and account come after")
    add("--workers", type=int, default=4, help="worker processes (4)")
    add("--keep-going", action="store_true", help="do not end at the first violation")
    add("--soak", action="store_true", help="check the index every 30 s as well")
    add("--folder", type=Path, default=ROOT / "build", help="where the folder of logs is made (build)")
    add("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
