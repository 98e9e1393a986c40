"""`check` of memories, forward lists and ids: loud on every kind of damage."""

from __future__ import annotations

import pytest

from jiyi import keys
from jiyi.check import Kind
from jiyi.forward_lists import pack_forward_list, unpack_forward_list

from .findings import doc_of, kinds

pytestmark = pytest.mark.anyio


async def test_a_wrong_length(built):
    await built.hset(keys.memory_key("n", "m20"), "length", 99)
    assert await kinds(built) == {Kind.LENGTH}


async def test_a_changed_forward_list(built):
    terms = unpack_forward_list(await built.hget(keys.memory_key("n", "m20"), "terms"))
    await built.hset(keys.memory_key("n", "m20"), "terms", pack_forward_list(terms | {"own20": 9}))
    assert await kinds(built) == {Kind.FORWARD_LIST, Kind.POSTING}


@pytest.mark.parametrize("garbage", [b"", b"\xc1", pack_forward_list({"a": 1})[:-1], pack_forward_list({"a": -1})])
async def test_an_unreadable_forward_list(built, garbage):
    await built.hset(keys.memory_key("n", "m20"), "terms", garbage)
    assert Kind.FORWARD_LIST in await kinds(built)


async def test_a_term_exchanged_in_a_forward_list(built):
    terms = unpack_forward_list(await built.hget(keys.memory_key("n", "m20"), "terms"))
    terms["own21"] = terms.pop("own20")
    await built.hset(keys.memory_key("n", "m20"), "terms", pack_forward_list(terms))
    assert await kinds(built) == {Kind.POSTING}


async def test_a_changed_label(built):
    await built.hset(keys.memory_key("n", "m20"), "author", "bob")
    assert await kinds(built) == {Kind.POSTING, Kind.TERM}


async def test_unreadable_tags(built):
    await built.hset(keys.memory_key("n", "m20"), "tags", "[")
    assert Kind.MEMORY in await kinds(built)


async def test_a_missing_id(built):
    doc = await doc_of(built, "m20")
    await built.hdel(keys.ids_key("n", doc), doc)
    assert Kind.IDS in await kinds(built)


@pytest.mark.parametrize("field", ["0", "100", "100000", "x"])
async def test_an_additional_id(built, field):
    await built.hset(keys.ids_key("n", 1), field, "m20")
    assert await kinds(built) == {Kind.IDS}


async def test_a_block_of_ids_of_nothing(built):
    await built.hset(keys.ids_key("n", 128 * 50), 128 * 50, "m20")
    assert await kinds(built) == {Kind.IDS}


async def test_an_id_of_another_memory(built):
    doc = await doc_of(built, "m20")
    await built.hset(keys.ids_key("n", doc), doc, "m21")
    assert Kind.MEMORY in await kinds(built)


async def test_a_lost_memory(built):
    await built.delete(keys.memory_key("n", "m20"))
    assert Kind.MEMORY in await kinds(built)


async def test_a_memory_of_another_type(built):
    await built.delete(keys.memory_key("n", "m20"))
    await built.set(keys.memory_key("n", "m20"), "x")
    assert Kind.MEMORY in await kinds(built)


@pytest.mark.parametrize("fields", [{"content": "x"}, {"doc": "0", "entry": "1-0"}, {"doc": "-5"}, {"doc": "9999"}])
async def test_a_memory_that_the_index_does_not_know(built, fields):
    await built.hset(keys.memory_key("n", "stranger"), mapping=fields)
    assert await kinds(built) == {Kind.MEMORY}


@pytest.mark.parametrize("field", ["version_hash", "timestamp", "indexed_at"])
async def test_a_missing_field(built, field):
    await built.hdel(keys.memory_key("n", "m20"), field)
    assert Kind.MEMORY in await kinds(built)


@pytest.mark.parametrize("memory_id", ["m20", "m4"])
@pytest.mark.parametrize("fence", ["", "soon"])
async def test_a_fence_that_is_no_entry_id(built, memory_id, fence):
    await built.hset(keys.memory_key("n", memory_id), "entry", fence)
    assert Kind.FENCE in await kinds(built)
