"""`repair_journal`: the new journal is in place with all that was appended meanwhile, and the counters with it."""

from __future__ import annotations

import struct

import anyio
import pytest

from jiyi import scripts
from jiyi.scripts import JournalStatus

from .conftest import apply, delete, dump, flush_scripts, hash_of, refused, refused_when_full, write, wrong_type
from .contents import DEATH

pytestmark = pytest.mark.anyio

NS = "default"
STATS, JOURNAL, REBUILD = "stats:{default}", "journal:{default}", "rebuild:{default}:t"


def birth(doc, length=2):
    return struct.pack("<IIqf", doc, length, 5, 0.5)


async def fill(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x y") for i in range(4)])


async def look(database):
    """(epoch, generation, bytes) of the journal, as a caller reads them."""
    answer = await scripts.read_index(database, NS, limit=0, journal=(b"", 0), terms=())
    return answer[0], answer[5][1], answer[5][3]


async def mend(database, read, records, missing=(0, 0), size=None):
    data = bytes(4) + records
    await database.set(REBUILD, data, px=60_000)
    status = await scripts.repair_journal(
        database,
        NS,
        REBUILD,
        epoch=read[0],
        journal=read[1:],
        missing=missing,
        size=len(data) if size is None else size,
    )
    await database.delete(REBUILD)
    return status


async def test_a_new_journal_takes_its_place_with_what_came_since(either):
    await fill(either)
    read = await look(either)
    await either.hincrby(STATS, "docs", 3)
    await apply(either, NS, write("new", "9-0", "x y z"), delete("m0", "9-0"))
    tail = (await either.get(JOURNAL))[read[2] :]
    assert len(tail) == 40
    records = b"".join(birth(i) for i in range(4))
    assert await mend(either, read, records, missing=(-3, 5)) is JournalStatus.OK
    journal = await either.get(JOURNAL)
    assert journal == struct.pack("<I", 5) + records + tail
    stats = hash_of(await dump(either, NS), STATS)
    assert (stats["docs"], stats["tokens"], stats["next_doc"]) == (b"4", b"14", b"6")
    await apply(either, NS, write("newer", "10-0", "x"))
    assert len(await either.get(JOURNAL)) == len(journal) + 20


@pytest.mark.parametrize("rewrites", [0, 1])
async def test_a_lost_journal_is_made_anew(either, rewrites):
    """Also when a worker has begun a new one since the caller looked."""
    await fill(either)
    await either.delete(JOURNAL)
    read = await look(either)
    assert read[1:] == (b"", 0)
    for i in range(rewrites):
        await apply(either, NS, write("m0", f"{9 + i}-0", "x"))
    assert await mend(either, read, birth(0) + birth(1)) is JournalStatus.OK
    journal = await either.get(JOURNAL)
    assert journal[4:44] == birth(0) + birth(1)
    assert len(journal) == 44 + 40 * rewrites


async def test_the_tail_of_a_torn_journal_is_taken_from_where_it_was_read(database):
    await fill(database)
    await database.append(JOURNAL, b"torn!")
    read = await look(database)
    await apply(database, NS, write("new", "9-0", "x"))
    assert await mend(database, read, birth(0)) is JournalStatus.OK
    journal = await database.get(JOURNAL)
    assert len(journal) == 44
    assert struct.unpack_from("<II", journal, 24) == (4, 1)


async def test_another_epoch_another_journal_or_no_new_one_is_answered_and_nothing_written(either):
    await fill(either)
    epoch, generation, size = await look(either)
    before = await dump(either, NS)
    for read in ((b"other", generation, size), (epoch, b"oth!", size), (epoch, generation, size + 1)):
        assert await mend(either, read, birth(0)) is JournalStatus.MOVED
        assert await dump(either, NS) == before
    for wrong in (0, 4, 23, 25):
        assert await mend(either, (epoch, generation, size), birth(0), size=wrong) is JournalStatus.MOVED
        assert await dump(either, NS) == before


async def test_the_same_call_again_finds_another_journal(either):
    await fill(either)
    read = await look(either)
    assert await mend(either, read, birth(0), missing=(-3, 0)) is JournalStatus.OK
    before = await dump(either, NS)
    assert await mend(either, read, birth(0), missing=(-3, 0)) is JournalStatus.MOVED
    assert await dump(either, NS) == before


@pytest.mark.parametrize(("count", "status"), [(3276, JournalStatus.OK), (3277, JournalStatus.BEHIND)])
async def test_what_is_carried_over_is_bounded(database, count, status):
    await fill(database)
    read = await look(database)
    tail = b"".join(birth(100 + i) for i in range(count))
    await database.append(JOURNAL, tail)
    before = await dump(database, NS)
    assert await mend(database, read, birth(0)) is status
    if status is JournalStatus.OK:
        assert (await database.get(JOURNAL))[4:] == birth(0) + tail
    else:
        assert await dump(database, NS) == before


async def test_nothing_of_what_is_written_meanwhile_is_lost(either):
    """Journals are replaced by themselves again and again, while a writer goes on."""
    await fill(either)
    done = anyio.Event()

    async def rewrite():
        for i in range(1, 60):
            await apply(either, NS, write(f"m{i % 5}", f"{100 + i}-0", {"x": i}), delete("m4", f"{500 + i}-0"))
        done.set()

    async def replace():
        while not done.is_set():
            read = await look(either)
            now = (await either.get(JOURNAL))[4 : read[2]]
            await mend(either, read, now)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        tasks.start_soon(replace)
    alive = {}
    for doc, length, _, _ in struct.iter_unpack("<IIqf", (await either.get(JOURNAL))[4:]):
        if length == DEATH:
            del alive[doc]
        else:
            alive[doc] = length
    stats = hash_of(await dump(either, NS), STATS)
    assert (int(stats["docs"]), int(stats["tokens"])) == (len(alive), sum(alive.values()))
    numbers = {await either.hget(f"memory:{{default}}:m{i}", "doc") for i in range(4)}
    assert numbers <= {b"%d" % doc for doc in alive}


async def test_counters_that_would_fall_below_zero_stop_the_call(database):
    await fill(database)
    read = await look(database)
    for missing in ((-5, 0), (0, -9)):
        await refused(database, NS, lambda: _raw(database, read, missing))  # noqa: B023
    await database.hset(STATS, "docs", "x")
    await refused(database, NS, lambda: _raw(database, read, (0, 0)), "CORRUPT")


async def test_used_up_numbers_stop_the_call(database):
    await fill(database)
    read = await look(database)
    await database.hset(STATS, "next_doc", 2**32 - 2)
    await refused(database, NS, lambda: _raw(database, read, (0, 0)), "FULL")


async def _raw(database, read, missing):
    """Without a new journal before it: an empty one stands for it."""
    return await scripts.repair_journal(
        database, NS, REBUILD, epoch=read[0], journal=read[1:], missing=missing, size=0
    )  # fmt: skip


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await fill(database)
    read = await look(database)
    for key in (STATS, JOURNAL):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: _raw(database, read, (0, 0)), "WRONGTYPE")
    async with wrong_type(database, REBUILD):
        await refused(database, NS, lambda: _raw(database, read, (0, 0)), "WRONGTYPE")


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await flush_scripts(either)
    read = await look(either)
    await flush_scripts(either)
    assert await mend(either, read, birth(0)) is JournalStatus.OK


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    read = await look(database)
    await refused_when_full(database, NS, lambda: _raw(database, read, (0, 0)))
