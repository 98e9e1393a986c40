"""`check` of counters and journal: loud on every kind of damage."""

from __future__ import annotations

import pytest

from jiyi import keys
from jiyi.check import Kind, check_namespace
from jiyi.postings import JOURNAL

from .findings import doc_of, kinds

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("field", "value"), [("docs", 7), ("tokens", 7), ("next_doc", 7), ("forgotten", "x")])
async def test_a_wrong_counter(built, field, value):
    await built.hset(keys.stats_key("n"), field, value)
    assert await kinds(built) == {Kind.STATS}


async def test_a_document_number_that_would_be_given_out_again(built):
    """The next number has to lie above every number there is, by one at least."""
    journal = await built.get(keys.journal_key("n"))
    highest = max(record[0] for record in JOURNAL.iter_unpack(journal[4:]))
    await built.hset(keys.stats_key("n"), "next_doc", highest + 1)
    assert (await check_namespace(built, "n")).ok
    await built.hset(keys.stats_key("n"), "next_doc", highest)
    assert await kinds(built) == {Kind.STATS}


@pytest.mark.parametrize("damage", ["no number", "field", "key", "type"])
async def test_unreadable_counters(built, damage):
    key = keys.stats_key("n")
    if damage == "no number":
        await built.hset(key, "docs", "many")
    elif damage == "field":
        await built.hdel(key, "tokens")
    else:
        await built.delete(key)
    if damage == "type":
        await built.set(key, "x")
    assert Kind.STATS in await kinds(built)


async def test_a_lost_journal_record(built):
    journal = await built.get(keys.journal_key("n"))
    doc = await doc_of(built, "m20")
    records = [journal[at : at + 20] for at in range(4, len(journal), 20)]
    kept = [record for record in records if JOURNAL.unpack(record)[0] != doc]
    assert len(kept) == len(records) - 1
    await built.set(keys.journal_key("n"), journal[:4] + b"".join(kept))
    assert {Kind.JOURNAL, Kind.STATS} <= await kinds(built)


async def test_a_lost_death(built):
    journal = await built.get(keys.journal_key("n"))
    await built.set(keys.journal_key("n"), journal[:-20])
    assert {Kind.IDS, Kind.STATS} <= await kinds(built)


@pytest.mark.parametrize("record", [
    JOURNAL.pack(20, 4, 1020, 0.25),  # born again
    JOURNAL.pack(0, 0xFFFF_FFFF, 0, 0.0),  # dead again
    JOURNAL.pack(500, 0xFFFF_FFFF, 0, 0.0),  # never born
    JOURNAL.pack(600, 0xFFFF_FFFF, 0, 0.0) + JOURNAL.pack(600, 1, 0, 0.0),  # the wrong way round
    JOURNAL.pack(4_000_000_000, 1, 0, 0.0),  # absurd
    b"torn",
])  # fmt: skip
async def test_an_impossible_journal_record(built, record):
    await built.append(keys.journal_key("n"), record)
    assert Kind.JOURNAL in await kinds(built)


@pytest.mark.parametrize("values", [(3, 1020, 0.25), (4, 1021, 0.25), (4, 1020, 0.5)])
async def test_a_journal_record_that_differs_from_its_memory(built, values):
    journal = await built.get(keys.journal_key("n"))
    doc = await doc_of(built, "m20")
    good, bad = JOURNAL.pack(doc, 4, 1020, 0.25), JOURNAL.pack(doc, *values)
    assert journal.count(good) == 1
    await built.set(keys.journal_key("n"), journal.replace(good, bad))
    assert Kind.JOURNAL in await kinds(built)


@pytest.mark.parametrize("left", [b"", b"ab"])
async def test_a_lost_journal(built, left):
    await built.delete(keys.journal_key("n"))
    if left:
        await built.set(keys.journal_key("n"), left)
    assert Kind.JOURNAL in await kinds(built) or Kind.STATS in await kinds(built)
