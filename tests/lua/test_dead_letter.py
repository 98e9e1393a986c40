"""`dead_letter`: an event that cannot be applied is filed once, and its memory marked."""

from __future__ import annotations

import anyio
import pytest

from jiyi import keys, scripts
from jiyi.scripts import Filing

from .conftest import NOW_MS, dump, flush_scripts, refused, refused_when_full, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, FAILED, LETTERS = "dead:{default}", "failed:{default}", "letters:{default}"
FIELDS = [(b"event", b"write"), (b"id", b"m1"), (b"reason", b"\xff\0not ours")]


async def bury(database, memory_id="m1", version="5-0", code="not_utf8", reason="reason: is not UTF-8", fields=FIELDS):
    return await scripts.dead_letter(
        database, NS, memory_id, version=version, code=code, reason=reason, now_ms=NOW_MS, deliveries=3, fields=fields
    )


async def filed(database):
    """Versions of the letters in the dead-letter stream, oldest first; each is named in `letters`, and nothing else."""
    rows = await database.execute_command("XRANGE", DEAD, "-", "+")
    versions = {letter: dict(zip(flat[::2], flat[1::2], strict=True))[b"entry"] for letter, flat in rows}
    assert await database.hgetall(LETTERS) == {version: letter for letter, version in versions.items()}
    return [version.decode() for version in versions.values()]


async def letter_of(database, version):
    return (await database.hget(LETTERS, version)).decode()


async def test_a_letter_keeps_the_event_and_marks_its_memory(either):
    assert await bury(either) is Filing.FILED
    found = await dump(either, NS)
    [[letter, flat]], *_ = found.pop(DEAD.encode())[1]
    assert flat == [
        b"entry", b"5-0",
        b"code", b"not_utf8",
        b"reason", b"reason: is not UTF-8",
        b"dead_at", b"%d" % NOW_MS,
        b"deliveries", b"3",
        b"fields", b"\x96\xa5event\xa5write\xa2id\xa2m1\xa6reason\xaa\xff\x00not ours",
    ]  # fmt: skip
    assert found == {
        FAILED.encode(): ("hash", {b"m1": b"5-0 not_utf8 reason: is not UTF-8"}),
        LETTERS.encode(): ("hash", {b"5-0": letter}),
    }


async def test_an_event_without_an_id_is_marked_by_its_entry(either):
    assert await bury(either, None, "5-0")
    assert await bury(either, None, "5-1")
    assert sorted(await either.hkeys(FAILED)) == [b"\x005-0", b"\x005-1"]


async def test_an_event_without_fields_is_filed_with_an_empty_list(database):
    await bury(database, fields=[])
    [[_letter, flat]] = await database.execute_command("XRANGE", DEAD, "-", "+")
    assert flat[-2:] == [b"fields", b"\x90"]


async def test_filing_a_letter_again_changes_nothing(either):
    await bury(either)
    before = await dump(either, NS)
    assert await bury(either, reason="another", code="other") is Filing.FILED_BEFORE
    assert await dump(either, NS) == before


async def test_filing_again_changes_nothing_also_after_another_letter_of_the_memory(either):
    """Two workers hold the same entry; the mark is the later letter's by now."""
    await bury(either, version="5-0")
    await bury(either, version="6-0")
    before = await dump(either, NS)
    assert await bury(either, version="5-0") is Filing.FILED_BEFORE
    assert await bury(either, version="6-0") is Filing.FILED_BEFORE
    assert await dump(either, NS) == before
    assert await filed(either) == ["5-0", "6-0"]


async def test_a_letter_that_failed_again_on_its_replay_replaces_itself(either):
    """It is there once, with the new reason, and under the version that it always had."""
    await bury(either, version="5-0")
    first = await letter_of(either, "5-0")
    assert await scripts.begin_replay(either, NS, first, "5-0")
    assert await bury(either, version="5-0", code="too_large", reason="content: is too large") is Filing.FILED
    second = await letter_of(either, "5-0")
    assert second != first
    [[letter, flat]] = await either.execute_command("XRANGE", DEAD, "-", "+")
    assert (letter.decode(), flat[1], flat[3]) == (second, b"5-0", b"too_large")
    assert await either.hgetall(FAILED) == {b"m1": b"5-0 too_large content: is too large"}
    before = await dump(either, NS)
    assert await bury(either, version="5-0") is Filing.FILED_BEFORE
    assert await dump(either, NS) == before


async def test_a_letter_fails_again_after_its_replay_has_removed_it(either):
    await bury(either, version="5-0")
    first = await letter_of(either, "5-0")
    await scripts.begin_replay(either, NS, first, "5-0")
    await scripts.drop_letter(either, NS, first, "m1", "5-0", replayed=True)
    assert await bury(either, version="5-0") is Filing.FILED
    assert await filed(either) == ["5-0"]
    assert await letter_of(either, "5-0") != first


async def test_a_letter_that_fails_again_leaves_the_mark_of_a_later_one(either):
    await bury(either, version="5-0")
    await bury(either, version="6-0", code="later")
    await scripts.begin_replay(either, NS, await letter_of(either, "5-0"), "5-0")
    await bury(either, version="5-0")
    assert await filed(either) == ["6-0", "5-0"]
    assert (await either.hget(FAILED, "m1")).startswith(b"6-0 later")


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
    assert await bury(database, version=first)
    assert await bury(database, version=second)
    assert await filed(database) == [first, second]
    assert (await database.hget(FAILED, "m1")).split()[0].decode() == marked


async def test_the_same_event_filed_by_many_at_once_is_filed_once(either):
    filings = []

    async def file(i):
        filings.append(await bury(either, "m1" if i % 2 else "m2", f"5-{i % 4}"))

    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(file, i)
    assert sorted(filings) == [Filing.FILED_BEFORE] * 28 + [Filing.FILED] * 4
    assert sorted(await filed(either)) == [f"5-{i}" for i in range(4)]
    assert [(await either.hget(FAILED, name)).split()[0] for name in ("m1", "m2")] == [b"5-3", b"5-2"]


async def test_letters_of_one_memory_filed_at_once_leave_the_mark_of_the_latest(either):
    async with anyio.create_task_group() as tasks:
        for i in range(32):
            tasks.start_soon(lambda i=i: bury(either, version=f"{i}-0"))
    assert sorted(await filed(either)) == sorted(f"{i}-0" for i in range(32))
    assert (await either.hget(FAILED, "m1")).split()[0] == b"31-0"


@pytest.mark.parametrize("begun", [False, True])
async def test_an_event_that_its_memory_holds_is_not_filed(either, begun):
    """It was applied, and only its acknowledgement was lost; also that of a replay."""
    if begun:
        await bury(either, version="5-0")
        await scripts.begin_replay(either, NS, await letter_of(either, "5-0"), "5-0")
    await either.hset(keys.memory_key(NS, "m1"), "entry", "5-0")
    before = await dump(either, NS)
    assert await bury(either, version="5-0") is Filing.APPLIED_BEFORE
    assert await dump(either, NS) == before


@pytest.mark.parametrize("held", ["4-0", "5-1", "50-0", ""])
async def test_an_event_whose_memory_holds_another_is_filed(database, held):
    await database.hset(keys.memory_key(NS, "m1"), "entry", held)
    await database.hset(keys.memory_key(NS, "m2"), "entry", "5-0")
    assert await bury(database, version="5-0") is Filing.FILED
    assert await filed(database) == ["5-0"]


async def test_an_event_whose_memory_is_no_memory_is_filed(database):
    """Else it would come back for ever: nobody can apply it."""
    async with wrong_type(database, keys.memory_key(NS, "m1")):
        assert await bury(database, version="5-0") is Filing.FILED


async def test_an_event_of_thousands_of_fields_is_filed_whole(either):
    fields = [(b"f%d" % i, b"v" * (i % 40)) for i in range(6_000)]
    await bury(either, fields=fields)
    [[_letter, flat]] = await either.execute_command("XRANGE", DEAD, "-", "+")
    assert flat[-1][:3] == b"\xdc\x2e\xe0"  # an array of 12,000
    assert flat[-1].count(b"v" * 39) == 150


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await bury(database)
    for key in (DEAD, FAILED, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: bury(database, version="6-0"), "WRONGTYPE")


@pytest.mark.parametrize("mark", ["", " ", "nonsense here", "5"])
async def test_a_corrupt_mark_stops_the_call_before_the_first_write(database, mark):
    """It cannot be told which of the two letters is the later."""
    await bury(database, "other", "4-0")
    await database.hset(FAILED, "m1", mark)
    await refused(database, NS, lambda: bury(database))


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("version", ["", "x", "5", "5-0x"])
async def test_a_version_that_is_no_entry_id_stops_the_call(database, version, marked):
    """In `letters` it would stand in the way of everybody who looks for the oldest."""
    if marked:
        await bury(database)
    await refused(database, NS, lambda: bury(database, version=version))


async def test_a_corrupt_name_of_a_replayed_letter_stops_the_call_before_the_first_write(database):
    await bury(database)
    await database.hset(LETTERS, "5-0", "replayed nonsense")
    await refused(database, NS, lambda: bury(database))


async def test_a_missing_argument_stops_the_call(database):
    names = [DEAD, FAILED, LETTERS]
    arguments = ["m1", "6-0", "code", "reason", 1, 3]
    for count in range(len(arguments)):
        cut = arguments[:count]
        await refused(database, NS, lambda: scripts.call(database, "dead_letter", names, cut))  # noqa: B023
    await refused(database, NS, lambda: scripts.call(database, "dead_letter", names, [*arguments, "name"]))
    await refused(database, NS, lambda: scripts.call(database, "dead_letter", names[:2], arguments))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await flush_scripts(either)
        assert await bury(either, version=f"{i}-0")


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await refused_when_full(database, NS, lambda: bury(database))
    await bury(database)
    await refused_when_full(database, NS, lambda: bury(database, version="6-0"))
