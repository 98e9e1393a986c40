"""What a check finds in the namespace of the fixture, and where things lie in it."""

from __future__ import annotations

from jiyi import keys
from jiyi.check import check_namespace


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
