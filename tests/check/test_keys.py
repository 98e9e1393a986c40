"""`check` of key names and announcements: what does not belong there is named."""

from __future__ import annotations

import pytest

from jiyi import keys, scripts
from jiyi.check import Kind, check, check_namespace

from .changes import ODD, build, history
from .findings import kinds

pytestmark = pytest.mark.anyio


async def test_the_stream_and_its_account_may_carry_the_tag_of_a_namespace(built):
    """`JIYI_STREAM` is free to choose."""
    for stream in ("events:{n}", "n"):
        await scripts.create_group(built, stream, "workers")
        assert (await check_namespace(built, "n", stream=stream)).ok
        await built.delete(stream, keys.processed_key(stream))


async def test_what_calls_leave_for_a_while_is_no_stray_key(built):
    await built.zadd(keys.reservations_key("n"), {"token": 1})
    await built.set(keys.confirmed_key("n"), "")
    assert (await check_namespace(built, "n")).ok


@pytest.mark.parametrize("key", ["foreign:{n}", "{n}", "terms:{n}:64", "terms:{n}:01", "ids:{n}:x", "journal:{n}:1"])
async def test_a_stray_key(either, key):
    await build(either, "n", history(5, steps=40))
    await either.set("other:{n", "1")
    await either.set("{}{n}", "1")
    assert (await check_namespace(either, "n")).ok
    await either.set(key, "1")
    assert (await check_namespace(either, "n")).counts == {Kind.STRAY_KEY: 1}


async def test_stray_keys_of_a_namespace_with_an_odd_name(either):
    """Its name is no pattern: its own keys are found, and no others."""
    await build(either, ODD, history(5, steps=40))
    tag = keys.encode_namespace(ODD)
    await either.set(f"foreign:{{{tag}}}", "1")
    await either.set(f"foreign:{{{tag.replace('[x]', 'x')}}}", "1")
    await either.set(keys.index_key(ODD, "ghost"), b"\0\0\0\0")
    assert (await check_namespace(either, ODD)).counts == {Kind.STRAY_KEY: 1, Kind.INDEX_KEY: 1}


async def test_a_fixed_key_of_another_type(built):
    for name in (keys.tombstones_key, keys.expiries_key):
        await built.delete(name("n"))
        await built.set(name("n"), "x")
        assert not (await check_namespace(built, "n")).ok


async def test_a_namespace_that_was_not_announced(built):
    await built.srem(keys.NAMESPACES, "n")
    assert await kinds(built) == {Kind.NAMESPACE}
    [report] = await check(built)
    assert set(report.counts) == {Kind.NAMESPACE}


async def test_an_announced_namespace_of_which_nothing_is_there(database):
    """It was wiped, or a crash took its counters back after the writer had seen them."""
    await database.sadd(keys.NAMESPACES, "gone")
    [report] = await check(database)
    assert report.ok


async def test_a_namespace_without_counters(built):
    await built.delete(keys.stats_key("n"))
    assert Kind.STATS in await kinds(built)
