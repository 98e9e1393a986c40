"""`apply_events`: a batch lands in every key at once, or nowhere."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import anyio
import pytest
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.errors import UnavailableError
from jiyi.forward_lists import pack_forward_list, unpack_forward_list
from jiyi.index import IndexWriter, Outcome
from jiyi.packing import pack
from jiyi.scripts import ApplyStatus

from .conftest import (
    ANALYZER,
    NOW_MS,
    apply,
    carried_out_when_full,
    delete,
    dump,
    flush_scripts,
    hash_of,
    memory_limit,
    packed,
    refused,
    refused_when_full,
    used_memory,
    write,
    wrong_type,
)
from .contents import contents

pytestmark = pytest.mark.anyio

NS = "default"
NOW = b"%d" % NOW_MS
DEATH = 2**32 - 1


def df(count):
    return struct.pack("<I", count)


def posting(doc, tf=1):
    return struct.pack("<IH", doc, tf)


def birth(doc, length, created, importance=0.5):
    return struct.pack("<IIqf", doc, length, created, importance)


def death(doc):
    return struct.pack("<IIqf", doc, DEATH, 0, 0.0)


async def send(database, call, *, allow_oom=False):
    return await scripts.apply_events(database, *call, allow_oom=allow_oom)


async def land(database, *changes, ns=NS):
    """Prepare and apply with the fixed clock."""
    assert await send(database, await packed(database, ns, *changes)) is ApplyStatus.OK


async def term_entry(database, term, ns=NS):
    return await database.hget(keys.bucket_key(ns, crc32(term.encode()) % 64), term)


async def many(database, count, terms="x", start=0):
    """`count` memories m<i> of version <i + 1>-0 that hold `terms`, each with the document number i."""
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", terms) for i in range(start, start + count)])


# --- the effect ---


async def test_a_first_write_lands_in_every_key_with_exactly_these_bytes(either):
    await land(
        either,
        write("m1", "77-3", {"redis": 2, "流": 1}, content="redis redis 流", author="alice", tags=("a",),
              importance=0.25, expires_at=9_000_000_000_000),
    )  # fmt: skip
    found = await dump(either, NS)
    version_hash = found[b"memory:{default}:m1"][1].pop(b"version_hash")
    assert len(version_hash) == 16
    epoch = found[b"stats:{default}"][1].pop(b"epoch")
    assert len(epoch) == 16
    assert found == {
        b"memory:{default}:m1": (
            "hash",
            {
                b"entry": b"77-3",
                b"indexed_at": NOW,
                b"doc": b"0",
                b"length": b"3",
                b"terms": pack_forward_list({"redis": 2, "流": 1}),
                b"content": "redis redis 流".encode(),
                b"author": b"alice",
                b"tags": b'["a"]',
                b"importance": b"0.25",
                b"expires_at": b"9000000000000",
                b"timestamp": b"77",
            },
        ),
        b"terms:{default}:23": ("hash", {b"redis": bytes.fromhex("01000000 00000000 0200")}),
        b"terms:{default}:11": ("hash", {"流".encode(): bytes.fromhex("01000000 00000000 0100")}),
        b"terms:{default}:37": ("hash", {b"@author:alice": bytes.fromhex("01000000 00000000 0100")}),
        b"terms:{default}:41": ("hash", {b"@tags:a": bytes.fromhex("01000000 00000000 0100")}),
        b"journal:{default}": (
            "string",
            bytes.fromhex("00000000 00000000 03000000 4d00000000000000 0000803e"),
        ),
        b"ids:{default}:0": ("hash", {b"0": b"m1"}),
        b"expiries:{default}": ("zset", {b"m1": 9_000_000_000_000.0}),
        b"stats:{default}": ("hash", {
            b"docs": b"1", b"tokens": b"3", b"next_doc": b"1", b"analyzer": b"f1", b"changes": b"1",
        }),
    }  # fmt: skip


async def test_a_rewrite_gives_a_new_number_and_takes_back_all_of_the_old(either):
    await land(either, write("m1", "5-0", "old both both", author="alice", expires_at=9_000_000_000_000))
    await land(either, write("m1", "6-0", "both new", tags=("a",), timestamp=-1))
    found = await dump(either, NS)
    assert hash_of(found, "memory:{default}:m1").keys() == {
        "entry", "indexed_at", "doc", "length", "version_hash", "terms", "content", "tags", "timestamp",
    }  # fmt: skip
    assert hash_of(found, "memory:{default}:m1")["doc"] == b"1"
    assert found[b"ids:{default}:0"] == ("hash", {b"1": b"m1"})
    assert found[b"journal:{default}"][1] == bytes(4) + birth(0, 3, 5) + death(0) + birth(1, 2, -1)
    assert b"expiries:{default}" not in found
    terms = {key: value for key, (_kind, value) in found.items() if key.startswith(b"terms:")}
    assert terms == {
        b"terms:{default}:17": {b"both": df(1) + posting(1)},
        b"terms:{default}:5": {b"new": df(1) + posting(1)},
        b"terms:{default}:41": {b"@tags:a": df(1) + posting(1)},
    }
    stats = hash_of(found, "stats:{default}")
    assert (stats["docs"], stats["tokens"], stats["next_doc"]) == (b"1", b"2", b"2")


async def test_a_delete_leaves_a_tombstone_the_journal_and_the_counters_only(either):
    await land(either, write("m1", "5-0", "redis 流", author="alice", tags=("a",), expires_at=9_000_000_000_000))
    await land(either, delete("m1", "6-2"))
    found = await dump(either, NS)
    del found[b"stats:{default}"][1][b"epoch"]
    assert found == {
        b"memory:{default}:m1": ("hash", {b"entry": b"6-2", b"deleted_at": NOW}),
        b"tombstones:{default}": ("zset", {b"m1": 6.0}),
        b"journal:{default}": ("string", bytes(4) + birth(0, 2, 5) + death(0)),
        b"stats:{default}": (
            "hash",
            {
                b"docs": b"0",
                b"tokens": b"0",
                b"next_doc": b"1",
                b"analyzer": b"f1",
                b"changes": b"2",
            },
        ),
    }


async def test_an_unchanged_write_moves_the_fence_and_nothing_else(either):
    await land(either, write("m1", "5-0", "redis", expires_at=9_000_000_000_000), write("m2", "5-1", "流"))
    before = await dump(either, NS)
    await land(either, write("m1", "6-0", "redis", expires_at=9_000_000_000_000))
    after = await dump(either, NS)
    before[b"memory:{default}:m1"][1][b"entry"] = b"6-0"
    before[b"stats:{default}"][1][b"fence_moves"] = b"1"
    assert after == before


async def test_a_memory_without_any_term_counts_as_a_document_of_no_tokens(database):
    await land(database, write("m1", "5-0", {}, content="。。。"))
    found = await dump(database, NS)
    assert not [key for key in found if key.startswith((b"terms:", b"index:"))]
    assert found[b"journal:{default}"][1] == bytes(4) + birth(0, 0, 5)
    assert hash_of(found, "stats:{default}")["docs"] == b"1"
    assert hash_of(found, "stats:{default}")["tokens"] == b"0"
    assert contents(found, b"default") == {"m1": {}}


async def test_a_term_frequency_above_16_bits_is_stored_as_the_largest_and_counted_whole(database):
    await land(database, write("m1", "5-0", {"redis": 70_000, "流": 65_535}))
    assert await term_entry(database, "redis") == df(1) + posting(0, 65_535)
    assert await term_entry(database, "流") == df(1) + posting(0, 65_535)
    assert await database.hget("stats:{default}", "tokens") == b"135535"


async def test_ids_are_kept_in_blocks_of_128_numbers(database):
    await many(database, 257)
    found = await dump(database, NS)
    blocks = {key: sorted(map(int, value)) for key, (_kind, value) in found.items() if key.startswith(b"ids:")}
    assert blocks == {
        b"ids:{default}:0": list(range(128)),
        b"ids:{default}:1": list(range(128, 256)),
        b"ids:{default}:2": [256],
    }


async def test_names_with_any_bytes_keep_to_their_own_keys(either):
    ns, odd = "a{b}:% é", "t}:{x\n\0 %"
    await apply(either, ns, *[write(f"{{m}}:{i}", f"{i + 1}-0", {odd: 1}) for i in range(10)])
    found = await dump(either, ns)
    tag = "a%7Bb%7D%3A%25%20é"
    assert found[f"index:{{{tag}}}:{odd}".encode()][1] == df(0) + b"".join(posting(i) for i in range(10))
    assert hash_of(found, f"ids:{{{tag}}}:0")["7"] == b"{m}:7"
    assert contents(found, tag.encode()) == {f"{{m}}:{i}": {odd: 1} for i in range(10)}


# --- short and long lists ---


async def test_nine_postings_stay_in_the_dictionary_and_the_tenth_makes_a_key(either):
    await many(either, 9)
    nine = b"".join(posting(i) for i in range(9))
    assert len(df(9) + nine) == 58
    assert await term_entry(either, "x") == df(9) + nine
    assert await either.exists("index:{default}:x") == 0
    await many(either, 1, start=9)
    assert await term_entry(either, "x") == df(10)
    assert await either.get("index:{default}:x") == struct.pack("<I", 9) + nine + posting(9)  # generation: number 9
    await many(either, 1, start=10)
    assert await term_entry(either, "x") == df(11)
    assert await either.get("index:{default}:x") == struct.pack("<I", 9) + nine + posting(9) + posting(10)


@pytest.mark.parametrize(("count", "is_long"), [(9, False), (10, True)])
async def test_one_batch_makes_a_short_or_a_long_list_by_the_same_border(database, count, is_long):
    await many(database, count)
    records = b"".join(posting(i) for i in range(count))
    assert await term_entry(database, "x") == df(count) + (b"" if is_long else records)
    assert await database.get("index:{default}:x") == (bytes(4) + records if is_long else None)


async def test_a_short_list_drops_dead_records_and_so_stays_short(database):
    await many(database, 9)
    await apply(database, NS, write("m4", "100-0", "x y"), delete("m0", "100-1"))
    assert await term_entry(database, "x") == df(8) + b"".join(posting(i) for i in (1, 2, 3, 5, 6, 7, 8, 9))
    assert await database.exists("index:{default}:x") == 0


async def test_a_long_list_is_only_appended_to(database):
    await many(database, 12)
    before = await database.get("index:{default}:x")
    await apply(database, NS, write("m4", "100-0", "x"))  # unchanged
    await apply(database, NS, write("m4", "101-0", "x y"), delete("m0", "101-1"))
    assert await database.get("index:{default}:x") == before + posting(12)
    assert await term_entry(database, "x") == df(11)


async def test_a_long_list_stays_long_and_goes_with_its_last_document(either):
    await many(either, 11)
    await apply(either, NS, *[delete(f"m{i}", f"{i + 1}-1") for i in range(10)])
    assert await term_entry(either, "x") == df(1)
    assert await either.strlen("index:{default}:x") == 4 + 6 * 11
    await apply(either, NS, delete("m10", "11-1"))
    assert await term_entry(either, "x") is None
    assert await either.exists("index:{default}:x", keys.bucket_key(NS, crc32(b"x") % 64)) == 0


async def test_a_rewrite_that_swaps_the_only_document_of_a_long_list_keeps_the_list(database):
    await many(database, 10)
    await apply(database, NS, *[delete(f"m{i}", f"{i + 1}-1") for i in range(9)])
    await apply(database, NS, write("m9", "50-0", "x x"))
    raw = b"".join(posting(i) for i in range(10)) + posting(10, 2)
    assert await database.get("index:{default}:x") == bytes(4) + raw
    assert await term_entry(database, "x") == df(1)


async def test_a_list_that_is_made_again_has_another_generation(database):
    generations = []
    for round_ in range(4):
        base = 1000 * (round_ + 1)
        await apply(database, NS, *[write(f"m{i}", f"{base}-{i}", "x y") for i in range(10)])
        generations.append((await database.get("index:{default}:x"))[:4])
        await apply(database, NS, *[delete(f"m{i}", f"{base + 1}-{i}") for i in range(10)])
    assert generations == [struct.pack("<I", 10 * i) for i in range(4)]


async def test_two_calls_of_one_preparation_never_share_a_generation(database):
    """The writer splits a large batch; each call takes the first number of its own documents."""
    wide = {f"w{i}": 1 for i in range(300)}
    changes = [write(f"m{i}", f"{i + 1}-0", wide | {f"only{i // 10}": 1}) for i in range(40)]
    await apply(database, NS, *changes)
    starts = {(await database.get(f"index:{{default}}:only{i}"))[:4] for i in range(4)}
    assert len(starts) == 4
    assert contents(await dump(database, NS), b"default")["m39"] == changes[39].terms


# --- marks beside the index ---


async def test_tombstones_hold_the_time_of_the_last_delete_and_go_with_a_write(either):
    await land(either, delete("m1", "5-0"), delete("m2", "5-1"))  # of memories that never were
    assert (await dump(either, NS))[b"tombstones:{default}"] == ("zset", {b"m1": 5.0, b"m2": 5.0})
    await land(either, delete("m1", "8-0"))
    assert (await dump(either, NS))[b"tombstones:{default}"] == ("zset", {b"m1": 8.0, b"m2": 5.0})
    await land(either, write("m1", "9-0", "x"))
    found = await dump(either, NS)
    assert found[b"tombstones:{default}"] == ("zset", {b"m2": 5.0})
    assert b"deleted_at" not in found[b"memory:{default}:m1"][1]


async def test_the_expiry_is_that_of_the_last_write(database):
    async def expiries():
        return dict(await database.zrange("expiries:{default}", 0, -1, withscores=True))

    await land(database, write("m1", "5-0", "x", expires_at=2_000), write("m2", "5-1", "x", expires_at=3_000))
    assert await expiries() == {b"m1": 2_000.0, b"m2": 3_000.0}
    await land(database, write("m1", "6-0", "x", expires_at=253_402_300_799_999))
    assert await expiries() == {b"m1": 253_402_300_799_999.0, b"m2": 3_000.0}
    await land(database, write("m1", "7-0", "x"))
    assert await expiries() == {b"m2": 3_000.0}
    await land(database, delete("m2", "8-0"))
    assert await expiries() == {}


BORDERS = [
    ("9-0", "10-0"),
    ("10-9", "10-10"),
    ("9-99", "10-0"),
    ("1-18446744073709551614", "1-18446744073709551615"),
    (f"{2**53}-0", f"{2**53 + 1}-0"),  # equal as doubles
    (f"5-{2**53}", f"5-{2**53 + 1}"),
    ("999999999999-1", "1764470000000-0"),
]
"""Pairs of entry ids, the earlier first, that a comparison as text or as doubles gets wrong."""


@pytest.mark.parametrize(("earlier", "later"), BORDERS)
async def test_a_failed_mark_is_healed_by_its_own_version_or_a_later_one_only(database, earlier, later):
    mark = f"{later} invalid_field content: is wrong".encode()
    await database.hset("failed:{default}", mapping={"m1": mark, "m2": mark, "m3": mark, "m4": mark})
    await land(database, write("m1", earlier, "x"), write("m2", later, "x"), delete("m3", later), delete("m4", earlier))
    assert await database.hgetall("failed:{default}") == {b"m1": mark, b"m4": mark}
    await land(database, write("m1", later, "x"))  # unchanged, and yet a later version
    assert await database.hgetall("failed:{default}") == {b"m4": mark}


# --- again, and at once ---


@pytest.mark.parametrize(
    ("last", "answer"), [(True, ApplyStatus.RESERVATION_LOST), (False, ApplyStatus.CONFLICT)], ids=["last", "first"]
)
async def test_the_same_call_again_is_refused_and_changes_nothing(either, last, answer):
    """The last call of a reservation has ended it; before that the fences have moved."""
    await land(either, write("m1", "5-0", "old x", author="alice"), write("m2", "5-1", "x"), write("m3", "5-2", "x"))
    changes = write("m1", "6-0", "new x"), delete("m2", "6-1"), write("m3", "6-2", "x")
    call = await packed(either, NS, *changes, last=last)
    assert await send(either, call) is ApplyStatus.OK
    before = await dump(either, NS)
    for _ in range(2):
        assert await send(either, call) is answer
    assert await dump(either, NS) == before


async def test_events_that_are_delivered_again_have_no_effect(either):
    changes = [write("m1", "5-0", "x y"), write("m2", "5-1", "x"), delete("m1", "6-0"), delete("m2", "4-0")]
    for change in changes:
        await apply(either, NS, change)
    before = await dump(either, NS)
    for change in [*changes, *reversed(changes)]:
        assert await apply(either, NS, change) in ([Outcome.DUPLICATE], [Outcome.SUPERSEDED])
    assert await dump(either, NS) == before


@pytest.mark.parametrize(("earlier", "later"), BORDERS)
async def test_versions_are_compared_as_exact_numbers(database, earlier, later):
    await apply(database, NS, write("m1", later, "new"), write("m2", earlier, "old"))
    outcomes = await apply(database, NS, write("m1", earlier, "old"), write("m2", later, "new"))
    assert outcomes == [Outcome.SUPERSEDED, Outcome.APPLIED]
    assert contents(await dump(database, NS), b"default") == {"m1": {"new": 1}, "m2": {"new": 1}}


async def test_one_moved_fence_holds_back_the_whole_batch(database):
    await apply(database, NS, *[write(f"m{i}", f"5-{i}", "x") for i in range(3)])
    call = await packed(database, NS, *[write(f"m{i}", f"6-{i}", "y") for i in range(3)], delete("m9", "6-9"))
    await apply(database, NS, write("m2", "5-9", "z"))
    before = await dump(database, NS)
    assert await send(database, call) is ApplyStatus.CONFLICT
    assert await dump(database, NS) == before


async def test_of_two_writers_that_both_saw_no_memory_the_second_has_to_look_again(either):
    first, second = await packed(either, NS, write("m1", "5-0", "x")), await packed(either, NS, write("m1", "5-1", "y"))
    assert await send(either, first) is ApplyStatus.OK
    before = await dump(either, NS)
    assert await send(either, second) is ApplyStatus.CONFLICT
    assert await dump(either, NS) == before


async def test_a_fence_that_vanished_is_a_moved_fence(database):
    """A tombstone may be dropped between preparing and applying."""
    await apply(database, NS, delete("m1", "5-0"))
    call = await packed(database, NS, write("m1", "6-0", "x"))
    await scripts.drop_tombstones(database, NS, ["m1"], floor="7-0")
    before = await dump(database, NS)
    assert await send(database, call) is ApplyStatus.CONFLICT
    assert await dump(database, NS) == before


async def test_a_version_that_was_applied_again_meanwhile_is_a_moved_fence(either):
    """Re-analysis and expiry keep the entry; the document number tells them apart."""
    await apply(either, NS, write("m1", "5-0", "old"))
    calls = [
        await packed(either, NS, write("m1", "5-0", "again"), again=True),
        await packed(either, NS, write("m1", "5-0", "twice"), again=True),
        await packed(either, NS, delete("m1", "5-0"), again=True),
        await packed(either, NS, write("m1", "6-0", "later")),
        await packed(either, NS, write("m1", "6-0", "old")),
    ]
    assert await send(either, calls[0]) is ApplyStatus.OK
    before = await dump(either, NS)
    assert await send(either, calls[0]) is ApplyStatus.RESERVATION_LOST
    for call in calls[1:]:
        assert await send(either, call) is ApplyStatus.CONFLICT
    assert await dump(either, NS) == before
    assert contents(before, b"default") == {"m1": {"again": 1}}


async def test_an_expired_memory_keeps_its_version_and_counts_as_deleted(either):
    await apply(either, NS, write("m1", "5-0", "x", expires_at=1))
    both = [await packed(either, NS, delete("m1", "5-0"), again=True) for _ in range(2)]
    assert [await send(either, call) for call in both] == [ApplyStatus.OK, ApplyStatus.CONFLICT]
    found = await dump(either, NS)
    assert found[b"memory:{default}:m1"] == ("hash", {b"entry": b"5-0", b"deleted_at": NOW})
    assert found[b"tombstones:{default}"] == ("zset", {b"m1": 5.0})
    assert b"expiries:{default}" not in found
    assert await apply(either, NS, write("m1", "5-0", "x", expires_at=1)) == [Outcome.DUPLICATE]
    assert await dump(either, NS) == found


async def test_many_writers_end_in_the_state_of_the_highest_versions(either):
    dice = random.Random(7)
    words = [f"w{i}" for i in range(12)]
    history, final = [], {}
    for step in range(160):
        memory_id, version = f"m{dice.randrange(4)}", f"{9 + step // 3}-{step}"
        terms = " ".join(dice.choices(words, k=dice.randrange(1, 9)))
        change = delete(memory_id, version) if dice.random() < 0.2 else write(memory_id, version, terms, author="a")
        history.append(change)
        final[memory_id] = change

    async def work(changes):
        writer = IndexWriter(either, ANALYZER)
        for at in range(0, len(changes), 5):
            await writer.apply(NS, changes[at : at + 5])

    async with anyio.create_task_group() as tasks:
        for _ in range(8):  # each of them has everything, in its own order
            tasks.start_soon(work, dice.sample(history, len(history)))
    found = await dump(either, NS)
    expected = {i: dict(c.terms) | {"@author:a": 1} for i, c in final.items() if c.terms is not None}
    assert contents(found, b"default") == expected
    for memory_id, change in final.items():
        assert hash_of(found, f"memory:{{default}}:{memory_id}")["entry"].decode() == change.version
    deleted = {i.encode() for i, change in final.items() if change.terms is None}
    assert found.get(b"tombstones:{default}", ("zset", {}))[1].keys() == deleted


# --- wrong state: nothing may be written ---


@pytest.fixture
async def covering(database):
    """A call that touches a key of every kind: births, deaths, short, long, spilling and emptied lists, marks."""
    first = [write(f"m{i}", f"5-{i}", {"long": 1, "spilling": 1} if i < 9 else {"long": 1}) for i in range(10)]
    await apply(database, NS, *first, write("e", "5-20", "emptied"), write("f", "5-21", "same"))
    await apply(database, NS, write("m0", "6-0", "spilling long old", author="alice", expires_at=9_000_000_000_000))
    await apply(database, NS, delete("gone", "6-1"), *[write(f"o{i}", f"6-{i}", "outgoing") for i in range(10)])
    await apply(database, NS, *[delete(f"o{i}", f"7-{i}") for i in range(9)])
    await database.hset("failed:{default}", "m0", "6-0 code reason")
    return await packed(
        database,
        NS,
        write("m0", "8-0", "spilling long new", expires_at=9_000_000_000_001),
        write("born", "8-1", "spilling"),
        delete("e", "8-2"),
        write("f", "8-3", "same"),
        write("gone", "8-4", "back"),
        delete("o9", "8-5"),
    )


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database, covering):
    """Each declared key in turn. Postings keys of terms that stay in their bucket are not touched at all."""
    touched = {"long", "spilling", "outgoing"}
    prefix, stopped = "index:{default}:", set()
    for key in covering[0]:
        if key.startswith(prefix) and key[len(prefix) :] not in touched:
            continue
        async with wrong_type(database, key):
            await refused(database, NS, lambda: send(database, covering), "WRONGTYPE")
        stopped.add(key.partition("{")[0])
    assert stopped == {
        "stats:",
        "journal:",
        "tombstones:",
        "expiries:",
        "failed:",
        "reservations:",
        "memory:",
        "ids:",
        "terms:",
        "index:",
    }
    assert await send(database, covering) is ApplyStatus.OK
    contents(await dump(database, NS), b"default")


async def test_a_postings_key_that_the_call_has_no_use_for_is_left_alone(database):
    call = await packed(database, NS, write("m1", "5-0", "x"))
    await database.rpush("index:{default}:x", "planted")
    assert await send(database, call) is ApplyStatus.OK
    assert await database.lrange("index:{default}:x", 0, -1) == [b"planted"]
    await database.delete("index:{default}:x")


@pytest.mark.parametrize("left_out", ["keys", "arguments"])
async def test_a_missing_key_or_argument_stops_the_call_before_the_first_write(database, covering, left_out):
    before = await dump(database, NS)
    whole = covering[left_out == "arguments"]
    for i in range(len(whole)):
        cut = [*whole[:i], *whole[i + 1 :]]
        try:
            status = await send(database, (covering[0], cut) if left_out == "arguments" else (cut, covering[1]))
        except ResponseError:
            pass
        else:
            assert status is not ApplyStatus.OK, f"without {left_out} {i}"
        if i % 8 == 0 or i == len(whole) - 1:  # a dump takes longer than the call
            assert await dump(database, NS) == before, f"without {left_out} {i}"


async def test_a_key_or_argument_too_many_stops_the_call(database, covering):
    await refused(database, NS, lambda: send(database, (covering[0], [*covering[1], b"more"])), "too many")
    await refused(database, NS, lambda: send(database, ([*covering[0], "index:{default}:z"], covering[1])), "too many")


async def test_another_epoch_is_answered_and_nothing_written(either):
    call = await packed(either, NS, write("m1", "5-0", "x"))
    await either.delete("stats:{default}", "reservations:{default}")
    assert await send(either, call) is ApplyStatus.EPOCH_CHANGED  # wiped
    assert await dump(either, NS) == {}
    await apply(either, NS, write("m2", "5-0", "x"))
    before = await dump(either, NS)
    assert await send(either, call) is ApplyStatus.EPOCH_CHANGED  # made anew by somebody else
    assert await dump(either, NS) == before


async def test_another_analyzer_is_answered_and_nothing_written(either):
    call = await packed(either, NS, write("m1", "5-0", "x"))
    await either.hset("stats:{default}", "analyzer", "f2")
    before = await dump(either, NS)
    assert await send(either, call) is ApplyStatus.ANALYZER_CHANGED
    assert await dump(either, NS) == before


@pytest.mark.parametrize("counter", ["docs", "tokens"])
@pytest.mark.parametrize("value", ["0", None, "", "x", "1.5", "01", "-1", "1e3", " 2", "9223372036854775807"])
async def test_counters_that_cannot_be_right_stop_the_call(database, counter, value):
    """HINCRBY takes integers only, and it comes last: what it would refuse has to be refused before."""
    await apply(database, NS, write("m1", "5-0", "x"))
    call = await packed(database, NS, delete("m1", "6-0"))
    if value is None:
        await database.hdel("stats:{default}", counter)
    else:
        await database.hset("stats:{default}", counter, value)
    await refused(database, NS, lambda: send(database, call), "CORRUPT the counters")


@pytest.mark.parametrize("count", [2, 12])
async def test_a_document_frequency_that_is_too_low_stops_the_call(database, count):
    await many(database, count)
    entry = await term_entry(database, "x")
    call = await packed(database, NS, delete("m0", "100-0"), delete("m1", "100-1"))
    bucket = keys.bucket_key(NS, crc32(b"x") % 64)
    await database.hset(bucket, "x", df(1) + entry[4:])
    await refused(database, NS, lambda: send(database, call), "CORRUPT a document frequency is too low")
    await database.hdel(bucket, "x")
    await refused(database, NS, lambda: send(database, call), "CORRUPT a document frequency is too low")
    await database.hset(bucket, "x", b"ab")
    await refused(database, NS, lambda: send(database, call))


async def test_what_is_added_does_not_hide_that_an_entry_is_lost(either):
    """One document comes and one goes: the sum would be right, and both the posting and the damage would be gone."""
    await apply(either, NS, write("m1", "1-0", "x"), write("m2", "2-0", "x"))
    call = await packed(either, NS, write("m1", "3-0", "x y"))
    bucket = keys.bucket_key(NS, crc32(b"x") % 64)
    await either.hdel(bucket, "x")
    await refused(either, NS, lambda: send(either, call), "CORRUPT a document frequency is too low")
    await either.hset(bucket, "x", df(1) + posting(1))  # that of m1 is missing
    await refused(either, NS, lambda: send(either, call), "CORRUPT the postings of a term are not as many")
    call = await packed(either, NS, delete("m1", "4-0"))
    await refused(either, NS, lambda: send(either, call), "CORRUPT the postings of a term are not as many")


async def test_nothing_is_appended_to_a_long_list_that_was_lost(database):
    """Its new records would begin where readers expect the generation: every number would be read wrong."""
    await many(database, 12)
    await database.delete("index:{default}:x")
    call = await packed(database, NS, write("m20", "100-0", "x"))
    await refused(database, NS, lambda: send(database, call), "CORRUPT the postings of a term are lost")
    assert await apply(database, NS, delete("m3", "100-0")) == [Outcome.APPLIED]  # what takes away needs no list
    assert await database.exists("index:{default}:x") == 0


@pytest.mark.parametrize("mark", ["", "nonsense", "5", "-1-0 code reason"])
async def test_a_corrupt_failed_mark_stops_the_call(database, mark):
    call = await packed(database, NS, write("m1", "5-0", "x"), write("m2", "5-0", "x"))
    await database.hset("failed:{default}", "m2", mark)
    await refused(database, NS, lambda: send(database, call))


@pytest.mark.parametrize("version", ["", "5", "x-y", "-"])
async def test_a_version_that_is_no_entry_id_stops_the_call(database, version):
    names, arguments = await packed(database, NS, write("m1", "5-0", "x"))
    arguments[arguments.index("5-0")] = version
    await refused(database, NS, lambda: send(database, (names, arguments)))


# --- big inputs ---


async def test_a_document_of_ten_thousand_terms_comes_and_goes_whole(either):
    """One bucket alone gets 4,500 of them: names and values are more than one command can take."""
    same_bucket = [f"b{i}" for i in range(400_000) if crc32(b"b%d" % i) % 64 == 0][:4_500]
    terms = dict.fromkeys(same_bucket, 1) | {f"t{i}": 1 + i % 3 for i in range(5_500)}
    other = {term: tf + 1 for term, tf in terms.items()} | {"more": 1}
    await apply(either, NS, write("small", "4-0", {same_bucket[-1]: 1}))
    await apply(either, NS, write("big", "5-0", terms))
    found = await dump(either, NS)
    assert len(found[b"terms:{default}:0"][1]) >= 4_500
    assert contents(found, b"default") == {"big": terms, "small": {same_bucket[-1]: 1}}
    assert unpack_forward_list(hash_of(found, "memory:{default}:big")["terms"]) == terms
    await apply(either, NS, write("big", "6-0", other))
    assert contents(await dump(either, NS), b"default") == {"big": other, "small": {same_bucket[-1]: 1}}
    await apply(either, NS, delete("big", "7-0"), delete("small", "7-0"))
    found = await dump(either, NS)
    assert not [key for key in found if key.startswith((b"terms:", b"index:", b"ids:"))]
    assert contents(found, b"default") == {}


async def test_a_batch_of_thousands_of_documents_comes_and_goes_whole(database):
    """Two thousand births and deaths, written past the writer's own bound as one call."""
    changes = [write(f"m{i}", f"{i + 1}-0", {"x": 1}) for i in range(2_000)]
    await land(database, *changes)
    found = await dump(database, NS)
    assert found[b"index:{default}:x"][1] == bytes(4) + b"".join(posting(i) for i in range(2_000))
    assert contents(found, b"default") == {f"m{i}": {"x": 1} for i in range(2_000)}
    await land(database, *[delete(f"m{i}", f"{i + 1}-1") for i in range(2_000)])
    assert contents(await dump(database, NS), b"default") == {}


# --- the server ---


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        call = await packed(either, NS, write("m1", f"{i + 1}-0", f"x{i}"))
        await flush_scripts(either)
        assert await send(either, call) is ApplyStatus.OK
    assert contents(await dump(either, NS), b"default") == {"m1": {"x2": 1}}


async def test_a_full_server_refuses_the_call_as_a_whole(database, covering):
    await refused_when_full(database, NS, lambda: send(database, covering))
    assert await send(database, covering) is ApplyStatus.OK


async def test_deletes_are_applied_on_a_full_server_and_free_memory(database):
    """Whole documents go, long lists and buckets with them; the tombstones that stay are smaller."""
    changes = [write(f"m{i}", f"5-{i}", {f"word{i % 50}": 1, "all": 2}, content="x" * 500) for i in range(400)]
    await apply(database, NS, *changes)
    deletes = [delete(f"m{i}", f"6-{i}") for i in range(400)]

    async def free():
        before = await used_memory(database)
        reservation, prepared = await IndexWriter(database, ANALYZER)._prepare(NS, deletes, again=False, allow_oom=True)
        call = pack(NS, reservation, ANALYZER, prepared, NOW_MS, last=True)
        assert await send(database, call, allow_oom=True) is ApplyStatus.OK
        return before - await used_memory(database)

    assert await carried_out_when_full(database, free) > 200_000
    found = await dump(database, NS)
    assert contents(found, b"default") == {}
    assert len(found[b"tombstones:{default}"][1]) == 400


async def test_memory_that_runs_out_half_way_does_not_cut_a_call_in_two(database):
    """The limit is looked at when the script begins; a call that has begun is carried through."""
    terms = {f"t{i}": 1 for i in range(4_000)}
    answers = []
    for i, room_bytes in enumerate((-4_096, 4_096, 200_000, 600_000, 1_500_000, 16_000_000)):
        ns = f"n{i}"
        call = await packed(database, ns, write("m1", "5-0", terms))
        before = await dump(database, ns)
        async with memory_limit(database, await used_memory(database) + room_bytes):
            try:
                answers.append(await send(database, call))
            except UnavailableError:
                answers.append(None)
        found = await dump(database, ns)
        if answers[-1] is None:
            assert found == before
        else:
            assert contents(found, ns.encode()) == {"m1": terms}
    assert answers[0] is None
    assert answers[-1] is ApplyStatus.OK


@pytest.mark.parametrize("command", ["append", "del", "hdel", "hset", "set", "zadd", "zrem"])
async def test_a_command_that_the_user_may_not_run_does_not_end_it_half_way(command, database):
    """Here all are needed: a rewrite, a delete, and a term that outgrows its bucket."""
    await many(database, 12)
    call = await packed(database, NS, write("m1", "50-0", "x y"), delete("m2", "51-0"), write("m99", "52-0", "x"))
    before = await dump(database, NS)
    await database.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        with pytest.raises(UnavailableError, match="NOPERM") as raised:
            await send(database, call)
        assert raised.value.code == "noperm"
    finally:
        await database.execute_command("ACL", "SETUSER", "default", f"+{command}")
    assert await dump(database, NS) == before
    assert await send(database, call) is ApplyStatus.OK
