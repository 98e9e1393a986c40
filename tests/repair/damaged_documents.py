"""Faults of memories, forward lists, counters, journal and ids."""

from __future__ import annotations

from jiyi import keys
from jiyi.check import Kind
from jiyi.forward_lists import pack_forward_list, unpack_forward_list
from jiyi.postings import JOURNAL

from .damage import damage
from .namespaces import doc_of, memory


@damage(Kind.LENGTH)
async def wrong_length(db):
    await db.hset(memory("m20"), "length", 99)


@damage(Kind.FORWARD_LIST, Kind.POSTING)
async def changed_forward_list(db):
    terms = unpack_forward_list(await db.hget(memory("m20"), "terms"))
    await db.hset(memory("m20"), "terms", pack_forward_list(terms | {"own20": 9}))


@damage(Kind.FORWARD_LIST)
async def unreadable_forward_lists(db):
    for i, garbage in enumerate(
        [b"", b"\xc1", b"\x81\xa1a\x01", pack_forward_list({"a": 1})[:-1], pack_forward_list({"a": -1})]
    ):
        await db.hset(memory(f"m{20 + i}"), "terms", garbage)


@damage(Kind.POSTING)
async def exchanged_term_in_a_forward_list(db):
    """The sums agree, and so would a repair that took the list's word for it."""
    terms = unpack_forward_list(await db.hget(memory("m20"), "terms"))
    terms["own21"] = terms.pop("own20")
    await db.hset(memory("m20"), "terms", pack_forward_list(terms))


@damage(Kind.POSTING, Kind.TERM)
async def changed_label(db):
    await db.hset(memory("m20"), "author", "bob")


@damage(Kind.STATS)
async def wrong_counters(db):
    await db.hset(keys.stats_key("n"), mapping={"docs": 7, "tokens": 7})


@damage(Kind.STATS)
async def next_number_too_low(db):
    await db.hset(keys.stats_key("n"), "next_doc", 7)


@damage(Kind.STATS)
async def counter_no_number(db):
    await db.hset(keys.stats_key("n"), "docs", "many")


@damage(Kind.STATS)
async def counter_lost(db):
    await db.hdel(keys.stats_key("n"), "tokens", "next_doc")


@damage(Kind.STATS)
async def forgotten_version_garbled(db):
    await db.hset(keys.stats_key("n"), "forgotten", "x")


@damage(Kind.STATS)
async def counters_lost(db):
    await db.delete(keys.stats_key("n"))


@damage(Kind.STATS)
async def counters_of_another_type(db):
    await db.delete(keys.stats_key("n"))
    await db.set(keys.stats_key("n"), "x")


@damage(Kind.JOURNAL)
async def birth_lost(db):
    journal, doc = await db.get(keys.journal_key("n")), await doc_of(db, "m20")
    records = [journal[at : at + 20] for at in range(4, len(journal), 20)]
    kept = [record for record in records if JOURNAL.unpack(record)[0] != doc]
    await db.set(keys.journal_key("n"), journal[:4] + b"".join(kept))


@damage(Kind.IDS)
async def death_lost(db):
    journal = await db.get(keys.journal_key("n"))
    await db.set(keys.journal_key("n"), journal[:-20])


@damage(Kind.JOURNAL)
async def impossible_records(db):
    await db.append(keys.journal_key("n"), b"".join([
        JOURNAL.pack(20, 4, 1020, 0.25), JOURNAL.pack(0, 0xFFFF_FFFF, 0, 0.0), JOURNAL.pack(500, 0xFFFF_FFFF, 0, 0.0),
        JOURNAL.pack(600, 0xFFFF_FFFF, 0, 0.0), JOURNAL.pack(600, 1, 0, 0.0), JOURNAL.pack(4_000_000_000, 1, 0, 0.0),
        b"torn",
    ]))  # fmt: skip


@damage(Kind.JOURNAL)
async def wrong_records(db):
    journal, doc = await db.get(keys.journal_key("n")), await doc_of(db, "m20")
    good, bad = JOURNAL.pack(doc, 4, 1020, 0.25), JOURNAL.pack(doc, 3, 1021, 0.5)
    assert journal.count(good) == 1
    await db.set(keys.journal_key("n"), journal.replace(good, bad))


@damage()
async def journal_lost(db):
    await db.delete(keys.journal_key("n"))


@damage(Kind.JOURNAL)
async def generation_of_the_journal_that_is_still_to_come(db):
    next_doc = int(await db.hget(keys.stats_key("n"), "next_doc"))
    await db.setrange(keys.journal_key("n"), 0, next_doc.to_bytes(4, "little"))


@damage()
async def journal_too_short(db):
    await db.set(keys.journal_key("n"), b"ab")


@damage()
async def journal_of_another_type(db):
    await db.delete(keys.journal_key("n"))
    await db.rpush(keys.journal_key("n"), "x")


@damage(Kind.IDS)
async def id_lost(db):
    doc = await doc_of(db, "m20")
    await db.hdel(keys.ids_key("n", doc), doc)


@damage(Kind.IDS)
async def additional_ids(db):
    for field in ("0", "100", "100000", "x", b"\xff"):
        await db.hset(keys.ids_key("n", 1), field, "m20")
    await db.hset(keys.ids_key("n", 2), "101", b"\xff")
    await db.hset(keys.ids_key("n", 128 * 50), 128 * 50, "m20")


@damage(Kind.IDS)
async def ids_of_another_type(db):
    for block in (0, 50):
        await db.delete(keys.ids_key("n", 128 * block))
        await db.rpush(keys.ids_key("n", 128 * block), "x")


@damage(Kind.MEMORY)
async def id_of_another_memory(db):
    doc = await doc_of(db, "m20")
    await db.hset(keys.ids_key("n", doc), doc, "m21")


@damage(Kind.MEMORY)
async def memory_lost(db):
    await db.delete(memory("m20"))


@damage(Kind.IDS)
async def memory_and_id_lost(db):
    doc = await doc_of(db, "m20")
    await db.delete(memory("m20"))
    await db.hdel(keys.ids_key("n", doc), doc)


@damage(Kind.MEMORY)
async def fields_lost(db):
    for memory_id, field in (("m20", "version_hash"), ("m21", "timestamp"), ("m22", "indexed_at")):
        await db.hdel(memory(memory_id), field)


@damage(Kind.MEMORY)
async def deleted_at_in_a_live_memory(db):
    await db.hset(memory("m20"), "deleted_at", 5)


@damage(Kind.MEMORY)
async def number_lost(db):
    await db.hdel(memory("m20"), "doc")


@damage(Kind.MEMORY)
async def numbers_out_of_range(db):
    for i, number in enumerate(["x", "", "-5", "007", "9999", "4294967295", "99999999999999999999"]):
        await db.hset(memory(f"m{20 + i}"), "doc", number)


@damage(Kind.MEMORY)
async def shared_number(db):
    await db.hset(memory("m21"), "doc", await doc_of(db, "m20"))


@damage(Kind.MEMORY)
async def memory_unknown_to_the_index(db):
    """Somebody copied a memory's hash: it is whole but for a number of its own."""
    stored = await db.hgetall(memory("m20"))
    await db.hset(memory("copy"), mapping=stored)
