"""`dead_letter`: an event that cannot be applied is filed once, and its memory marked."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import NOW_MS, dump, flush_scripts, refused, refused_when_full, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, FAILED = "dead:{default}", "failed:{default}"
FIELDS = [(b"event", b"write"), (b"id", b"m1"), (b"reason", b"\xff\0not ours")]


async def bury(database, memory_id="m1", entry="5-0", code="not_utf8", reason="reason: is not UTF-8", fields=FIELDS):
    return await scripts.dead_letter(
        database, NS, memory_id, entry=entry, code=code, reason=reason, now_ms=NOW_MS, deliveries=3, fields=fields
    )


async def filed(database):
    """Entries of the dead-letter stream, oldest first."""
    rows = await database.execute_command("XRANGE", DEAD, "-", "+")
    return [dict(zip(flat[::2], flat[1::2], strict=True))[b"entry"].decode() for _letter, flat in rows]


async def test_a_letter_keeps_the_event_and_marks_its_memory(either):
    assert await bury(either) is True
    found = await dump(either, NS)
    entries, *_ = found.pop(DEAD.encode())[1]
    assert [flat for _letter, flat in entries] == [
        [
            b"entry", b"5-0",
            b"code", b"not_utf8",
            b"reason", b"reason: is not UTF-8",
            b"dead_at", b"%d" % NOW_MS,
            b"deliveries", b"3",
            b"fields", b"\x96\xa5event\xa5write\xa2id\xa2m1\xa6reason\xaa\xff\x00not ours",
        ]
    ]  # fmt: skip
    assert found == {FAILED.encode(): ("hash", {b"m1": b"5-0 not_utf8 reason: is not UTF-8"})}


async def test_an_event_without_an_id_is_marked_by_its_entry(either):
    assert await bury(either, None, "5-0")
    assert await bury(either, None, "5-1")
    assert sorted(await either.hkeys(FAILED)) == [b"\x005-0", b"\x005-1"]


async def test_an_event_without_fields_is_filed_with_an_empty_list(database):
    await bury(database, fields=[])
    [[_letter, flat]] = await database.execute_command("XRANGE", DEAD, "-", "+")
    assert flat[-2:] == [b"fields", b"\x90"]


async def test_filing_the_last_letter_again_changes_nothing(either):
    await bury(either)
    before = await dump(either, NS)
    assert await bury(either, reason="another", code="other") is False
    assert await dump(either, NS) == before


@pytest.mark.parametrize(
    ("first", "second", "marked"),
    [
        ("9-0", "10-0", "10-0"),
        ("10-0", "9-0", "10-0"),
        ("10-10", "10-9", "10-10"),
        (f"{2**53}-0", f"{2**53 + 1}-0", f"{2**53 + 1}-0"),
        (f"{2**53 + 1}-0", f"{2**53}-0", f"{2**53 + 1}-0"),
        ("5-18446744073709551615", "5-18446744073709551614", "5-18446744073709551615"),
    ],
)
async def test_both_letters_are_filed_and_the_later_event_marks(database, first, second, marked):
    assert await bury(database, entry=first)
    assert await bury(database, entry=second)
    assert await filed(database) == [first, second]
    assert (await database.hget(FAILED, "m1")).split()[0].decode() == marked


async def test_the_same_event_filed_by_many_at_once_is_filed_once(either):
    filings = []

    async def file(i):
        filings.append(await bury(either, f"m{i % 4}", "5-0"))

    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(file, i)
    assert sorted(filings) == [False] * 28 + [True] * 4
    assert await filed(either) == ["5-0"] * 4
    assert await either.hlen(FAILED) == 4


async def test_letters_of_one_memory_filed_at_once_leave_the_mark_of_the_latest(either):
    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(lambda i=i: bury(either, entry=f"{i}-0"))
    assert sorted(await filed(either)) == sorted(f"{i}-0" for i in range(32))
    assert (await either.hget(FAILED, "m1")).split()[0] == b"31-0"


async def test_an_event_of_thousands_of_fields_is_filed_whole(either):
    fields = [(b"f%d" % i, b"v" * (i % 40)) for i in range(6_000)]
    await bury(either, fields=fields)
    [[_letter, flat]] = await either.execute_command("XRANGE", DEAD, "-", "+")
    assert flat[-1][:3] == b"\xdc\x2e\xe0"  # an array of 12,000
    assert flat[-1].count(b"v" * 39) == 150


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await bury(database)
    for key in (DEAD, FAILED):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: bury(database, entry="6-0"), "WRONGTYPE")


@pytest.mark.parametrize("mark", ["", " ", "nonsense here", "5"])
async def test_a_corrupt_mark_stops_the_call_before_the_first_write(database, mark):
    """It cannot be told which of the two letters is the later."""
    await bury(database, "other")
    await database.hset(FAILED, "m1", mark)
    await refused(database, NS, lambda: bury(database))


async def test_an_entry_that_is_no_entry_id_stops_the_call(database):
    await bury(database)
    await refused(database, NS, lambda: bury(database, entry="x"))


async def test_a_missing_argument_stops_the_call(database):
    arguments = ["m1", "6-0", "code", "reason", 1, 3]
    for count in range(len(arguments)):
        cut = arguments[:count]
        await refused(database, NS, lambda: scripts.call(database, "dead_letter", [DEAD, FAILED], cut))  # noqa: B023
    await refused(database, NS, lambda: scripts.call(database, "dead_letter", [DEAD, FAILED], [*arguments, "name"]))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await flush_scripts(either)
        assert await bury(either, entry=f"{i}-0")


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await refused_when_full(database, NS, lambda: bury(database))
    await bury(database)
    await refused_when_full(database, NS, lambda: bury(database, entry="6-0"))
