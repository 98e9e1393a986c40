"""The scoring kernel and the ranking built on it, against a naive model and the numbers of the specification."""

import math

import msgspec
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
from jiyi.sealed_postings import RECORD, seal, sealed_bytes
from jiyi.settings import Settings
from jiyi_api.columns import DENSE, Journal, Postings
from jiyi_api.compiled import NumbaRanker
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.ranking import Question, choose_ranker
from jiyi_api.rankings import Wanted, rank_snapshots
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import Snapshot, SnapshotReader
from jiyi_api.vectorised import NumpyRanker

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
        terms[name] = column(pairs, len(docs))
        terms[name].df = df
    return Snapshot(len(living), sum(living), b"1", b"0", journal, terms)


def column(pairs, next_doc, pieces=2):
    """A column that was read in pieces, each in any order."""
    found, seen = Postings(), 4
    size = max(1, -(-len(pairs) // pieces))
    for at in range(0, len(pairs), size):
        data = b"".join(POSTING.pack(*pair) for pair in pairs[at : at + size])
        found.extend(b"gen1", seen, data, next_doc)
        seen += len(data)
    return found


def ranked(ranker, docs, postings, asked, terms, limit):
    """The ranking, with what `Searcher` adds: (number, score, matched terms, length) of each hit, and the total."""
    weighted = terms if isinstance(terms, dict) else dict.fromkeys(terms, 1.0)
    wanted = Wanted(terms=weighted, filters=asked.filters, k1=asked.k1, b=asked.b)
    (ranking,) = rank_snapshots(ranker, [as_snapshot(docs, postings)], wanted, limit)
    hits = [(doc, sum(term.score for term in matched), matched, length) for doc, matched, length in ranking.hits()]
    return hits, ranking.total


RANKERS = pytest.mark.parametrize(
    "ranker", [NumbaRanker(), NumbaRanker(window=3), NumbaRanker(prunes=False, window=3), NumpyRanker()],
    ids=["pruning", "windows", "exhaustive", "numpy"],
)  # fmt: skip


def naive(docs, terms, groups, asked, weights):
    """(number, score) of all that match, best first, by the formula in `jiyi.scoring`."""
    living = {i for i, (length, _, _) in enumerate(docs) if length is not DEAD}
    avgdl = average_length(sum(docs[i][0] for i in living), len(living))
    scores = {}
    for name, pairs in terms.items():
        df = sum(doc in living for doc, _ in pairs)
        for doc, tf in pairs:
            if doc in living:
                part = weights[name] * idf(len(living), df) * saturation(tf, docs[doc][0], avgdl, asked.k1, asked.b)
                scores[doc] = scores.get(doc, 0.0) + part
    found = {
        doc: score
        for doc, score in scores.items()
        if all(begin <= docs[doc][1] < end for begin, end in asked.filters.spans)
        and docs[doc][2] >= asked.filters.min_importance
        and all(any(doc == other for values in group for other, _ in values) for group in groups)
    }
    return sorted(found.items(), key=lambda item: (-item[1], -docs[item[0]][1], -item[0]))


@RANKERS
@settings(max_examples=300, deadline=None)
@given(indexes(), QUERIES, st.integers(0, 16), st.data())
def test_a_ranking_is_that_of_the_naive_model(ranker, index, given_fields, limit, data):
    """Weights, filters, time range, importance, the dead, ties, k: the same documents, order, scores and total."""
    docs, terms, filters = index
    names = list(filters)
    groups = data.draw(st.lists(st.lists(st.sampled_from(names), unique=True), max_size=3)) if names else []
    asked = query(**given_fields)
    named = tuple(("author", tuple(group)) for group in groups)
    asked = msgspec.structs.replace(asked, filters=msgspec.structs.replace(asked.filters, groups=named))
    weights = {name: data.draw(st.sampled_from([1.0, 0.4, 0.3])) for name in terms}
    hits, total = ranked(ranker, docs, terms | filters, asked, weights, limit)
    expected = naive(docs, terms, [[filters[name] for name in group] for group in groups], asked, weights)
    assert total == len(expected)
    assert len({doc for doc, *_ in hits}) == len(hits) == min(limit, len(expected))
    scores = dict(expected)
    # The choice is made in float32: documents that differ by less than that may stand in for each other.
    assert [score for _, score, _, _ in hits] == pytest.approx([score for _, score in expected[:limit]], rel=1e-5)
    for doc, score, matched, length in hits:
        assert score == pytest.approx(scores[doc], rel=1e-12)
        assert length == docs[doc][0]
        found = {(term.term, term.tf) for term in matched}
        assert found == {(name, tf) for name, pairs in terms.items() for other, tf in pairs if other == doc}
    assert not ranker._scores.any(), "scores left behind would be added to the next query's"


@st.composite
def collections(draw):
    """Some hundred documents from a seed: rare, frequent and most frequent terms, dead documents, many ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(65, 900))
    lengths = rng.integers(1, draw(st.sampled_from([3, 60])), size)
    dead = rng.random(size) < draw(st.sampled_from([0.0, 0.1, 0.9]))
    created = NOW_MS + rng.integers(-2, 3, size)
    docs = [
        (DEAD if gone else int(length), int(time), 0.5)
        for length, gone, time in zip(lengths, dead, created, strict=True)
    ]
    terms = {}
    for i in range(draw(st.integers(1, 7))):
        holding = np.flatnonzero(rng.random(size) < draw(st.sampled_from([0.005, 0.03, 0.2, 0.7])))
        if draw(st.booleans()):
            rng.shuffle(holding)
        tfs = np.minimum(rng.geometric(draw(st.sampled_from([0.2, 0.9])), holding.size), 65_535)
        terms[f"t{i}"] = list(zip(holding.tolist(), tfs.tolist(), strict=True))
    return docs, terms


@settings(max_examples=300, deadline=None)
@given(
    collections(),
    st.sampled_from([(1.5, 0.75), (1.2, 0.0), (0.0, 0.5), (1000.0, 1.0)]),
    st.sampled_from([1, 3, 10, 50]),
)
def test_what_is_passed_over_could_not_have_been_among_the_best(collection, form, limit):
    """Pruning, reading everything, and NumPy: the very same documents, ties included, and the same total."""
    docs, terms = collection
    asked = query(k1=form[0], b=form[1])
    rankers = [NumbaRanker(prunes=False), NumbaRanker(window=16), NumbaRanker(), NumpyRanker()]
    expected, *others = [ranked(ranker, docs, terms, asked, list(terms), limit) for ranker in rankers]
    assert others == [expected] * 3


@RANKERS
def test_a_namespace_without_any_document_number_is_ranked_with_another(ranker):
    """Only deletions may have come to it: it is known, has no journal, and the other one has the term."""
    asked, full = query(), as_snapshot([(10, NOW_MS, 0.5)], {"t": [(0, 1)]})
    empty = as_snapshot([], {"t": []})
    wanted = Wanted(terms={"t": 1.0}, filters=asked.filters, k1=asked.k1, b=asked.b)
    rankings = rank_snapshots(ranker, [empty, full], wanted, 3)
    assert [ranking.found.docs.tolist() for ranking in rankings] == [[], [0]]
    assert [ranking.total for ranking in rankings] == [0, 1]


FORMS = st.sampled_from([(1.2, 0.3, 2), (0.5, 0.3, 2), (1.2, 1.0, 2), (1.2, 0.3, 40)])
PIECES = st.tuples(st.just(range(12)) | st.permutations(range(12)), st.booleans(), FORMS)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, min_size=2, max_size=4), st.booleans(), st.integers(0, 3))
def test_what_is_kept_of_columns_follows_their_growth_and_the_formula(pieces, mixed, seed):
    """Pieces come in any order, behind the others or among them, or anew; each question has its own k1, b and avgdl."""
    size = 12 * len(pieces)
    journal = as_snapshot([(1 + 7 * i % 30, NOW_MS + i, 0.5) for i in range(size)], {}).journal
    kept, ranker, records = [Postings(), Postings()], NumbaRanker(window=5), [b"", b""]
    for number, (order, anew, (k1, b, avgdl)) in enumerate(pieces):
        numbers = [i * len(pieces) + number if mixed else number * 12 + i for i in order]
        fresh = [Postings(), Postings()]
        for i, column in enumerate(kept):
            known = b"" if anew else records[i]
            piece = b"".join(POSTING.pack(doc, 1 + (doc * 7 + seed * i) % 9) for doc in numbers[i * 2 :])
            generation = b"%04d" % number if anew else column.generation or b"gen1"
            column.extend(generation, 4 + len(known), piece, size)
            records[i] = known + piece
            fresh[i].extend(b"gen1", 4, records[i], size)
        form = {"k1": k1, "b": b, "avgdl": avgdl, "limit": 4}
        first, second = (
            Question(journal=journal, columns=columns, idfs=[1.0, 0.7], filters=[], **form) for columns in (kept, fresh)
        )
        assert ranker.rank(first).docs.tolist() == NumpyRanker().rank(second).docs.tolist()
        assert ranker.score_all(first).scores.max() == NumpyRanker().score_all(second).scores.max()


def test_a_journal_that_is_read_anew_may_have_other_lengths():
    journal, ranker = as_snapshot([(1, NOW_MS, 0.5), (50, NOW_MS, 0.5)], {}).journal, NumbaRanker()
    kept = column([(0, 1), (1, 1)], 2)
    question = Question(journal=journal, columns=[kept], idfs=[1.0], filters=[], k1=1.2, b=0.65, avgdl=10.0, limit=1)
    assert ranker.rank(question).docs.tolist() == [0]
    journal.extend(b"gen2", 4, b"".join(JOURNAL.pack(doc, length, NOW_MS, 0.5) for doc, length in [(0, 50), (1, 1)]), 2)
    assert ranker.rank(question).docs.tolist() == [1]


def test_a_weak_end_of_a_list_does_not_hide_its_strong_middle():
    journal = as_snapshot([(10, NOW_MS + i, 0.5) for i in range(40)], {}).journal
    rare, often = column([(i, 2) for i in range(10)], 40), Postings()
    question = Question(
        journal=journal, columns=[rare, often], idfs=[1.0, 1.0], filters=[], k1=1.2, b=0.65, avgdl=10.0, limit=4
    )
    seen, ranker = 4, NumbaRanker(window=5)
    for numbers in (range(10, 20), range(20, 40)):
        piece = b"".join(POSTING.pack(doc, 50 if doc == 15 else 1) for doc in numbers)
        often.extend(b"gen1", seen, piece, 40)
        seen += len(piece)
        assert ranker.rank(question).docs.tolist() == [15, 9, 8, 7]


def test_frequent_terms_are_not_read_when_rare_ones_decide():
    """The test above would pass without any pruning."""
    docs = [(10, NOW_MS + i, 0.5) for i in range(2_000)]
    terms = {"rare": [(i, 5) for i in range(0, 2_000, 100)], "often": [(i, 1) for i in range(2_000)]}
    snapshot = as_snapshot(docs, terms)
    columns = [snapshot.terms[name] for name in terms]
    question = Question(
        journal=snapshot.journal, columns=columns, idfs=[idf(2_000, column.df) for column in columns], filters=[],
        k1=1.5, b=0.75, avgdl=10.0, limit=10,
    )  # fmt: skip
    rankers = {prunes: NumbaRanker(prunes=prunes, window=100) for prunes in (True, False)}
    ranked = [ranker.rank(question).docs.tolist() for ranker in rankers.values()]
    assert ranked == [list(range(1_900, 900, -100))] * 2
    columns[1].saturations[1_950] = 1e6  # who reads it takes it for one of the best
    taken = {prunes: 1_950 in ranker.rank(question).docs for prunes, ranker in rankers.items()}
    assert taken == {True: False, False: True}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 400), unique=True, max_size=60), min_size=1, max_size=5), st.data())
def test_a_bitmap_finds_every_posting(pieces, data):
    """Whatever comes in whatever order, the bits and their ranks are those of all documents so far."""
    found, seen, known = Postings(), 4, set()
    for piece in pieces:
        fresh = [doc for doc in piece if doc not in known]
        known |= set(fresh)
        records = b"".join(POSTING.pack(doc, 1 + doc % 7) for doc in fresh)
        found.extend(b"gen1", seen, records, data.draw(st.sampled_from([401, 401 * DENSE])))
        seen += len(records)
        expected = sorted(known)
        assert found.docs.tolist() == expected
        assert found.tfs.tolist() == [1 + doc % 7 for doc in expected]
        if found.bitmap is not None:
            words = found.bitmap.words
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            assert np.flatnonzero(bits).tolist() == expected
            for position, doc in enumerate(expected):
                below = int(words[doc >> 6]) & ((1 << (doc & 63)) - 1)
                assert found.bitmap.ranks[doc >> 6] + below.bit_count() == position
    assert found.bitmap is not None or len(known) * DENSE < 401 * DENSE


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 400), unique=True, max_size=60),
    st.integers(0, 60),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_a_sealed_list_comes_in_any_pieces(docs, count, sizes):
    """What has not come whole waits; what comes after the whole is added to it, and all of it is as if never sealed."""
    pairs = sorted((doc, 1 + doc % 3) for doc in docs[:count]) + [(doc, 1 + doc % 3) for doc in docs[count:]]
    content = b"".join(POSTING.pack(*pair) for pair in pairs[count:])
    if count and docs:
        content = seal([np.array(pairs[:count], RECORD)])[0] + content
    found, at = Postings(), 0
    for size in [*sizes, len(content)]:
        piece = content[at : at + max(size, 12)]
        whole = at + len(piece) == len(content)
        found.extend(b"gen1", 4 + at, piece, 401, whole=whole)
        assert found.seen <= 4 + at + len(piece)
        assert found.is_cut is (found.seen - 4 < (sealed_bytes(content) or 0))
        at = found.seen - 4
    assert at == len(content)
    assert list(zip(found.docs.tolist(), found.tfs.tolist(), strict=True)) == sorted(pairs)
    found.extend(b"gen2", 4, POSTING.pack(9, 9), 401)
    assert (found.docs.tolist(), found.tfs.tolist(), found.is_cut) == ([9], [9], False)


def test_a_damaged_sealed_part_is_refused_and_what_was_known_stays():
    [sealed] = seal([np.array([(doc, 1) for doc in range(20)], RECORD)])
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    found = Postings()
    found.extend(b"gen1", 4, sealed, 20)
    for damaged, next_doc in ((flipped, 20), (sealed[:-1], 20), (sealed[:7], 20), (sealed + b"abc", 20), (sealed, 19)):
        for _ in range(2):
            with pytest.raises(CorruptIndexError, match="jiyi check"):
                found.extend(b"gen2", 4, damaged, next_doc)
            assert (found.generation, found.docs.tolist()) == (b"gen1", list(range(20)))
    begun = Postings()
    begun.extend(b"gen2", 4, flipped[:15], 20, whole=False)
    for _ in range(2):
        with pytest.raises(CorruptIndexError, match="jiyi check"):
            begun.extend(b"gen2", 19, flipped[15:], 20)
        assert (begun.is_cut, begun.seen) == (True, 19)


@RANKERS
def test_a_dead_document_that_is_there_twice_moves_no_other(ranker):
    """A damaged posting: positions after it are not those that the bits of the documents would tell."""
    docs = [(5, NOW_MS, 0.5), (DEAD, NOW_MS, 0.5), (DEAD, NOW_MS, 0.5)] + [(5, NOW_MS, 0.5)] * 60
    pairs = {"t": [(2, 1), (2, 3)] + [(doc, doc % 9 + 1) for doc in range(3, 63)]}
    hits, total = ranked(ranker, docs, pairs, query(), ["t"], 100)
    assert total == 60
    assert {doc: matched[0].tf for doc, _, matched, _ in hits} == {doc: doc % 9 + 1 for doc in range(3, 63)}


@RANKERS
def test_equal_scores_put_the_newer_first_then_the_later_number(ranker):
    docs = [(2, 5, 0.5), (2, 9, 0.5), (2, 5, 0.5), (2, 9, 0.5), (2, 1, 0.5)]
    pairs = {"t": [(doc, 1) for doc in range(5)]}
    for limit in range(6):
        hits, _ = ranked(ranker, docs, pairs, query(), ["t"], limit)
        assert [doc for doc, *_ in hits] == [3, 1, 2, 0, 4][:limit]


@RANKERS
@pytest.mark.parametrize("k1", [0.0, 1.5])
@pytest.mark.parametrize("length", [0, 3])
def test_no_score_is_ever_nan(ranker, k1, length):
    """With b = 0 the slope is 0, and 0 times the infinite length of a dead document would be no number."""
    docs = [(length, 0, 0.5), (DEAD, 0, 0.5), (length, 1, 0.5)]
    hits, _ = ranked(ranker, docs, {"t": [(0, 1), (1, 1), (2, 1)]}, query(k1=k1, b=0.0), ["t"], 10)
    assert [(doc, score) for doc, score, *_ in hits] == [(doc, pytest.approx(0.182322, abs=1e-6)) for doc in (2, 0)]


@RANKERS
def test_a_posting_that_counts_nothing_finds_nothing(ranker):
    """No worker writes a frequency of 0. Nobody may be scored for it, nor twice for the first time."""
    docs = [(2, 0, 0.5)] * 3
    hits, _ = ranked(ranker, docs, {"t": [(0, 0), (1, 1)], "u": [(0, 0)]}, query(), ["t", "u"], 10)
    assert [doc for doc, score, *_ in hits if score] == [1]


@pytest.mark.parametrize(("docs", "df", "expected"), [(2, 2, 0.182322), (4, 2, 0.693147), (1, 1, 0.287682)])
def test_idf_is_positive_when_every_document_has_the_term(docs, df, expected):
    assert idf(docs, df) == pytest.approx(expected, abs=1e-6)


@RANKERS
def test_long_rankings_are_explained_right(ranker):
    docs = [(5, created, 0.5) for created in range(1_300)]
    pairs = {"t": [(doc, 1 + doc % 3) for doc in range(1_300)], "u": [(doc, 1) for doc in range(0, 1_300, 2)]}
    hits, _ = ranked(ranker, docs, pairs, query(), ["t", "u"], 1_200)
    expected = naive(docs, pairs, [], query(), dict.fromkeys(pairs, 1.0))
    assert [(doc, score) for doc, score, *_ in hits] == [(doc, pytest.approx(score)) for doc, score in expected[:1_200]]


def test_the_kernel_is_chosen_by_name():
    assert [choose_ranker(name).name for name in ("auto", "numba", "numpy")] == ["numba", "numba", "numpy"]


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
        ranking = await searcher.rank(query(ns="oracle", k1=1.2, b=0.75), dict.fromkeys(terms, 1.0), 10)
        hits, _, _ = await searcher._fetch(query(ns="oracle"), [[ranking]])
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
