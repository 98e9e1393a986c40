"""From snapshots of namespaces to their best documents, scored with the statistics of all of them together."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from jiyi.scoring import average_length, idf
from jiyi_api.hits import MatchedTerm
from jiyi_api.orders import TIME_BOOST, Boost, Factors
from jiyi_api.ranking import Question, Ranked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from jiyi_api.columns import Journal
    from jiyi_api.filters import Filters
    from jiyi_api.orders import Order
    from jiyi_api.ranking import Ranker
    from jiyi_api.snapshots import Snapshot

_WIDER = 4
"""So many times what is wanted is looked at first where time is favoured, and so many times more if that is too few."""
_MOST_LOOKED_AT = 1_000
"""Of more than this, every match is scored at once."""
_NEARLY = 1e-5
"""A score in single precision is nearer to the true one than this share of it."""


class PresentTerm(msgspec.Struct, frozen=True, gc=False):
    """A term of the question that some document has; `worth` is what one occurrence gives, before it is saturated."""

    term: str
    df: int
    idf: float
    weight: float
    worth: float


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for: terms with their weights, and how documents are chosen and ordered.

    Documents must have one of each group of `required` terms. Without `order` and `min_score` the order is BM25's.
    """

    terms: Mapping[str, float]
    filters: Filters
    k1: float
    b: float
    required: Sequence[Sequence[str]] = ()
    order: Order | None = None
    min_score: float | None = None

    @property
    def columns(self) -> list[str]:
        """All terms whose columns are needed, each once."""
        filters, kinds = self.filters, self.order.terms if self.order else ()
        if not (filters.groups or filters.excluded or kinds):
            return list(self.terms)
        return list(dict.fromkeys([*self.terms, *filters.terms, *kinds]))


class Ranking(NamedTuple):
    """What was found in a namespace at one instant; its numbers mean something in the epoch of `journal` alone.

    Lengths are of that instant as well, for others read the journal on. `terms` are in the order of the columns of
    `found`; `size` and `avgdl` are those of all namespaces together. `scores`, `boosts` and `factors` go document by
    document, as `found` does; `reached` are all documents of at least the minimum score, if there is one. Of several
    namespaces, `wanted` is how many are the best of all, and `created` has the documents' times of creation (epoch ms).
    """

    found: Ranked
    lengths: list[float]
    terms: list[PresentTerm]
    size: int
    avgdl: float
    moves: bytes
    journal: Journal | None
    scores: list[float] | None = None
    boosts: list[Boost | None] | None = None
    factors: list[Factors] | None = None
    reached: NDArray[np.uint32] | None = None
    wanted: int = 0
    created: Sequence[int] = ()

    @property
    def total(self) -> int:
        """How many documents match."""
        return self.found.total

    @property
    def is_whole(self) -> bool:
        """Whether all that match are here, not only the best."""
        return self.found.docs.size == self.found.total

    def only(self, place: int) -> Ranking:
        """Give the ranking with one of its documents, and the same total."""
        here = slice(place, place + 1)
        docs, tfs, parts, total = self.found
        return self._replace(
            found=Ranked(docs[here], tfs[here], parts[here], total),
            lengths=self.lengths[here],
            scores=self.scores and self.scores[here],
            boosts=self.boosts and self.boosts[here],
            factors=self.factors and self.factors[here],
            created=self.created[here],
        )

    def hits(self) -> Iterator[tuple[int, list[MatchedTerm], int]]:
        """Give number, terms and length of the documents, best first."""
        docs, tfs, parts, _ = self.found
        matched: list[list[MatchedTerm]] = [[] for _ in self.lengths]
        rows, columns = tfs.nonzero()
        tf_of, score_of = tfs[rows, columns].tolist(), parts[rows, columns].tolist()
        for row, column, tf, score in zip(rows.tolist(), columns.tolist(), tf_of, score_of, strict=True):
            one = self.terms[column]
            matched[row].append(MatchedTerm(one.term, tf, one.df, one.idf, one.weight, score))
        return zip(docs.tolist(), matched, map(int, self.lengths), strict=True)


_WORTH = attrgetter("worth")
NOTHING = Ranking(Ranked(np.empty(0, np.uint32), np.empty((0, 0), np.uint16), np.empty((0, 0)), 0), [], [], 0, 0.0,
                  b"", None)  # fmt: skip
"""The ranking of a namespace that nobody has written to."""


def rank_snapshots(ranker: Ranker, snapshots: Sequence[Snapshot | None], wanted: Wanted, limit: int) -> list[Ranking]:
    """Rank the best `limit` documents of all namespaces together; gives a ranking for each (None: it is unknown).

    N, the document frequencies and the mean length are added up, so that scores are those of one index of all. The
    snapshots must stand still meanwhile.
    """
    known = [snapshot for snapshot in snapshots if snapshot is not None]
    size, tokens = sum([one.docs for one in known]), sum([one.tokens for one in known])
    avgdl = average_length(tokens, size)
    if len(known) == 1:
        dfs = {term: column.df for term, column in known[0].terms.items()}
    else:
        dfs = {term: sum([one.terms[term].df for one in known]) for term in wanted.terms}
    present = [
        PresentTerm(term, df, rarity := idf(size, df), weight, rarity * weight)
        for term, weight in wanted.terms.items()
        if (df := dfs[term])
    ]
    present.sort(key=_WORTH, reverse=True)
    questions = [_question(one, wanted, present, avgdl, limit) for one in known]
    if wanted.order is None and wanted.min_score is None:
        rankings = [
            _ranking(one, ranker.rank(question), present, size, avgdl)
            for one, question in zip(known, questions, strict=True)
        ]
    else:
        figures, found = (size, avgdl), None
        if wanted.order is not None and wanted.order.ranking is None and wanted.min_score is None and questions:
            found = _boosted(ranker, known, questions, wanted.order, present, figures)
        rankings = found or _ordered(ranker, known, questions, wanted, present, figures)
    if len(known) < len(snapshots):
        iterator = iter(rankings)
        nothing = NOTHING._replace(size=size, avgdl=avgdl)
        rankings = [nothing if one is None else next(iterator) for one in snapshots]
    return rankings if len(rankings) == 1 else [_among_others(one, limit) for one in rankings]


def _among_others(ranking: Ranking, wanted: int) -> Ranking:
    journal = ranking.journal
    created = [] if journal is None else journal.created[ranking.found.docs].tolist()
    return ranking._replace(wanted=wanted, created=created)


def count_matches(tiers: Sequence[Sequence[Ranking]]) -> int:
    """Count what matches in any of one or two tiers, each with a ranking for each namespace.

    The last tier has all that the first has, but for a minimum score: with a memory ranking, the relevance of each tier
    is a share of its own best, so a document may reach that score in the first alone.
    """
    total = sum(one.total for one in tiers[-1])
    for first, last in zip(tiers[0], tiers[-1], strict=True) if len(tiers) > 1 else ():
        if first.reached is not None and last.reached is not None:
            total += np.setdiff1d(first.reached, last.reached, assume_unique=True).size
    return total


def _question(snapshot: Snapshot, wanted: Wanted, present: Sequence[PresentTerm], avgdl: float, limit: int) -> Question:
    columns, filters = snapshot.terms, wanted.filters
    groups = [[columns[term] for term in group] for _, group in filters.groups]
    groups += [[columns[term] for term in group] for group in wanted.required]
    return Question(
        journal=snapshot.journal,
        columns=[columns[one.term] for one in present],
        idfs=[one.worth for one in present],
        filters=groups,
        excluded=[columns[term] for term in filters.excluded],
        k1=wanted.k1,
        b=wanted.b,
        avgdl=avgdl,
        limit=limit,
        spans=filters.spans,
        floor=float(np.float32(filters.min_importance)),  # as the index has it, or 0.7 is not at least 0.7
    )


def _ranking(snapshot: Snapshot, found: Ranked, present: list[PresentTerm], size: int, avgdl: float) -> Ranking:
    journal = snapshot.journal
    return Ranking(found, journal.lengths[found.docs].tolist(), present, size, avgdl, snapshot.moves, journal)


class _Scores(NamedTuple):
    """Relevance and score of documents of one namespace, in double precision."""

    docs: NDArray[np.uint32]
    relevance: NDArray[np.float64]
    scores: NDArray[np.float64]


class _Ordering:
    """Ranks with an order of its own: every match is scored, the best are scored again in double precision."""

    def __init__(
        self, ranker: Ranker, snapshots: Sequence[Snapshot], questions: Sequence[Question], wanted: Wanted
    ) -> None:
        self._ranker = ranker
        self._snapshots = snapshots
        self._questions = questions
        self._wanted = wanted
        self._best = 0.0

    def best(self, limit: int) -> list[tuple[_Scores, NDArray[np.uint32]]]:
        """Give the best documents of all namespaces, a part for each, not in order; and all that match."""
        relevances = []
        for question in self._questions:
            docs, scores = self._ranker.score_all(question)
            relevances.append((docs, self._relevance(scores.astype(np.float64), docs, question)))
        tops = [
            self._exactly(question, docs[[np.argmax(values)]])
            for question, (docs, values) in zip(self._questions, relevances, strict=True)
            if docs.size
        ]
        self._best = max((float(values[0]) for values in tops), default=0.0)
        parts = [self._scored(i, *relevance) for i, relevance in enumerate(relevances)]
        lowest = _lowest(np.concatenate([part.scores for part in parts]), limit) if parts else 0.0
        kept = []
        for i, part in enumerate(parts):
            keep = part.scores >= lowest - _NEARLY * abs(lowest)
            docs = part.docs[keep] if limit else part.docs[:0]
            kept.append((self._scored(i, docs, self._exactly(self._questions[i], docs)), part.docs))
        return kept

    def factors(self, i: int, part: _Scores) -> list[Factors] | None:
        """Give what the scores of documents are made of."""
        snapshot = self._snapshots[i]
        order = self._wanted.order
        if order is None:
            return None
        return order.factors(part.relevance, part.docs, snapshot.journal, snapshot.terms, self._best)

    def _relevance(
        self, scores: NDArray[np.float64], docs: NDArray[np.uint32], question: Question
    ) -> NDArray[np.float64]:
        order = self._wanted.order
        return scores if order is None else order.relevance(scores, docs, question.journal)

    def _exactly(self, question: Question, docs: NDArray[np.uint32]) -> NDArray[np.float64]:
        return self._relevance(_sums(self._ranker.explain(question, docs).parts), docs, question)

    def _scored(self, i: int, docs: NDArray[np.uint32], relevance: NDArray[np.float64]) -> _Scores:
        """Score documents, and keep those of at least the minimum score."""
        snapshot, wanted = self._snapshots[i], self._wanted
        scores = relevance
        if wanted.order is not None:
            scores = wanted.order.scores(relevance, docs, snapshot.journal, snapshot.terms, self._best)
        if (least := wanted.min_score) is None:
            return _Scores(docs, relevance, scores)
        doubtful = np.abs(scores - least) <= _NEARLY * abs(least)
        if doubtful.any():
            relevance, scores = relevance.copy(), scores.copy()
            relevance[doubtful] = self._exactly(self._questions[i], docs[doubtful])
            scores[doubtful] = relevance[doubtful]
            if wanted.order is not None:
                scores[doubtful] = wanted.order.scores(
                    relevance[doubtful], docs[doubtful], snapshot.journal, snapshot.terms, self._best
                )
        keep = scores >= least
        return _Scores(docs[keep], relevance[keep], scores[keep])


def _ordered(  # noqa: PLR0913
    ranker: Ranker,
    snapshots: Sequence[Snapshot],
    questions: Sequence[Question],
    wanted: Wanted,
    present: list[PresentTerm],
    figures: tuple[int, float],
) -> list[Ranking]:
    ordering, rankings = _Ordering(ranker, snapshots, questions, wanted), []
    limit = questions[0].limit if questions else 0
    for i, (scored, matching) in enumerate(ordering.best(limit)):
        journal = snapshots[i].journal
        order = _best_first(scored.docs, scored.scores, journal)[:limit]
        part = _Scores(scored.docs[order], scored.relevance[order], scored.scores[order])
        found = ranker.explain(questions[i], part.docs)._replace(total=matching.size)
        ranking = _ranking(snapshots[i], found, present, *figures)
        if wanted.order is not None:
            ranking = _with_boosts(ranking, wanted.order)
        reached = None if wanted.min_score is None else matching
        factors = ordering.factors(i, part)
        rankings.append(ranking._replace(scores=part.scores.tolist(), factors=factors, reached=reached))
    return rankings


def _boosted(  # noqa: PLR0913
    ranker: Ranker,
    snapshots: Sequence[Snapshot],
    questions: Sequence[Question],
    order: Order,
    present: list[PresentTerm],
    figures: tuple[int, float],
) -> list[Ranking] | None:
    """Rank with a boost for time alone, without scoring every match; None where that cannot be told.

    Who is not among the best by BM25 can gain `TIME_BOOST` and no more. So it is enough to look at so many of these
    that the last of them, with the boost, would not reach the last that is wanted.
    """
    limit = questions[0].limit
    wider = _WIDER * limit
    while 0 < wider <= _MOST_LOOKED_AT:
        founds = [ranker.rank(msgspec.structs.replace(question, limit=wider)) for question in questions]
        sums = [_sums(found.parts) for found in founds]
        scores = [
            order.relevance(bm25, found.docs, one.journal)
            for bm25, found, one in zip(sums, founds, snapshots, strict=True)
        ]
        unseen = [bm25[-1] for bm25, found in zip(sums, founds, strict=True) if found.docs.size < found.total]
        if not unseen or _lowest(np.concatenate(scores), limit) > max(unseen) * (1.0 + TIME_BOOST) * (1.0 + _NEARLY):
            break
        wider *= _WIDER
    else:
        return None
    rankings = []
    for snapshot, found, values in zip(snapshots, founds, scores, strict=True):
        best = _best_first(found.docs, values, snapshot.journal)[:limit]
        kept = Ranked(found.docs[best], found.tfs[best], found.parts[best], found.total)
        ranking = _with_boosts(_ranking(snapshot, kept, present, *figures), order)
        rankings.append(ranking._replace(scores=values[best].tolist()))
    return rankings


def _with_boosts(ranking: Ranking, order: Order) -> Ranking:
    """Add to a ranking what each of its documents has gained for its time."""
    if not order.spans or ranking.journal is None:
        return ranking
    shares = order.boosts(ranking.found.docs, ranking.journal)
    bm25 = _sums(ranking.found.parts).tolist()
    boosts = [Boost(share, score * share) if share else None for share, score in zip(shares, bm25, strict=True)]
    return ranking._replace(boosts=boosts)


def _best_first(docs: NDArray[np.uint32], scores: NDArray[np.float64], journal: Journal) -> NDArray[np.intp]:
    """Give the positions of documents by score, then the newer first, then the later number."""
    return np.lexsort((docs, journal.created[docs], scores))[::-1]


def _lowest(scores: NDArray[np.float64], limit: int) -> float:
    """Give the lowest of the `limit` highest scores; of fewer, the lowest."""
    if not scores.size:
        return 0.0
    at = max(scores.size - limit, 0) if limit else scores.size - 1
    return float(np.partition(scores, at)[at])


def _sums(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up the parts of each score, one after the other, as everyone does who adds them up."""
    return parts.cumsum(axis=1)[:, -1] if parts.size else np.zeros(len(parts))
