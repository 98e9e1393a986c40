"""Any history of events, crashes, stalls, redeliveries, losses and wipes ends as the accepted events say."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import ExitStack
from itertools import count

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from stepwise.actors import End, Process, WorkerProcess
from stepwise.ledger import Event, Ledger
from stepwise.steps import FAILING, FLOOD, MAX_TERMS, NAMES, STEPS
from stepwise.verdicts import Verdicts
from stepwise.views import View
from structlog.testing import capture_logs

import jiyi.index
import jiyi_workers.worker
from jiyi import compaction, dead_letters, keys, scripts
from jiyi.analysis import Analyzer
from jiyi.connections import connect
from jiyi.events import parse_entry
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.reindex import reindex_namespace
from jiyi.settings import Settings
from jiyi.streams import EventStream

SETTINGS = Settings(claim_idle_ms=0, block_ms=1, max_terms=MAX_TERMS)
FIRST_MS, FIRST_SEQ = 9_999_999_999_998, 8
"""Entry ids begin just before both their parts get one more digit."""


class Histories(RuleBasedStateMachine):
    """Three workers and any number of operators, each of which may die or stall at any command of theirs."""

    loop = database = analyzers = None

    def __init__(self):
        super().__init__()
        self.ledger = None
        self.workers, self.operators = [], []
        self.numbers = count()
        self.top = (FIRST_MS, FIRST_SEQ)
        self.stack = ExitStack()

    @initialize(names=NAMES, max_deliveries=hypothesis.strategies.sampled_from([1, 2, 5]))
    def begin(self, names, max_deliveries):
        *self.names, self.bystander = names
        self.logs = self.stack.enter_context(capture_logs())
        self.settings = msgspec.structs.replace(SETTINGS, max_deliveries=max_deliveries)
        self.bigrams = False
        self.ledger = Ledger(max_deliveries)
        self.run(self._begin())
        self.verdicts = Verdicts(self.database, self.settings, self.ledger)
        self.workers = [self.worker() for _ in range(3)]
        self.look()

    async def _begin(self):
        await self.database.flushdb()
        for path in scripts.folder().iterdir():  # else only the first history would begin without any
            await self.database.execute_command("SCRIPT LOAD", path.read_text(encoding="utf-8"))
        await EventStream(self.database, self.settings.stream, self.settings.group).ensure_group()
        memory = Memory(content="redis", tags=("p",))
        change = Change(id="m", version="1-0", memory=memory, terms={"redis": 1})
        await IndexWriter(self.database, "of nobody").apply(self.bystander, [change])
        self.untouched = await self.contents(self.bystander)

    @rule(step=STEPS)
    def step(self, step):
        """One rule: of several, Hypothesis would leave many out of each history, and few things would happen."""
        name, arguments = step
        getattr(self, name)(**arguments)
        self.look()

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    @property
    def analyzer(self):
        return self.analyzers[self.bigrams]

    @staticmethod
    def pick(those, which):
        return list(those)[which % len(those)]

    # What is written.

    def append(self, *events, **more):
        """Append events; the same ones once more when they are given an origin."""
        pipe = self.database.pipeline(transaction=False)
        for event in events:
            ms, seq = self.top
            self.top = (ms + 1, 0) if next(self.numbers) % 3 == 0 else (ms, seq + 1)
            entry = "{}-{}".format(*self.top)
            pipe.xadd(self.settings.stream, event.on_stream(**more), id=entry)
            self.ledger.accept(entry, event, copied=bool(more))
        self.run(pipe.execute())

    def event(self, ns, memory_id, code="", packed=False, **fields):
        return Event(self.names[ns], memory_id, {"id": memory_id, "ns": self.names[ns]} | fields, code, packed)

    def write(self, ns, memory_id, words, attributes, packed):
        self.append(self.event(ns, memory_id, packed=packed, event="write", content=" ".join(words), **attributes))

    def delete(self, ns, memory_id):
        self.append(self.event(ns, memory_id, event="delete"))

    def write_what_fails(self, ns, memory_id, code):
        self.append(self.event(ns, memory_id, code, **FAILING[code]))

    def write_many(self, ns):
        self.append(*(self.event(ns, memory_id, event="write", content="redis 索引") for memory_id in FLOOD))

    def delete_many(self, ns):
        self.append(*(self.event(ns, memory_id, event="delete") for memory_id in FLOOD))

    def write_identically(self, which):
        if self.ledger.carriers:
            self.append(self.pick(self.ledger.carriers.values(), which).event.again())

    def duplicate(self, which):
        """The same event once more, as somebody would append it who copies entries."""
        if events := self.ledger.repeatable():
            event = self.pick(events, which)
            self.append(event, origin="{}-{}".format(*event.version))

    # What processes do.

    def worker(self):
        async def start():
            name = f"w{next(self.numbers)}"
            return WorkerProcess(self.database, name, self.settings, self.analyzer, self.ledger)

        return self.run(start())

    def stalled(self):
        return [process for process in (*self.workers, *self.operators) if process.is_stalled]

    def after(self, process, end):
        """A worker that has died is replaced by another; gives how the process has ended."""
        self.ledger.unseen |= process.wire.unseen
        if end is End.DEAD and process in self.workers:
            self.workers[self.workers.index(process)] = self.worker()
        if end is not End.STALLED and process in self.operators:
            self.operators.remove(process)
        return end

    def work(self, who, mishap, job, **settings):
        """One of the workers that are free does something."""
        if free := [worker for worker in self.workers if not worker.is_stalled]:
            worker = self.pick(free, who)
            worker.worker._settings = msgspec.structs.replace(self.settings, **settings)
            self.after(worker, self.run(worker.run(job(worker), mishap)))

    def read(self, who, mishap, batch):
        self.work(who, mishap, WorkerProcess.read, batch=batch)

    def process(self, who, mishap, batch):
        self.work(who, mishap, WorkerProcess.process, batch=batch)

    def read_own(self, who, mishap):
        self.work(who, mishap, WorkerProcess.read_own)

    def sweep(self, who, mishap, idle_ms):
        self.work(who, mishap, WorkerProcess.sweep, claim_idle_ms=idle_ms)

    def resume(self, which):
        if stalled := self.stalled():
            process = self.pick(stalled, which)
            self.after(process, self.run(process.resume()))

    def kill(self, who):
        self.run(self.workers[who].kill())
        self.after(self.workers[who], End.DEAD)

    def operate(self, mishap, job, *arguments):
        operator = Process(self.database)
        self.operators.append(operator)
        return self.after(operator, self.run(operator.run(job(operator.wire, *arguments), mishap)))

    def replay(self, which, mishap):
        self.settle_letter(which, mishap, lambda wire, letter: dead_letters.replay(wire, self.settings.stream, letter))

    def drop(self, which, mishap):
        self.settle_letter(which, mishap, dead_letters.drop, gives_up=True)

    def settle_letter(self, which, mishap, job, *, gives_up=False):
        """An operator does something about one of the dead letters; if it is not disturbed, that one is gone."""
        if letters := [letter for letters in self.view.letters.values() for letter in letters]:
            letter = self.pick(letters, which)
            self.ledger.act_on(letter, gives_up=gives_up)
            end = self.operate(mishap, job, letter)
            self.look()
            assert end is not End.DONE or letter not in self.view.letters[letter.ns]

    def reindex(self, changed, mishap):
        self.bigrams = self.bigrams != changed
        self.operate(mishap, self._reindex, self.analyzer, True)

    async def _reindex(self, wire, analyzer, force):
        for ns in self.names:
            await reindex_namespace(wire, ns, analyzer, force=force)

    def compact(self, growth_only, mishap):
        self.operate(mishap, self._compact, growth_only)

    async def _compact(self, wire, growth_only):
        for ns in self.names:
            await compaction.compact_namespace(wire, ns, growth_only=growth_only)

    # What others do to the server.

    def flush_scripts(self):
        self.run(self.database.execute_command("SCRIPT FLUSH"))

    def wipe(self, ns):
        name = self.names[ns]
        if contents := self.run(self.contents(name)):
            self.run(self.database.delete(*contents))
        self.ledger.wipe(name, stalled=bool(self.stalled()))

    async def contents(self, ns):
        tag = b"{%s}" % keys.encode_namespace(ns).encode()
        names = [key async for key in self.database.scan_iter(count=1000) if tag in key]
        return {name: await self.database.dump(name) for name in names}

    def remove_entry(self, which):
        if entries := self.entries():
            entry = self.pick(entries, which)
            self.run(self.database.xdel(self.settings.stream, entry))
            self.ledger.remove([entry], self.view, in_hand=self.in_hand())

    def trim(self, which):
        """Somebody keeps only so many entries, processed or not."""
        if entries := self.entries():
            kept = which % len(entries)
            self.run(self.database.execute_command("XTRIM", self.settings.stream, "MAXLEN", kept))
            self.ledger.remove(entries[: len(entries) - kept], self.view, in_hand=self.in_hand())

    def entries(self):
        return [raw.decode() for raw, _ in self.run(self.database.xrange(self.settings.stream))]

    def in_hand(self):
        """Entries that a living process may still apply, whatever becomes of the stream."""
        if self.stalled():
            return self.view.pending
        return {entry.id for worker in self.workers for batch in worker.held for entry in batch}

    # What must be so.

    def look(self):
        """Nothing is undone, and nothing appears that nobody wrote."""
        after = "{}-{}".format(*self.top)
        memories = list(self.ledger.memories)
        self.view = self.run(View.of(self.database, self.settings, self.names, after=after, memories=memories))
        if self.view.tail:
            self.top = parse_entry(self.view.tail[-1][0])
        self.ledger.observe(self.view)

    def ask(self):
        self.run(self.verdicts.readiness(self.view))

    def search(self, word):
        for ns in self.names:
            self.run(self.verdicts.scores(self.view, ns, self.analyzer, [word]))

    def teardown(self):
        try:
            if self.ledger is not None and sys.exc_info()[0] is None:  # else that is what went wrong
                self.end()
        finally:
            for process in self.stalled():
                self.run(process.kill())
            self.stack.close()

    def end(self):
        """One worker does all that is left, and then those that were away go on; then everything is compared."""
        for ns in range(len(self.names)):  # a namespace that was wiped is one again with its next write
            self.append(self.event(ns, "last", event="write", content="redis"))
        self.drain()
        for process in self.stalled():
            self.after(process, self.run(process.resume()))
            self.look()
        self.drain()
        self.run(self.verdicts.all(self.view, self.names, self.analyzer, self.logs))
        assert self.run(self.contents(self.bystander)) == self.untouched

    def drain(self):
        self.run(self._reindex(self.database, self.analyzer, False))
        worker = self.worker()
        self.run(worker.sweep())
        while self.run(worker.process()):
            pass
        self.run(worker.sweep())
        self.look()


def test_any_history_ends_as_the_accepted_events_say(redis_url, monkeypatch):
    """`JIYI_TEST_EXAMPLES` tries more of them, `JIYI_TEST_SEED` those of an earlier run again.

    `JIYI_TEST_SHRINK=1` looks for the shortest history that fails, which takes minutes.
    """
    monkeypatch.setattr(jiyi_workers.worker, "_BACK_OFF_S", 0.0)
    monkeypatch.setattr(jiyi.index, "POSTINGS_PER_CALL", 12)  # several calls a batch, with crashes in between
    monkeypatch.setattr(compaction, "LEAST_OPEN", 1)  # every list that has grown by a posting is sealed anew
    monkeypatch.setattr(keys, "BUCKETS", 4)  # terms that share one, and fewer to check
    examples = int(os.environ.get("JIYI_TEST_EXAMPLES", "60"))
    seed = int(os.environ.get("JIYI_TEST_SEED") or random.SystemRandom().randrange(2**32))
    shrinks = bool(os.environ.get("JIYI_TEST_SHRINK"))
    options = hypothesis.settings(
        max_examples=examples, stateful_step_count=50, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
    )  # fmt: skip
    with asyncio.Runner() as runner:
        Histories.loop = runner.get_loop()
        Histories.analyzers = [Analyzer(han_bigrams=bigrams, max_terms=MAX_TERMS) for bigrams in (False, True)]
        Histories.database = runner.run(connect(Settings(redis_url=redis_url)))
        try:
            run_state_machine_as_test(hypothesis.seed(seed)(Histories), settings=options)
        except BaseException:
            print(f"again: JIYI_TEST_SEED={seed} JIYI_TEST_EXAMPLES={examples} JIYI_TEST_SHRINK=1")  # noqa: T201 - shown with a failure
            raise
        finally:
            runner.run(Histories.database.flushdb())
            runner.run(Histories.database.aclose())
