"""`drop_tombstones`: deleted memories are forgotten when nothing older can arrive, and nothing else is."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts
from jiyi.index import Outcome
from jiyi.scripts import ApplyStatus

from .conftest import (
    apply,
    carried_out_when_full,
    delete,
    dump,
    flush_scripts,
    packed,
    refused,
    write,
    wrong_type,
)

pytestmark = pytest.mark.anyio

NS = "default"
TOMBSTONES = "tombstones:{default}"


async def drop(database, *ids, floor):
    return await scripts.drop_tombstones(database, NS, ids, floor=floor)


async def test_tombstones_before_the_floor_go_and_others_stay(either):
    await apply(either, NS, *[delete(f"m{i}", f"{8 + i}-5") for i in range(5)], write("live", "1-0", "x"))
    before = await dump(either, NS)
    assert await drop(either, *[f"m{i}" for i in range(5)], floor="10-5") == 2
    for i in (0, 1):
        del before[f"memory:{{default}}:m{i}".encode()]
        del before[TOMBSTONES.encode()][1][b"m%d" % i]
    before[b"stats:{default}"][1][b"forgotten"] = b"9-5"
    assert await dump(either, NS) == before


@pytest.mark.parametrize(
    ("version", "floor", "dropped"),
    [
        ("9-0", "10-0", 1),
        ("10-0", "9-0", 0),
        ("10-0", "10-0", 0),
        ("10-9", "10-10", 1),
        ("10-10", "10-9", 0),
        (f"{2**53}-0", f"{2**53 + 1}-0", 1),
        (f"{2**53 + 1}-0", f"{2**53}-0", 0),
        (f"5-{2**53 + 1}", f"5-{2**53}", 0),
        ("5-18446744073709551614", "5-18446744073709551615", 1),
        ("1764470000000-0", "0-0", 0),
    ],
)
async def test_the_floor_is_compared_exactly(database, version, floor, dropped):
    await apply(database, NS, delete("m1", version))
    assert await drop(database, "m1", floor=floor) == dropped
    assert await database.exists("memory:{default}:m1", TOMBSTONES) == (0 if dropped else 2)


async def test_a_memory_that_lives_again_is_not_dropped(either):
    """The caller's list is old: meanwhile the memory was written. Only a left-over mark goes."""
    await apply(either, NS, delete("m1", "5-0"))
    await apply(either, NS, write("m1", "6-0", "x"))
    before = await dump(either, NS)
    await either.zadd(TOMBSTONES, {"m1": 5})
    assert await drop(either, "m1", floor="100-0") == 0
    assert await dump(either, NS) == before


async def test_a_mark_without_any_memory_goes(database):
    await database.zadd(TOMBSTONES, {"m1": 5, "m2": 5})
    assert await drop(database, "m1", floor="1-0") == 0
    assert await dump(database, NS) == {TOMBSTONES.encode(): ("zset", {b"m2": 5.0})}


async def test_dropping_again_changes_nothing(either):
    await apply(either, NS, delete("m1", "5-0"), delete("m2", "50-0"))
    assert await drop(either, "m1", "m2", floor="10-0") == 1
    before = await dump(either, NS)
    assert await drop(either, "m1", "m2", floor="10-0") == 0
    assert await dump(either, NS) == before


async def test_what_is_as_old_as_a_forgotten_delete_finds_no_place(either):
    """It was processed before; only a worker that was away can still come with it."""
    await apply(either, NS, delete("m1", "9-5"), delete("m2", "10-5"))
    late = await packed(either, NS, write("m3", "9-4", "x"))
    in_time = await packed(either, NS, write("m4", "9-6", "x"))
    assert await drop(either, "m1", "m2", floor="10-0") == 1
    before = await dump(either, NS)
    assert await scripts.apply_events(either, *late) is ApplyStatus.CONFLICT
    old = [write("m1", "9-4", "x"), write("m1", "9-5", "x"), write("m3", "9-5", "x"), delete("m3", "1-0")]
    assert [await apply(either, NS, one) for one in old] == [[Outcome.SUPERSEDED]] * 4
    assert await dump(either, NS) == before
    assert await scripts.apply_events(either, *in_time) is ApplyStatus.OK
    assert await apply(either, NS, write("m1", "9-6", "x")) == [Outcome.APPLIED]


async def test_what_is_remembered_of_the_forgotten_only_grows(either):
    await apply(either, NS, *[delete(f"m{i}", f"{i}-5") for i in (8, 9, 10)])
    for name, remembered in (("m9", b"9-5"), ("m8", b"9-5"), ("m10", b"10-5")):
        assert await drop(either, name, floor="11-0") == 1
        assert await either.hget("stats:{default}", "forgotten") == remembered


async def test_a_memory_that_is_there_is_not_held_to_what_was_forgotten(either):
    """Re-analysis applies old versions again, and an old fence has newer events."""
    await apply(either, NS, write("m1", "1-0", "old"), delete("m2", "9-0"))
    assert await drop(either, "m2", floor="10-0") == 1
    assert await apply(either, NS, write("m1", "1-0", "again"), again=True) == [Outcome.APPLIED]
    assert await apply(either, NS, write("m1", "2-0", "late")) == [Outcome.APPLIED]


async def test_no_ids_drop_nothing(database):
    await apply(database, NS, delete("m1", "5-0"))
    assert await drop(database, floor="10-0") == 0
    assert await database.exists(TOMBSTONES) == 1


async def test_many_callers_together_drop_each_tombstone_once(either):
    ids = [f"m{i}" for i in range(100)]
    await apply(either, NS, *[delete(memory_id, f"{i + 1}-0") for i, memory_id in enumerate(ids)])
    dropped = []

    async def forget():
        dropped.append(await drop(either, *ids, floor="51-0"))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(forget)
    assert sum(dropped) == 50
    assert await either.zcard(TOMBSTONES) == 50


async def test_what_is_written_while_tombstones_go_is_never_lost(either):
    done = anyio.Event()

    async def rewrite():
        for i in range(1, 40):
            await apply(either, NS, write("m1", f"{2 * i}-0", {"x": i}))
            [[doc]] = await scripts.read_documents(either, NS, ["m1"], ["doc"])
            assert doc is not None
            await apply(either, NS, delete("m1", f"{2 * i + 1}-0"))
        done.set()

    async def forget():
        while not done.is_set():
            await drop(either, "m1", floor="1000-0")

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(forget)
        tasks.start_soon(rewrite)


async def test_ten_thousand_tombstones_go_at_once(either):
    ids = [f"m{i}" for i in range(10_000)]
    await apply(either, NS, *[delete(memory_id, "5-0") for memory_id in ids])
    assert await drop(either, *ids, floor="6-0") == 10_000
    assert sorted(await dump(either, NS)) == [b"stats:{default}"]


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await apply(database, NS, *[delete(f"m{i}", "5-0") for i in range(3)])
    for key in ("stats:{default}", TOMBSTONES, *(f"memory:{{default}}:m{i}" for i in range(3))):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: drop(database, "m0", "m1", "m2", floor="9-0"), "WRONGTYPE")


@pytest.mark.parametrize("fence", [None, "", "x", "5"])
async def test_a_corrupt_fence_stops_the_call_before_the_first_write(database, fence):
    await apply(database, NS, *[delete(f"m{i}", "5-0") for i in range(3)])
    if fence is None:
        await database.hdel("memory:{default}:m1", "entry")
    else:
        await database.hset("memory:{default}:m1", "entry", fence)
    await refused(database, NS, lambda: drop(database, "m0", "m1", "m2", floor="9-0"))


@pytest.mark.parametrize("forgotten", ["", "5", "5-", "x"])
async def test_a_forgotten_version_that_is_no_entry_id_stops_the_call(database, forgotten):
    await apply(database, NS, delete("m1", "5-0"))
    await database.hset("stats:{default}", "forgotten", forgotten)
    await refused(database, NS, lambda: drop(database, "m1", floor="9-0"), "CORRUPT .* run: jiyi check")


@pytest.mark.parametrize("floor", ["", "x", "9", "-"])
async def test_a_floor_that_is_no_entry_id_stops_the_call(database, floor):
    await apply(database, NS, delete("m1", "5-0"))
    await database.zadd(TOMBSTONES, {"m2": 5})
    await refused(database, NS, lambda: drop(database, "m2", "m1", floor=floor))


async def test_a_missing_key_or_argument_stops_the_call(database):
    await apply(database, NS, delete("m1", "5-0"), delete("m2", "5-0"))
    names = ["stats:{default}", TOMBSTONES, "memory:{default}:m1", "memory:{default}:m2"]
    for cut, arguments in ((names, ["9-0", "m1"]), (names[:3], ["9-0", "m1", "m2"]), (names, [])):
        await refused(
            database, NS, lambda: scripts.call(database, "drop_tombstones", cut, arguments)  # noqa: B023
        )  # fmt: skip


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await apply(either, NS, delete("m1", f"{i + 1}-0"))
        await flush_scripts(either)
        assert await drop(either, "m1", floor="9-0") == 1


async def test_tombstones_go_on_a_full_server(database):
    await apply(database, NS, delete("m1", "5-0"))
    assert await carried_out_when_full(database, lambda: drop(database, "m1", floor="9-0")) == 1
