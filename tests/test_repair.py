"""`repair`: whatever can be worked out from the stored memories is right again, the rest is left and named."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
import msgpack
import msgspec
import pytest
from conftest import wait_until
from redis.exceptions import ResponseError
from test_check import ODD, STREAM, Altered, build, delete, history, write

from jiyi import keys, metrics, scripts
from jiyi import repair as repair_module
from jiyi.analysis import Analyzer, TooManyTerms
from jiyi.check import Kind, check_namespace
from jiyi.errors import CorruptIndexError
from jiyi.events import parse_entry
from jiyi.index import IndexWriter
from jiyi.memories import FIELDS, Memory
from jiyi.packing import Change
from jiyi.postings import DF, JOURNAL, POSTING
from jiyi.repair import rebuild as rebuild_module
from jiyi.repair import repair, repair_namespace
from jiyi.repair import terms as terms_module
from jiyi.repair.journal import JournalRepair
from jiyi.settings import Settings
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader

pytestmark = pytest.mark.anyio


class Words:
    """Splits at spaces, as `test_check.write` does."""

    fingerprint = "f1"

    def terms(self, text):
        return dict(Counter(text.split()))


WORDS = Words()


@pytest.fixture
async def built(database):
    """A namespace with long lists (`common`, `@author:alice`), inline lists, tombstones, expiries and rewrites."""
    await build(database, "n", changes())
    return database


def changes():
    first = [
        write(f"m{i}", f"{1000 + i}-0", f"common rare{i % 7} own{i} own{i}", author="alice", importance=0.25)
        for i in range(30)
    ]
    again = [
        write(f"m{i}", f"{2000 + i}-0", f"common again rare{i}", expires_at=9_000_000_000_000, tags=("a", "b"))
        for i in range(5)
    ]
    return [*first, *again, *(delete(f"m{i}", f"{3000 + i}-0") for i in range(3, 8))]


def bucket(term, ns="n"):
    return keys.bucket_key(ns, keys.bucket_of(term))


def memory(memory_id):
    return keys.memory_key("n", memory_id)


async def doc_of(database, memory_id):
    return int(await database.hget(memory(memory_id), "doc"))


# What must hold afterwards


async def memories_of(database, ns):
    """The documents of a namespace by id, from their hashes alone."""
    prefix, found = keys.memory_key(ns, "").encode(), {}
    for key in [key async for key in database.scan_iter(count=10_000)]:
        if key.startswith(prefix) and await database.type(key) == b"hash":
            stored = await database.hgetall(key)
            if b"doc" in stored or (b"content" in stored and b"deleted_at" not in stored):
                found[key[len(prefix) :].decode()] = {name.decode(): value for name, value in stored.items()}
    return found


def words_of(documents):
    """Words to search for: the frequent ones, and some of the rare."""
    counts = Counter(word for stored in documents.values() for word in set(stored["content"].decode().split()))
    return (
        [word for word, _ in counts.most_common(15)]
        + [word for word in counts if word.startswith("own2")]
        + ["nothing"]
    )


async def scores(database, ns, reader, words, **filters):
    """Hits of each word, with their exact scores."""
    searcher, found = Searcher(database, None, reader), {}
    for word in words:
        query = SearchQuery.from_request(SearchRequest(q=word, ns=ns, limit=100, **filters), Settings())
        ranking = await searcher.rank(query, [word], 100)
        hits = (await searcher._fetch(query, ranking))[0]
        found[word] = {hit.id: hit.score for hit in hits}
        assert len(hits) == ranking.total
    return found


async def agrees_with_a_fresh_index(database, ns, *readers):
    """Searches find and score as in an index that is built anew from the memories that are there."""
    documents = await memories_of(database, ns)
    rewritten = []
    for memory_id, stored in documents.items():
        named = {name: stored[name].decode() for name in FIELDS if name in stored}
        one = Memory.from_stored(named)
        entry = stored["entry"].decode()
        rewritten.append(Change(id=memory_id, version=entry, memory=one, terms=WORDS.terms(one.content)))
    await build(database, "fresh", rewritten, batch=100)
    fresh = SnapshotReader(database, "f1", 2**20)
    for filters in ({}, {"author": ["alice"]}, {"tags": ["b"]}):
        words = ["common"] if filters else words_of(documents)
        expected = await scores(database, "fresh", fresh, words, **filters)
        assert filters or any(expected.values())
        for reader in (*readers, SnapshotReader(database, "f1", 2**20)):
            found = await scores(database, ns, reader, words, **filters)
            assert {word: hits.keys() for word, hits in found.items()} == {w: h.keys() for w, h in expected.items()}
            for word, hits in expected.items():
                assert found[word] == pytest.approx(hits, abs=1e-9)
    await database.delete(*[key async for key in database.scan_iter(match="*{fresh}*", count=10_000)])
    await database.srem(keys.NAMESPACES, "fresh")


async def dumps(database):
    return {key: await database.dump(key) for key in [key async for key in database.scan_iter(count=10_000)]}


async def truth(database, ns="n"):
    """What people have stored: content, fields and version."""
    documents = await memories_of(database, ns)
    kept = ("entry", "content", *FIELDS)
    return {
        memory_id: {name: value for name, value in stored.items() if name in kept and name != "timestamp"}
        for memory_id, stored in documents.items()
    }


# Damage. Each plants one fault; `tests/test_check.py` shows that the check finds them.

DAMAGE = {}


def damage(*found, left=()):
    """Register a kind of damage with the kinds that a check must find, and those that a repair must leave."""

    def register(function):
        DAMAGE[function.__name__] = (function, set(found), set(left))
        return function

    return register


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


@damage(Kind.LENGTH)
async def wrong_length(db):
    await db.hset(memory("m20"), "length", 99)


@damage(Kind.FORWARD_LIST, Kind.POSTING)
async def changed_forward_list(db):
    terms = msgpack.unpackb(await db.hget(memory("m20"), "terms"))
    await db.hset(memory("m20"), "terms", msgpack.packb(terms | {"own20": 9}))


@damage(Kind.FORWARD_LIST)
async def unreadable_forward_lists(db):
    for i, garbage in enumerate([b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"a": -1}), msgpack.packb({1: 1})]):
        await db.hset(memory(f"m{20 + i}"), "terms", garbage)


@damage(Kind.POSTING)
async def exchanged_term_in_a_forward_list(db):
    """The sums agree, and so would a repair that took the list's word for it."""
    terms = msgpack.unpackb(await db.hget(memory("m20"), "terms"))
    terms["own21"] = terms.pop("own20")
    await db.hset(memory("m20"), "terms", msgpack.packb(terms))


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


@damage(Kind.TOMBSTONE)
async def tombstone_without_mark(db):
    await db.zrem(keys.tombstones_key("n"), "m4")


@damage(Kind.TOMBSTONE)
async def wrong_tombstones(db):
    await db.zadd(keys.tombstones_key("n"), {"m4": 1, "m20": 5, "nobody": 5, b"\xff": 5})


@damage(Kind.TOMBSTONE)
async def cluttered_tombstone(db):
    await db.hset(memory("m4"), "content", "left over")


@damage(Kind.EXPIRY)
async def wrong_expiries(db):
    key = keys.expiries_key("n")
    await db.zrem(key, "m0")
    await db.zadd(key, {"m1": 5, "m20": 5, "m4": 5, "nobody": 5})


@damage(Kind.STRAY_KEY)
async def marks_of_another_type(db):
    for name in (keys.tombstones_key, keys.expiries_key):
        await db.delete(name("n"))
        await db.set(name("n"), "x")


@damage(Kind.NAMESPACE)
async def not_announced(db):
    await db.srem(keys.NAMESPACES, "n")


@damage(Kind.DEAD_LETTER)
async def failed_without_letter(db):
    await db.hset(keys.failed_key("n"), "m50", "5000-0 bad reason")
    await db.hset(keys.letters_key("n"), "5000-0", "6000-0")


@damage(Kind.DEAD_LETTER)
async def letters_and_their_names(db):
    """A letter without name, one named otherwise, a name without letter, a replay without event, what is no version."""
    for i in range(3):
        await scripts.dead_letter(
            db,
            "n",
            f"d{i}",
            version=f"500{i}-0",
            code="bad",
            reason="r",
            now_ms=1,
            deliveries=1,
            fields=[(b"id", b"d")],
        )
    names = {"5001-0": "7-0", "6000-0": "7-0", "6001-0": "replayed 7-0", "soon": "7-0", "6002-0": "soon"}
    await db.hdel(keys.letters_key("n"), "5000-0")
    await db.hset(keys.letters_key("n"), mapping=names)


@damage(Kind.STRAY_LETTER, left=[Kind.STRAY_LETTER])
async def letters_of_somebody_else(db):
    await db.xadd(keys.dead_key("n"), {"event": "write", "id": "m20", "content": "x"})
    await db.xadd(keys.dead_key("n"), {"entry": "5000-0", "code": "bad"})


@damage(Kind.FENCE, left=[Kind.FENCE])
async def fence_of_a_document(db):
    await db.hset(memory("m20"), "entry", "soon")
    await db.hset(memory("m20"), "length", "7")


@damage(Kind.FENCE, left=[Kind.FENCE])
async def fence_of_a_tombstone(db):
    await db.hset(memory("m4"), "entry", "")


@damage(Kind.MEMORY, left=[Kind.MEMORY])
async def memory_of_another_type(db):
    await db.delete(memory("m22"))
    await db.set(memory("m22"), "x")


@damage(Kind.MEMORY, left=[Kind.MEMORY])
async def neither_document_nor_tombstone(db):
    await db.hset(memory("stranger"), "content", "x")
    await db.hset(memory("other"), mapping={"doc": await doc_of(db, "m20"), "entry": "1-0"})


@damage(Kind.STRAY_KEY, left=[Kind.STRAY_KEY])
async def stray_keys(db):
    for key in ("foreign:{n}", "{n}", "terms:{n}:64", "terms:{n}:01", "ids:{n}:x", "journal:{n}:1", "rebuild:{n}:1"):
        await db.set(key, "1")


def test_every_kind_of_problem_is_planted():
    assert {kind for _, found, _ in DAMAGE.values() for kind in found} == set(Kind)


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_mended(built, name):
    """Also for a reader that has cached everything before."""
    plant, kinds, left = DAMAGE[name]
    reader = SnapshotReader(built, "f1", 2**20)
    await scores(built, "n", reader, words_of(await memories_of(built, "n")))
    await plant(built)
    expected = await truth(built)
    done = await repair_namespace(built, "n", WORDS, stream=STREAM)
    assert set(done.unrepaired) == left, done.report.problems
    assert done.ok is not bool(left)
    assert kinds <= set(done.repaired) | left
    assert all(problem.advice for problem in done.report.problems)
    if not left:
        assert await truth(built) == expected
        await agrees_with_a_fresh_index(built, "n", reader)
    settled = await dumps(built)
    again = await repair_namespace(built, "n", WORDS, stream=STREAM)
    assert again.unrepaired == done.unrepaired
    if not left:
        assert await dumps(built) == settled


# Beside others


class Ledger:
    """Writers that go on until told to stop; what they have applied is kept by id."""

    def __init__(self, database, ns, seed):
        self.database = database
        self.ns = ns
        self.dice = random.Random(seed)
        self.newest = {}
        self.done = anyio.Event()
        self.clock = 1_700_000_100_000
        self.applied = 0
        self.refusals = 0

    def batch(self):
        batch = []
        for i in self.dice.sample(range(60), 6):
            self.clock += 1
            version = f"{self.clock}-0"
            if self.dice.random() < 0.2:
                batch.append(delete(f"m{i}", version))
            else:
                words = self.dice.choices([*(f"w{n}" for n in range(40)), "common"], k=self.dice.randrange(1, 9))
                author = self.dice.choice(["alice", "bob"])
                batch.append(write(f"m{i}", version, " ".join(words), author=author, importance=0.5))
        return batch

    async def write(self):
        """As a worker: what is refused is tried again until it goes through."""
        writer = IndexWriter(self.database, "f1")
        while not self.done.is_set():
            batch = self.batch()
            while True:
                try:
                    await writer.apply(self.ns, batch)
                except (ResponseError, CorruptIndexError, ValueError, msgspec.MsgspecError, msgpack.UnpackException):
                    self.refusals += 1
                    await anyio.sleep(0.001)
                else:
                    break
            await anyio.sleep(0.003)  # a worker also analyses
            self.applied += len(batch)
            for change in batch:
                known = self.newest.get(change.id)
                if known is None or parse_entry(known.version) < parse_entry(change.version):
                    self.newest[change.id] = change

    async def reached(self, count):
        return self.applied > count

    async def nothing_is_lost(self):
        for change in self.newest.values():
            stored = await self.database.hgetall(keys.memory_key(self.ns, change.id))
            assert stored[b"entry"].decode() == change.version
            if change.memory is None:
                assert b"deleted_at" in stored
            else:
                assert stored[b"content"].decode() == change.memory.content


async def plant_much(db, ns, seed):
    """Damage in many parts at once that leaves all memories as they are; another choice for each seed."""
    stats, journal = keys.stats_key(ns), keys.journal_key(ns)
    documents = await memories_of(db, ns)
    ids = sorted(documents)

    async def alter(memory_id, field, value):
        """Not a memory that is deleted meanwhile: that would leave half a one."""
        script = "if redis.call('HEXISTS', KEYS[1], 'doc') == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end"
        await db.execute_command("EVAL", script, 1, keys.memory_key(ns, memory_id), field, value)

    async def replace(key):
        await db.execute_command("EVAL", "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x')", 1, key)

    async def forward_lists():
        for memory_id, garbage in zip(ids[::7], [b"", b"\xc1", msgpack.packb({"w1": 40})] * 9, strict=False):
            await alter(memory_id, "terms", garbage)

    parts = [
        forward_lists,
        lambda: alter(ids[1], "length", 3),
        lambda: alter(ids[2], "doc", documents[ids[3]]["doc"]),
        lambda: alter(ids[4], "doc", "x"),
        lambda: db.delete(stats),
        lambda: db.hset(stats, mapping={"docs": 1, "tokens": 2, "next_doc": 5}),
        lambda: db.hincrby(stats, "docs", 3),
        lambda: db.setrange(journal, 44, b"garbage" * 9),
        lambda: db.delete(journal),
        lambda: db.delete(keys.ids_key(ns, 0)),
        lambda: db.delete(*[keys.bucket_key(ns, number) for number in range(0, 64, 5)]),
        lambda: replace(keys.bucket_key(ns, keys.bucket_of("w1"))),
        lambda: db.delete(keys.index_key(ns, "common")),
        lambda: db.setrange(keys.index_key(ns, "common"), 6, b"garbage"),
        lambda: replace(keys.tombstones_key(ns)),
        lambda: db.delete(keys.tombstones_key(ns), keys.expiries_key(ns)),
    ]
    dice = random.Random(seed)
    for part in dice.sample(parts, dice.randrange(1, len(parts))):
        await part()


@pytest.mark.parametrize("seed", range(3))
async def test_repair_beside_writers(either, seed):
    """Two writers rewrite, delete and revive what is being mended. They may be refused meanwhile, nothing is lost."""
    ns = ODD
    await build(either, ns, history(seed))
    reader = SnapshotReader(either, "f1", 2**20)
    await scores(either, ns, reader, ["common", *(f"w{i}" for i in range(40))])
    ledger = Ledger(either, ns, seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(ledger.write)
        await wait_until(lambda: ledger.reached(30), "the writers are at work")
        await plant_much(either, ns, seed)
        for _ in range(3):
            before = ledger.applied
            done = await repair_namespace(either, ns, WORDS, stream=STREAM)
            if done.ok:
                break
        assert done.ok, done.report.problems
        await wait_until(lambda: ledger.reached(before + 60), "the writers go on")
        ledger.done.set()
    assert (await check_namespace(either, ns, stream=STREAM)).problems == []
    await ledger.nothing_is_lost()
    await agrees_with_a_fresh_index(either, ns, reader)


@pytest.mark.parametrize("seed", range(2))
async def test_two_repairs_at_once_do_not_harm_each_other(database, seed):
    await build(database, "n", history(seed))
    await plant_much(database, "n", seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(repair_namespace, database, "n", WORDS)
    assert (await repair_namespace(database, "n", WORDS, stream=STREAM)).ok
    await agrees_with_a_fresh_index(database, "n")
    assert await database.keys("rebuild:*") == []


class Killed(BaseException):
    """As SIGKILL: nothing that follows is done, no clean-up either."""


class Dying:
    """A database whose user dies after so many commands."""

    def __init__(self, database, commands):
        self._database = database
        self.left = commands

    async def execute_command(self, *command, **options):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return await self._database.execute_command(*command, **options)


@pytest.fixture
def in_pieces(monkeypatch):
    """Every list and journal is written piece by piece to a key beside, and few terms are mended at a time."""
    monkeypatch.setattr(rebuild_module, "PIECE_BYTES", 40)
    monkeypatch.setattr(terms_module, "_BYTES", 60)
    monkeypatch.setattr(terms_module, "_BATCH", 7)


@pytest.mark.parametrize("seed", range(2))
async def test_a_repair_that_is_killed_anywhere_is_taken_up_again(database, seed, in_pieces):
    """Each time it gets a little further; what it has left behind goes by itself."""
    await build(database, "n", history(seed, steps=200))
    await plant_much(database, "n", seed)
    expected, deaths, dice = await truth(database), 0, random.Random(seed)
    while True:
        dying = Dying(database, dice.randrange(700))
        try:
            done = await repair_namespace(dying, "n", WORDS, stream=STREAM)
        except Killed:
            deaths += 1
        else:
            break
        for key in await database.keys("rebuild:*"):
            assert 0 < await database.pttl(key) <= 600_000
        assert await truth(database) == expected
    assert deaths > 2
    assert done.ok
    assert (await check_namespace(database, "n", stream=STREAM)).problems == []
    await agrees_with_a_fresh_index(database, "n")


async def test_a_repair_that_is_cancelled_leaves_nothing_behind(database, in_pieces):
    await build(database, "n", history(1, steps=200))
    await database.delete(keys.journal_key("n"))
    with anyio.CancelScope() as scope:

        async def cancel(command, run):
            scope.cancel()
            return await run(*command)

        await repair_namespace(Altered(database, "APPEND", cancel), "n", WORDS)
    assert scope.cancelled_caught
    assert await database.keys("rebuild:*") == []
    assert (await repair_namespace(database, "n", WORDS)).ok


async def test_a_long_journal_and_long_lists_are_written_in_pieces(built, in_pieces):
    await built.delete(keys.journal_key("n"), keys.index_key("n", "common"))
    pieces = 0

    async def count(command, run):
        nonlocal pieces
        pieces += 1
        assert len(command[2]) <= 40
        return await run(*command)

    assert (await repair_namespace(Altered(built, "APPEND", count), "n", WORDS)).ok
    assert pieces > 10
    for key in (keys.journal_key("n"), keys.index_key("n", "common")):
        assert await built.pttl(key) == -1
    await agrees_with_a_fresh_index(built, "n")


async def test_a_journal_that_grows_too_fast_is_read_on(built):
    """While the new journal was written, more was appended to the old one than one step carries over."""
    await built.hset(keys.stats_key("n"), "docs", 7)
    calls = 0

    async def grow(command, run):
        nonlocal calls
        if command[1] == scripts.load("repair_journal").sha:
            calls += 1
            if calls == 1:
                first = await built.hincrby(keys.stats_key("n"), "next_doc", 2000) - 2000
                records = (
                    JOURNAL.pack(number, 1, 5, 0.5) + JOURNAL.pack(number, 0xFFFF_FFFF, 0, 0.0)
                    for number in range(first, first + 2000)
                )
                await built.append(keys.journal_key("n"), b"".join(records))
        return await run(*command)

    await scripts.repair_marks(built, "n", ())
    await scripts.call(built, "repair_journal", ["a{n}", "b{n}", "c{n}"], ["e", "", 0, 0, 0, 0])  # known by its digest
    assert (await repair_namespace(Altered(built, "EVALSHA", grow), "n", WORDS)).ok
    assert calls == 2
    await agrees_with_a_fresh_index(built, "n")


async def test_what_is_born_and_dies_while_the_journal_is_written_is_in_it(built, monkeypatch):
    """Before and after the memories are read; one round has to do, for nothing else is wrong."""
    monkeypatch.setattr(repair_module, "_ROUNDS", 1)
    writer, census, version = IndexWriter(built, "f1"), JournalRepair._census, 9_000_000

    async def change(names):
        nonlocal version
        for memory_id in names:
            version += 1
            await writer.apply("n", [write(memory_id, f"{version}-0", f"common {memory_id}")])
        await writer.apply("n", [delete(names[-1], f"{version + 1}-0")])

    async def read(repairing):
        await change(["m20", "new", "m21"])
        found = await census(repairing)
        await change(["m22", "m20", "newer", "newest", "m23"])
        return found

    monkeypatch.setattr(JournalRepair, "_census", read)
    await built.hset(keys.stats_key("n"), mapping={"docs": 7, "tokens": 1000})
    assert (await repair_namespace(built, "n", WORDS)).ok
    monkeypatch.undo()
    await agrees_with_a_fresh_index(built, "n")


async def test_a_namespace_that_is_wiped_meanwhile_is_left_to_the_next_check(built):
    await built.hset(keys.stats_key("n"), "docs", 7)
    wiped = False

    async def wipe(command, run):
        nonlocal wiped
        if not wiped:
            wiped = True
            await built.flushdb()
            await build(built, "n", history(5, steps=60))
        return await run(*command)

    assert (await repair_namespace(Altered(built, "SET", wipe), "n", WORDS)).ok
    assert wiped
    await agrees_with_a_fresh_index(built, "n")


async def test_a_list_that_workers_change_all_the_time_is_mended(built, monkeypatch):
    """Between every reading and its replacing a document with the term is born."""
    monkeypatch.setattr(repair_module, "_ROUNDS", 1)
    await built.hset(bucket("common"), "common", DF.pack(99))
    await scripts.call(built, "repair_terms", ["a{n}"], ["e"])
    writer, born = IndexWriter(built, "f1"), 0

    async def bear(command, run):
        nonlocal born
        if command[1] == scripts.load("repair_terms").sha:
            born += 1
            await writer.apply("n", [write(f"m{born}", f"{9_000_000 + born}-0", "common")])
        return await run(*command)

    assert (await repair_namespace(Altered(built, "EVALSHA", bear), "n", WORDS)).ok
    assert born == 2
    await agrees_with_a_fresh_index(built, "n")


async def test_readers_take_a_repair_for_no_wipe(built):
    """They drop what they have cached all the same, and a wipe is still one."""
    reader, wipes = SnapshotReader(built, "f1", 2**20), metrics.WIPES.labels("namespace")
    await scores(built, "n", reader, ["common"])
    before = wipes._value.get()
    await built.hset(memory("m20"), "length", 99)
    assert (await repair_namespace(built, "n", WORDS)).ok
    await agrees_with_a_fresh_index(built, "n", reader)
    assert wipes._value.get() == before
    await built.flushdb()
    await build(built, "n", changes())
    await scores(built, "n", reader, ["common"])
    assert wipes._value.get() == before + 1


# What is left alone


@pytest.mark.parametrize("ns", ["n", ODD, "名前"])
async def test_a_healthy_namespace_is_not_touched(database, ns):
    await build(database, ns, history(3))
    before = await dumps(database)
    [done] = await repair(database, WORDS)
    assert (done.ok, done.repaired, done.unrepaired, done.done, done.refused) == (True, {}, {}, {}, "")
    assert done.report.documents > 50
    assert await dumps(database) == before


async def test_only_what_is_damaged_is_mended_in_a_namespace(built):
    """A wrong df is no reason to analyse memories again, nor to make readers drop the journal."""
    journal, epoch = await built.get(keys.journal_key("n")), await built.hget(keys.stats_key("n"), "epoch")
    await built.hset(bucket("common"), "common", DF.pack(99))
    done = await repair_namespace(built, "n", WORDS)
    assert (done.repaired, done.done) == ({Kind.DF: 1}, {"terms": 1})
    await built.zrem(keys.tombstones_key("n"), "m4")
    done = await repair_namespace(built, "n", WORDS)
    assert (done.repaired, done.done) == ({Kind.TOMBSTONE: 1}, {"marks": 1})
    assert await built.get(keys.journal_key("n")) == journal
    assert await built.hget(keys.stats_key("n"), "epoch") == epoch


async def test_other_namespaces_stay_as_they_are(built):
    await build(built, "other", history(4, steps=80))
    before = {key: value for key, value in (await dumps(built)).items() if b"{other}" in key}
    await plant_much(built, "n", 3)
    assert [(one.report.namespace, one.ok) for one in await repair(built, WORDS)] == [("n", True), ("other", True)]
    assert {key: value for key, value in (await dumps(built)).items() if b"{other}" in key} == before


async def test_what_cannot_be_mended_keeps_every_byte(built):
    """And everything around it is mended all the same."""
    plants = [DAMAGE[name][0] for name in DAMAGE if DAMAGE[name][2]]
    for plant in plants:
        await plant(built)
    left = [memory("stranger"), memory("other"), memory("m22"), memory("m4"), keys.dead_key("n")]
    left += ["foreign:{n}", "{n}", "terms:{n}:64"]
    before = await dumps(built)
    await built.delete(keys.journal_key("n"), keys.ids_key("n", 0))
    await built.hset(memory("m21"), mapping={"terms": b"\xc1", "content": b"\xff\xfe"})
    done = await repair_namespace(built, "n", WORDS)
    assert not done.ok
    assert set(done.unrepaired) == {Kind.FENCE, Kind.MEMORY, Kind.STRAY_KEY, Kind.STRAY_LETTER}
    after = await dumps(built)
    assert {key: after[key.encode()] for key in left} == {key: before[key.encode()] for key in left}
    for problem in done.report.problems:
        assert "--repair once more" not in problem.advice


async def test_other_analyzers_are_refused(built):
    class Others(Words):
        fingerprint = "f2"

    await built.hset(memory("m20"), "length", 99)
    before = await dumps(built)
    done = await repair_namespace(built, "n", Others())
    assert not done.ok
    assert "jiyi reindex" in done.refused
    assert done.unrepaired == {Kind.LENGTH: 1}
    assert await dumps(built) == before


async def test_a_text_of_too_many_terms_keeps_the_terms_that_it_has(built):
    """Its forward list is taken at its word; where that is lost, nobody can mend it."""

    class Strict(Words):
        def terms(self, text):
            if "own2" in text:
                raise TooManyTerms(9, 8)
            return super().terms(text)

    await built.hdel(bucket("own20"), "own20")
    await built.hset(memory("m21"), "length", 99)
    done = await repair_namespace(built, "n", Strict())
    assert (done.ok, done.done["memories"]) == (True, 1)
    await agrees_with_a_fresh_index(built, "n")
    await built.hset(memory("m20"), "terms", b"")
    done = await repair_namespace(built, "n", Strict())
    assert set(done.unrepaired) == {Kind.MEMORY}
    assert (await repair_namespace(built, "n", WORDS)).ok
    await agrees_with_a_fresh_index(built, "n")


async def test_fields_that_were_lost_are_what_a_write_would_have_stored(built):
    stored = await built.hgetall(memory("m20"))
    await built.hset(memory("m25"), mapping={"timestamp": "5", "doc": await built.hget(memory("m25"), "doc")})
    await built.hdel(memory("m20"), "version_hash", "length", "terms", "timestamp")
    assert (await repair_namespace(built, "n", WORDS)).ok
    assert await built.hgetall(memory("m20")) == stored
    outcomes = await IndexWriter(built, "f1").apply("n", [write("m20", "99999-0", "common rare6 own20 own20",
                                                                author="alice", importance=0.25)])  # fmt: skip
    assert outcomes == ["unchanged"]


async def test_numbers_of_the_dead_are_not_given_out_again(built):
    """Their postings may lie about still. A garbled number far beyond does not use up all the others."""
    writer = IndexWriter(built, "f1")
    await writer.apply("n", [write("late", "5000-0", "common")])
    dead = await doc_of(built, "late")
    await writer.apply("n", [delete("late", "5001-0")])
    await built.hset(memory("m20"), "doc", 4_000_000_000)
    await built.hset(keys.stats_key("n"), "next_doc", 7)
    assert (await repair_namespace(built, "n", WORDS)).ok
    assert dead < await doc_of(built, "m20") < 100


async def test_a_number_that_another_memory_has_is_found(built):
    """A copy of a hash would answer for a document that is not its own."""
    await built.hset(memory("copy"), mapping=await built.hgetall(memory("m20")))
    assert (await check_namespace(built, "n")).counts == {Kind.MEMORY: 1}


async def test_what_a_repair_writes_beside_is_no_problem_unless_it_stays(built):
    await built.set(keys.rebuild_key("n", "1"), b"x", px=60_000)
    assert (await check_namespace(built, "n")).ok
    await built.persist(keys.rebuild_key("n", "1"))
    assert (await check_namespace(built, "n")).counts == {Kind.STRAY_KEY: 1}


async def test_the_command_says_what_it_did_and_exits_by_what_is_left(database, settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment |= settings.to_environment()

    def run(*options):
        command = [sys.executable, "-m", "jiyi", "check", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    analyzer = Analyzer()
    one = Memory(content="张工修好了 Redis 超时", tags=("a",))
    change = Change(id="m1", version="1-0", memory=one, terms=analyzer.terms(one.content))
    await IndexWriter(database, analyzer.fingerprint).apply("n", [change])
    await database.hset(memory("m1"), "length", 99)
    assert (await anyio.to_thread.run_sync(run, "--json"))[0] == 1
    status, printed = await anyio.to_thread.run_sync(run, "--repair", "--json")
    [found] = json.loads(printed)
    assert status == 0
    assert (found["namespace"], found["ok"], found["documents"], found["problems"]) == ("n", True, 1, [])
    assert found["repaired"]["length"] == 1
    assert (found["unrepaired"], found["refused"], found["done"]["memories"]) == ({}, "", 1)
    await database.hset(memory("m1"), "length", 99)
    await database.set("foreign:{n}", "1")
    status, printed = await anyio.to_thread.run_sync(run, "--repair")
    assert status == 1
    assert "repaired: 1 length" in printed
    assert "not repaired: 1 stray_key" in printed
    await database.delete("foreign:{n}")
    assert (await anyio.to_thread.run_sync(run, "--json"))[0] == 0


def test_modules_stay_small():
    folder = Path(repair_module.__file__).parent
    assert all(len(path.read_text().splitlines()) <= 300 for path in folder.glob("*.py"))
