"""What a search answers: hits and the numbers that each score is made of."""

from __future__ import annotations

import msgspec

from jiyi_api.orders import Boost, Factors  # noqa: TC001 - msgspec reads the annotations
from jiyi_api.snippets import Snippet  # noqa: TC001 - as above
from jiyi_api.stored import StoredMemory


class MatchedTerm(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """What one term of the question contributes to a hit; the scores of all add up to the hit's BM25 score.

    `weight` is what the term counts in the question: 1, or less for what is no word (see `Analyzer.question`).
    `synonym_of` is there for a term that was not asked for: the word or phrase of the question that it stands for.
    """

    term: str
    tf: int
    df: int
    idf: float
    weight: float
    score: float
    synonym_of: str | None = None


class Explanation(msgspec.Struct, rename="camel"):
    """The numbers that the parts of a score are made of; the formula is in `jiyi.scoring`."""

    length: int
    avgdl: float
    docs: int
    k1: float
    b: float
    formula: str = "weight * idf * tf*(k1+1) / (tf + k1*(1 - b + b*length/avgdl)), idf = ln(1 + (docs-df+0.5)/(df+0.5))"


class Folded(msgspec.Struct):
    """What a hit stands for besides itself: how many hits that rank below it, and the ids of the first of them."""

    count: int
    ids: list[str]


class Hit(StoredMemory, rename="camel", omit_defaults=True, kw_only=True):
    """A memory that was found, and why.

    `score` is the sum of the parts of `factors` with `rank=memory`; else that of the scores of `matched_terms`, and of
    `boost` if there is one. `ns` is given when several were asked, `matched_all` when those with every term go first.
    """

    score: float
    matched_terms: list[MatchedTerm]
    ns: str | None = None
    matched_all: bool | None = None
    boost: Boost | None = None
    factors: Factors | None = None
    folded: Folded | None = None
    snippet: Snippet | None = None
    explanation: Explanation | None = None


class IndexFigures(msgspec.Struct, rename="camel"):
    """Size of the namespaces at the instant of the search."""

    docs: int
    avgdl: float


class TimeFound(msgspec.Struct):
    """Time words of the question, and the span that they were taken for: ISO 8601, `until` exclusive; None: open."""

    text: str
    since: str | None
    until: str | None


class SearchResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """Hits, best first; `total` counts all matching memories."""

    hits: list[Hit]
    total: int
    took_ms: float
    index: IndexFigures
    time_words: list[TimeFound] | None = None
