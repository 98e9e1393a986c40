"""Reading the index with warm, cold, tiny and outdated caches, on one server and on a cluster: always exact."""

import random
import time

import anyio
import anyio.lowlevel
import pytest

from api.conftest import Index
from api.test_search import naive_scores
from jiyi import compaction, keys
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError, InvalidQueryError, UnavailableError
from jiyi.settings import Settings
from jiyi_api import documents, snapshots
from jiyi_api import searcher as searcher_module
from jiyi_api.columns import ColumnCache, Journal
from jiyi_api.documents import Documents
from jiyi_api.listing import Lister, ListQuery, ListRequest
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader
from jiyi_api.stored import fetch_documents

pytestmark = pytest.mark.anyio

WORDS = ["redis", "stream", "memory", "queue", "索引", "记忆", "超时", "err_conn", "v1.2", "agent"]
MANY = Settings(max_limit=5_000, max_query_bytes=100_000)


def asked(q, **fields):
    return SearchQuery.from_request(SearchRequest(q=q, **fields), MANY)


def searcher_on(database, analyzer, cache_bytes=2**20, document_bytes=2**20):
    reader = SnapshotReader(database, analyzer.fingerprint, cache_bytes)
    return Searcher(database, analyzer, reader, documents=Documents(database, document_bytes))


async def scores(searcher, q, **fields):
    result = await searcher.search(asked(q, limit=1000, **fields))
    assert len({hit.id for hit in result.hits}) == len(result.hits)
    return {hit.id: hit.score for hit in result.hits}


@pytest.fixture(params=[1, 600, 20_000, 2**24], ids=lambda size: f"cache {size} B")
def searchers(request, either, analyzer):
    """One that is used throughout with a cache of this size; the other is made for each question."""
    return searcher_on(either, analyzer, request.param), lambda: searcher_on(either, analyzer)


async def test_every_cache_gives_the_exact_scores_through_a_history(either, analyzer, searchers):
    """The same history on a server and on a cluster, with columns evicted between and during questions."""
    warm, fresh = searchers
    index, living, rng = Index(either, analyzer), {}, random.Random(7)
    for step in range(60):
        memory_id = f"m{rng.randrange(15)}"
        if rng.random() < 0.2:
            await index.delete(memory_id)
            living.pop(memory_id, None)
        else:
            living[memory_id] = " ".join(rng.choices(WORDS, k=rng.randrange(1, 9)))
            await index.write(memory_id, living[memory_id])
        question = " ".join(rng.sample(WORDS, 3))
        if step % 3 == 0 and living:
            expected = pytest.approx(naive_scores(analyzer, living, question), abs=1e-9)
            assert await scores(warm, question) == expected
            assert await scores(fresh(), question) == expected
    cache = warm._reader.cache
    assert cache.nbytes == sum(entry.nbytes for entry in cache._entries.values())
    assert cache.nbytes <= cache._limit_bytes or len(cache._entries) == 1


@pytest.mark.parametrize("cache_bytes", [1, 2**24])
async def test_an_index_that_comes_in_pieces_is_put_together(either, analyzer, monkeypatch, cache_bytes):
    """Each answer brings some bytes of each key; a cache too small for one query must not start it over for ever."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 60)
    index = Index(either, analyzer)
    contents = {f"m{i}": f"redis {WORDS[i % 3]}" for i in range(40)}
    await index.write_all(contents)
    searcher = searcher_on(either, analyzer, cache_bytes)
    for _ in range(2):
        found = await scores(searcher, "redis stream", author=[])
        assert found == {}
        expected = pytest.approx(naive_scores(analyzer, contents, "redis stream"), abs=1e-9)
        assert await scores(searcher, "redis stream") == expected


@pytest.mark.parametrize("cache_bytes", [1, 2**24])
async def test_a_sealed_index_comes_in_pieces_as_well(either, analyzer, monkeypatch, cache_bytes):
    """A sealed part is not decoded before it is whole; it is sealed anew meanwhile, too, and more is added."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 60)
    monkeypatch.setattr(compaction, "LEAST_OPEN", 1)
    index, contents = Index(either, analyzer), {}
    searcher = searcher_on(either, analyzer, cache_bytes)
    for turn in range(4):
        new = {f"m{turn}-{i}": f"redis {WORDS[i % 3]}" for i in range(60)}
        contents |= new
        await index.write_all(new)
        if turn != 2:
            await compaction.compact_namespace(either, "default", growth_only=True)
        expected = pytest.approx(naive_scores(analyzer, contents, "redis stream"), abs=1e-9)
        for _ in range(2):
            assert await scores(searcher, "redis stream") == expected


@pytest.mark.parametrize("piece_bytes", [60, 2**20])
@pytest.mark.parametrize("damage", ["flipped", "cut", "short", "generation"])
async def test_a_damaged_sealed_list_is_refused_again_and_again(database, analyzer, monkeypatch, damage, piece_bytes):
    """Never answered from what could be read of it; the other words are found."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(compaction, "LEAST_OPEN", 1)
    await Index(database, analyzer).write_all({f"m{i}": "redis" if i % 2 else "redis stream" for i in range(90)})
    await compaction.compact_namespace(database, "default", growth_only=True)
    key = keys.index_key("default", "redi")
    value = await database.get(key)
    damaged = {"flipped": value[:70] + bytes([value[70] ^ 2]) + value[71:], "cut": value[:-1], "short": value[:10],
               "generation": value[:4] + b"\xff\xff\xff\xff"}[damage]  # fmt: skip
    await database.set(key, damaged)
    searcher = searcher_on(database, analyzer)
    for _ in range(3):
        with pytest.raises(CorruptIndexError, match="jiyi check"):
            await searcher.search(asked("redis stream"))
    assert len(await scores(searcher, "stream")) == 45
    await database.set(key, value)
    assert len(await scores(searcher, "redis")) == 90


async def test_an_index_that_never_stops_growing_is_given_up(database, analyzer, monkeypatch):
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 60)
    monkeypatch.setattr(snapshots, "_ROUNDS", 3)
    await Index(database, analyzer).write_all({f"m{i}": "redis" for i in range(40)})
    with pytest.raises(UnavailableError):
        await searcher_on(database, analyzer).search(asked("redis"))


@pytest.mark.parametrize("size", [15, 40, 90])
@pytest.mark.parametrize("forgotten", ["nothing", "the journal", "the postings"])
async def test_columns_of_another_epoch_are_never_used(either, analyzer, size, forgotten):
    """Wiped and rebuilt: same generations, and a journal shorter than, as long as or longer than the one read."""
    index = Index(either, analyzer)
    searcher = searcher_on(either, analyzer)
    old = {f"old{i}": f"redis {WORDS[i % 4]} more" for i in range(40)}
    await index.write_all(old)
    assert len(await scores(searcher, "redis stream")) == 40
    cache = searcher._reader.cache
    for key in [key for key in cache._entries if {"": "the journal"}.get(key[1], "the postings") == forgotten]:
        cache.nbytes -= cache._sizes.pop(key)
        del cache._entries[key]
    await wipe(either)
    contents = {f"new{i}": f"redis {WORDS[(i + 1) % 4]}" for i in range(size)}
    await index.write_all(contents)
    for question in ("redis stream", "memory", "more"):
        expected = pytest.approx(naive_scores(analyzer, contents, question), abs=1e-9)
        assert await scores(searcher, question) == expected
    assert cache.nbytes == sum(entry.nbytes for entry in cache._entries.values())


@pytest.mark.parametrize("size", [12, 20, 50])
async def test_a_term_that_was_given_up_and_grew_anew_is_read_anew(either, analyzer, size):
    """Within one epoch: its key is deleted with its last document and comes back with another generation."""
    index, searcher = Index(either, analyzer), searcher_on(either, analyzer)
    await index.write_all({"other": "queue"} | {f"m{i}": "redis" for i in range(20)})
    assert len(await scores(searcher, "redis")) == 20
    for i in range(20):
        await index.delete(f"m{i}")
    contents = {f"n{i}": f"redis {WORDS[i % 3]}" for i in range(size)}
    await index.write_all(contents)
    expected = naive_scores(analyzer, contents | {"other": "queue"}, "redis stream")
    assert await scores(searcher, "redis stream") == pytest.approx(expected, abs=1e-9)


async def wipe(database):
    if hasattr(database, "get_primaries"):
        await database.flushall(target_nodes="primaries")
    else:
        await database.flushall()


async def test_a_namespace_that_is_gone_leaves_the_cache(database, analyzer):
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    for ns in ("one", "other"):
        await index.write_all({f"m{i}": "redis" for i in range(30)}, ns=ns)
        assert len(await scores(searcher, "redis", ns=ns)) == 30
    await database.delete(keys.stats_key("one"))
    assert await scores(searcher, "redis", ns="one") == {}
    assert {ns for ns, _ in searcher._reader.cache._entries} == {"other"}
    assert len(await scores(searcher, "redis", ns="other")) == 30


async def test_another_analyzer_is_named(database, analyzer):
    await Index(database, analyzer).write("m", "redis")
    searcher = Searcher(database, analyzer, SnapshotReader(database, "0000", 2**20))
    with pytest.raises(AnalyzerMismatchError, match="jiyi reindex") as raised:
        await searcher.search(asked("redis"))
    assert (raised.value.stored, raised.value.ours) == (analyzer.fingerprint, "0000")


async def test_a_limit_beyond_one_byte_and_a_question_of_very_many_words(either, analyzer):
    index = Index(either, analyzer)
    contents = {f"m{i:03}": f"redis w{i}" + " more" * (i % 7) for i in range(700)}
    await index.write_all(contents)
    searcher = searcher_on(either, analyzer)
    found = await scores(searcher, "redis more")
    assert found == pytest.approx(naive_scores(analyzer, contents, "redis more"), abs=1e-9)
    assert len(found) == 700
    assert len((await searcher.search(asked("redis more", limit=400))).hits) == 400
    question = " ".join(f"w{i}" for i in range(700))
    assert await scores(searcher, question) == pytest.approx(naive_scores(analyzer, contents, question), abs=1e-9)


async def test_a_question_of_more_terms_than_are_analysed_is_refused(database, analyzer):
    question = " ".join(f"w{i}" for i in range(10_001))
    with pytest.raises(InvalidQueryError, match=r"^q: "):
        await searcher_on(database, analyzer).search(asked(question))


async def test_those_who_wait_too_long_for_their_turn_are_sent_away(database, analyzer):
    reader = SnapshotReader(database, analyzer.fingerprint, 2**20, patience_s=0.05)
    searcher = Searcher(database, analyzer, reader)
    await Index(database, analyzer).write("m", "redis", ns="busy")

    async def refused():
        with anyio.fail_after(10), pytest.raises(UnavailableError, match="waiting"):
            await searcher.search(asked("redis", ns="busy"))

    async with reader.turn("busy"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused)
        assert (await searcher.search(asked("redis", ns="other"))).hits == []
    assert len((await searcher.search(asked("redis", ns="busy"))).hits) == 1
    assert not reader._turns, "a namespace that nobody asks about holds no lock"


async def test_a_memory_rewritten_while_it_is_fetched_is_searched_for_again(database, analyzer, monkeypatch):
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    await index.write_all({"m": "redis old", "n": "redis"})
    fetch, rewrites = searcher._fetch, ["redis newer", "redis newest"]

    async def rewrite_then_fetch(query, rankings):
        if rewrites:
            await index.write("m", rewrites.pop(0))
        return await fetch(query, rankings)

    monkeypatch.setattr(searcher, "_fetch", rewrite_then_fetch)
    result = await searcher.search(asked("redis old newer newest"))
    assert {hit.id: hit.content for hit in result.hits} == {"m": "redis newest", "n": "redis"}
    assert {hit.id: len(hit.matched_terms) for hit in result.hits} == {"m": 2, "n": 1}


async def test_a_memory_that_is_rewritten_without_end_is_left_out_and_nothing_else(database, analyzer, monkeypatch):
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    await index.write_all({"m": "redis", "n": "redis"})
    fetch, calls = searcher._fetch, []

    async def rewrite_then_fetch(query, rankings):
        calls.append(1)
        await index.write("m", f"redis {len(calls)}")
        return await fetch(query, rankings)

    monkeypatch.setattr(searcher, "_fetch", rewrite_then_fetch)
    result = await searcher.search(asked("redis"))
    assert [hit.id for hit in result.hits] == ["n"]
    assert len(calls) <= 5


async def test_ids_cached_in_one_epoch_are_not_those_of_the_next(database, analyzer):
    """A search that was ranked before a wipe must not name the memories that have its numbers after it."""
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer, document_bytes=0)
    await index.write_all({"old": "redis"})
    query = asked("redis")
    ranking = await searcher.rank(query, {"redi": 1.0}, 10)
    hits, _, _ = await searcher._fetch(query, [[ranking]])
    assert [hit.id for hit in hits] == ["old"]
    await database.flushall()
    await index.write_all({"new": "queue"})
    assert await scores(searcher, "queue") != {}
    hits, _, moved = await searcher._fetch(query, [[ranking]])
    assert (hits, moved) == ([], 1)


async def test_the_cache_drops_the_least_recently_used_and_counts_right():
    each = Journal("epoch").nbytes
    cache = ColumnCache(4 * each)
    for name in "abc":
        cache.keep(name, "", Journal("epoch"))
    assert cache.nbytes == 3 * each
    cache.keep("a", "", cache.journal("a"))
    cache.keep("d", "", Journal("epoch"))
    cache.keep("e", "", Journal("epoch"))
    assert [ns for ns, _ in cache._entries] == ["c", "a", "d", "e"]
    large = cache.journal("a")
    large.reach(1_000)
    cache.keep("a", "", large)
    assert list(cache._entries) == [("a", "")]
    assert cache.nbytes == large.nbytes
    cache.forget("a")
    assert (cache.nbytes, cache._entries, cache._sizes) == (0, {}, {})


async def test_documents_of_no_ids_need_no_round_trip():
    assert await fetch_documents(None, "default", []) == []


async def test_concurrent_questions_of_one_namespace_share_columns_and_stay_exact(either, analyzer):
    """Fifty questions at once while a writer is at work: each sees one instant."""
    index, searcher = Index(either, analyzer), searcher_on(either, analyzer, 5_000)
    await index.write_all({f"m{i}": "redis stream" for i in range(30)})
    done = anyio.Event()

    async def write():
        for i in range(60):
            await index.write(f"m{i % 30}", "redis queue" if i % 2 else "redis stream")
        done.set()

    async def ask(number):
        while not done.is_set():
            result = await searcher.search(asked(f"{WORDS[number % 4]} redis", limit=1000))
            assert result.index.docs == 30
            assert result.total == 30
            for hit in result.hits:
                assert hit.score == sum(part.score for part in hit.matched_terms)
                assert all(part.term in ("redi", "stream", "queue") for part in hit.matched_terms)
                assert {part.term for part in hit.matched_terms} <= set(analyzer.terms(hit.content))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for number in range(50):
            tasks.start_soon(ask, number)


async def commands(database):
    """Calls of each command so far."""
    return {
        name.removeprefix("cmdstat_"): seen["calls"] for name, seen in (await database.info("commandstats")).items()
    }


async def test_where_nothing_has_changed_one_small_question_is_all_that_is_asked(database, analyzer):
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    await index.write_all({f"m{i}": f"redis {WORDS[i % 5]}" for i in range(40)})
    for _ in range(2):
        expected = await searcher.search(asked("redis stream absent", author=None))
    await database.config_resetstat()
    again = await searcher.search(asked("redis stream absent"))
    assert await commands(database) == {"hmget": 1} | {"config|resetstat": 1}
    assert [(hit.id, hit.score) for hit in again.hits] == [(hit.id, hit.score) for hit in expected.hits]


@pytest.mark.parametrize("what", ["write", "delete", "rewrite", "other namespace"])
async def test_the_question_after_a_change_sees_it(either, analyzer, what):
    """With a warm reader, whatever it has just been told about the state of the namespace."""
    index, searcher = Index(either, analyzer), searcher_on(either, analyzer)
    contents = {f"m{i}": f"redis {WORDS[i % 5]}" for i in range(40)}
    await index.write_all(contents)
    for round_ in range(4):
        for _ in range(2):
            assert len(await scores(searcher, "redis")) == len(contents)
        name = f"m{round_}"
        if what == "write":
            contents[f"new{round_}"] = "redis news"
            await index.write(f"new{round_}", "redis news")
        elif what == "delete":
            del contents[name]
            await index.delete(name)
        elif what == "rewrite":
            contents[name] = f"redis redis {round_}"
            await index.write(name, contents[name])
        else:
            await index.write(name, "redis", ns="other")
        assert await scores(searcher, "redis") == pytest.approx(naive_scores(analyzer, contents, "redis"), abs=1e-9)


async def test_columns_that_are_read_further_while_the_question_is_sent_are_not_ranked(database, analyzer, monkeypatch):
    """Somebody else's reading may have brought postings of documents that the journal does not know yet."""
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    await index.write_all({f"m{i}": "redis stream" for i in range(20)})
    await scores(searcher, "redis stream")
    reader, ask_state, rank, ranked = searcher._reader, searcher._reader.ask_state, searcher_module.rank_snapshots, []

    def begin_to_read(known):
        ask_state(known)
        asked = ask_state(known)
        assert not asked.is_sent, "it waits for the turn to end, behind another"
        next(iter(known.terms.values())).as_of = None
        return asked

    def watch(ranker, snapshots, *rest):
        (snapshot,) = snapshots
        ranked.append({column.as_of == snapshot.changes for column in snapshot.terms.values()})
        return rank(ranker, snapshots, *rest)

    monkeypatch.setattr(reader, "ask_state", begin_to_read)
    monkeypatch.setattr(searcher_module, "rank_snapshots", watch)
    assert len(await scores(searcher, "redis stream")) == 20
    assert ranked == [{True}]


async def test_a_question_in_the_middle_of_reading_a_compacted_journal_leaves_no_trace(database, analyzer, monkeypatch):
    """Documents that have not come yet look dead; a list that stands as it was must not be kept as of dead ones."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 60)
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    contents = {f"m{i}": f"queue w{i}" for i in range(60)}
    await index.write_all(contents)
    await compaction.compact_namespace(database, "default")
    contents |= {f"n{i}": "redis" for i in range(60)}
    await index.write_all(contents)
    for i in range(30):
        await index.delete(f"n{i}")
        del contents[f"n{i}"]
    assert len(await scores(searcher, "queue")) == 60
    await compaction.compact_namespace(database, "default")
    journal = searcher._reader.cache.journal("default")
    known, whole = journal.generation, await database.strlen(keys.journal_key("default"))

    async def ask_in_the_middle():
        while journal.generation == known:
            await anyio.lowlevel.checkpoint()
        assert journal.seen < whole
        assert await scores(searcher, "queue") == expected

    expected = pytest.approx(naive_scores(analyzer, contents, "queue"), abs=1e-9)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_in_the_middle)
        await scores(searcher, "redis")
    assert await scores(searcher, "queue") == expected


async def forget_the_dead(database, searcher, ns="default"):
    """Compact the namespace, and let somebody else read its journal."""
    await compaction.compact_namespace(database, ns)
    await scores(searcher, "stream", ns=ns)


async def test_a_page_of_a_listing_is_of_one_instant(database, analyzer, monkeypatch):
    """A memory that was listed, and is rewritten before the page is full, does not stand on it twice."""
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    listed, lister = searcher._documents, Lister(searcher._reader, searcher._documents)
    await index.write("listed", "redis", timestamp="2026-05-03")
    await index.write("expired", "redis", timestamp="2026-05-02", expires_at="2020-01-01")
    fetch, pages = listed.fetch, []

    async def fetch_then_rewrite(*asked):
        fetched = await fetch(*asked)
        pages.append(asked)
        await index.write("listed", "redis again", timestamp="2026-05-03")
        await forget_the_dead(database, searcher)
        return fetched

    monkeypatch.setattr(listed, "fetch", fetch_then_rewrite)
    query = ListQuery.from_request(ListRequest(limit=2), MANY)
    page = await lister.page(query)
    assert ([memory.id for memory in page.memories], page.next, len(pages)) == (["listed"], None, 1)


async def test_equal_scores_of_several_namespaces_are_ordered_by_the_times_of_the_ranking(database, analyzer):
    """Hits that are known need not be fetched, and may have died and been forgotten since they were ranked."""
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    for ns, day in (("older", 1), ("newer", 2)):
        await index.write(ns, "redis", ns=ns, timestamp=f"2026-05-0{day}")
    query = asked("redis", namespaces=["older", "newer"])
    assert [hit.id for hit in (await searcher.search(query)).hits] == ["newer", "older"]
    tiers = searcher._tiers(query, searcher.question(query.text)[0], [])
    rankings = await searcher._rank(query.namespaces, tiers, 10)
    await index.write("newer", "redis again", ns="newer")
    await forget_the_dead(database, searcher, ns="newer")
    hits, _, _ = await searcher._fetch(query, rankings)
    assert [hit.id for hit in hits] == ["newer", "older"]


async def test_a_version_that_changes_nothing_but_the_entry_is_shown(database, analyzer):
    """The document keeps its number, and was kept by the reader under its earlier entry."""
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    first = await index.write("m", "redis")
    for _ in range(2):
        assert (await searcher.search(asked("redis"))).hits[0].entry == first
    second = await index.write("m", "redis")
    assert first != second
    assert (await searcher.search(asked("redis"))).hits[0].entry == second


async def test_memories_are_kept_within_their_limit_and_read_again(database, analyzer):
    index = Index(database, analyzer)
    contents = {f"m{i}": f"redis {'long ' * 200}{i}" for i in range(30)}
    await index.write_all(contents)
    searcher = searcher_on(database, analyzer, document_bytes=20_000)
    for _ in range(3):
        result = await searcher.search(asked("redis", limit=30))
        assert {hit.id: hit.content for hit in result.hits} == contents
        kept = searcher._documents
        assert 0 < kept.nbytes <= 20_000
        assert kept.nbytes == sum(document.size for document in kept._kept.values())


async def test_a_kept_memory_is_hidden_when_it_expires(database, analyzer, monkeypatch):
    index, searcher = Index(database, analyzer), searcher_on(database, analyzer)
    expires_ns = time.time_ns() + 3_600 * 10**9
    await index.write("m", "redis", expires_at=expires_ns // 10**6)
    for _ in range(2):
        assert [hit.id for hit in (await searcher.search(asked("redis"))).hits] == ["m"]
    assert searcher._documents.nbytes > 0, "it is kept"
    monkeypatch.setattr(documents.time, "time_ns", lambda: expires_ns)
    assert (await searcher.search(asked("redis"))).hits == []
