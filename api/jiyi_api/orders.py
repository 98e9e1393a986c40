"""Orders: how a hit's score comes from its BM25 score, when it is not that score itself.

`rank=memory` weighs relevance, importance and freshness; time words in the question favour memories of that time. Both
need the score of every match before the best can be told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from jiyi.errors import InvalidQueryError
from jiyi.keys import filter_term

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from jiyi_api.columns import Journal, Postings

TIME_BOOST = 0.25
"""What a memory of the time that the question names gains, as a share of its BM25 score: enough to go before its like,
too little to go before what fits much better."""
DEFAULT_HALF_LIFE_DAYS = 30.0
_DAY_MS = 86_400_000.0
MAX_KINDS = 64
MAX_WEIGHT = 1_000_000.0
"""A score is a sum of weights, and must stay a number."""


class Weights(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What each factor counts in `rank=memory`; each is from 0 to 1 before it is weighed."""

    relevance: float = 0.6
    importance: float = 0.25
    freshness: float = 0.15


class KindRanking(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """What is different for memories of one kind."""

    weights: Weights | None = None
    half_life_days: float | None = None


class MemoryRanking(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """The settings of `rank=memory`.

    Relevance is the BM25 score as a share of the best match's; importance is the memory's own; freshness is
    0.5 ** (age / half-life), the age being the time from the memory's `timestamp` to the reference time.
    """

    weights: Weights = Weights()
    half_life_days: float = DEFAULT_HALF_LIFE_DAYS
    kinds: dict[str, KindRanking] = {}

    def check(self) -> None:
        """Raise `InvalidQueryError` for numbers that give no order."""
        if len(self.kinds) > MAX_KINDS:
            raise InvalidQueryError("ranking", f"names {len(self.kinds)} kinds; at most {MAX_KINDS} are allowed")
        everything: list[tuple[str, Weights | None, float | None]] = [("", self.weights, self.half_life_days)]
        everything += [(f"kinds.{name}.", kind.weights, kind.half_life_days) for name, kind in self.kinds.items()]
        for where, weights, half_life in everything:
            if half_life is not None and not 0.0 < half_life < math.inf:
                raise InvalidQueryError("ranking", f"{where}halfLifeDays must be a number of days, greater than 0")
            if weights is None:
                continue
            for name, weight in msgspec.structs.asdict(weights).items():
                if not 0.0 <= weight <= MAX_WEIGHT:
                    raise InvalidQueryError(
                        "ranking", f"{where}weights.{name} must be a number from 0 to {MAX_WEIGHT:,.0f}"
                    )


class Factor(msgspec.Struct, rename="camel", omit_defaults=True):
    """One factor of a score of `rank=memory`: its value from 0 to 1, its weight, and their product, its part."""

    value: float
    weight: float
    score: float
    age_days: float | None = None
    half_life_days: float | None = None


class Factors(msgspec.Struct):
    """What a score of `rank=memory` is made of; the parts, added in this order, are the score."""

    relevance: Factor
    importance: Factor
    freshness: Factor

    @property
    def score(self) -> float:
        """The sum of the parts."""
        return self.relevance.score + self.importance.score + self.freshness.score


class Boost(msgspec.Struct):
    """What a hit gains for the time that the question names: `factor` of the sum of its matched terms' scores."""

    factor: float
    score: float


class Order(NamedTuple):
    """What is added to BM25: spans of time that are favoured ([begin, end) in epoch ms), and the memory ranking.

    `at_ms` is the reference time, for the age of memories.
    """

    spans: tuple[tuple[int, int], ...]
    ranking: MemoryRanking | None
    at_ms: int

    @property
    def terms(self) -> Iterator[str]:
        """Filter terms of the kinds that are ranked in their own way."""
        for kind in self.ranking.kinds if self.ranking else ():
            yield filter_term("kind", kind)

    def relevance(self, scores: NDArray[np.float64], docs: NDArray[np.uint32], journal: Journal) -> NDArray[np.float64]:
        """Give BM25 scores with what documents gain for their time."""
        if not self.spans:
            return scores
        return scores + scores * TIME_BOOST * self._favoured(docs, journal)  # as an explanation adds it up

    def boosts(self, docs: NDArray[np.uint32], journal: Journal) -> list[float]:
        """Give the share that each document gains for its time."""
        return (self._favoured(docs, journal) * TIME_BOOST).tolist()  # type: ignore[no-any-return]

    def _favoured(self, docs: NDArray[np.uint32], journal: Journal) -> NDArray[np.bool_]:
        created = journal.created[docs]
        favoured = np.zeros(docs.size, np.bool_)
        for begin, end in self.spans:
            favoured |= (begin <= created) & (created < end)
        return favoured

    def scores(
        self,
        relevance: NDArray[np.float64],
        docs: NDArray[np.uint32],
        journal: Journal,
        kinds: Mapping[str, Postings],
        best: float,
    ) -> NDArray[np.float64]:
        """Give the scores of documents; `best` is the highest relevance of all matches, `kinds` columns by term."""
        if self.ranking is None:
            return relevance
        values, weights, _ = self._factors(self.ranking, relevance, docs, journal, kinds, best)
        weighted: NDArray[np.float64] = values * weights
        return weighted[:, 0] + weighted[:, 1] + weighted[:, 2]

    def factors(
        self,
        relevance: NDArray[np.float64],
        docs: NDArray[np.uint32],
        journal: Journal,
        kinds: Mapping[str, Postings],
        best: float,
    ) -> list[Factors] | None:
        """Give what the scores of documents are made of; None without a memory ranking. Arguments as of `scores`."""
        if self.ranking is None:
            return None
        values, weights, half_lives = self._factors(self.ranking, relevance, docs, journal, kinds, best)
        ages = self._ages(docs, journal)
        found = []
        for value, weight, age, half_life in zip(
            values.tolist(), weights.tolist(), ages.tolist(), half_lives.tolist(), strict=True
        ):
            relevant, important, fresh = (Factor(v, w, v * w) for v, w in zip(value, weight, strict=True))
            fresh.age_days, fresh.half_life_days = age, half_life
            found.append(Factors(relevant, important, fresh))
        return found

    def _ages(self, docs: NDArray[np.uint32], journal: Journal) -> NDArray[np.float64]:
        """Ages in days; what is still to come is as new as can be."""
        return np.maximum(self.at_ms - journal.created[docs], 0) / _DAY_MS

    def _factors(  # noqa: PLR0913
        self,
        ranking: MemoryRanking,
        relevance: NDArray[np.float64],
        docs: NDArray[np.uint32],
        journal: Journal,
        kinds: Mapping[str, Postings],
        best: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Give values and weights of the three factors, a row a document, and half-lives in days."""
        weights = np.empty((docs.size, 3))
        weights[:] = msgspec.structs.astuple(ranking.weights)
        half_lives = np.full(docs.size, ranking.half_life_days)
        for name, kind in ranking.kinds.items():
            is_kind = np.isin(docs, kinds[filter_term("kind", name)].docs)
            if kind.weights is not None:
                weights[is_kind] = msgspec.structs.astuple(kind.weights)
            if kind.half_life_days is not None:
                half_lives[is_kind] = kind.half_life_days
        values = np.empty((docs.size, 3))
        values[:, 0] = np.minimum(relevance / best, 1.0) if best > 0.0 else 0.0
        values[:, 1] = journal.importance[docs]
        with np.errstate(over="ignore"):  # so many half-lives that nothing is left
            values[:, 2] = 0.5 ** (self._ages(docs, journal) / half_lives)
        return values, weights, half_lives
