"""A history of events on the record, and what must be true when it has been processed."""

from __future__ import annotations

from conftest import wait_until

from faults.verification import verify
from jiyi import Producer, keys, scripts
from jiyi.streams import EventStream

WRITES, REWRITES, DELETES = 18, 5, 4
DOCUMENTS = WRITES - DELETES
EVENTS = WRITES + REWRITES + DELETES + 1
COUNTS = {
    "sent": EVENTS,
    "applied": WRITES,
    "superseded": REWRITES + DELETES,
    "dead_lettered": 1,
    "unknown": 0,
}  # fmt: skip
"""What `verify` counts of `write_history`."""


def content(number, word="第一"):
    """A text of so many terms that the history's documents take a few calls of the apply script."""
    return f"记忆 {word} " + " ".join(f"word{number * 7 + j}" for j in range(64))


async def write_history(ledger, database, settings):
    """Write, rewrite and delete on the record; the first event is one that cannot be applied."""
    await load_scripts(database)
    bad = ledger.begin("write", "default", "bad", "no number")
    fields = {"event": "write", "id": "bad", "content": "no number", "importance": "x"}
    ledger.accept(bad.number, (await database.xadd(settings.stream, fields)).decode())
    async with Producer(settings=settings) as producer:
        await ledger.write_many(producer, "default", [(f"m{i}", content(i)) for i in range(WRITES)])
        await ledger.write_many(producer, "default", [(f"m{i}", content(i, "第二")) for i in range(REWRITES)])
        for i in range(REWRITES - DELETES // 2, REWRITES + DELETES // 2):
            await ledger.delete(producer, "default", f"m{i}")


async def load_scripts(database):
    """Let the server know all scripts: a fail-point that counts calls would count a NOSCRIPT and its repetition."""
    for file in scripts.folder().iterdir():
        if file.name.endswith(".lua"):
            for variant in (scripts.load, scripts.allowing_oom):
                await database.script_load(variant(file.name.removesuffix(".lua")).source)


async def at_rest(database, settings):
    """Wait until everything on the stream is processed."""
    stream = EventStream(database, settings.stream, settings.group)

    async def quiet():
        state = await stream.state(0)
        return state and state.lag == 0 and state.pending == 0

    await wait_until(quiet, "the stream is processed", timeout_s=120)


async def held_by_nobody_living(database, settings):
    """Give everything that is on the stream to a consumer that is gone."""
    stream = EventStream(database, settings.stream, settings.group)
    await stream.ensure_group()
    entries = [entry.id for entry in await stream.read_new("gone", 10_000, 1)]
    claim = ("XCLAIM", settings.stream, settings.group, "gone", 0, *entries, "IDLE", 3_600_000, "JUSTID")
    await database.execute_command(*claim)


async def documents(database, ns="default"):
    """Documents of a namespace."""
    return int(await database.hget(keys.stats_key(ns), "docs") or 0)


async def pending(database, settings):
    """Entries that somebody has read and nobody acknowledged."""
    state = await EventStream(database, settings.stream, settings.group).state(0)
    return 0 if state is None else state.pending


async def assert_finished(ledger, database, settings, **counts):
    """Everything is processed and accounted for, in the index and in the account of the stream."""
    await at_rest(database, settings)
    verdict = await verify(ledger, database, settings)
    assert verdict.ok, str(verdict)
    assert {name: getattr(verdict, name) for name in counts} == counts
    await EventStream(database, settings.stream, settings.group).sweep()
    account = await database.hgetall(keys.processed_key(settings.stream))
    assert account.get(f"{settings.group}:lost".encode(), b"0") == b"0", account


async def assert_nothing_acknowledged_unapplied(ledger, database, settings):
    """What is not applied is still there to be processed."""
    verdict = await verify(ledger, database, settings)
    assert (verdict.lost, verdict.wrong, verdict.problems) == ([], [], []), str(verdict)
