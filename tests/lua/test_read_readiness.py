"""`read_readiness`: what is known of some memories, of one instant."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts

from .conftest import (
    NOW_MS,
    apply,
    delete,
    dump,
    flush_scripts,
    memory_limit,
    packed,
    refused,
    used_memory,
    write,
    wrong_type,
)

pytestmark = pytest.mark.anyio

NS = "default"
NOW = b"%d" % NOW_MS


async def test_every_state_of_a_memory_is_answered(either):
    changes = [
        write("live", "5-0", "x", expires_at=9_000_000_000_000),
        delete("gone", "5-1"),
        write("both", "5-2", "x"),
    ]
    await scripts.apply_events(either, *await packed(either, NS, *changes))
    await either.hset("failed:{default}", mapping={"both": "6-0 code reason", "failed": "7-0 code reason"})
    before = await dump(either, NS)
    assert await scripts.read_readiness(either, NS, ["live", "gone", "both", "failed", "unknown", "live"]) == [
        [b"5-0", NOW, None, b"9000000000000", None],
        [b"5-1", None, NOW, None, None],
        [b"5-2", NOW, None, None, b"6-0 code reason"],
        [None, None, None, None, b"7-0 code reason"],
        [None] * 5,
        [b"5-0", NOW, None, b"9000000000000", None],
    ]
    assert await dump(either, NS) == before


async def test_a_memory_of_another_namespace_is_unknown(either):
    await apply(either, "a", write("m1", "5-0", "x"))
    await scripts.dead_letter(
        either, "a", "m2", version="5-1", code="c", reason="r", now_ms=1, deliveries=1, fields=[(b"event", b"write")]
    )
    assert await scripts.read_readiness(either, "b", ["m1", "m2"]) == [[None] * 5] * 2


async def test_no_ids_give_no_answers(database):
    assert await scripts.read_readiness(database, NS, []) == []


async def test_a_mark_and_the_version_that_heals_it_are_never_seen_together(either):
    done = anyio.Event()

    async def work():
        for i in range(1, 80, 2):
            await scripts.dead_letter(
                either, NS, "m1", version=f"{i}-0", code="c", reason="r", now_ms=1, deliveries=1, fields=[]
            )
            await apply(either, NS, write("m1", f"{i + 1}-0", {"x": i}))
        done.set()

    async def watch():
        while not done.is_set():
            [[entry, _indexed, _deleted, _expires, mark]] = await scripts.read_readiness(either, NS, ["m1"])
            assert mark is None or entry is None or int(mark.split(b"-")[0]) == int(entry.split(b"-")[0]) + 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in range(8):
            tasks.start_soon(watch)


async def test_ten_thousand_memories_are_answered_at_once(either):
    await apply(either, NS, delete("m1", "5-0"))
    found = await scripts.read_readiness(either, NS, ["m1", "m2"] * 5_000)
    assert [row[0] for row in found] == [b"5-0", None] * 5_000


async def test_a_key_of_the_wrong_type_is_an_error(database):
    await apply(database, NS, write("m1", "1-0", "x"), write("m2", "1-1", "x"))
    for key in ("failed:{default}", "memory:{default}:m1", "memory:{default}:m2"):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: scripts.read_readiness(database, NS, ["m1", "m2"]), "WRONGTYPE")


async def test_a_missing_key_is_an_error(database):
    names = ["failed:{default}", "memory:{default}:m1"]
    await refused(database, NS, lambda: scripts.call(database, "read_readiness", names, ["m1", "m2"]))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await apply(either, NS, write("m1", "1-0", "x"))
    for _ in range(3):
        await flush_scripts(either)
        assert (await scripts.read_readiness(either, NS, ["m1"]))[0][0] == b"1-0"


async def test_a_full_server_still_answers(database):
    await apply(database, NS, write("m1", "1-0", "x"))
    async with memory_limit(database, await used_memory(database) - 1024):
        assert (await scripts.read_readiness(database, NS, ["m1"]))[0][0] == b"1-0"
