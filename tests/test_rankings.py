"""Rankings that are not of BM25 alone, and of several namespaces: against a naive model."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernel import DEAD, NOW_MS, as_snapshot, collections, indexes

from jiyi.scoring import average_length, idf, saturation
from jiyi_api import rankings as rankings_module
from jiyi_api.compiled import NumbaRanker
from jiyi_api.filters import Filters
from jiyi_api.orders import TIME_BOOST, KindRanking, MemoryRanking, Order, Weights
from jiyi_api.rankings import Wanted, rank_snapshots
from jiyi_api.vectorised import NumpyRanker

K1, B = 1.2, 0.65
DAY_MS = 86_400_000
RANKERS = pytest.mark.parametrize("ranker", [NumbaRanker(), NumpyRanker()], ids=["numba", "numpy"])
SPANS = st.lists(st.tuples(st.integers(NOW_MS - 3, NOW_MS + 3), st.integers(0, 3)), max_size=2).map(
    lambda pairs: tuple((begin, begin + size) for begin, size in pairs)
)
WEIGHTS = st.builds(Weights, *[st.sampled_from([0.0, 0.15, 0.6, 1.0])] * 3)
RANKINGS = st.builds(
    MemoryRanking,
    weights=WEIGHTS,
    half_life_days=st.sampled_from([0.001, 30.0, 1e6]),
    kinds=st.dictionaries(
        st.sampled_from(["note", "fact"]),
        st.builds(KindRanking, weights=st.none() | WEIGHTS, half_life_days=st.none() | st.sampled_from([0.01, 365.0])),
    ),
)
ORDERS = st.builds(Order, SPANS, st.none() | RANKINGS, st.sampled_from([NOW_MS, NOW_MS + DAY_MS]))


@dataclass
class Space:
    """A namespace: documents (length or dead, created, importance), postings of terms and of filter terms."""

    docs: list
    terms: dict
    filters: dict

    @property
    def living(self):
        return {i for i, (length, *_) in enumerate(self.docs) if length is not DEAD}

    def holding(self, name):
        return {doc for doc, _ in self.filters.get(name, ()) if doc in self.living}


@st.composite
def spaces(draw):
    """One to three namespaces with the same terms and filter terms."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        docs, terms, _ = draw(indexes())
        filters = {}
        for name in ("@tags:x", "@tags:y", "@kind:note", "@kind:fact"):
            holders = draw(st.lists(st.sampled_from(range(len(docs))), unique=True, max_size=len(docs)))
            filters[name] = [(doc, 1) for doc in holders]
        found.append(Space(docs, {f"t{i}": terms.get(f"t{i}", []) for i in range(4)}, filters))
    return found


def naive(found, wanted):
    """(namespace, document) → (score, BM25) of all that match, by the formulas as they are documented."""
    size = sum(len(space.living) for space in found)
    avgdl = average_length(sum(space.docs[i][0] for space in found for i in space.living), size)
    bm25 = {}
    for name, weight in wanted.terms.items():
        df = sum(doc in space.living for space in found for doc, _ in space.terms[name])
        for ns, space in enumerate(found):
            for doc, tf in space.terms[name]:
                if doc in space.living:
                    part = weight * idf(size, df) * saturation(tf, space.docs[doc][0], avgdl, K1, B)
                    bm25[ns, doc] = bm25.get((ns, doc), 0.0) + part
    bm25 = {at: score for at, score in bm25.items() if _passes(found[at[0]], at[1], wanted)}
    order = wanted.order or Order((), None, NOW_MS)
    relevance = {
        (ns, doc): score * (1 + TIME_BOOST * any(a <= found[ns].docs[doc][1] < z for a, z in order.spans))
        for (ns, doc), score in bm25.items()
    }
    best = max(relevance.values(), default=0.0)
    scores = {at: _score(found[at[0]], at[1], value, best, order) for at, value in relevance.items()}
    least = -math.inf if wanted.min_score is None else wanted.min_score
    return {at: (score, bm25[at]) for at, score in scores.items() if score >= least}


def _passes(space, doc, wanted):
    _, created, importance = space.docs[doc]
    filters = wanted.filters
    return (
        all(any(doc in space.holding(term) for term in group) for _, group in filters.groups)
        and not any(doc in space.holding(term) for term in filters.excluded)
        and (not filters.spans or any(a <= created < z for a, z in filters.spans))
        and importance >= filters.min_importance
        and all(any(doc == other for term in group for other, _ in space.terms[term]) for group in wanted.required)
    )


def _score(space, doc, relevance, best, order):
    ranking = order.ranking
    if ranking is None:
        return relevance
    weights, half_life = ranking.weights, ranking.half_life_days
    for kind, own in ranking.kinds.items():
        if doc in space.holding(f"@kind:{kind}"):
            weights, half_life = own.weights or weights, own.half_life_days or half_life
    _, created, importance = space.docs[doc]
    age_days = max(0, order.at_ms - created) / DAY_MS
    factors = relevance / best if best else 0.0, float(np.float32(importance)), 0.5 ** (age_days / half_life)
    return sum(w * f for w, f in zip((weights.relevance, weights.importance, weights.freshness), factors, strict=True))


def columns(space, wanted):
    """A snapshot with all columns that are wanted."""
    names = wanted.columns
    return as_snapshot(space.docs, {name: space.terms.get(name, space.filters.get(name, [])) for name in names})


@RANKERS
@settings(max_examples=400, deadline=None)
@given(spaces(), st.none() | ORDERS, st.integers(0, 12), st.data())
def test_any_order_over_any_namespaces_is_that_of_the_naive_model(ranker, found, order, limit, data):
    """Filters, exclusions, spans, required terms, boosts, factors, minimum score: the same hits, scores and total."""
    # A document is of one kind.
    for space in found:
        notes = {doc for doc, _ in space.filters["@kind:note"]}
        space.filters["@kind:fact"] = [(doc, 1) for doc, _ in space.filters["@kind:fact"] if doc not in notes]
    tags = st.lists(st.sampled_from(["@tags:x", "@tags:y"]), unique=True, max_size=2)
    filters = Filters(
        groups=tuple(("tags", tuple(group)) for group in data.draw(st.lists(tags, max_size=2))),
        excluded=tuple(data.draw(tags)),
        spans=data.draw(SPANS),
        min_importance=data.draw(st.sampled_from([0.0, 0.5])),
    )
    terms = data.draw(
        st.dictionaries(st.sampled_from(["t0", "t1", "t2", "t3"]), st.sampled_from([1.0, 0.4]), min_size=1)
    )
    required = [(term,) for term in data.draw(st.lists(st.sampled_from(sorted(terms)), unique=True, max_size=2))]
    wanted = Wanted(terms=terms, filters=filters, k1=K1, b=B, required=required, order=order)
    everything = naive(found, wanted)
    if everything and data.draw(st.booleans()):
        least = data.draw(st.sampled_from(sorted(score for score, _ in everything.values())))
        # One that is reached exactly would depend on the last bit of the model's own sums.
        wanted = Wanted(**{name: getattr(wanted, name) for name in wanted.__struct_fields__ if name != "min_score"},
                        min_score=least * (1 - 1e-9))  # fmt: skip
        everything = naive(found, wanted)
    rankings = rank_snapshots(ranker, [columns(space, wanted) for space in found], wanted, limit)
    assert sum(one.total for one in rankings) == len(everything)
    hits = {}
    for ns, ranking in enumerate(rankings):
        for place, (doc, matched, length) in enumerate(ranking.hits()):
            bm25 = score = sum(term.score for term in matched)
            assert length == found[ns].docs[doc][0]
            if ranking.boosts and (boost := ranking.boosts[place]):
                assert boost.score == boost.factor * bm25
                score += boost.score
            if ranking.factors:
                factors = ranking.factors[place]
                score = factors.score
                for factor in (factors.relevance, factors.importance, factors.freshness):
                    assert factor.score == factor.weight * factor.value
                    assert 0.0 <= factor.value <= 1.0
            if ranking.scores:
                assert ranking.scores[place] == pytest.approx(score, rel=1e-12)
            hits[ns, doc] = score
            assert bm25 == pytest.approx(everything[ns, doc][1], rel=1e-9)
            assert score == pytest.approx(everything[ns, doc][0], rel=1e-6, abs=1e-12)
        kept = [score for (other, _), score in hits.items() if other == ns]
        assert kept == sorted(kept, reverse=True) or np.allclose(kept, sorted(kept, reverse=True), rtol=1e-12)
    expected = sorted((score for score, _ in everything.values()), reverse=True)[:limit]
    assert sorted(hits.values(), reverse=True)[:limit] == pytest.approx(expected, rel=1e-5, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(collections(), SPANS, st.sampled_from([1, 3, 10, 50]))
def test_a_favoured_time_lifts_nobody_who_was_not_looked_at(collection, spans, limit):
    """The very same documents, scores and total as when every match is scored."""
    docs, terms = collection
    order = Order(spans, None, NOW_MS)
    wanted = Wanted(terms=dict.fromkeys(terms, 1.0), filters=Filters(), k1=K1, b=B, order=order)
    half = len(docs) // 2
    fewer = {name: [pair for pair in pairs if pair[0] < half] for name, pairs in terms.items()}
    snapshots = [as_snapshot(docs, terms), as_snapshot(docs[:half], fewer)]
    quick = rank_snapshots(NumbaRanker(), snapshots, wanted, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankings_module, "_MOST_LOOKED_AT", 0)
        thorough = rank_snapshots(NumbaRanker(), snapshots, wanted, limit)
    hits = [
        sorted(
            (score, one.journal.created[doc], ns, doc)
            for ns, one in enumerate(found)
            for doc, score in zip(one.found.docs.tolist(), one.scores, strict=True)
        )[-limit:]
        for found in (quick, thorough)
    ]
    assert [score for score, *_ in hits[0]] == pytest.approx([score for score, *_ in hits[1]], rel=1e-9)
    assert hits[0] == hits[1] or np.diff([score for score, *_ in hits[1]]).min() < 1e-5  # equal but for rounding
    assert [one.total for one in quick] == [one.total for one in thorough]


@RANKERS
def test_a_favoured_memory_comes_from_far_behind(ranker):
    """Scores fall slowly, and only those from the sixtieth on are of the time that is meant."""
    docs = [(100 + i, NOW_MS if i >= 60 else NOW_MS - 5, 0.5) for i in range(200)]
    terms = {"t0": [(i, 1) for i in range(200)]}
    order = Order(((NOW_MS, NOW_MS + 1),), None, NOW_MS)
    wanted = Wanted(terms={"t0": 1.0}, filters=Filters(), k1=K1, b=B, order=order)
    (ranking,) = rank_snapshots(ranker, [as_snapshot(docs, terms)], wanted, 10)
    assert ranking.found.docs.tolist() == list(range(60, 70))
    assert all(ranking.boosts)


@RANKERS
def test_all_is_within_any_and_never_more(ranker):
    docs = [(5, NOW_MS + i, 0.5) for i in range(100)]
    terms = {"t0": [(i, 1) for i in range(0, 100, 2)], "t1": [(i, 2) for i in range(0, 100, 3)]}
    any_of = Wanted(terms={"t0": 1.0, "t1": 1.0}, filters=Filters(), k1=K1, b=B)
    all_of = Wanted(terms=any_of.terms, filters=Filters(), k1=K1, b=B, required=[("t0",), ("t1",)])
    (some,) = rank_snapshots(ranker, [as_snapshot(docs, terms)], any_of, 100)
    (both,) = rank_snapshots(ranker, [as_snapshot(docs, terms)], all_of, 100)
    assert set(both.found.docs.tolist()) == set(range(0, 100, 6))
    assert set(both.found.docs.tolist()) < set(some.found.docs.tolist())
    assert both.total == 17


def test_a_namespace_that_is_unknown_has_an_empty_ranking_of_its_own():
    snapshot = as_snapshot([(3, NOW_MS, 0.5)], {"t0": [(0, 1)]})
    wanted = Wanted(terms={"t0": 1.0}, filters=Filters(), k1=K1, b=B)
    rankings = rank_snapshots(NumbaRanker(), [None, snapshot, None], wanted, 10)
    assert [one.total for one in rankings] == [0, 1, 0]
    assert [one.total for one in rank_snapshots(NumbaRanker(), [None], wanted, 10)] == [0]
