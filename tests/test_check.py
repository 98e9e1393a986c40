"""`check`: silent on whatever history wrote, loud on every kind of damage, and right while others write."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import anyio.lowlevel
import msgpack
import pytest

from jiyi import dead_letters, keys, scripts
from jiyi.check import Kind, check, check_namespace
from jiyi.check import namespace as namespace_module
from jiyi.index import IndexWriter
from jiyi.logs import id_hash
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.postings import DF, JOURNAL, POSTING

pytestmark = pytest.mark.anyio

ODD = "a{b}:*[x]\\ ?"
STREAM = "stream:memory:write"


def write(memory_id, version, text, **fields):
    """A write whose terms are the words of its text."""
    memory = Memory(content=text, **fields)
    terms = {}
    for word in text.split():
        terms[word] = terms.get(word, 0) + 1
    return Change(id=memory_id, version=version, memory=memory, version_hash=memory.version_hash(), terms=terms)


def delete(memory_id, version):
    return Change(id=memory_id, version=version, memory=None)


def history(seed, steps=400, memories=90):
    """Writes, rewrites, unchanged rewrites and deletes, old versions among them."""
    dice = random.Random(seed)
    words = [f"w{i}" for i in range(60)] + ["共同", "索引", "common"]
    last = {}
    for step in range(1, steps + 1):
        memory_id = f"m{dice.randrange(memories)}"
        version = f"{1_700_000_000_000 + step * dice.choice((1, 1, 1, 0))}-{step}"
        roll = dice.random()
        if roll < 0.15:
            yield delete(memory_id, version)
        elif roll < 0.25 and memory_id in last:
            text, fields = last[memory_id]
            yield write(memory_id, version, text, **fields)
        else:
            text = "common " + " ".join(dice.choices(words, k=dice.randrange(0, 25)))
            fields = {
                "author": dice.choice(("alice", "bob", "李雷", None)),
                "tags": tuple(dict.fromkeys(dice.choices(("a", "b", "c:d", "é", "@x"), k=2))),
                "timestamp": dice.choice((None, 5, -7, 1_700_000_000_000)),
                "importance": dice.choice((None, 0.1, 1.0)),
                "expires_at": dice.choice((None, 9_000_000_000_000)),
            }
            last[memory_id] = text, fields
            yield write(memory_id, version, text, **fields)


async def build(database, ns, changes, batch=20):
    writer = IndexWriter(database, "f1")
    changes = list(changes)
    for at in range(0, len(changes), batch):
        await writer.apply(ns, changes[at : at + batch])


@pytest.fixture
async def built(database):
    """A namespace with a long list (`common`, `@author:alice`), inline lists, tombstones, expiries and rewrites."""
    changes = [
        write(f"m{i}", f"{1000 + i}-0", f"common rare{i % 7} own{i} own{i}", author="alice", importance=0.25)
        for i in range(30)
    ]
    changes += [
        write(f"m{i}", f"{2000 + i}-0", f"common again rare{i}", expires_at=9_000_000_000_000) for i in range(5)
    ]
    changes += [delete(f"m{i}", f"{3000 + i}-0") for i in range(3, 8)]
    await build(database, "n", changes)
    assert (await check_namespace(database, "n")).problems == []
    return database


async def kinds(database, ns="n", **options):
    """Kinds of all problems; each problem is complete and names no content."""
    report = await check_namespace(database, ns, **options)
    assert not report.ok
    assert sum(report.counts.values()) >= len(report.problems) > 0
    for problem in report.problems:
        assert problem.advice
        for secret in ("common", "rare", "own20", "alice", "m20"):
            assert secret not in f"{problem.where} {problem.expected} {problem.found}"
    return set(report.counts)


async def doc_of(database, memory_id, ns="n"):
    return int(await database.hget(keys.memory_key(ns, memory_id), "doc"))


def bucket(term):
    return keys.bucket_key("n", keys.bucket_of(term))


@pytest.mark.parametrize("ns", ["n", ODD, "名前", "a%7Bb"])
async def test_any_history_is_without_problems(either, ns):
    await build(either, ns, history(1))
    await build(either, "neighbour", history(2, steps=50))
    report = await check_namespace(either, ns, stream=STREAM)
    assert report.problems == []
    assert report.ok
    assert report.documents > 50
    assert report.terms > 60
    assert report.dead_postings > 0
    assert report.live_postings > report.documents
    assert report.seconds > 0
    counters = await either.hgetall(keys.stats_key(ns))
    assert (report.documents, report.tokens) == (int(counters[b"docs"]), int(counters[b"tokens"]))


async def test_all_namespaces_are_checked_by_default(either):
    for i in range(3):
        await build(either, f"n{i}", history(i, steps=60))
    await either.set("unrelated", "1")
    reports = await check(either)
    assert [report.namespace for report in reports] == ["n0", "n1", "n2"]
    assert all(report.ok for report in reports)
    await either.set("foreign:{n1}", "1")
    assert [report.ok for report in await check(either)] == [True, False, True]
    assert [report.ok for report in await check(either, ["n0", "n2", "n0"])] == [True, True]


async def test_an_unknown_namespace_is_empty_and_fine(either):
    report = await check_namespace(either, "nobody")
    assert (report.ok, report.documents) == (True, 0)
    assert await check(either) == []


async def test_a_large_namespace_is_read_in_parts_with_the_same_result(database, monkeypatch):
    await build(database, "n", history(3))
    whole = await check_namespace(database, "n")
    monkeypatch.setattr(namespace_module, "POSTINGS_AT_ONCE", 300)
    phases = {}
    parts = await check_namespace(
        database, "n", on_progress=lambda done, total, phase: phases.__setitem__(phase, (done, total))
    )
    assert len(phases) > 4
    assert all(done == total for done, total in phases.values())
    for name in ("problems", "documents", "tokens", "terms", "live_postings", "dead_postings", "index_bytes"):
        assert getattr(parts, name) == getattr(whole, name)
    await database.hset(bucket("common"), "common", DF.pack(1))
    assert (await check_namespace(database, "n")).counts == {Kind.DF: 1}


async def test_many_terms_in_one_bucket_are_read_page_by_page(database):
    """A bucket beyond its compact encoding takes several HSCANs; one list is longer than one read of many."""
    changes = [write(f"m{i}", f"{i + 1}-0", " ".join(f"t{i}x{j}" for j in range(400))) for i in range(260)]
    await build(database, "n", changes)
    report = await check_namespace(database, "n")
    assert report.problems == []
    assert report.terms == 260 * 400


# Damage


async def test_a_problem_names_its_place(built):
    """By bucket, by document number, and by the hashes that stand in log lines."""
    doc = await doc_of(built, "m20")
    await built.hset(bucket("common"), "common", DF.pack(99))
    await built.hset(keys.memory_key("n", "m20"), "length", 99)
    report = await check_namespace(built, "n")
    places = {problem.kind: (problem.where, problem.expected, problem.found) for problem in report.problems}
    assert places == {
        Kind.DF: (f"{bucket('common')} #{id_hash('n', 'common')}", "25", "99"),
        Kind.LENGTH: (f"doc {doc} #{id_hash('n', 'm20')}", "4 tokens, as the forward list says", "99"),
    }


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


async def test_a_wrong_length(built):
    await built.hset(keys.memory_key("n", "m20"), "length", 99)
    assert await kinds(built) == {Kind.LENGTH}


async def test_a_changed_forward_list(built):
    terms = msgpack.unpackb(await built.hget(keys.memory_key("n", "m20"), "terms"))
    await built.hset(keys.memory_key("n", "m20"), "terms", msgpack.packb(terms | {"own20": 9}))
    assert await kinds(built) == {Kind.FORWARD_LIST, Kind.POSTING}


@pytest.mark.parametrize("garbage", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"a": -1}), msgpack.packb({1: 1})])
async def test_an_unreadable_forward_list(built, garbage):
    await built.hset(keys.memory_key("n", "m20"), "terms", garbage)
    assert Kind.FORWARD_LIST in await kinds(built)


async def test_a_term_exchanged_in_a_forward_list(built):
    terms = msgpack.unpackb(await built.hget(keys.memory_key("n", "m20"), "terms"))
    terms["own21"] = terms.pop("own20")
    await built.hset(keys.memory_key("n", "m20"), "terms", msgpack.packb(terms))
    assert await kinds(built) == {Kind.POSTING}


async def test_a_changed_label(built):
    await built.hset(keys.memory_key("n", "m20"), "author", "bob")
    assert await kinds(built) == {Kind.POSTING, Kind.TERM}


async def test_unreadable_tags(built):
    await built.hset(keys.memory_key("n", "m20"), "tags", "[")
    assert Kind.MEMORY in await kinds(built)


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


async def file(database, version, memory_id="m50"):
    """File a dead letter; gives it."""
    await scripts.dead_letter(
        database, "n", memory_id, version=version, code="bad", reason="r", now_ms=1, deliveries=1,
        fields=[(b"event", b"write"), (b"id", memory_id.encode())],
    )  # fmt: skip
    return [letter async for letter in dead_letters.letters(database, "n")][-1]


async def test_letters_and_their_names_agree_in_every_state_of_a_replay(built):
    letter = await file(built, "5000-0")
    again = await file(built, "5001-0")
    names = keys.letters_key("n")

    async def fits():
        return (await check_namespace(built, "n", stream=STREAM)).problems == []

    assert await fits()
    await scripts.begin_replay(built, "n", letter.letter, letter.entry)
    assert await fits()
    entry = await dead_letters.replay(built, STREAM, letter)
    assert (await built.hget(names, "5000-0")).startswith(b"replayed")
    assert await fits()
    await scripts.settle_replay(built, "n", "m50", "5000-0")
    assert await fits()
    await built.xdel(STREAM, entry)
    assert await fits()
    await dead_letters.drop(built, again)
    assert await fits()


@pytest.mark.parametrize("name", [None, "7-0", "replayed 7-0", "soon", ""])
async def test_a_letter_that_its_version_does_not_name(built, name):
    """With a name that leads elsewhere there is something wrong with that as well."""
    await file(built, "5001-0", "m51")
    letter = await file(built, "5000-0")
    await built.hdel(keys.letters_key("n"), "5000-0")
    if name is not None:
        await built.hset(keys.letters_key("n"), "5000-0", name)
    report = await check_namespace(built, "n", stream=STREAM)
    assert set(report.counts) == {Kind.DEAD_LETTER}
    assert report.problems[0].where == "letters:{n} 5000-0"
    assert report.problems[0].found == ("another letter" if name else "none")
    await built.hset(keys.letters_key("n"), "5000-0", letter.letter)
    assert (await check_namespace(built, "n", stream=STREAM)).ok


async def test_a_letter_that_another_letters_version_names(built):
    first, second = await file(built, "5000-0"), await file(built, "5001-0", "m51")
    await built.hset(keys.letters_key("n"), mapping={"5000-0": second.letter, "5001-0": first.letter})
    assert (await check_namespace(built, "n")).counts == {Kind.DEAD_LETTER: 2}


async def test_a_name_without_its_letter(built):
    letter = await file(built, "5000-0")
    await built.xdel(keys.dead_key("n"), letter.letter)
    assert await kinds(built) == {Kind.DEAD_LETTER}


async def test_a_replay_whose_event_is_nowhere(built):
    """Its version would keep every later tombstone for ever. Without the stream nobody can tell."""
    await file(built, "5000-0")
    await built.hset(keys.letters_key("n"), "4000-0", "replayed 7-0")
    assert await kinds(built, stream=STREAM) == {Kind.DEAD_LETTER}
    assert (await check_namespace(built, "n")).ok
    await built.xadd(STREAM, {"event": "write", "id": "m50", "origin": "4000-0"})
    assert (await check_namespace(built, "n", stream=STREAM)).ok


@pytest.mark.parametrize(
    ("version", "name"), [("soon", "7-0"), ("", "7-0"), ("5000-0", "replayed x"), (b"\xff", b"\xff")]
)
async def test_a_name_that_is_none(built, version, name):
    await built.hset(keys.letters_key("n"), version, name)
    assert await kinds(built) == {Kind.DEAD_LETTER}


@pytest.mark.parametrize("fields", [{"x": "y"}, {"entry": "5000-0"}, {"entry": "5000-0", "code": "bad", "fields": "x"}])
async def test_what_no_worker_has_filed_is_named(built, fields):
    await file(built, "5000-0")
    letter = await built.xadd(keys.dead_key("n"), fields)
    report = await check_namespace(built, "n", stream=STREAM)
    assert report.counts == {Kind.STRAY_LETTER: 1}
    assert report.problems[0].where == f"dead:{{n}} {letter.decode()}"
    await dead_letters.drop(built, await dead_letters.find(built, "n", letter.decode()))
    assert (await check_namespace(built, "n", stream=STREAM)).ok


async def test_what_no_worker_has_filed_and_is_gone_before_it_is_judged_is_no_problem(built):
    letter = await built.xadd(keys.dead_key("n"), {"x": "y"})

    async def go(command, run):
        answer = await run(*command)
        if command[1] == keys.dead_key("n"):
            await built.xdel(keys.dead_key("n"), letter)
        return answer

    assert (await check_namespace(Altered(built, "XRANGE", go), "n", stream=STREAM)).problems == []


@pytest.mark.parametrize("name", [keys.letters_key, keys.dead_key])
async def test_letters_of_another_type(built, name):
    await built.set(name("n"), "x")
    assert await kinds(built) == {Kind.STRAY_KEY}


async def test_a_letter_that_comes_and_is_replayed_while_letters_are_read(built):
    """Its name was not there when names were read, and is that of a replay when it is looked at again."""

    async def come(command, run):
        answer = await run(*command)
        if command[1] == keys.letters_key("n"):
            letter = await file(built, "5000-0")
            await scripts.begin_replay(built, "n", letter.letter, letter.entry)
        return answer

    assert (await check_namespace(Altered(built, "HSCAN", come), "n", stream=STREAM)).problems == []
    assert (await built.hget(keys.letters_key("n"), "5000-0")).startswith(b"replayed")


async def test_a_replay_that_is_processed_while_the_stream_is_read(built):
    """Its event is off the stream before it is met, and its name is gone by then as well."""
    letter = await file(built, "5000-0")
    entry = await dead_letters.replay(built, STREAM, letter)

    async def process(command, run):
        if command[1] == STREAM:
            await scripts.settle_replay(built, "n", "m50", "5000-0")
            await built.xdel(STREAM, entry)
        return await run(*command)

    await built.hdel(keys.failed_key("n"), "m50")  # the mark alone would have the stream read as well
    assert (await check_namespace(Altered(built, "XRANGE", process), "n", stream=STREAM)).problems == []
    assert await built.exists(keys.letters_key("n")) == 0


async def test_no_false_problem_beside_letters_that_come_and_go(either):
    """Checks while letters are filed, replayed, processed, filed again and dropped."""
    await build(either, "n", history(7, steps=40))
    done = anyio.Event()
    lives = 0

    async def live(number):
        nonlocal lives
        dice, step = random.Random(number), 0
        while not done.is_set():
            step += 1
            version, memory_id = f"{1_800_000_000_000 + step}-{number}", f"d{number}"
            await file(either, version, memory_id)
            letter = next(one for one in await listed() if one.entry == version)
            if dice.random() < 0.2:
                await dead_letters.drop(either, letter)
                continue
            if dice.random() < 0.3:
                await scripts.begin_replay(either, "n", letter.letter, version)  # and breaks off
            entry = await dead_letters.replay(either, STREAM, letter)
            if dice.random() < 0.3:
                await file(either, version, memory_id)
                letter = next(one for one in await listed() if one.entry == version)
                await dead_letters.drop(either, letter)
            else:
                await scripts.settle_replay(either, "n", memory_id, version)
            await either.xdel(STREAM, entry)
            lives += 1

    async def listed():
        return [letter async for letter in dead_letters.letters(either, "n")]

    reports = []
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(live, number)
        for _ in range(8):
            before = lives
            reports.append(await check_namespace(either, "n", stream=STREAM))
            assert lives > before
        done.set()
    assert [problem for report in reports for problem in report.problems] == []


async def test_the_stream_and_its_account_may_carry_the_tag_of_a_namespace(built):
    """`JIYI_STREAM` is free to choose."""
    for stream in ("events:{n}", "n"):
        await scripts.create_group(built, stream, "workers")
        assert (await check_namespace(built, "n", stream=stream)).ok
        await built.delete(stream, keys.processed_key(stream))


async def test_reservations_are_no_stray_key(built):
    await built.zadd(keys.reservations_key("n"), {"token": 1})
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


async def test_many_problems_are_counted_and_some_are_spelt_out(database):
    await build(database, "n", history(6, steps=600, memories=400), batch=50)
    await database.delete(*[keys.bucket_key("n", b) for b in range(64)])
    journal = await database.get(keys.journal_key("n"))
    await database.set(keys.journal_key("n"), journal + journal[4:])
    report = await check_namespace(database, "n")
    assert report.counts[Kind.JOURNAL] > 400
    assert sum(problem.kind is Kind.JOURNAL for problem in report.problems) == 100


# Beside writers


class Altered:
    """A database at which `alter(command, run)` answers in place of some commands."""

    def __init__(self, database, name, alter):
        self._database = database
        self._name = name
        self._alter = alter

    async def execute_command(self, *command, **options):
        if command[0] == self._name:
            return await self._alter(command, self._database.execute_command)
        return await self._database.execute_command(*command, **options)


async def test_a_page_that_comes_twice_counts_once(built):
    """HSCAN promises every field at least once."""

    async def twice(command, run):
        name, key, cursor, *rest = command
        answer = await run(name, key, 0, *rest)
        return (7, answer[1]) if cursor == 0 else answer

    once = await check_namespace(built, "n")
    found = await check_namespace(Altered(built, "HSCAN", twice), "n")
    found.seconds = once.seconds
    assert found == once


async def test_a_term_that_leaves_while_its_key_is_judged(built):
    """Its postings key was there before the dictionary was read, and is gone with the entry: nothing is wrong."""
    await built.set(keys.index_key("n", "ghost"), b"\0\0\0\0")

    async def leave(command, run):
        await run("DEL", keys.index_key("n", "ghost"))
        return await run(*command)

    assert (await check_namespace(Altered(built, "HGET", leave), "n")).problems == []


async def test_no_false_problem_beside_writers(either):
    """Checks while three writers rewrite, delete and revive the same memories, and tombstones are dropped."""
    await build(either, "n", history(7))
    done = anyio.Event()
    applied = 0

    async def keep_writing(number):
        nonlocal applied
        writer, step = IndexWriter(either, "f1"), 0
        while not done.is_set():
            step += 1
            await anyio.lowlevel.checkpoint()
            changes = list(history(f"{number} {step}", steps=12, memories=120))
            for i, change in enumerate(changes):
                change.version = f"{1_700_000_100_000 + step}-{number * 100 + i}"
            await writer.apply("n", changes)
            applied += len(changes)
            if step % 5 == 0:
                ids = [f"m{i}" for i in range(0, 120, number + 1)]
                await scripts.drop_tombstones(either, "n", ids, floor="1800000000000-0")

    reports = []
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(keep_writing, number)
        for _ in range(4):
            before = applied
            reports.append(await check_namespace(either, "n", stream=STREAM))
            assert applied > before
        reports += await check(either)
        done.set()
    assert [problem for report in reports for problem in report.problems] == []


async def test_a_problem_is_found_beside_writers(database):
    """Damage of a document that stands still is reported at once, whatever moves around it."""
    await build(database, "n", history(8))
    await build(database, "n", [write("still", "1800000000000-0", "common alone")])
    doc = await doc_of(database, "still")
    value = await database.hget(bucket("alone"), "alone")
    await database.hset(bucket("alone"), "alone", value.replace(POSTING.pack(doc, 1), POSTING.pack(doc, 3)))
    async with anyio.create_task_group() as tasks:

        async def keep_writing():
            writer = IndexWriter(database, "f1")
            for step in range(100_000):
                await anyio.lowlevel.checkpoint()
                await writer.apply("n", [write(f"m{step % 90}", f"{1_700_000_100_000 + step}-0", f"common v{step}")])

        tasks.start_soon(keep_writing)
        for _ in range(5):
            assert (await check_namespace(database, "n")).counts == {Kind.POSTING: 1}
        tasks.cancel_scope.cancel()


async def test_a_namespace_wiped_meanwhile_is_checked_anew(database):
    await build(database, "n", history(9))
    wiped = False

    async def wipe():
        await database.flushdb()
        await build(database, "n", history(10, steps=100))

    async with anyio.create_task_group() as tasks:

        def on_progress(_done, _total, phase):
            nonlocal wiped
            if phase == "terms" and not wiped:
                wiped = True
                tasks.start_soon(wipe)

        report = await check_namespace(database, "n", on_progress=on_progress)
    assert wiped
    assert report.problems == []


async def contents(database):
    """Everything stored, by value: DUMP would also show the order in which a hash happens to lie."""
    read = {
        b"hash": database.hgetall,
        b"string": database.get,
        b"set": database.smembers,
        b"zset": lambda key: database.zrange(key, 0, -1, withscores=True),
        b"stream": lambda key: database.execute_command("XRANGE", key, "-", "+"),
    }
    return {key: await read[await database.type(key)](key) for key in await database.keys("*")}


async def test_nothing_is_written(database):
    await build(database, "n", history(11))
    before = await contents(database)
    await check(database)
    assert await contents(database) == before


def test_modules_stay_small():
    folder = Path(namespace_module.__file__).parent
    assert all(len(path.read_text().splitlines()) <= 300 for path in folder.glob("*.py"))
