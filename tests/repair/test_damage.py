"""`repair`: whatever can be worked out from the stored memories is right again, the rest is left and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.changes import ODD, STREAM, build, delete, history, write

from jiyi import keys
from jiyi import repair as repair_module
from jiyi.analysis import TooManyTerms
from jiyi.check import Kind, check_namespace
from jiyi.index import IndexWriter
from jiyi.postings import DF
from jiyi.repair import repair, repair_namespace
from jiyi_api.snapshots import SnapshotReader

from . import damaged_documents, damaged_marks, damaged_terms  # noqa: F401 - they plant
from .damage import DAMAGE
from .much_damage import plant_much
from .namespaces import (
    WORDS,
    Words,
    agrees_with_a_fresh_index,
    bucket,
    doc_of,
    dumps,
    memories_of,
    memory,
    scores,
    truth,
    words_of,
)

pytestmark = pytest.mark.anyio


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


def test_modules_stay_small():
    folder = Path(repair_module.__file__).parent
    assert all(len(path.read_text().splitlines()) <= 300 for path in folder.glob("*.py"))
