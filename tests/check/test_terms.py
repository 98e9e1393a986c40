"""`check` of dictionary and postings: loud on every kind of damage."""

from __future__ import annotations

import numpy as np
import pytest

from jiyi import compaction, keys
from jiyi.check import Kind, check_namespace
from jiyi.postings import DF, POSTING
from jiyi.sealed_postings import RECORD, plain, seal, sealed_bytes

from .changes import build, write
from .findings import bucket, doc_of, kinds

pytestmark = pytest.mark.anyio


async def test_a_wrong_df_of_a_long_list(built):
    await built.hset(bucket("common"), "common", DF.pack(99))
    assert await kinds(built) == {Kind.DF}


async def test_a_wrong_df_of_an_inline_list(built):
    value = await built.hget(bucket("own20"), "own20")
    await built.hset(bucket("own20"), "own20", DF.pack(2) + value[4:])
    assert await kinds(built) == {Kind.DF}


async def test_a_df_of_zero(built):
    await built.hset(bucket("ghost"), "ghost", DF.pack(0))
    assert await kinds(built) == {Kind.DF}


@pytest.mark.parametrize("beyond", [0, 1_000])
async def test_a_generation_that_will_be_given_out_again(built, beyond):
    next_doc = int(await built.hget(keys.stats_key("n"), "next_doc"))
    await built.setrange(keys.index_key("n", "common"), 0, DF.pack(next_doc - 1))
    assert (await check_namespace(built, "n")).ok
    await built.setrange(keys.index_key("n", "common"), 0, DF.pack(next_doc + beyond))
    [problem] = (await check_namespace(built, "n")).problems
    assert (problem.kind, problem.expected) == (Kind.POSTING, f"a generation below {next_doc}")


async def test_a_dictionary_entry_that_is_too_short(built):
    await built.hset(bucket("ghost"), "ghost", b"ab")
    assert await kinds(built) == {Kind.TERM}


@pytest.mark.parametrize("memory_id", ["m20", "m0"])
async def test_an_additional_posting_of_a_live_document(built, memory_id):
    doc = await doc_of(built, memory_id)
    await built.append(keys.index_key("n", "common"), POSTING.pack(doc, 1))
    assert Kind.POSTING in await kinds(built)


async def test_a_posting_of_a_document_without_the_term(built):
    doc = await doc_of(built, "m20")
    value = await built.hget(bucket("own21"), "own21")
    await built.hset(bucket("own21"), "own21", DF.pack(2) + value[4:] + POSTING.pack(doc, 1))
    assert await kinds(built) == {Kind.POSTING}


async def test_a_dead_posting_in_an_inline_list(built):
    value = await built.hget(bucket("own21"), "own21")
    await built.hset(bucket("own21"), "own21", DF.pack(2) + value[4:] + POSTING.pack(0, 1))
    assert await kinds(built) == {Kind.POSTING}


@pytest.mark.parametrize("doc", [10_000, 0xFFFF_FFFF])
async def test_a_posting_of_a_number_that_was_never_born(built, doc):
    await built.append(keys.index_key("n", "common"), POSTING.pack(doc, 1))
    assert await kinds(built) == {Kind.POSTING}


async def test_a_missing_posting_in_a_long_list(built):
    value = await built.get(keys.index_key("n", "common"))
    doc = await doc_of(built, "m20")
    records = [value[at : at + 6] for at in range(4, len(value), 6)]
    await built.set(keys.index_key("n", "common"), value[:4] + b"".join(r for r in records if r[:4] != DF.pack(doc)))
    assert await kinds(built) == {Kind.DF, Kind.POSTING}


async def test_a_missing_dictionary_entry(built):
    await built.hdel(bucket("own20"), "own20")
    assert await kinds(built) == {Kind.TERM}


async def test_a_missing_filter_term(built):
    """The dictionary entry of a long list is gone: its key has nothing that points to it."""
    term = keys.filter_term("author", "alice")
    await built.hdel(bucket(term), term)
    assert await kinds(built) == {Kind.TERM, Kind.INDEX_KEY}


async def test_a_lost_bucket(built):
    await built.delete(bucket("own20"))
    assert Kind.TERM in await kinds(built)


@pytest.mark.parametrize("term", ["common", "own20"])
async def test_a_wrong_tf(built, term):
    key, doc = keys.index_key("n", term), await doc_of(built, "m20")
    if term == "common":
        value = await built.get(key)
        await built.set(key, value.replace(POSTING.pack(doc, 1), POSTING.pack(doc, 7)))
    else:
        value = await built.hget(bucket(term), term)
        await built.hset(bucket(term), term, value.replace(POSTING.pack(doc, 2), POSTING.pack(doc, 7)))
    assert await kinds(built) == {Kind.POSTING}


async def test_a_truncated_long_list(built):
    value = await built.get(keys.index_key("n", "common"))
    await built.set(keys.index_key("n", "common"), value[:-1])
    assert await kinds(built) == {Kind.DF, Kind.POSTING}


async def test_a_truncated_inline_list(built):
    value = await built.hget(bucket("own20"), "own20")
    await built.hset(bucket("own20"), "own20", value[:-2])
    assert Kind.POSTING in await kinds(built)


@pytest.mark.parametrize("rest", [b"", b"ab"])
async def test_a_list_without_generation(built, rest):
    await built.set(keys.index_key("n", "common"), rest)
    if not rest:
        await built.delete(keys.index_key("n", "common"))
    assert Kind.POSTING in await kinds(built)


async def test_a_long_list_of_another_type(built):
    await built.delete(keys.index_key("n", "common"))
    await built.rpush(keys.index_key("n", "common"), "x")
    assert Kind.POSTING in await kinds(built)


async def test_a_term_in_the_wrong_bucket(built):
    value = await built.hget(bucket("own20"), "own20")
    wrong = keys.bucket_key("n", (keys.bucket_of("own20") + 1) % keys.BUCKETS)
    await built.hset(wrong, "own20", value)
    assert await kinds(built) == {Kind.TERM}


async def test_a_postings_key_without_dictionary_entry(built):
    await built.set(keys.index_key("n", "ghost"), b"\0\0\0\0")
    await built.set(keys.index_key("n", "own20"), b"\0\0\0\0")
    report = await check_namespace(built, "n")
    assert report.counts == {Kind.INDEX_KEY: 2}


@pytest.fixture
async def sealed(built, monkeypatch):
    """The key of a list of which a part is sealed, with its value."""
    monkeypatch.setattr(compaction, "LEAST_OPEN", 1)
    await compaction.compact_namespace(built, "n", growth_only=True)
    await build(built, "n", [write(f"late{i}", f"{4000 + i}-0", "common") for i in range(3)])
    report = await check_namespace(built, "n")
    assert report.problems == []
    assert report.live_postings > 0
    key = keys.index_key("n", "common")
    value = await built.get(key)
    assert 0 < sealed_bytes(value[4:]) == len(value) - 4 - 3 * POSTING.size
    return key, value


async def test_any_flipped_bit_of_a_sealed_part(built, sealed):
    key, value = sealed
    for at in range(4, 4 + sealed_bytes(value[4:])):
        await built.set(key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
        assert Kind.POSTING in await kinds(built)


async def test_a_sealed_part_that_is_cut_short(built, sealed):
    key, value = sealed
    for end in (4, 8, 11, 20, sealed_bytes(value[4:]) + 3):
        await built.set(key, value[:end])
        assert Kind.POSTING in await kinds(built)


async def test_a_sealed_part_that_is_right_and_of_another_list(built, sealed):
    key, value = sealed
    docs = np.frombuffer(plain(value[4:]), RECORD)[:-3].copy()
    docs["tf"][7] += 1
    await built.set(key, value[:4] + seal([docs])[0] + value[-18:])
    assert await kinds(built) == {Kind.POSTING}
