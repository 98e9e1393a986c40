"""`repair_memories`: derived fields are set while the memory is the same document, and what was prepared is void."""

from __future__ import annotations

import itertools

import anyio
import pytest

from jiyi import scripts
from jiyi.scripts import ApplyStatus

from .conftest import apply, delete, dump, flush_scripts, hash_of, packed, refused, refused_when_full, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
STATS = "stats:{default}"


def change(entry, doc, fields=(), removed=(), *, number=False):
    return [entry, doc, "1" if number else "0", len(fields), *fields, len(removed), *removed]


async def mend(database, changes, revision="r2"):
    return await scripts.repair_memories(database, NS, list(changes), list(changes.values()), revision=revision)


async def fill(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x y") for i in range(4)])


async def test_fields_are_set_and_removed_and_numbers_given(either):
    await fill(either)
    await either.hset("memory:{default}:m2", "deleted_at", "9")
    before = await dump(either, NS)
    answer = await mend(either, {
        "m0": change("1-0", "0", ["length", 7, "terms", b"\xff"]),
        "m1": change("2-0", "1", number=True),
        "m2": change("3-0", "2", ["length", 8], ["deleted_at"], number=True),
    })  # fmt: skip
    assert answer == [b"0", b"4", b"5"]
    after = await dump(either, NS)
    expected = {
        key.encode(): dict(before[key.encode()][1]) for key in (STATS, *(f"memory:{{default}}:m{i}" for i in range(3)))
    }
    epoch = before[STATS.encode()][1][b"epoch"]
    expected[STATS.encode()] |= {b"epoch": epoch + b"~r2", b"next_doc": b"6"}
    expected[b"memory:{default}:m0"] |= {b"length": b"7", b"terms": b"\xff"}
    expected[b"memory:{default}:m1"] |= {b"doc": b"4"}
    expected[b"memory:{default}:m2"] |= {b"doc": b"5", b"length": b"8"}
    del expected[b"memory:{default}:m2"][b"deleted_at"]
    assert after == before | {key: ("hash", value) for key, value in expected.items()}


@pytest.mark.parametrize("fence", [("9-0", "0"), ("1-0", "9"), ("", "0"), ("1-0", ""), ("1-00", "0")])
async def test_a_memory_that_has_moved_on_is_left_alone(either, fence):
    await fill(either)
    before = await dump(either, NS)
    assert await mend(either, {"m0": change(*fence, ["length", 7], number=True)}) == [None]
    assert await dump(either, NS) == before


async def test_those_that_stand_still_are_mended_beside_one_that_has_moved(database):
    await fill(database)
    changes = {"m0": change("9-0", "0", number=True), "m1": change("2-0", "1", number=True)}
    assert await mend(database, changes) == [None, b"4"]
    assert await mend(database, {"gone": change("1-0", "0", number=True)}, "r3") == [None]
    assert not await database.exists("memory:{default}:gone")
    assert hash_of(await dump(database, NS), STATS)["epoch"].endswith(b"~r2")


async def test_a_memory_without_number_or_fence_is_found_as_such(database):
    await fill(database)
    await database.hdel("memory:{default}:m0", "doc", "entry")
    assert await mend(database, {"m0": change("", "", ["length", 3], number=True)}) == [b"4"]


async def test_what_was_prepared_before_is_refused(either):
    """A worker that has read the damaged forward list must not take the wrong postings back."""
    await fill(either)
    prepared = [await packed(either, NS, one) for one in (delete("m0", "50-0"), write("m3", "51-0", "z"))]
    await mend(either, {"m0": change("1-0", "0", ["length", 2])})
    before = await dump(either, NS)
    for key_names, arguments in prepared:
        assert await scripts.apply_events(either, key_names, arguments) is ApplyStatus.EPOCH_CHANGED
    assert await dump(either, NS) == before
    await apply(either, NS, delete("m0", "50-0"), write("m3", "51-0", "z"))


async def test_the_same_call_again_gives_no_second_number(either):
    await fill(either)
    changes = {"m0": change("1-0", "0", number=True)}
    assert await mend(either, changes) == [b"4"]
    before = await dump(either, NS)
    assert await mend(either, changes, "r3") == [None]
    assert await dump(either, NS) == before


async def test_numbers_are_never_given_twice(either):
    await fill(either)
    given = []

    async def take(i):
        given.extend(await mend(either, {f"m{i}": change(f"{i + 1}-0", str(i), number=True)}, f"r{i}"))

    async with anyio.create_task_group() as tasks:
        for i in range(4):
            tasks.start_soon(take, i)
            tasks.start_soon(apply, either, NS, write(f"new{i}", "1-0", "x"))
    ids = {await either.hget(f"memory:{{default}}:{name}{i}", "doc") for name in ("m", "new") for i in range(4)}
    assert len(ids) == 8
    assert set(given) <= ids


async def test_an_unknown_namespace_is_answered_with_nothing(either):
    assert await mend(either, {"m0": change("1-0", "0", number=True)}) == []
    assert await dump(either, NS) == {}


async def test_lost_or_used_up_numbers_stop_the_call(database):
    await fill(database)
    changes = {"m0": change("1-0", "0", ["length", 7], number=True)}
    await database.hset(STATS, "next_doc", 2**32 - 2)
    await refused(database, NS, lambda: mend(database, changes), "FULL")
    await database.hdel(STATS, "next_doc")
    await refused(database, NS, lambda: mend(database, changes), "CORRUPT")


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await fill(database)
    changes = {f"m{i}": change(f"{i + 1}-0", str(i), ["length", 7]) for i in range(3)}
    for key in (STATS, "memory:{default}:m1"):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: mend(database, changes), "WRONGTYPE")


async def test_missing_keys_or_arguments_stop_the_call(database):
    await fill(database)
    one = change("1-0", "0", ["length", 7])
    names = [STATS, "memory:{default}:m0"]
    for cut, arguments in ((names, ["e", *one[:-1]]), (names, ["e", *one, "1"]), (names[:1], ["e", *one])):
        await refused(
            database, NS, lambda: scripts.call(database, "repair_memories", cut, arguments)  # noqa: B023
        )  # fmt: skip


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await flush_scripts(either)
    assert await mend(either, {"m0": change("1-0", "0", ["length", 7])}) == [b"0"]


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    await refused_when_full(database, NS, lambda: mend(database, {"m0": change("1-0", "0", number=True)}))


async def test_epochs_of_repairs_follow_each_other_and_those_of_wipes_do_not(database):
    await fill(database)
    epochs = [await database.hget(STATS, "epoch")]
    for revision in ("r1", "r2"):
        await mend(database, {"m0": change("1-0", "0", ["length", 7])}, revision)
        epochs.append(await database.hget(STATS, "epoch"))
    assert epochs == [epochs[0], epochs[0] + b"~r1", epochs[0] + b"~r2"]
    await database.flushdb()
    await fill(database)
    epochs.append(await database.hget(STATS, "epoch"))
    names = [epoch.decode() for epoch in epochs]
    assert [scripts.is_repaired(new, old) for old, new in itertools.pairwise(names)] == [True, True, False]
