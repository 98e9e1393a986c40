"""`repair_failed`: a mark without a letter goes, and one with a letter stays."""

from __future__ import annotations

import pytest

from jiyi import scripts

from .conftest import dump, flush_scripts, refused, refused_when_full, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, FAILED, LETTERS = "dead:{default}", "failed:{default}", "letters:{default}"
MARK = b"5-0 bad reason"


async def file(database, memory_id="m1", version="5-0"):
    await scripts.dead_letter(
        database, NS, memory_id, version=version, code="bad", reason="reason", now_ms=1, deliveries=1,
        fields=[(b"event", b"x")],
    )  # fmt: skip


async def mend(database, field=b"m1", mark=MARK):
    return await scripts.repair_failed(database, NS, field, mark)


@pytest.mark.parametrize("filed", [None, "7-0", "replayed 7-0", "garbage"])
async def test_a_mark_without_letter_goes_and_its_version_with_it(either, filed):
    await file(either, "other", "9-0")
    before = await dump(either, NS)
    await either.hset(FAILED, "m1", MARK)
    if filed:
        await either.hset(LETTERS, "5-0", filed)
    assert await mend(either)
    assert await dump(either, NS) == before


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_mark_whose_letter_is_kept_stays(either, replayed):
    await file(either)
    if replayed:
        letter = (await either.hget(LETTERS, "5-0")).decode()
        await scripts.begin_replay(either, NS, letter, "5-0")
    before = await dump(either, NS)
    assert not await mend(either)
    assert await dump(either, NS) == before


@pytest.mark.parametrize("mark", [b"5-0 bad", b"6-0 bad reason", b""])
async def test_a_mark_that_has_changed_stays(either, mark):
    await either.hset(FAILED, "m1", MARK)
    before = await dump(either, NS)
    assert not await mend(either, mark=mark)
    assert not await mend(either, b"m2")
    assert await dump(either, NS) == before


@pytest.mark.parametrize("mark", [b"", b" ", b"\xff\xfe"])
async def test_a_mark_that_names_no_version_goes(database, mark):
    await database.hset(FAILED, "m1", mark)
    assert await mend(database, mark=mark)
    assert await dump(database, NS) == {}


async def test_the_same_call_again_changes_nothing(either):
    await either.hset(FAILED, "m1", MARK)
    assert await mend(either)
    assert not await mend(either)
    assert await dump(either, NS) == {}


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    await file(database)
    await database.execute_command("XTRIM", DEAD, "MAXLEN", 0)
    for key in (DEAD, FAILED, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: mend(database), "WRONGTYPE")


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await either.hset(FAILED, "m1", MARK)
    await flush_scripts(either)
    assert await mend(either)


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await database.hset(FAILED, "m1", MARK)
    await refused_when_full(database, NS, lambda: mend(database))
