"""`repair_letters`: a dead event has the name of its letter, and no other."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import dump, flush_scripts, refused, refused_when_full, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
DEAD, LETTERS = "dead:{default}", "letters:{default}"


async def file(database, memory_id="m1", version="5-0"):
    """File a letter; gives its id in the dead-letter stream."""
    await scripts.dead_letter(
        database, NS, memory_id, version=version, code="bad", reason="reason", now_ms=1, deliveries=1,
        fields=[(b"event", b"x")],
    )  # fmt: skip
    return await database.hget(LETTERS, version)


async def mend(database, version=b"5-0", *, name=b"", named=b"", letter=b""):
    return await scripts.repair_letters(database, NS, version, name=name, named=named, letter=letter)


@pytest.mark.parametrize("name", [b"", b"7-0", b"replayed 7-0", b"garbage"])
async def test_a_letter_gets_its_name(either, name):
    letter = await file(either)
    before = await dump(either, NS)
    await either.hdel(LETTERS, "5-0")
    if name:
        await either.hset(LETTERS, "5-0", name)
    assert await mend(either, name=name, letter=letter) is True
    assert await dump(either, NS) == before


@pytest.mark.parametrize(("name", "named"), [(b"7-0", b"7-0"), (b"replayed 7-0", b"7-0"), (b"garbage", b"")])
async def test_a_name_without_a_letter_goes(either, name, named):
    await file(either, "other", "9-0")
    before = await dump(either, NS)
    await either.hset(LETTERS, "5-0", name)
    assert await mend(either, name=name, named=named) is True
    assert await dump(either, NS) == before


async def test_what_is_no_version_goes_whatever_it_names(either):
    letter = await file(either)
    before = await dump(either, NS)
    await either.hset(LETTERS, "no version", letter)
    assert await mend(either, b"no version", name=letter) is True
    assert await dump(either, NS) == before


async def test_a_name_that_has_changed_meanwhile_stays(either):
    letter = await file(either)
    before = await dump(either, NS)
    assert await mend(either, name=b"7-0", named=b"7-0") is False
    assert await mend(either, name=b"", letter=letter) is False
    assert await mend(either, b"6-0", name=b"7-0", named=b"7-0") is False
    assert await dump(either, NS) == before


@pytest.mark.parametrize("replayed", [b"", b"replayed "])
async def test_a_name_whose_letter_is_there_stays(either, replayed):
    letter = await file(either)
    await either.hset(LETTERS, "5-0", replayed + letter)
    before = await dump(either, NS)
    assert await mend(either, name=replayed + letter, named=letter) is False
    assert await dump(either, NS) == before


async def test_a_letter_that_is_gone_gets_no_name(either):
    letter = await file(either)
    await scripts.drop_letter(either, NS, letter.decode(), "m1", "5-0")
    before = await dump(either, NS)
    assert await mend(either, letter=letter) is False
    assert await dump(either, NS) == before


async def test_mending_again_changes_nothing(either):
    letter = await file(either)
    await either.hdel(LETTERS, "5-0")
    await mend(either, letter=letter)
    before = await dump(either, NS)
    assert await mend(either, letter=letter) is False
    assert await dump(either, NS) == before


async def test_many_that_mend_the_same_mend_it_once(either):
    letters = [await file(either, f"m{i}", f"{i + 1}-0") for i in range(4)]
    await either.delete(LETTERS)
    answers = []

    async def work(i):
        answers.append(await mend(either, b"%d-0" % (i % 4 + 1), letter=letters[i % 4]))

    async with anyio.create_task_group() as tasks:
        for i in range(24):
            tasks.start_soon(work, i)
    assert answers.count(True) == 4
    assert sorted(await either.hvals(LETTERS)) == sorted(letters)


async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database):
    letter = await file(database)
    for key in (DEAD, LETTERS):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: mend(database, name=b"7-0", letter=letter), "WRONGTYPE")


async def test_a_letter_that_is_no_entry_id_stops_the_call(database):
    await file(database)
    await refused(database, NS, lambda: mend(database, b"6-0", letter=b"x"))


async def test_a_missing_key_or_argument_stops_the_call(database):
    await file(database)
    names, whole = [DEAD, LETTERS], ["6-0", "", "7-0", ""]
    for count in range(4):
        cut = whole[:count]
        await refused(database, NS, lambda: scripts.call(database, "repair_letters", names, cut))  # noqa: B023
    await refused(database, NS, lambda: scripts.call(database, "repair_letters", names[:1], whole))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        letter = await file(either, version=f"{i}-0")
        await either.hdel(LETTERS, f"{i}-0")
        await flush_scripts(either)
        assert await mend(either, b"%d-0" % i, letter=letter) is True


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await file(database)
    await refused_when_full(database, NS, lambda: mend(database, b"6-0", name=b"", named=b"7-0"))
