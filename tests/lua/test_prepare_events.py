"""`prepare_events`: the stored state of a batch's memories, and document numbers that nobody else gets."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts
from jiyi.forward_lists import pack_forward_list
from jiyi.scripts import PrepareStatus

from .conftest import (
    ANALYZER,
    NOW_MS,
    apply,
    carried_out_when_full,
    delete,
    dump,
    flush_scripts,
    refused,
    refused_when_full,
    write,
    wrong_type,
)

pytestmark = pytest.mark.anyio

NS = "default"
STATS = "stats:{default}"
RESERVATIONS = "reservations:{default}"
MAX_DOC = 0xFFFF_FFFE
DAY_MS = 86_400_000


async def prepare(
    database, *versions, analyzer=ANALYZER, again=False, ids=None, token="e" * 16, now_ms=NOW_MS, allow_oom=False
):
    """Ask for memories m0, m1, ... of these (version, version hash) pairs."""
    return await scripts.prepare_events(
        database,
        NS,
        token=token,
        now_ms=now_ms,
        analyzer=analyzer,
        again=again,
        ids=ids or [f"m{i}" for i in range(len(versions))],
        versions=versions,
        allow_oom=allow_oom,
    )


async def tokens(database):
    """Tokens of reservations with their times."""
    return {token.decode(): int(ms) for token, ms in await database.zrange(RESERVATIONS, 0, -1, withscores=True)}


async def raw_memory(database, memory_id="m0", **fields):
    await database.hset(f"memory:{{default}}:{memory_id}", mapping=fields)


async def status_of(database, version, version_hash="h2", *, again=False):
    return PrepareStatus((await prepare(database, (version, version_hash), again=again))[3][0])


# --- the effect ---


async def test_the_first_event_makes_the_counters_and_its_reservation_and_nothing_else(either):
    reply = await prepare(either, ("5-0", "h"), ("5-1", ""), ("5-2", "h"))
    assert reply == [b"e" * 16, b"f1", 0, [0, None], [0, None], [0, None]]
    assert await dump(either, NS) == {
        STATS.encode(): (
            "hash",
            {b"epoch": b"e" * 16, b"analyzer": b"f1", b"docs": b"0", b"tokens": b"0", b"next_doc": b"2"},
        ),
        RESERVATIONS.encode(): ("zset", {b"e" * 16: float(NOW_MS)}),
    }


async def test_a_known_namespace_keeps_its_epoch_and_its_counters(either):
    await apply(either, NS, write("other", "1-0", "x y"))
    before = await dump(either, NS)
    reply = await prepare(either, ("5-0", "h"))
    assert reply == [before[STATS.encode()][1][b"epoch"], b"f1", 1, [0, None]]
    before[STATS.encode()][1][b"next_doc"] = b"2"
    before[RESERVATIONS.encode()] = ("zset", {b"e" * 16: float(NOW_MS)})
    assert await dump(either, NS) == before


async def test_a_live_document_is_described_in_full(either):
    await apply(either, NS, write("m0", "5-0", {"流": 2}, author="a", source_system="s", user_id="u", session_id="i",
                                  kind="k", tags=("p", "q")))  # fmt: skip
    await apply(either, NS, write("m1", "5-0", {}))
    reply = await prepare(either, ("6-0", "h"), ("6-0", ""))
    assert reply[2:] == [
        2,
        [1, b"5-0", b"0", b"2", pack_forward_list({"流": 2}), b"a", b"s", b"u", b"i", b"k", b'["p","q"]'],
        [1, b"5-0", b"1", b"0", pack_forward_list({}), None, None, None, None, None, None],
    ]


async def test_a_tombstone_is_no_document_and_keeps_its_fence(either):
    await apply(either, NS, delete("m0", "5-0"))
    assert (await prepare(either, ("6-0", "h")))[2:] == [0, [0, b"5-0"]]
    assert (await prepare(either, ("4-0", "h")))[2:] == [1, [3, b"5-0"]]


async def test_only_writes_that_will_be_applied_get_a_number(either):
    changes = [write(f"m{i}", "5-0", "x") for i in range(4)]
    await apply(either, NS, *changes)
    same = changes[3].version_hash
    reply = await prepare(either, ("4-0", "h"), ("5-0", "h"), ("6-0", ""), ("6-0", same), ("6-0", "h"), ("6-0", ""))
    assert [state[0] for state in reply[3:]] == [3, 2, 1, 4, 0, 0]
    assert reply[3:5] == [[3, b"5-0"], [2, b"5-0"]]
    assert reply[6:] == [[4, b"5-0", b"3"], [0, None], [0, None]]
    assert reply[2] == 4
    assert await either.hget(STATS, "next_doc") == b"5"  # for m4 alone


async def test_a_call_that_needs_no_number_holds_none(either):
    await prepare(either, ("5-0", ""), ("5-1", ""))
    assert await tokens(either) == {}
    await prepare(either, ("5-0", ""), ("5-1", "h"), token="second")
    assert await tokens(either) == {"second": NOW_MS}


async def test_reservations_of_a_day_ago_are_forgotten_by_the_next(either):
    ages_ms = (DAY_MS + 1, DAY_MS, DAY_MS - 1, 0, -DAY_MS)
    await either.zadd(RESERVATIONS, {f"t{i}": NOW_MS - age_ms for i, age_ms in enumerate(ages_ms)})
    await prepare(either, ("5-0", ""), token="needs no number")
    assert len(await tokens(either)) == 5
    await prepare(either, ("5-0", "h"), token="new")
    assert sorted(await tokens(either)) == ["new", "t2", "t3", "t4"]


@pytest.mark.parametrize(
    ("stored", "version", "status"),
    [
        ("9-0", "10-0", PrepareStatus.REPLACES),
        ("10-0", "9-0", PrepareStatus.SUPERSEDED),
        ("10-0", "10-0", PrepareStatus.APPLIED),
        ("10-9", "10-10", PrepareStatus.REPLACES),
        ("10-10", "10-9", PrepareStatus.SUPERSEDED),
        ("9-99", "10-0", PrepareStatus.REPLACES),
        (f"{2**53}-0", f"{2**53 + 1}-0", PrepareStatus.REPLACES),
        (f"{2**53 + 1}-0", f"{2**53}-0", PrepareStatus.SUPERSEDED),
        (f"5-{2**53}", f"5-{2**53 + 1}", PrepareStatus.REPLACES),
        (f"5-{2**53 + 1}", f"5-{2**53}", PrepareStatus.SUPERSEDED),
        ("5-18446744073709551614", "5-18446744073709551615", PrepareStatus.REPLACES),
        ("18446744073709551615-0", "18446744073709551614-9", PrepareStatus.SUPERSEDED),
        ("0-1", "1764470000000-0", PrepareStatus.REPLACES),
    ],
)
async def test_versions_are_compared_as_exact_numbers(database, stored, version, status):
    """As text 9 comes after 10; as doubles 2**53 and 2**53 + 1 are one."""
    await prepare(database, ("1-0", ""))
    await raw_memory(database, entry=stored, doc=7, length=1, terms=pack_forward_list({}), version_hash="h1")
    assert await status_of(database, version) is status


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("version", "version_hash", "again", "live_status", "dead_status"),
    [
        ("6-0", "h2", False, PrepareStatus.REPLACES, PrepareStatus.NEW),
        ("6-0", "", False, PrepareStatus.REPLACES, PrepareStatus.NEW),
        ("6-0", "h1", False, PrepareStatus.UNCHANGED, PrepareStatus.NEW),
        ("5-0", "h1", False, PrepareStatus.APPLIED, PrepareStatus.APPLIED),
        ("5-0", "h2", False, PrepareStatus.APPLIED, PrepareStatus.APPLIED),
        ("4-0", "h1", False, PrepareStatus.SUPERSEDED, PrepareStatus.SUPERSEDED),
        ("4-0", "", False, PrepareStatus.SUPERSEDED, PrepareStatus.SUPERSEDED),
        ("5-0", "h1", True, PrepareStatus.REPLACES, PrepareStatus.SUPERSEDED),
        ("5-0", "", True, PrepareStatus.REPLACES, PrepareStatus.SUPERSEDED),
        ("6-0", "h2", True, PrepareStatus.SUPERSEDED, PrepareStatus.SUPERSEDED),
        ("4-0", "h2", True, PrepareStatus.SUPERSEDED, PrepareStatus.SUPERSEDED),
    ],
)
async def test_every_combination_has_its_status(database, live, version, version_hash, again, live_status, dead_status):
    """Applying again touches live documents of exactly the stored version and brings nothing back to life."""
    await prepare(database, ("1-0", ""))
    written = {"doc": 7, "length": 1, "terms": pack_forward_list({}), "version_hash": "h1"}
    document = written if live else {"deleted_at": 1}
    await raw_memory(database, entry="5-0", **document)
    expected = live_status if live else dead_status
    assert await status_of(database, version, version_hash, again=again) is expected
    needs_number = version_hash and expected in (PrepareStatus.NEW, PrepareStatus.REPLACES)
    assert await database.hget(STATS, "next_doc") == (b"1" if needs_number else b"0")


async def test_a_delete_is_never_unchanged(database):
    await apply(database, NS, write("m0", "5-0", "x"))
    await raw_memory(database, version_hash="")  # as the hash that a delete comes with
    assert await status_of(database, "6-0", "") is PrepareStatus.REPLACES


async def test_applying_again_what_never_was_is_nothing(database):
    assert await status_of(database, "5-0", again=True) is PrepareStatus.SUPERSEDED
    assert await database.hget(STATS, "next_doc") == b"0"


async def test_another_analyzer_is_told_and_reserves_nothing(either):
    await prepare(either, ("5-0", "h"))
    before = await dump(either, NS)
    assert await prepare(either, ("5-0", "h"), analyzer="f2") == [b"e" * 16, b"f1"]
    assert await dump(either, NS) == before


# --- again, and at once ---


async def test_the_same_call_again_gives_the_same_answer_and_only_other_numbers(either):
    await apply(either, NS, write("m0", "5-0", "x"), delete("m1", "5-0"))
    first = await prepare(either, ("6-0", "h"), ("6-0", "h"))
    before = await dump(either, NS)
    second = await prepare(either, ("6-0", "h"), ("6-0", "h"), token="another", now_ms=NOW_MS + 1)
    assert (first[:2], first[3:]) == (second[:2], second[3:])
    assert (first[2], second[2]) == (1, 3)
    before[STATS.encode()][1][b"next_doc"] = b"5"
    before[RESERVATIONS.encode()][1][b"another"] = NOW_MS + 1.0
    assert await dump(either, NS) == before


async def test_asking_for_what_is_applied_changes_nothing(either):
    await apply(either, NS, write("m0", "5-0", "x"), delete("m1", "5-0"))
    before = await dump(either, NS)
    assert [state[0] for state in (await prepare(either, ("5-0", "h"), ("5-0", "")))[3:]] == [2, 2]
    assert await dump(either, NS) == before


async def test_no_two_callers_get_the_same_number_or_different_epochs(either):
    taken, epochs = [], set()

    async def reserve(caller):
        for i in range(20):
            reply = await prepare(either, *[("5-0", "h")] * (1 + i % 3), token=f"token{caller}-{i}")
            epochs.add(reply[0])
            taken.extend(range(reply[2], reply[2] + 1 + i % 3))

    async with anyio.create_task_group() as tasks:
        for caller in range(8):
            tasks.start_soon(reserve, caller)
    assert sorted(taken) == list(range(8 * 39))
    assert len(epochs) == 1
    assert len(await tokens(either)) == 8 * 20


async def test_ten_thousand_events_are_prepared_at_once(either):
    """More states than Lua could put on its stack."""
    reply = await prepare(either, *[("5-0", "h")] * 10_000)
    assert reply[2:] == [0, *[[0, None]] * 10_000]


# --- wrong state: nothing may be written ---


async def test_a_key_of_the_wrong_type_stops_the_call(database):
    await apply(database, NS, write("m0", "5-0", "x"), write("m1", "5-0", "x"))
    for key in (STATS, RESERVATIONS, "memory:{default}:m0", "memory:{default}:m1", "memory:{default}:m2"):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: prepare(database, *[("6-0", "h")] * 3), "WRONGTYPE")


async def test_a_wrong_type_in_a_new_namespace_leaves_it_unmade(database):
    for key in (RESERVATIONS, "memory:{default}:m1"):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: prepare(database, *[("6-0", "h")] * 3), "WRONGTYPE")


@pytest.mark.parametrize("fence", ["", "5", "5-", "-1-0", "5-0x", " 5-0", "x"])
async def test_a_fence_that_is_no_entry_id_stops_the_call(database, fence):
    await raw_memory(database, "m1", entry=fence, doc=1)
    await refused(database, NS, lambda: prepare(database, ("6-0", "h"), ("6-0", "h")), "CORRUPT the fence")


@pytest.mark.parametrize("version", ["", "5", "x"])
async def test_a_version_that_is_no_entry_id_stops_the_call(database, version):
    await apply(database, NS, write("m1", "5-0", "x"))
    await refused(database, NS, lambda: prepare(database, ("6-0", "h"), (version, "h")))


@pytest.mark.parametrize("next_doc", [None, "", "x"])
async def test_numbers_are_not_given_out_again_when_their_count_is_lost(database, next_doc):
    await apply(database, NS, write("m0", "5-0", "x"))
    if next_doc is None:
        await database.hdel(STATS, "next_doc")
    else:
        await database.hset(STATS, "next_doc", next_doc)
    await refused(database, NS, lambda: prepare(database, ("6-0", "h")), "CORRUPT the next document number")


async def test_a_namespace_that_lost_its_epoch_is_not_taken_for_a_new_one(database):
    """Its numbers would begin at 0 again, below those of its living documents."""
    await apply(database, NS, write("m0", "5-0", "x"))
    await database.hdel(STATS, "epoch")
    await refused(database, NS, lambda: prepare(database, ("6-0", "h")), "CORRUPT")


@pytest.mark.parametrize("forgotten", ["", "5", "5-", "5-0x", "x"])
async def test_a_forgotten_version_that_is_no_entry_id_stops_the_call(database, forgotten):
    """Taken for none it would let a delete be undone."""
    await apply(database, NS, write("m0", "5-0", "x"))
    await database.hset(STATS, "forgotten", forgotten)
    for ids in (["m0"], ["other"]):
        await refused(
            database, NS, lambda ids=ids: prepare(database, ("6-0", "h"), ids=ids), "CORRUPT .* run: jiyi check"
        )
    assert (await prepare(database, ("6-0", "h"), analyzer="another"))[1] == ANALYZER.encode()


async def test_document_numbers_end_below_the_mark_of_a_death(database):
    await prepare(database, ("1-0", ""))
    await database.hset(STATS, "next_doc", MAX_DOC - 2)
    await refused(database, NS, lambda: prepare(database, *[("6-0", "h")] * 3), "FULL")
    assert (await prepare(database, ("6-0", "h"), ("6-0", "h")))[2] == MAX_DOC - 2
    assert await database.hget(STATS, "next_doc") == b"%d" % MAX_DOC
    await refused(database, NS, lambda: prepare(database, ("6-0", "h")), "FULL")
    assert (await prepare(database, ("6-0", "")))[3] == [0, None]  # deletes need no number


@pytest.mark.parametrize("known", [True, False])
async def test_a_missing_argument_stops_the_call(database, known):
    if known:
        await apply(database, NS, write("m0", "5-0", "x"), write("m1", "5-0", "x"))
    names = [STATS, RESERVATIONS, "memory:{default}:m0", "memory:{default}:m1"]
    whole = ["e", NOW_MS, ANALYZER, "0", "6-0", "h", "6-0", "h"]
    for count in range(len(whole)):
        cut = whole[:count]
        await refused(database, NS, lambda: scripts.call(database, "prepare_events", names, cut))  # noqa: B023
    await refused(database, NS, lambda: scripts.call(database, "prepare_events", names[:3], whole))
    await refused(database, NS, lambda: scripts.call(database, "prepare_events", names, [*whole, "more"]))


@pytest.mark.parametrize("now", ["", "soon", "None"])
async def test_a_time_that_is_no_number_stops_the_call(database, now):
    """It would be the score of the reservation, refused after the numbers were given out."""
    await refused(database, NS, lambda: prepare(database, ("6-0", "h"), now_ms=now))


# --- the server ---


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await flush_scripts(either)
        assert (await prepare(either, ("5-0", "h")))[2] == i


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await refused_when_full(database, NS, lambda: prepare(database, ("5-0", "h")))
    await apply(database, NS, write("m0", "5-0", "x"))
    await refused_when_full(database, NS, lambda: prepare(database, ("6-0", "h")))


async def test_deletes_are_prepared_on_a_full_server(database):
    """Also the first event of a namespace: it cannot be known beforehand whether there is something to free."""
    await apply(database, NS, write("m0", "5-0", "x"))
    reply = await carried_out_when_full(database, lambda: prepare(database, ("6-0", ""), allow_oom=True))
    assert reply[3][:2] == [1, b"5-0"]
    await database.delete(STATS)
    await carried_out_when_full(database, lambda: prepare(database, ("6-0", ""), allow_oom=True))
    assert await database.hget(STATS, "next_doc") == b"0"
