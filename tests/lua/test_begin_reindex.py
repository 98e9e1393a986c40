"""`begin_reindex`: a namespace changes its analyzer, and it stands written how far its documents are to be redone."""

from __future__ import annotations

import anyio
import pytest

from jiyi import scripts
from jiyi.errors import AnalyzerMismatchError
from jiyi.scripts import ApplyStatus

from .conftest import apply, dump, flush_scripts, packed, refused, refused_when_full, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
STATS = "stats:{default}"


async def begin(database, analyzer="f2", *, force=False, ns=NS):
    return await scripts.begin_reindex(database, ns, analyzer=analyzer, force=force)


async def fill(database, count=3):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "x") for i in range(count)])


async def test_the_analyzer_changes_and_all_numbers_so_far_are_to_be_redone(either):
    await fill(either)
    before = await dump(either, NS)
    assert await begin(either) == (0, 3)
    before[STATS.encode()][1].update({b"analyzer": b"f2", b"reindex_cursor": b"0", b"reindex_end": b"3"})
    assert await dump(either, NS) == before


async def test_events_of_the_old_analyzer_are_no_longer_applied(either):
    await fill(either)
    call = await packed(either, NS, write("m9", "9-0", "x"))
    await begin(either)
    assert await scripts.apply_events(either, *call) is ApplyStatus.ANALYZER_CHANGED
    with pytest.raises(AnalyzerMismatchError):
        await apply(either, NS, write("m9", "9-0", "x"))


async def test_calling_again_answers_the_marks_that_are_there(either):
    await fill(either)
    await begin(either)
    await either.hset(STATS, "reindex_cursor", 2)
    before = await dump(either, NS)
    assert await begin(either) == (2, 3)
    assert await begin(either, force=True) == (2, 3)  # under way: nothing is started over
    assert await dump(either, NS) == before


async def test_the_same_analyzer_has_nothing_to_do_unless_forced(either):
    await fill(either)
    before = await dump(either, NS)
    assert await begin(either, "f1") == (0, 0)
    assert await dump(either, NS) == before
    assert await begin(either, "f1", force=True) == (0, 3)
    assert await either.hmget(STATS, "analyzer", "reindex_cursor", "reindex_end") == [b"f1", b"0", b"3"]


async def test_a_third_analyzer_starts_over(either):
    await fill(either)
    await begin(either)
    await either.hset(STATS, mapping={"reindex_cursor": 2, "next_doc": 7})
    assert await begin(either, "f3") == (0, 7)
    assert await either.hmget(STATS, "analyzer", "reindex_cursor", "reindex_end") == [b"f3", b"0", b"7"]


async def test_an_unknown_namespace_has_nothing_to_do_and_stays_unknown(either):
    assert await begin(either) == (0, 0)
    assert await begin(either, force=True) == (0, 0)
    assert await dump(either, NS) == {}


async def test_the_largest_numbers_are_answered_exactly(database):
    await fill(database)
    await database.hset(STATS, "next_doc", 4_294_967_294)
    assert await begin(database) == (0, 4_294_967_294)
    assert await database.hget(STATS, "reindex_end") == b"4294967294"


async def test_many_callers_get_the_same_marks(either):
    await fill(either)
    answers = []

    async def ask():
        answers.append(await begin(either, force=True))

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(ask)
    assert answers == [(0, 3)] * 16


async def test_counters_of_the_wrong_type_stop_the_call(database):
    async with wrong_type(database, STATS):
        await refused(database, NS, lambda: begin(database), "WRONGTYPE")


@pytest.mark.parametrize("next_doc", [None, "", "x"])
async def test_a_lost_document_number_stops_the_call(database, next_doc):
    await fill(database)
    if next_doc is None:
        await database.hdel(STATS, "next_doc")
    else:
        await database.hset(STATS, "next_doc", next_doc)
    await refused(database, NS, lambda: begin(database))


async def test_a_missing_argument_stops_the_call(database):
    await fill(database)
    await refused(database, NS, lambda: scripts.call(database, "begin_reindex", [STATS], []))


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(either):
    await fill(either)
    for i in range(3):
        await flush_scripts(either)
        assert await begin(either, f"g{i}") == (0, 3)


async def test_a_full_server_refuses_the_call_as_a_whole(database):
    await fill(database)
    await refused_when_full(database, NS, lambda: begin(database))
