"""Any life of a dead letter: filed, replayed (in steps that may break off), failed again, dropped, in any order.

With the real pipeline and the real housekeeping on a real stream. Contents over ten bytes are too large for the
`strict` pipeline and good for the `lenient` one, as when somebody has raised the limit since.
"""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from jiyi import dead_letters, scripts
from jiyi.analysis import Analyzer
from jiyi.check import check_namespace
from jiyi.connections import connect
from jiyi.events import parse_entry
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline

from .conftest import STREAM

NS = "default"
DEAD, FAILED, LETTERS = "dead:{default}", "failed:{default}", "letters:{default}"
MEMORIES = ("m0", "m1")
WEIGHTS = {
    "write_long": 2,
    "write_short": 1,
    "delete": 2,
    "process": 4,
    "crash": 3,
    "process_again": 2,
    "begin": 2,
    "begin_and_append": 4,
    "append": 2,
    "finish": 3,
    "drop": 1,
    "forget": 4,
}


class Forgetful(EventStream):
    """The stream of a worker that dies before it acknowledges."""

    async def acknowledge(self, entries):
        pass


class Replay:
    """The steps of `dead_letters.replay`, one by one: whoever replays may stop between any two of them."""

    def __init__(self, database, letter):
        self.letter = letter
        self._database = database

    async def begin(self):
        return await scripts.begin_replay(self._database, NS, self.letter.letter, self.letter.entry)

    async def append(self):
        fields, _ = dead_letters._replayed(self.letter)
        await self._database.execute_command("XADD", STREAM, "*", *(part for pair in fields for part in pair))

    async def finish(self):
        field = scripts.failed_field(self.letter.id, self.letter.entry)
        await scripts.drop_letter(self._database, NS, self.letter.letter, field, self.letter.entry, replayed=True)


class Lives(RuleBasedStateMachine):
    """One memory whose events fail, and one that is only there."""

    url = ""
    analyzer = None

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        lenient, strict = Settings(redis_url=self.url), Settings(redis_url=self.url, max_content_bytes=10)
        self.database = self.run(connect(lenient))
        self.run(self.database.flushdb())
        self.stream = EventStream(self.database, STREAM, lenient.group)
        self.group, self.delivered = lenient.group, "0-0"
        self.run(self.stream.ensure_group())
        forgetful = Forgetful(self.database, STREAM, lenient.group)
        self.pipelines = {
            (crash, patient): Pipeline(self.database, forgetful if crash else self.stream, self.analyzer, chosen)
            for crash in (False, True)
            for patient, chosen in ((True, lenient), (False, strict))
        }
        self.housekeeping = Housekeeping(self.database, self.stream, self.analyzer.fingerprint, lenient)
        self.events = {}  # version -> (memory, whether it is a delete)
        self.dropped = set()  # versions
        self.seen = {}  # memory -> highest version that was ever stored
        self.letters = {}  # every letter that was ever listed
        self.begun, self.appended = [], []
        self.run(self.write_short("m0", "the namespace is there"))
        self.run(self.process(1, lenient=True))

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    @rule(
        what=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
        count=st.integers(1, 3),
        lenient=st.sampled_from([True, False, False]),
        place=st.integers(0, 3),
    )
    def step(self, what, count, lenient, place):
        given = {
            "write_long": ("m1", "a text that is too long"),
            "write_short": ("m1", "short"),
            "delete": ("m1",),
            "process": (count, lenient),
            "crash": (count, lenient),
            "process_again": (lenient,),
        }
        assert WEIGHTS.keys() >= given.keys()
        self.run(getattr(self, what)(*given.get(what, () if what == "forget" else (place,))))
        self.run(self.agree())

    # --- what happens ---

    async def accept(self, memory, **fields):
        fields["id"] = memory
        entry = await self.database.execute_command("XADD", STREAM, "*", *sum(fields.items(), ()))
        self.events[entry.decode()] = memory, fields["event"] == "delete"

    async def write_long(self, memory, content):
        await self.accept(memory, event="write", content=f"{content} {len(self.events)}")

    async def write_short(self, memory, content):
        await self.accept(memory, event="write", content=content)

    async def delete(self, memory):
        await self.accept(memory, event="delete")

    async def process(self, count, lenient, crash=False):
        if not await self.stream.after(self.delivered, 1):
            return  # reading would wait
        entries = await self.stream.read_new("c", count, 1)
        self.delivered = entries[-1].id
        await self.pipelines[crash, lenient].process(entries)
        self.letters |= {letter.letter: letter async for letter in dead_letters.letters(self.database, NS)}

    async def crash(self, count, lenient):
        await self.process(count, lenient, crash=True)

    async def process_again(self, lenient):
        await self.pipelines[False, lenient].process(await self.stream.read_own("c", 100))
        self.letters |= {letter.letter: letter async for letter in dead_letters.letters(self.database, NS)}

    async def begin(self, place):
        """Any letter that was ever listed: the list may be old, and the letter replayed by somebody else."""
        letters = list(self.letters.values())[-4:]
        if letters:
            replay = Replay(self.database, letters[place % len(letters)])
            if await replay.begin():
                self.begun.append(replay)

    async def begin_and_append(self, place):
        await self.begin(place)
        await self.append(-1)

    async def append(self, place):
        if self.begun:
            replay = self.begun.pop(place % len(self.begun))
            await replay.append()
            self.appended.append(replay)

    async def finish(self, place):
        if self.appended:
            await self.appended.pop(place % len(self.appended)).finish()

    async def drop(self, place):
        letters = list(self.letters.values())[-4:]
        if letters:
            letter = letters[place % len(letters)]
            if await dead_letters.drop(self.database, letter):
                self.dropped.add(letter.entry)

    async def forget(self):
        """As the workers' sweep does."""
        state = await self.stream.state(0)
        await self.stream.sweep()
        await self.housekeeping._forget(NS, state.floor)

    # --- what must hold ---

    async def agree(self):
        """Look at everything: this is after every step."""
        for memory in MEMORIES:
            await self.no_delete_is_undone(memory)
        rows = await self.database.execute_command("XRANGE", DEAD, "-", "+")
        filed = {dict(zip(flat[::2], flat[1::2], strict=True))[b"entry"]: letter for letter, flat in rows}
        names = await self.database.hgetall(LETTERS)
        assert len(filed) == len(rows), "a version has two letters"
        for version, letter in filed.items():
            assert names.get(version) in (letter, b"replayed " + letter), "a letter is not named"
        for version, name in names.items():
            assert name.startswith(b"replayed ") or filed.get(version) == name, "a named letter is not there"
        await self.nothing_is_lost({version.decode() for version in filed})

    async def no_delete_is_undone(self, memory):
        """What is stored never goes back to an earlier version, also when the fence was forgotten in between."""
        entry = await self.database.hget(f"memory:{{{NS}}}:{memory}", "entry")
        highest = self.seen.get(memory)
        if entry is None:
            assert highest is None or self.events[highest][1], "a memory has vanished without a delete"
            return
        version = entry.decode()
        assert highest is None or parse_entry(version) >= parse_entry(highest), "a newer version was undone"
        self.seen[memory] = version

    async def nothing_is_lost(self, filed):
        """An event is applied or outdated, or its letter is filed, or it is still to be processed."""
        rows = await self.database.execute_command("XPENDING", STREAM, self.group, "-", "+", 1_000)
        pending, delivered, waiting = {row[0].decode() for row in rows}, parse_entry(self.delivered), set()
        for entry in await self.stream.after("0-0", 1_000):
            if entry.id in pending or parse_entry(entry.id) > delivered:
                waiting.add(dict(entry.fields).get(b"origin", entry.id.encode()).decode())
        for version, (memory, _) in self.events.items():
            done = memory in self.seen and parse_entry(self.seen[memory]) >= parse_entry(version)
            assert done or version in filed | waiting | self.dropped, "an event is lost"

    def teardown(self):
        """Replayed with patience, everything is applied, and nothing of the letters is left."""
        try:
            self.run(self.settle())
        finally:
            self.run(self.database.flushdb())
            self.run(self.database.aclose())
            self.loop.close()

    async def settle(self):
        await self.process_again(lenient=True)
        for replay in self.begun:
            await replay.append()
        await self.process(1_000, lenient=True)
        for replay in self.appended + self.begun:
            await replay.finish()
        async for letter in dead_letters.letters(self.database, NS):
            assert await dead_letters.replay(self.database, STREAM, letter)
        await self.process(1_000, lenient=True)
        await self.agree()
        assert (await check_namespace(self.database, NS, stream=STREAM)).problems == []
        assert await self.database.exists(LETTERS, FAILED) == 0
        assert await self.database.xlen(DEAD) == 0
        for memory in MEMORIES:
            versions = [version for version, (name, _) in self.events.items() if name == memory]
            if versions and not self.dropped:
                assert self.seen[memory] == max(versions, key=parse_entry)


def test_any_life_of_a_letter_loses_no_event_and_undoes_no_delete(redis_url):
    Lives.url, Lives.analyzer = redis_url, Analyzer()
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
