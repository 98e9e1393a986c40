"""Document numbers on a server that has lost what it answered last: none is ever used twice.

A replica that was behind, or a file that was cut, is an earlier state of the same keys: they are dumped, and later
put back. What the server answered in between it has forgotten; the callers have not.
"""

from __future__ import annotations

import random

import pytest

from jiyi.check import check_namespace
from jiyi.index import IndexWriter, Outcome
from jiyi.packing import pack
from jiyi.scripts import ApplyStatus, apply_events, load

from .conftest import ANALYZER, all_keys, apply, delete, dump, packed, write
from .contents import contents

pytestmark = pytest.mark.anyio

NS = "default"
RESERVATIONS = "reservations:{default}"


async def remember(database):
    """All keys, as DUMP gives them."""
    return {key: await database.dump(key) for key in await all_keys(database)}


async def lose_tail(database, remembered):
    """Put an earlier state in the place of all keys."""
    for key in await all_keys(database):
        await database.delete(key)
    for key, value in remembered.items():
        await database.restore(key, 0, value)


async def send(database, call):
    return await apply_events(database, *call)


async def held(database, *changes):
    """Calls of one change each, of those that are not done already."""
    reservation, prepared = await IndexWriter(database, ANALYZER)._prepare(NS, changes, again=False)
    jobs = [one for one in prepared if not isinstance(one, Outcome)]
    return [pack(NS, reservation, ANALYZER, [one], 1, last=one is jobs[-1]) for one in jobs]


def numbers(found):
    """Every document number that the journal has ever given, with the memories that hold one now."""
    raw = found[b"journal:{default}"][1][4:]
    births = [
        int.from_bytes(raw[at : at + 4], "little")
        for at in range(0, len(raw), 20)
        if raw[at + 4 : at + 8] != b"\xff" * 4
    ]
    assert len(births) == len(set(births)), "a document number was used twice"
    return births


async def unharmed(database, expected):
    found = await dump(database, NS)
    numbers(found)
    assert contents(found, b"default") == expected
    assert (await check_namespace(database, NS)).problems == []


async def test_a_reservation_that_the_server_has_lost_is_refused_and_made_again(either):
    """The number of the first batch is given out once more, to the second, which lands first."""
    await apply(either, NS, write("m0", "1-0", "before"))
    earlier = await remember(either)
    lost = await packed(either, NS, write("m1", "5-0", "first"))
    await lose_tail(either, earlier)
    known = await packed(either, NS, write("m2", "6-0", "second"))
    assert await send(either, known) is ApplyStatus.OK
    before = await dump(either, NS)
    assert await send(either, lost) is ApplyStatus.RESERVATION_LOST
    assert await dump(either, NS) == before
    assert await apply(either, NS, write("m1", "5-0", "first")) == [Outcome.APPLIED]
    await unharmed(either, {"m0": {"before": 1}, "m1": {"first": 1}, "m2": {"second": 1}})


async def test_the_one_that_the_server_has_lost_is_refused_also_when_it_comes_first(either):
    await apply(either, NS, write("m0", "1-0", "before"))
    earlier = await remember(either)
    lost = await packed(either, NS, write("m1", "5-0", "first"))
    await lose_tail(either, earlier)
    known = await packed(either, NS, write("m2", "6-0", "second"))
    assert await send(either, lost) is ApplyStatus.RESERVATION_LOST
    assert await send(either, known) is ApplyStatus.OK
    assert await apply(either, NS, write("m1", "5-0", "first")) == [Outcome.APPLIED]
    await unharmed(either, {"m0": {"before": 1}, "m1": {"first": 1}, "m2": {"second": 1}})


async def test_a_reservation_that_the_server_still_has_is_good(either):
    """What was lost came after it: its numbers are behind the counter and nobody else gets them."""
    await apply(either, NS, write("m0", "1-0", "before"))
    kept = await packed(either, NS, write("m1", "5-0", "first"))
    earlier = await remember(either)
    lost = await packed(either, NS, write("m2", "6-0", "second"))
    assert await send(either, lost) is ApplyStatus.OK
    await lose_tail(either, earlier)
    assert await send(either, kept) is ApplyStatus.OK
    assert await send(either, lost) is ApplyStatus.RESERVATION_LOST
    assert await apply(either, NS, write("m2", "6-0", "second")) == [Outcome.APPLIED]
    await unharmed(either, {"m0": {"before": 1}, "m1": {"first": 1}, "m2": {"second": 1}})


async def test_a_batch_that_was_applied_and_lost_is_applied_again(either):
    """The tail is lost between the call and its repetition: the token is back, and so is the state before it."""
    await apply(either, NS, write("m0", "1-0", "before"))
    call = await packed(either, NS, write("m1", "5-0", "first"), write("m0", "6-0", "after"))
    earlier = await remember(either)
    assert await send(either, call) is ApplyStatus.OK
    await lose_tail(either, earlier)
    assert await send(either, call) is ApplyStatus.OK
    assert await send(either, call) is ApplyStatus.RESERVATION_LOST
    await unharmed(either, {"m0": {"after": 1}, "m1": {"first": 1}})


async def test_the_first_calls_of_a_reservation_leave_it_to_the_last(either):
    """A batch in several calls: each needs the token, the last one returns it."""
    for call in await held(either, *[write(f"m{i}", f"5-{i}", f"word{i} all") for i in range(3)]):
        assert await either.zcard(RESERVATIONS) == 1
        assert await send(either, call) is ApplyStatus.OK
    assert await either.exists(RESERVATIONS) == 0
    await unharmed(either, {f"m{i}": {f"word{i}": 1, "all": 1} for i in range(3)})


async def test_a_call_without_numbers_needs_no_reservation(either):
    """Deletes, and writes that only move the fence, are held by their fences alone."""
    await apply(either, NS, write("m1", "1-0", "same"), write("m2", "1-1", "gone"))
    call = await packed(either, NS, write("m1", "5-0", "same"), delete("m2", "5-1"))
    await either.delete(RESERVATIONS)
    assert await send(either, call) is ApplyStatus.OK
    assert await send(either, call) is ApplyStatus.CONFLICT
    await unharmed(either, {"m1": {"same": 1}})


class Overtaken:
    """A database at which another writer is faster, once: before the first `apply_events`."""

    def __init__(self, database, *changes):
        self._database = database
        self._changes = changes

    async def execute_command(self, *command):
        if command[0] == "EVALSHA" and command[1] == load("apply_events").sha and self._changes:
            changes, self._changes = self._changes, ()
            await apply(self._database, NS, *changes)
        return await self._database.execute_command(*command)


async def test_a_conflict_leaves_no_reservation_behind(database):
    """A memory that many write at once would else leave thousands of them, each for a day."""
    writer = IndexWriter(Overtaken(database, write("m1", "6-0", "faster")), ANALYZER)
    assert await writer.apply(NS, [write("m1", "5-0", "slow"), write("m2", "5-1", "x")]) == [
        Outcome.SUPERSEDED,
        Outcome.APPLIED,
    ]
    assert await database.exists(RESERVATIONS) == 0
    await unharmed(database, {"m1": {"faster": 1}, "m2": {"x": 1}})


async def test_any_loss_beside_many_writers_ends_in_the_state_of_the_highest_versions(database):
    """Writers that repeat what was lost, as workers do for what they have not acknowledged."""
    dice = random.Random(3)
    history = [
        write(f"m{dice.randrange(5)}", f"{step + 1}-0", " ".join(dice.choices("abcdef", k=4))) for step in range(60)
    ]
    final = {change.id: change for change in history}
    await apply(database, NS, write("m0", "0-1", "x"))
    calls, answers = [], set()
    for _ in range(20):
        earlier = await remember(database)
        calls += await held(database, *{change.id: change for change in dice.sample(history, 3)}.values())
        answers |= {await send(database, call) for call in dice.sample(calls, min(3, len(calls)))}
        if dice.random() < 0.6:
            await lose_tail(database, earlier)
        calls += await held(database, *{change.id: change for change in dice.sample(history, 3)}.values())
        answers |= {await send(database, call) for call in dice.sample(calls, min(8, len(calls)))}
        numbers(await dump(database, NS))
    assert answers == {ApplyStatus.OK, ApplyStatus.CONFLICT, ApplyStatus.RESERVATION_LOST}
    for change in history:
        await apply(database, NS, change)
    await unharmed(database, {memory_id: dict(change.terms) for memory_id, change in final.items()})
