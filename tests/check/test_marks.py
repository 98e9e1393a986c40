"""`check` of tombstones, expiries and failed marks: loud on every kind of damage."""

from __future__ import annotations

import msgpack
import pytest

from jiyi import keys, scripts
from jiyi.check import Kind, check_namespace

from .changes import STREAM
from .findings import kinds

pytestmark = pytest.mark.anyio


async def test_a_tombstone_that_is_not_in_the_sorted_set(built):
    await built.zrem(keys.tombstones_key("n"), "m4")
    assert await kinds(built) == {Kind.TOMBSTONE}


async def test_a_tombstone_with_a_wrong_score(built):
    await built.zadd(keys.tombstones_key("n"), {"m4": 1})
    assert await kinds(built) == {Kind.TOMBSTONE}


async def test_a_tombstone_with_more_fields(built):
    await built.hset(keys.memory_key("n", "m4"), "content", "left over")
    assert await kinds(built) == {Kind.TOMBSTONE}


@pytest.mark.parametrize("memory_id", ["m20", "nobody", b"\xff"])
async def test_a_mark_of_a_delete_without_tombstone(built, memory_id):
    await built.zadd(keys.tombstones_key("n"), {memory_id: 5})
    assert await kinds(built) == {Kind.TOMBSTONE}


async def test_expiries_that_disagree(built):
    key = keys.expiries_key("n")
    await built.zrem(key, "m0")
    await built.zadd(key, {"m1": 5, "m20": 5, "m4": 5, "nobody": 5})
    assert (await check_namespace(built, "n")).counts == {Kind.EXPIRY: 5}


async def test_a_failed_mark_needs_its_dead_letter_or_its_replay(built):
    await scripts.dead_letter(
        built, "n", "m50", version="5000-0", code="bad", reason="r", now_ms=1, deliveries=1, fields=[(b"event", b"x")]
    )
    assert (await check_namespace(built, "n", stream=STREAM)).ok
    await built.delete(keys.dead_key("n"), keys.letters_key("n"))
    assert await kinds(built, stream=STREAM) == {Kind.DEAD_LETTER}
    assert (await check_namespace(built, "n")).ok
    await built.xadd(STREAM, {"payload": msgpack.packb({"event": "delete", "origin": "5000-0"})})
    assert (await check_namespace(built, "n", stream=STREAM)).ok
