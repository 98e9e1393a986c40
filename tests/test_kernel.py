"""The scoring kernel and the ranking built on it, against a naive model and the numbers of the specification."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jiyi.errors import CorruptIndexError
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change
from jiyi.postings import DEATH, JOURNAL, POSTING
from jiyi.scoring import average_length, idf, saturation
from jiyi.settings import Settings
from jiyi_api import kernel
from jiyi_api.columns import Journal, Postings, inline_postings
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import Snapshot, SnapshotReader, Term

DEAD = None

NOW_MS = 10**12


def query(**given_fields):
    return SearchQuery.from_request(SearchRequest(q="x", **given_fields), Settings())


@st.composite
def indexes(draw):
    """A namespace as plain values: (length or dead, created, importance) per number, postings per term."""
    size = draw(st.integers(1, 14))
    numbers = range(size)
    living = draw(st.lists(st.sampled_from([DEAD, 0, 1, 2, 2, 3, 50]), min_size=size, max_size=size))
    created = draw(st.lists(st.integers(NOW_MS - 2, NOW_MS + 2), min_size=size, max_size=size))
    importance = draw(st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]), min_size=size, max_size=size))
    docs = list(zip(living, created, importance, strict=True))

    def postings():
        found = draw(st.lists(st.sampled_from(numbers), unique=True, max_size=size))
        return [(doc, draw(st.sampled_from([1, 1, 2, 7, 65_535]))) for doc in found]

    terms = {f"t{i}": postings() for i in range(draw(st.integers(1, 4)))}
    filters = {f"author{i}": [(doc, 1) for doc, _ in postings()] for i in range(draw(st.integers(0, 3)))}
    return docs, terms, filters


QUERIES = st.fixed_dictionaries(
    {
        "k1": st.sampled_from([0.0, 0.5, 1.2, 1.5, 1000.0]),
        "b": st.sampled_from([0.0, 0.4, 0.75, 1.0]),
        "since": st.sampled_from([None, NOW_MS - 1, NOW_MS, NOW_MS + 2]),
        "until": st.sampled_from([None, NOW_MS + 2, NOW_MS + 1, NOW_MS - 2]),
        "min_importance": st.sampled_from([None, 0.3, 0.5, 0.7, 2.0]),
    }
)


def as_snapshot(docs, postings):
    journal = Journal("epoch")
    births = [JOURNAL.pack(i, length or 0, created, weight) for i, (length, created, weight) in enumerate(docs)]
    deaths = [JOURNAL.pack(i, DEATH, 0, 0.0) for i, (length, _, _) in enumerate(docs) if length is DEAD]
    journal.extend(b"gen1", 4, b"".join(births + deaths), len(docs))
    living = [length for length, _, _ in docs if length is not DEAD]
    terms = {}
    for name, pairs in postings.items():
        df = sum(docs[doc][0] is not DEAD for doc, _ in pairs)
        terms[name] = Term(df, inline_postings(b"".join(POSTING.pack(*pair) for pair in pairs), len(docs)))
    return Snapshot(len(living), sum(living), len(docs), journal, terms)


def naive(docs, terms, groups, asked):
    """(number, score) of all that match, best first, by the formula in `jiyi.scoring`."""
    living = {i for i, (length, _, _) in enumerate(docs) if length is not DEAD}
    avgdl = average_length(sum(docs[i][0] for i in living), len(living))
    scores = {}
    for pairs in terms.values():
        df = sum(doc in living for doc, _ in pairs)
        for doc, tf in pairs:
            if doc in living:
                part = idf(len(living), df) * saturation(tf, docs[doc][0], avgdl, asked.k1, asked.b)
                scores[doc] = scores.get(doc, 0.0) + part
    found = {
        doc: score
        for doc, score in scores.items()
        if asked.since_ms <= docs[doc][1] < asked.until_ms
        and docs[doc][2] >= asked.min_importance
        and all(any(doc == other for values in group for other, _ in values) for group in groups)
    }
    return sorted(found.items(), key=lambda item: (-item[1], -docs[item[0]][1], -item[0]))


@settings(max_examples=400, deadline=None)
@given(indexes(), QUERIES, st.integers(0, 16), st.data())
def test_a_ranking_is_that_of_the_naive_model(index, given_fields, limit, data):
    """Filters, time range, importance, dead documents, ties, k: the same documents, order, scores and total."""
    docs, terms, filters = index
    names = list(filters)
    groups = data.draw(st.lists(st.lists(st.sampled_from(names), unique=True), max_size=3)) if names else []
    asked = query(**given_fields)
    asked = SearchQuery(**{name: getattr(asked, name) for name in asked.__struct_fields__ if name != "filters"},
                        filters=tuple(map(tuple, groups)))  # fmt: skip
    searcher = Searcher(None, None, None)
    ranking = searcher._score(as_snapshot(docs, terms | filters), asked, list(terms), limit)
    expected = naive(docs, terms, [[filters[name] for name in group] for group in groups], asked)
    assert ranking.total == len(expected)
    assert len(ranking.best) == min(limit, len(expected))
    scores = dict(expected)
    # The choice is made in float32: documents that differ by less than that may stand in for each other.
    assert [scored.score for scored in ranking.best] == pytest.approx([s for _, s in expected[:limit]], rel=1e-5)
    for scored in ranking.best:
        assert scored.score == pytest.approx(scores[scored.doc], rel=1e-12)
        assert scored.score == sum(part.score for part in scored.terms)
        assert math.isfinite(scored.score)
        assert scored.score > 0
        assert scored.length == docs[scored.doc][0]
        assert {(part.term, part.tf) for part in scored.terms} == {
            (name, tf) for name, pairs in terms.items() for doc, tf in pairs if doc == scored.doc
        }
    assert len({scored.doc for scored in ranking.best}) == len(ranking.best)
    assert not searcher._scores.any(), "scores left behind would be added to the next query's"
    assert not searcher._marks.any(), "marks left behind would let the next query's filters pass"


@settings(max_examples=200, deadline=None)
@given(indexes(), st.sampled_from([0.0, 1.2, 1000.0]), st.sampled_from([0.0, 0.75, 1.0]), st.integers(0, 16), st.data())
def test_the_kernel_adds_up_in_float32_and_selects_exactly(index, k1, b, k, data):
    """Scores within 1e-5 of the reference; the best by score, then the newer, then the higher number."""
    docs, terms, _ = index
    snapshot = as_snapshot(docs, terms)
    lengths = snapshot.journal.lengths
    marks, scores = np.zeros(lengths.size, np.uint8), np.zeros(lengths.size, np.float32)
    touched, heap = np.zeros(lengths.size, np.uint32), np.zeros(k, np.uint32)
    avgdl, count = average_length(snapshot.tokens, snapshot.docs), 0
    for term in snapshot.terms.values():
        weight = idf(snapshot.docs, term.df) * (k1 + 1.0) if term.df else 1.0
        slope = k1 * b / avgdl if avgdl else 0.0
        base = k1 * (1.0 - b) if avgdl else k1
        args = (term.postings.docs, term.postings.tfs, weight, base, slope, lengths, 0, marks, scores)
        count = kernel.accumulate(*args, touched, count)
    assert len(set(touched[:count].tolist())) == count
    expected = dict(naive(docs, terms, [], query(k1=k1, b=b)))
    assert {doc: float(scores[doc]) for doc in touched[:count].tolist()} == pytest.approx(expected, rel=1e-5)
    since, until = data.draw(st.tuples(*[st.integers(NOW_MS - 3, NOW_MS + 3)] * 2))
    floor = data.draw(st.sampled_from([0.0, 0.5, 2.0]))
    allowed = [
        doc for doc in touched[:count].tolist() if since <= docs[doc][1] < until and np.float32(docs[doc][2]) >= floor
    ]
    allowed.sort(key=lambda doc: (-float(scores[doc]), -docs[doc][1], -doc))
    size, total = kernel.select_top(
        touched, count, scores, snapshot.journal.created, snapshot.journal.importance, since, until, floor, heap
    )
    assert (heap[:size].tolist(), total) == (allowed[:k], len(allowed))
    assert not scores.any()


def test_equal_scores_put_the_newer_first_then_the_later_number():
    docs = [(2, 5, 0.5), (2, 9, 0.5), (2, 5, 0.5), (2, 9, 0.5), (2, 1, 0.5)]
    pairs = {"t": [(doc, 1) for doc in range(5)]}
    for limit in range(6):
        ranking = Searcher(None, None, None)._score(as_snapshot(docs, pairs), query(), ["t"], limit)
        assert [scored.doc for scored in ranking.best] == [3, 1, 2, 0, 4][:limit]


@pytest.mark.parametrize("k1", [0.0, 1.5])
@pytest.mark.parametrize("length", [0, 3])
def test_no_score_is_ever_nan(k1, length):
    """With b = 0 the slope is 0, and 0 times the infinite length of a dead document would be no number."""
    docs = [(length, 0, 0.5), (DEAD, 0, 0.5), (length, 1, 0.5)]
    ranking = Searcher(None, None, None)._score(
        as_snapshot(docs, {"t": [(0, 1), (1, 1), (2, 1)]}), query(k1=k1, b=0.0), ["t"], 10
    )
    assert [scored.doc for scored in ranking.best] == [2, 0]
    assert ranking.best[0].score == pytest.approx(0.182322, abs=1e-6)


@pytest.mark.parametrize(("docs", "df", "expected"), [(2, 2, 0.182322), (4, 2, 0.693147), (1, 1, 0.287682)])
def test_idf_is_positive_when_every_document_has_the_term(docs, df, expected):
    assert idf(docs, df) == pytest.approx(expected, abs=1e-6)


def test_frequencies_of_the_most_hits_at_once():
    """The numbers of the hits share a byte with "not contained"; one more hit would lose the last."""
    docs = np.arange(kernel.MAX_HITS * 2, dtype=np.uint32)
    tfs = (docs % 1000 + 1).astype(np.uint16)
    slots, out = np.zeros(docs.size, np.uint8), np.zeros(kernel.MAX_HITS, np.uint16)
    hits = docs[::-1][: kernel.MAX_HITS].copy()
    kernel.frequencies(docs, tfs, hits, slots, out)
    assert out.tolist() == [doc % 1000 + 1 for doc in hits.tolist()]
    assert not slots.any()


def test_more_hits_than_one_byte_counts_are_explained_right():
    docs = [(5, created, 0.5) for created in range(700)]
    pairs = {"t": [(doc, 1 + doc % 3) for doc in range(700)], "u": [(doc, 1) for doc in range(0, 700, 2)]}
    ranking = Searcher(None, None, None)._score(as_snapshot(docs, pairs), query(), ["t", "u"], 600)
    expected = naive(docs, pairs, [], query())
    assert [(scored.doc, pytest.approx(scored.score)) for scored in ranking.best] == expected[:600]


@pytest.mark.parametrize("column", [Postings, lambda: Journal("epoch")])
def test_a_number_that_was_never_given_out_is_refused(column):
    """The kernel does not check its indices: such a number would read and write outside of the arrays."""
    record = {True: POSTING.pack(7, 1), False: JOURNAL.pack(7, 1, 0, 0.5)}[column is Postings]
    column().extend(b"gen1", 4, record, 8)
    with pytest.raises(CorruptIndexError, match="jiyi check"):
        column().extend(b"gen1", 4, record, 7)
    with pytest.raises(CorruptIndexError, match="jiyi check"):
        column().extend(b"gen1", 4, record[:-1], 8)


def test_a_number_that_was_reserved_and_not_used_counts_as_dead():
    journal = Journal("epoch")
    journal.extend(b"gen1", 4, JOURNAL.pack(2, 7, 0, 0.5), 3)
    journal.reach(6)
    assert journal.lengths[:6].tolist() == [math.inf, math.inf, 7, math.inf, math.inf, math.inf]


ORACLE = {"a": ["redis", "流", "索引"], "b": ["redis", "redis", "超时"], "c": ["索引"]}


@pytest.mark.anyio
async def test_the_oracle_of_the_specification(database):
    """The numbers of the design, from tokens through a real server, before and after a delete."""
    writer, reader = IndexWriter(database, "analyzer"), SnapshotReader(database, "analyzer", 2**20)
    searcher = Searcher(database, None, reader)

    async def ranked(*terms):
        ranking = await searcher.rank(query(ns="oracle", k1=1.2, b=0.75), terms, 10)
        hits, _, _ = await searcher._fetch(query(ns="oracle"), ranking)
        return {hit.id: hit.score for hit in hits}

    changes = [
        Change(
            id=name, version=f"{i}-0", memory=Memory(content=name), version_hash=name,
            terms={token: tokens.count(token) for token in tokens},
        )
        for i, (name, tokens) in enumerate(ORACLE.items(), 1)
    ]  # fmt: skip
    assert await writer.apply("oracle", changes)
    near = {"abs": 5e-7}
    assert await ranked("redis") == pytest.approx({"a": 0.420817, "b": 0.598186}, **near)
    both = {"a": 0.841634, "b": 0.598186, "c": 0.613395}
    assert await ranked("redis", "索引") == pytest.approx(both, **near)
    await writer.apply("oracle", [Change(id="b", version="9-0", memory=None)])
    assert await ranked("redis", "索引") == pytest.approx({"a": 0.726804, "c": 0.229204}, **near)
    await writer.apply("oracle", [Change(id=name, version="10-0", memory=None) for name in "ac"])
    assert await ranked("redis", "索引") == {}
