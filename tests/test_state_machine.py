"""Any history of writes, rewrites, deletes, duplicates and reorderings ends like a fresh index of the survivors."""

from __future__ import annotations

import asyncio
from collections import Counter

import bm25s
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from jiyi import scoring
from jiyi.check import check_namespace
from jiyi.connections import connect
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.settings import Settings
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader

NS = "a{b}:*"  # a namespace that would break careless keys
IDS = st.sampled_from(["m1", "m2", "m3", "张三", "a:b"])
WORDS = ["redis", "流", "索引", "超时", "err_conn_reset", "v1.2.3"]
TOKENS = st.lists(st.sampled_from(WORDS), max_size=12)
TAGS = st.lists(st.sampled_from(["p", "q"]), unique=True, max_size=2)


def change(memory_id, version, tokens, tags):
    if tokens is None:
        return Change(id=memory_id, version=version, memory=None)
    memory = Memory(content=" ".join(tokens), tags=tuple(tags))
    return Change(
        id=memory_id, version=version, memory=memory, version_hash=memory.version_hash(), terms=dict(Counter(tokens))
    )


def naive_scores(documents, word, k1=scoring.DEFAULT_K1, b=scoring.DEFAULT_B):
    """BM25 from its definition, over the surviving documents alone."""
    lengths = {name: len(tokens) for name, tokens in documents.items()}
    avgdl = sum(lengths.values()) / len(documents) if documents else 0.0
    df = sum(word in tokens for tokens in documents.values())
    return {
        name: scoring.idf(len(documents), df) * scoring.saturation(tokens.count(word), lengths[name], avgdl, k1, b)
        for name, tokens in documents.items()
        if word in tokens
    }


class History(RuleBasedStateMachine):
    """Two writers apply changes of a few memories, in any order and any number of times."""

    changes = Bundle("changes")
    url = ""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = self.run(connect(Settings(redis_url=self.url)))
        self.run(self.database.flushdb())
        self.writers = [IndexWriter(self.database, "analyzer") for _ in range(2)]
        # One reader for the whole history: its columns grow by deltas. Another one reads everything each time.
        self.readers = [SnapshotReader(self.database, "analyzer", size) for size in (2**20, 1)]
        self.model = {}
        self.clock = 0

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def fold(self, one):
        version = tuple(map(int, one.version.split("-")))
        if version > self.model.get(one.id, ((0, 0), None))[0]:
            self.model[one.id] = (version, one)

    def apply(self, writer, batch):
        self.run(self.writers[writer].apply(NS, batch))
        for one in batch:
            self.fold(one)

    @rule(target=changes, memory_id=IDS, tokens=TOKENS, tags=TAGS)
    def written(self, memory_id, tokens, tags):
        """An event gets its version when it is accepted; when it is applied is another matter."""
        self.clock += 1
        return change(memory_id, f"{self.clock}-{self.clock % 3}", tokens, tags)

    @rule(target=changes, memory_id=IDS)
    def deleted(self, memory_id):
        self.clock += 1
        return change(memory_id, f"{self.clock}-0", None, ())

    @rule(target=changes, earlier=changes)
    def identical_rewrite(self, earlier):
        self.clock += 1
        return Change(
            id=earlier.id, version=f"{self.clock}-0", memory=earlier.memory, version_hash=earlier.version_hash,
            terms=earlier.terms,
        )  # fmt: skip

    @rule(one=consumes(changes), writer=st.integers(0, 1))
    def apply_once(self, one, writer):
        self.apply(writer, [one])

    @rule(one=changes, writer=st.integers(0, 1))
    def apply_and_maybe_again_later(self, one, writer):
        self.apply(writer, [one])

    @rule(batch=st.lists(changes, min_size=1, max_size=8), writer=st.integers(0, 1))
    def apply_batch(self, batch, writer):
        self.apply(writer, batch)

    @rule(left=st.lists(changes, max_size=4), right=st.lists(changes, max_size=4))
    def apply_two_batches_at_once(self, left, right):
        async def both():
            await asyncio.gather(self.writers[0].apply(NS, left), self.writers[1].apply(NS, right))

        self.run(both())
        for one in left + right:
            self.fold(one)

    @invariant()
    def scores_are_those_of_the_survivors(self):
        documents = {one.id: one.memory.content.split() for _, one in self.model.values() if one.memory is not None}
        for reader in self.readers:
            searcher = Searcher(self.database, None, reader)
            for word in WORDS:
                query = SearchQuery.from_request(SearchRequest(q=word, ns=NS, limit=100), Settings())
                ranking = self.run(searcher.rank(query, {word: 1.0}, 100))
                hits, _, _ = self.run(searcher._fetch(query, [[ranking]]))
                assert {hit.id: hit.score for hit in hits} == pytest.approx(naive_scores(documents, word), abs=1e-9)
        assert {name: one.version for name, (_, one) in self.model.items()} == self.run(self.fences())

    @invariant()
    def filters_find_what_carries_the_tag(self):
        searcher = Searcher(self.database, None, self.readers[0])
        request = SearchRequest(q="redis", ns=NS, limit=100, tags=["p"])
        query = SearchQuery.from_request(request, Settings())
        ranking = self.run(searcher.rank(query, {"redis": 1.0}, 100))
        hits, _, _ = self.run(searcher._fetch(query, [[ranking]]))
        expected = {
            one.id
            for _, one in self.model.values()
            if one.memory is not None and "p" in one.memory.tags and "redis" in one.memory.content.split()
        }
        assert {hit.id for hit in hits} == expected

    async def fences(self):
        found = {}
        async for key in self.database.scan_iter(match="memory:*"):
            found[key.decode().split("}:", 1)[1]] = (await self.database.hget(key, "entry")).decode()
        return found

    def teardown(self):
        try:
            report = self.run(check_namespace(self.database, NS)) if self.model else None
            assert report is None or report.ok, report.problems
            self.agree_with_bm25s()
        finally:
            self.run(self.database.aclose())
            self.loop.close()

    def agree_with_bm25s(self):
        """The same survivors in an independent implementation (float32)."""
        survivors = [one for _, one in self.model.values() if one.memory is not None and one.memory.content]
        empty = [one for _, one in self.model.values() if one.memory is not None and not one.memory.content]
        if not survivors or empty:  # bm25s has no empty documents
            return
        peer = bm25s.BM25(k1=scoring.DEFAULT_K1, b=scoring.DEFAULT_B, method="lucene")
        peer.index([one.memory.content.split() for one in survivors], show_progress=False)
        searcher = Searcher(self.database, None, self.readers[0])
        for word in {word for one in survivors for word in one.memory.content.split()}:
            query = SearchQuery.from_request(SearchRequest(q=word, ns=NS, limit=100), Settings())
            ranking = self.run(searcher.rank(query, {word: 1.0}, 100))
            hits, _, _ = self.run(searcher._fetch(query, [[ranking]]))
            # bm25s leaves out the constant factor k1 + 1, as Lucene does.
            theirs = peer.get_scores([word]) * (scoring.DEFAULT_K1 + 1.0)
            expected = {one.id: score for one, score in zip(survivors, theirs.tolist(), strict=True) if score}
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)


def test_any_history_ends_like_a_fresh_index_of_the_survivors(redis_url):
    History.url = redis_url
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
