"""`check`: silent on whatever history wrote, whole in what it says, and it writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from jiyi import keys
from jiyi.check import Kind, check, check_namespace
from jiyi.check import namespace as namespace_module
from jiyi.logs import id_hash
from jiyi.postings import DF

from .changes import ODD, STREAM, build, history, write
from .findings import bucket, doc_of

pytestmark = pytest.mark.anyio


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


async def test_many_problems_are_counted_and_some_are_spelt_out(database):
    await build(database, "n", history(6, steps=600, memories=400), batch=50)
    await database.delete(*[keys.bucket_key("n", b) for b in range(64)])
    journal = await database.get(keys.journal_key("n"))
    await database.set(keys.journal_key("n"), journal + journal[4:])
    report = await check_namespace(database, "n")
    assert report.counts[Kind.JOURNAL] > 400
    assert sum(problem.kind is Kind.JOURNAL for problem in report.problems) == 100


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
