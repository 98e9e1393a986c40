"""Faults of dictionary and postings."""

from __future__ import annotations

import numpy as np
from check.changes import build, write

from jiyi import compaction, keys
from jiyi.check import Kind
from jiyi.postings import DF, POSTING
from jiyi.sealed_postings import RECORD, seal, sealed_bytes

from .damage import damage
from .namespaces import bucket, doc_of


@damage(Kind.DF)
async def df_of_a_long_list(db):
    await db.hset(bucket("common"), "common", DF.pack(99))


@damage(Kind.DF)
async def df_of_an_inline_list(db):
    value = await db.hget(bucket("own20"), "own20")
    await db.hset(bucket("own20"), "own20", DF.pack(2) + value[4:])


@damage(Kind.DF)
async def df_of_zero(db):
    await db.hset(bucket("ghost"), "ghost", DF.pack(0))


@damage(Kind.TERM)
async def entry_too_short(db):
    await db.hset(bucket("ghost"), "ghost", b"ab")
    await db.hset(bucket("own20"), "own20", b"abc")


@damage(Kind.POSTING)
async def doubled_posting(db):
    await db.append(keys.index_key("n", "common"), POSTING.pack(await doc_of(db, "m20"), 1))


@damage(Kind.POSTING)
async def posting_without_term(db):
    value = await db.hget(bucket("own21"), "own21")
    await db.hset(bucket("own21"), "own21", DF.pack(2) + value[4:] + POSTING.pack(await doc_of(db, "m20"), 1))


@damage(Kind.POSTING)
async def dead_posting_inline(db):
    value = await db.hget(bucket("own21"), "own21")
    await db.hset(bucket("own21"), "own21", DF.pack(2) + value[4:] + POSTING.pack(0, 1))


@damage(Kind.POSTING)
async def posting_of_a_number_never_born(db):
    await db.append(keys.index_key("n", "common"), POSTING.pack(10_000, 1) + POSTING.pack(0xFFFF_FFFF, 1))


@damage(Kind.DF, Kind.POSTING)
async def missing_postings(db):
    value = await db.get(keys.index_key("n", "common"))
    records = [value[at : at + 6] for at in range(4, len(value), 6)]
    gone = DF.pack(await doc_of(db, "m20"))
    await db.set(keys.index_key("n", "common"), value[:4] + b"".join(r for r in records if r[:4] != gone))


@damage(Kind.TERM)
async def missing_entry(db):
    await db.hdel(bucket("own20"), "own20")


@damage(Kind.TERM, Kind.INDEX_KEY)
async def missing_filter_entry(db):
    term = keys.filter_term("author", "alice")
    await db.hdel(bucket(term), term)


@damage(Kind.TERM)
async def all_buckets_lost(db):
    await db.delete(*[keys.bucket_key("n", number) for number in range(keys.BUCKETS)])


@damage(Kind.TERM)
async def buckets_of_another_type(db):
    for term in ("own20", "no such term 5"):
        await db.delete(bucket(term))
        await db.rpush(bucket(term), "x")


@damage(Kind.POSTING)
async def wrong_tfs(db):
    doc = await doc_of(db, "m20")
    value = await db.get(keys.index_key("n", "common"))
    await db.set(keys.index_key("n", "common"), value.replace(POSTING.pack(doc, 1), POSTING.pack(doc, 7)))
    value = await db.hget(bucket("own20"), "own20")
    await db.hset(bucket("own20"), "own20", value.replace(POSTING.pack(doc, 2), POSTING.pack(doc, 7)))


@damage(Kind.POSTING)
async def truncated_lists(db):
    value = await db.get(keys.index_key("n", "common"))
    await db.set(keys.index_key("n", "common"), value[:-1])
    value = await db.hget(bucket("own20"), "own20")
    await db.hset(bucket("own20"), "own20", value[:-2])


@damage(Kind.POSTING)
async def list_without_generation(db):
    await db.set(keys.index_key("n", "common"), b"ab")


@damage(Kind.POSTING)
async def generation_that_is_still_to_come(db):
    next_doc = int(await db.hget(keys.stats_key("n"), "next_doc"))
    await db.setrange(keys.index_key("n", "common"), 0, DF.pack(next_doc))


@damage(Kind.POSTING)
async def generation_far_beyond_all_numbers(db):
    """Not a reason to give up all numbers below it: the list gets another one."""
    await db.setrange(keys.index_key("n", "common"), 0, DF.pack(4_000_000_000))


@damage(Kind.POSTING)
async def long_list_lost(db):
    await db.delete(keys.index_key("n", "common"))


@damage(Kind.POSTING)
async def long_list_of_another_type(db):
    await long_list_lost(db)
    await db.rpush(keys.index_key("n", "common"), "x")


@damage(Kind.TERM)
async def misplaced_terms(db):
    wrong = keys.bucket_key("n", (keys.bucket_of("own20") + 1) % keys.BUCKETS)
    await db.hset(wrong, "own20", await db.hget(bucket("own20"), "own20"))
    await db.hset(wrong, b"\xff\xfe", DF.pack(1) + POSTING.pack(1, 1))


@damage(Kind.INDEX_KEY)
async def orphaned_postings(db):
    await db.set(keys.index_key("n", "ghost"), b"\0\0\0\0")
    await db.set(keys.index_key("n", "own20"), b"\0\0\0\0")
    await db.rpush(keys.index_key("n", "other"), "of another type")


async def sealed(db):
    """The key of a list of which a part is sealed, with its value."""
    least, compaction.LEAST_OPEN = compaction.LEAST_OPEN, 1
    await compaction.compact_namespace(db, "n", growth_only=True)
    compaction.LEAST_OPEN = least
    await build(db, "n", [write(f"late{i}", f"{4000 + i}-0", "common") for i in range(3)])
    key = keys.index_key("n", "common")
    value = await db.get(key)
    assert 0 < sealed_bytes(value[4:]) == len(value) - 4 - 3 * POSTING.size
    return key, value


@damage(Kind.POSTING)
async def sealed_part_with_a_flipped_bit(db):
    key, value = await sealed(db)
    await db.set(key, value[:20] + bytes([value[20] ^ 4]) + value[21:])


@damage(Kind.POSTING)
async def sealed_part_cut_short(db):
    key, value = await sealed(db)
    await db.set(key, value[:30])


@damage(Kind.POSTING)
async def sealed_part_of_a_wrong_length(db):
    """Longer than the key, or so short that what follows is read as records."""
    key, value = await sealed(db)
    await db.set(key, value[:8] + DF.pack(2**32 - 1) + value[12:])
    filters = keys.index_key("n", keys.filter_term("author", "alice"))
    value = await db.get(filters)
    await db.set(filters, value[:8] + DF.pack(3) + value[12:])


@damage(Kind.POSTING)
async def sealed_part_without_its_mark(db):
    key, value = await sealed(db)
    await db.set(key, value[:4] + bytes(4) + value[8:])


@damage(Kind.POSTING)
async def records_taken_for_a_sealed_part(db):
    key = keys.index_key("n", "common")
    await db.setrange(key, 4, b"\xff\xff\xff\xff")


@damage(Kind.POSTING)
async def another_list_that_is_sealed_well(db):
    key, value = await sealed(db)
    [other] = seal([np.array([(doc, 1) for doc in range(0, 30, 2)], RECORD)])
    await db.set(key, value[:4] + other + value[4 + sealed_bytes(value[4:]) :])


@damage(Kind.POSTING)
async def sealed_posting_that_is_there_again(db):
    key, _ = await sealed(db)
    await db.append(key, POSTING.pack(await doc_of(db, "m20"), 1))
