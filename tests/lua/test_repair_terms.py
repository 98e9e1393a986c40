"""`repair_terms`: terms are replaced by what the caller worked out only where that is right at this moment."""

from __future__ import annotations

import struct

import anyio
import numpy as np
import pytest

from jiyi import keys, scripts
from jiyi.sealed_postings import RECORD, seal

from .conftest import apply, delete, dump, flush_scripts, hash_of, refused, refused_when_full, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
STATS, LONG, REBUILD = "stats:{default}", "index:{default}:long", "rebuild:{default}:t"


def bucket(term):
    return keys.bucket_key(NS, keys.bucket_of(term))


def df(count):
    return struct.pack("<I", count)


def records(*docs):
    return b"".join(struct.pack("<IH", doc, 1) for doc in docs)


def inline(*docs):
    return df(len(docs)) + records(*docs)


async def fill(database):
    """`long` in twelve documents, `short` in the first two of them."""
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "long short" if i < 2 else "long") for i in range(12)])
    assert len(await database.hget(bucket("long"), "long")) == 4


async def read(database, term, *, at_once=False):
    """(entry, generation, bytes of the key, at once), as a caller reads them."""
    entry = await database.hget(bucket(term), term) or b""
    key = (await database.get(f"index:{{default}}:{term}") or b"") if len(entry) == 4 else b""
    return [entry, key[:4], len(key), "1" if at_once else "0"]


async def mend(database, term, fence, entry, postings=b"", rebuilt=b"", epoch=None):
    """Replace one term; `rebuilt` goes through a key of its own."""
    if rebuilt:
        await database.set(REBUILD, bytes(4) + rebuilt, px=60_000)
    change = [term, *fence, entry, postings, len(rebuilt) + 4 if rebuilt else 0]
    place = (keys.bucket_of(term), term, REBUILD if rebuilt else "")
    current = await database.hget(STATS, "epoch") if epoch is None else epoch
    answer = await scripts.repair_terms(database, NS, current, [place], [change])
    await database.delete(REBUILD)
    return answer


async def stored(database, term):
    return await database.hget(bucket(term), term), await database.get(f"index:{{default}}:{term}")


async def test_an_entry_with_its_postings_is_replaced_and_a_key_beside_it_removed(either):
    await fill(either)
    await either.set("index:{default}:short", b"abcdorphan")
    before = await dump(either, NS)
    assert await mend(either, "short", await read(either, "short"), inline(5, 6, 7)) == [1]
    assert await stored(either, "short") == (inline(5, 6, 7), None)
    after = await dump(either, NS)
    before[b"stats:{default}"][1][b"changes"] = b"2"
    for dumped in (before, after):
        dumped.pop(b"index:{default}:short", None)
        del dumped[bucket("short").encode()][1][b"short"]
    assert after == before


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_a_long_list_is_replaced_under_a_generation_of_its_own(either, rebuilt):
    await fill(either)
    new = records(*range(20))
    given = {"rebuilt": new} if rebuilt else {"postings": new}
    assert await mend(either, "long", await read(either, "long"), df(20), **given) == [1]
    assert await stored(either, "long") == (df(20), struct.pack("<I", 12) + new)
    assert hash_of(await dump(either, NS), STATS)["next_doc"] == b"13"
    assert await mend(either, "long", await read(either, "long"), df(20), **given) == [1]
    assert (await either.get(LONG))[:4] == struct.pack("<I", 13)
    assert await either.pttl(LONG) == -1


async def test_a_list_can_become_short_or_vanish(either):
    await fill(either)
    assert await mend(either, "long", await read(either, "long"), inline(1, 2)) == [1]
    assert await stored(either, "long") == (inline(1, 2), None)
    assert await mend(either, "long", await read(either, "long"), b"") == [1]
    assert await stored(either, "long") == (None, None)


@pytest.mark.parametrize("kind", ["no entry", "too short", "no key", "key of another type", "bucket of another type"])
async def test_whatever_stands_there_is_replaced(either, kind):
    await fill(either)
    if kind == "no entry":
        await either.hdel(bucket("long"), "long")
    elif kind == "too short":
        await either.hset(bucket("long"), "long", "ab")
    elif kind == "bucket of another type":
        await either.delete(bucket("long"))
        await either.rpush(bucket("long"), "x")
    elif kind in ("no key", "key of another type"):
        await either.delete(LONG)
    fence = {"no key": [df(12), b"", 0, "0"], "key of another type": [df(12), b"", -1, "0"],
             "too short": [b"ab", b"", 0, "0"]}.get(kind, [b"", b"", 0, "0"])  # fmt: skip
    if kind == "key of another type":
        await either.rpush(LONG, "x")
    assert await mend(either, "long", fence, df(12), records(*range(12))) == [1]
    assert await stored(either, "long") == (df(12), struct.pack("<I", 12) + records(*range(12)))


async def test_two_terms_of_a_bucket_of_another_type_are_both_there_afterwards(database):
    await fill(database)
    first = "long"
    second = next(word for word in map(str, range(1000)) if keys.bucket_of(word) == keys.bucket_of(first))
    await database.delete(bucket(first))
    await database.rpush(bucket(first), "x")
    epoch = await database.hget(STATS, "epoch")
    places = [(keys.bucket_of(first), term, "") for term in (first, second)]
    changes = [[term, b"", b"", 0, "0", inline(1), b"", 0] for term in (first, second)]
    assert await scripts.repair_terms(database, NS, epoch, places, changes) == [1, 1]
    assert await database.hgetall(bucket(first)) == {term.encode(): inline(1) for term in (first, second)}


@pytest.mark.parametrize("fence", [
    [df(11), None, None, "0"], [b"", b"", 0, "0"], [None, b"oth!", None, "0"], [None, None, 77, "0"],
    [None, b"", 0, "0"], [None, b"", -1, "0"], [None, b"oth!", None, "1"], [None, None, 77, "1"], [b"", b"", 0, "1"],
])  # fmt: skip
async def test_a_long_list_that_is_not_what_was_read_stays(either, fence):
    await fill(either)
    right = await read(either, "long")
    fence = [there if given is None else given for given, there in zip(fence, right, strict=True)]
    before = await dump(either, NS)
    assert await mend(either, "long", fence, df(1), records(1)) == [0]
    assert await dump(either, NS) == before


async def test_a_short_list_that_is_not_what_was_read_stays(either):
    await fill(either)
    before = await dump(either, NS)
    for fence in ([b"", b"", 0, "0"], [inline(0), b"", 0, "0"], [df(2), b"", 0, "1"], [b"xy", b"", 0, "1"]):
        assert await mend(either, "short", fence, inline(7)) == [0]
        assert await dump(either, NS) == before


async def test_a_rebuilt_list_that_is_not_there_replaces_nothing(either):
    await fill(either)
    epoch, fence = await either.hget(STATS, "epoch"), await read(either, "long")
    before = await dump(either, NS)
    place, change = (keys.bucket_of("long"), "long", REBUILD), ["long", *fence, df(1), b"", 10]
    assert await scripts.repair_terms(either, NS, epoch, [place], [change]) == [0]
    assert await dump(either, NS) == before


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_what_was_added_to_a_long_list_since_is_carried_over(either, rebuilt):
    """And df is moved by what came and went, for documents of which the list knows nothing, too."""
    await fill(either)
    key = await either.get(LONG)
    await either.set(LONG, key[:-18])  # three postings are lost, and df is wrong
    await either.hset(bucket("long"), "long", df(99))
    fence = await read(either, "long", at_once=True)
    await apply(either, NS, write("new", "50-0", "long"), write("m0", "51-0", "long"), delete("m11", "52-0"))
    new = records(*range(12))
    given = {"rebuilt": new} if rebuilt else {"postings": new}
    assert await mend(either, "long", fence, df(12), **given) == [1]
    entry, found = await stored(either, "long")
    assert entry == df(12)
    assert found[4:76] == new
    assert len(found) == 76 + 12
    await apply(either, NS, *[delete(f"m{i}", "99-0") for i in range(11)], delete("new", "99-0"))
    assert await stored(either, "long") == (None, None)


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_a_list_is_sealed_and_what_was_added_since_follows(either, rebuilt):
    """The script does not know of sealed parts: what is added stands behind what the caller gives."""
    await fill(either)
    fence = await read(either, "long", at_once=True)
    await apply(either, NS, write("new", "50-0", "long"), delete("m11", "51-0"))
    [sealed] = seal([np.array([(doc, 1) for doc in range(12)], RECORD)])
    given = {"rebuilt": sealed} if rebuilt else {"postings": sealed}
    assert await mend(either, "long", fence, df(12), **given) == [1]
    new = int(await either.hget("memory:{default}:new", "doc"))
    entry, found = await stored(either, "long")
    assert (entry, found[4:]) == (df(12), sealed + records(new))
    await apply(either, NS, write("newer", "52-0", "long long"))
    newer = int(await either.hget("memory:{default}:newer", "doc"))
    entry, longer = await stored(either, "long")
    assert (entry, longer) == (df(13), found + struct.pack("<IH", newer, 2))
    await apply(
        either, NS, *[delete(memory_id, "99-0") for memory_id in ("new", "newer", *[f"m{i}" for i in range(11)])]
    )
    assert await stored(either, "long") == (None, None)


async def test_what_was_added_to_a_short_list_since_is_carried_over(either):
    await fill(either)
    await either.hset(bucket("short"), "short", inline(0))
    fence = await read(either, "short", at_once=True)
    await apply(either, NS, write("new", "50-0", "short"), delete("m0", "51-0"))
    new = await either.hget("memory:{default}:new", "doc")
    assert await mend(either, "short", fence, inline(0, 1)) == [1]
    entry, found = await stored(either, "short")
    assert entry == df(2)
    assert found[4:] == records(0, 1, int(new))


async def test_a_lost_entry_that_is_made_anew_meanwhile_is_carried_over(either):
    await fill(either)
    await either.hdel(bucket("short"), "short")
    await apply(either, NS, write("new", "50-0", "short"))
    new = int(await either.hget("memory:{default}:new", "doc"))
    assert await mend(either, "short", [b"", b"", 0, "1"], inline(0, 1)) == [1]
    entry, found = await stored(either, "short")
    assert (entry, found[4:]) == (df(3), records(0, 1, new))


async def test_a_term_that_lost_all_its_documents_since_vanishes(either):
    await fill(either)
    fence = await read(either, "short", at_once=True)
    await apply(either, NS, delete("m0", "50-0"), delete("m1", "51-0"))
    assert await mend(either, "short", fence, inline(0, 1)) == [1]
    assert await stored(either, "short") == (None, None)


@pytest.mark.parametrize(("count", "done"), [(10_922, 1), (10_923, 0)])
async def test_what_is_carried_over_is_bounded(database, count, done):
    await fill(database)
    fence = await read(database, "long", at_once=True)
    await database.append(LONG, records(*range(100, 100 + count)))
    await database.hset(bucket("long"), "long", df(12 + count))
    assert await mend(database, "long", fence, df(12), records(*range(12))) == [done]


async def test_another_epoch_is_answered_with_nothing(either):
    await fill(either)
    before = await dump(either, NS)
    assert await mend(either, "short", await read(either, "short"), inline(1), epoch=b"other") == []
    assert await dump(either, NS) == before


async def test_the_same_call_again_finds_another_list(either):
    await fill(either)
    fence = await read(either, "long")
    assert await mend(either, "long", fence, df(12), records(*range(12))) == [1]
    before = await dump(either, NS)
    assert await mend(either, "long", fence, df(12), records(*range(12))) == [0]
    assert await dump(either, NS) == before


async def test_nothing_of_what_is_written_meanwhile_is_lost(either):
    """A hot list is replaced by what its documents say, read at one instant, while a writer goes on."""
    await fill(either)
    done, replaced = anyio.Event(), 0

    async def rewrite():
        for i in range(100):
            await apply(either, NS, write(f"m{i % 12}", f"{100 + i}-0", "long"), delete(f"m{i % 5}", f"{100 + i}-1"))
        done.set()

    async def replace():
        nonlocal replaced
        while not done.is_set():
            answer = await scripts.read_index(
                either, NS, limit=1 << 40, journal=(b"", 0), terms=[("long", b"", 0)]
            )  # fmt: skip
            count, generation, _, total, found = answer[6]
            if generation:
                fence = [df(count), generation, total, "1"]
                replaced += sum(await mend(either, "long", fence, df(count), found))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        tasks.start_soon(replace)
    assert replaced > 10
    alive = {int(doc) for i in range(12) if (doc := await either.hget(f"memory:{{default}}:m{i}", "doc"))}
    entry, found = await stored(either, "long")
    listed = [doc for doc, _ in struct.iter_unpack("<IH", found[4:]) if doc in alive]
    assert sorted(listed) == sorted(alive)
    assert entry == df(len(alive))


async def test_used_up_numbers_stop_the_call(database):
    await fill(database)
    await database.hset(STATS, "next_doc", 2**32 - 2)
    fence = await read(database, "long")
    await refused(database, NS, lambda: mend(database, "long", fence, df(1), records(1)), "FULL")


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await fill(database)
    epoch, fence = await database.hget(STATS, "epoch"), await read(database, "long")
    async with wrong_type(database, STATS):
        await refused(database, NS, lambda: mend(database, "long", fence, df(1), records(1), epoch=epoch), "WRONGTYPE")


async def test_missing_keys_or_arguments_stop_the_call(database):
    await fill(database)
    epoch = await database.hget(STATS, "epoch")
    one = ["short", *await read(database, "short"), inline(1), b"", 0]
    names = [STATS, bucket("short"), "index:{default}:short", "index:{default}:short"]
    for cut, arguments in ((names, [epoch, *one[:-1]]), (names[:-1], [epoch, *one]), (names, [epoch, *one, *one])):
        await refused(
            database, NS, lambda: scripts.call(database, "repair_terms", cut, arguments)  # noqa: B023
        )  # fmt: skip


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    await flush_scripts(either)
    assert await mend(either, "short", await read(either, "short"), inline(1)) == [1]


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    fence = await read(database, "short")
    await refused_when_full(database, NS, lambda: mend(database, "short", fence, inline(1)))
