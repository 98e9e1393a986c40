"""`create_group`: the group begins at the beginning, and its account with it."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import (
    GROUP,
    PROCESSED,
    STREAM,
    account,
    append,
    carried_out_when_full,
    dump,
    flush_scripts,
    read,
    refused,
    wrong_type,
)

pytestmark = pytest.mark.anyio

NS = "default"


async def create(database, group=GROUP):
    return await scripts.create_group(database, STREAM, group)


async def test_a_new_group_makes_the_stream_and_an_empty_account(either):
    assert await create(either) == [1]
    assert await dump(either, NS) == {
        STREAM.encode(): ("stream", ([], [GROUP.encode()], [[]], [[]])),
        PROCESSED.encode(): (
            "hash",
            {
                b"workers:acknowledged": b"0",
                b"workers:lost": b"0",
                b"workers:before": b"0",
                b"workers:delivered": b"0-0",
            },
        ),
    }


async def test_a_new_group_reads_what_was_there_before_and_owes_nothing_for_what_was_not(either):
    """Of six entries two were removed before the group came: nobody had promised it anything."""
    await append(either, *[f"{i}-0" for i in range(1, 7)])
    await either.xdel(STREAM, "1-0", "4-0")
    assert await create(either) == [1]
    assert (await account(either))["before"] == "2"
    assert await read(either, 10) == ["2-0", "3-0", "5-0", "6-0"]
    assert (await scripts.sweep_stream(either, STREAM, GROUP))[1] == 0


async def test_a_group_that_exists_is_left_alone(either):
    await create(either)
    await append(either, "1-0", "2-0")
    await read(either, 1)
    before = await dump(either, NS)
    assert await create(either) == [0]
    assert await dump(either, NS) == before


async def test_a_group_that_somebody_else_made_is_left_alone(either):
    await append(either, "1-0")
    await either.execute_command("XGROUP", "CREATE", STREAM, GROUP, "$")
    before = await dump(either, NS)
    assert await create(either) == [0]
    assert await dump(either, NS) == before


async def test_groups_beside_each_other_have_accounts_of_their_own(either):
    await create(either)
    assert await create(either, "others") == [1]
    assert (await account(either)).keys() == (await account(either, "others")).keys()
    assert len(await either.execute_command("XINFO", "GROUPS", STREAM)) == 2


async def test_a_group_that_was_removed_is_made_again_and_says_how_far_it_had_read(either):
    """What is on the stream is read once more, and nothing of the old account is left."""
    await create(either)
    await append(either, *[f"{i}-0" for i in range(1, 6)])
    await read(either, 3)
    await scripts.acknowledge(either, STREAM, GROUP, ["1-0"])
    await scripts.sweep_stream(either, STREAM, GROUP)
    await either.execute_command("XGROUP", "DESTROY", STREAM, GROUP)
    assert await create(either) == [2, b"3-0"]
    assert await account(either) == {"acknowledged": "0", "lost": "0", "before": "1", "delivered": "0-0"}
    assert await read(either, 10) == ["2-0", "3-0", "4-0", "5-0"]
    assert (await scripts.sweep_stream(either, STREAM, GROUP))[1] == 0


async def test_a_stream_that_was_removed_is_made_again(either):
    await create(either)
    await append(either, "1-0", "2-0", "3-0")
    await read(either, 2)
    await scripts.sweep_stream(either, STREAM, GROUP)
    await either.delete(STREAM)
    assert await create(either) == [2, b"2-0"]
    assert (await account(either))["before"] == "0"
    await append(either, "4-0")
    assert await read(either, 10) == ["4-0"]
    assert (await scripts.sweep_stream(either, STREAM, GROUP))[1] == 0


async def test_a_group_that_vanished_before_the_first_sweep_is_known_to_have_existed(either):
    await create(either)
    await either.delete(STREAM)
    assert await create(either) == [2, b"0-0"]


async def test_many_callers_make_one_group(either):
    answers = []
    await append(either, "1-0")

    async def work():
        answers.append(await create(either))
        answers.extend([await create(either)])

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(work)
    assert sorted(answers) == [[0]] * 31 + [[1]]
    assert await read(either, 10) == ["1-0"]


@pytest.mark.parametrize("key", [STREAM, PROCESSED])
@pytest.mark.parametrize("there", [True, False])
async def test_a_key_of_the_wrong_type_stops_the_call_before_the_first_write(database, key, there):
    if there:
        await append(database, "1-0")
    async with wrong_type(database, key):
        await refused(database, NS, lambda: create(database), "WRONGTYPE")
    assert await create(database) == [1]


async def test_a_missing_key_or_argument_stops_the_call(database):
    await append(database, "1-0")
    for names, arguments in (([STREAM, PROCESSED], []), ([STREAM], [GROUP]), ([], [GROUP])):
        await refused(database, NS, lambda: scripts.call(database, "create_group", names, arguments))  # noqa: B023


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    for i in range(3):
        await flush_scripts(either)
        assert await create(either, f"group{i}") == [1]


@pytest.mark.parametrize("there", [True, False])
async def test_a_group_is_made_and_found_on_a_full_server(database, there):
    """A worker begins with this, and without a worker nobody applies the deletes that make room."""
    if there:
        await create(database)
    assert await carried_out_when_full(database, lambda: create(database)) == [0 if there else 1]
