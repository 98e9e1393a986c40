"""Search: analyse the question, score one consistent snapshot, fetch the best memories, explain each."""

from __future__ import annotations

import asyncio
import time
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from jiyi import metrics
from jiyi.analysis import TooManyTerms
from jiyi.errors import InvalidQueryError
from jiyi.scoring import average_length, idf
from jiyi_api.documents import Documents
from jiyi_api.ranking import Question, Ranked, choose_ranker
from jiyi_api.stored import StoredMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jiyi.analysis import Analyzer
    from jiyi.connections import Database
    from jiyi_api.columns import Journal
    from jiyi_api.queries import SearchQuery
    from jiyi_api.ranking import Ranker
    from jiyi_api.snapshots import Snapshot, SnapshotReader

_ATTEMPTS = 3
"""A hit that is rewritten between scoring and fetching is searched for again, this often."""
_SEARCHED = {True: metrics.SEARCHES.labels("hits"), False: metrics.SEARCHES.labels("empty")}
_MOST_EXPIRED = 1_000
"""Expired memories are passed over until they are swept; behind more than this many, better ones stay hidden."""


class MatchedTerm(msgspec.Struct, rename="camel", omit_defaults=True):
    """What one term of the question contributes to a hit; the scores of all add up to the hit's.

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


class Hit(StoredMemory, rename="camel", omit_defaults=True, kw_only=True):
    """A memory that was found, and why."""

    score: float
    matched_terms: list[MatchedTerm]
    explanation: Explanation | None = None


class IndexFigures(msgspec.Struct, rename="camel"):
    """Size of the namespace at the instant of the search."""

    docs: int
    avgdl: float


class SearchResult(msgspec.Struct, rename="camel"):
    """Hits, best first; `total` counts all matching memories."""

    hits: list[Hit]
    total: int
    took_ms: float
    index: IndexFigures


class PresentTerm(NamedTuple):
    """A term of the question that some document has."""

    term: str
    df: int
    idf: float
    weight: float

    @property
    def worth(self) -> float:
        """What one occurrence gives, before it is saturated."""
        return self.idf * self.weight


class Ranking(NamedTuple):
    """What was found in a namespace at one instant; its numbers mean something in the epoch of `journal` alone.

    `terms` are in the order of the columns of `found`.
    """

    found: Ranked
    lengths: list[float]  # of the documents found
    terms: list[PresentTerm]
    size: int  # of the namespace, in documents
    avgdl: float
    moves: bytes
    journal: Journal | None

    @property
    def total(self) -> int:
        """How many documents match."""
        return self.found.total

    def hits(self) -> Iterator[tuple[int, list[MatchedTerm], int]]:
        """Give number, terms and length of the documents, best first."""
        docs, tfs, parts, _ = self.found
        for doc, row, scores, length in zip(docs.tolist(), tfs.tolist(), parts.tolist(), self.lengths, strict=True):
            matched = [
                MatchedTerm(term.term, tf, term.df, term.idf, term.weight, score)
                for term, tf, score in zip(self.terms, row, scores, strict=True)
                if tf
            ]
            yield doc, matched, int(length)


_WORTH = attrgetter("worth")
_NOTHING = Ranked(np.empty(0, np.uint32), np.empty((0, 0), np.uint16), np.empty((0, 0)), 0)
_UNKNOWN = Ranking(_NOTHING, [], [], 0, 0.0, b"", None)


class Searcher:
    """Answers searches. Keeps columns and documents, nothing that could not be thrown away."""

    def __init__(
        self,
        database: Database,
        analyzer: Analyzer,
        reader: SnapshotReader,
        ranker: Ranker | None = None,
        *,
        document_bytes: int = 67_108_864,
    ) -> None:
        self._analyzer = analyzer
        self._reader = reader
        self._ranker = ranker or choose_ranker()
        self._documents = Documents(database, document_bytes)

    async def search(self, query: SearchQuery) -> SearchResult:
        """Find the best memories for a question. Scores are exact for the documents alive at that instant.

        Raises `UnavailableError`, `AnalyzerMismatchError`, `CorruptIndexError`, and `InvalidQueryError` for a
        question of too many terms.
        """
        started = time.perf_counter()
        try:
            terms, synonym_of = self._analyzer.question(query.text)
        except TooManyTerms as error:
            raise InvalidQueryError("q", str(error)) from None
        wanted, rewritten = query.limit, 0
        while True:
            ranking = await self.rank(query, terms, wanted)
            hits, expired, moved = await self._fetch(query, ranking)
            hits = hits[: query.limit]
            rewritten += moved > 0
            wider = min(query.limit + 2 * expired, _MOST_EXPIRED + query.limit)
            if len(hits) == min(query.limit, ranking.total) or rewritten == _ATTEMPTS:
                break
            if not moved and (ranking.found.docs.size == ranking.total or wider <= wanted):
                break  # what is missing has expired
            wanted = max(wanted, wider)
        if synonym_of:
            for hit in hits:
                for term in hit.matched_terms:
                    term.synonym_of = synonym_of.get(term.term)
        took_s = time.perf_counter() - started
        metrics.SEARCH_SECONDS.observe(took_s)
        _SEARCHED[bool(hits)].inc()
        metrics.HITS.observe(len(hits))
        return SearchResult(hits, ranking.total, round(took_s * 1000, 3), IndexFigures(ranking.size, ranking.avgdl))

    async def rank(self, query: SearchQuery, terms: Mapping[str, float], limit: int) -> Ranking:
        """Score a snapshot by weighted terms: the index layer, one call to Redis when the columns are warm."""
        reader = self._reader
        wanted = [*terms, *(term for group in query.filters for term in group)]
        if (known := reader.known(query.ns, wanted)) and (state := reader.ask_state(known)) is not None:
            # What is known is ranked while the server is asked whether it still holds: the question is sent as soon
            # as the loop gets a turn.
            try:
                await asyncio.sleep(0)
                if known.stands():
                    ranking = self._rank(known, query, terms, limit)
                    if await reader.is_still(known, state):
                        return ranking
            finally:
                state.cancel()
        async with reader.turn(query.ns):
            snapshot = await reader.read(query.ns, wanted)
            # No await from here on: the columns stand still.
            return _UNKNOWN if snapshot is None else self._rank(snapshot, query, terms, limit)

    def _rank(self, snapshot: Snapshot, query: SearchQuery, terms: Mapping[str, float], limit: int) -> Ranking:
        docs, columns = snapshot.docs, snapshot.terms
        avgdl = average_length(snapshot.tokens, docs)
        present = [
            PresentTerm(term, df, idf(docs, df), weight) for term, weight in terms.items() if (df := columns[term].df)
        ]
        present.sort(key=_WORTH, reverse=True)
        found = self._ranker.rank(
            Question(
                journal=snapshot.journal,
                columns=[columns[one.term] for one in present],
                idfs=[one.worth for one in present],
                filters=[[columns[term] for term in group] for group in query.filters],
                k1=query.k1,
                b=query.b,
                avgdl=avgdl,
                limit=limit,
                since=query.since_ms,
                until=query.until_ms,
                floor=float(np.float32(query.min_importance)),  # as the index has it, or 0.7 is not at least 0.7
            )
        )
        lengths = snapshot.journal.lengths[found.docs].tolist()
        return Ranking(found, lengths, present, docs, avgdl, snapshot.moves, snapshot.journal)

    async def _fetch(self, query: SearchQuery, ranking: Ranking) -> tuple[list[Hit], int, int]:
        """Fetch the ranked documents; gives also how many have expired and how many have moved on."""
        if ranking.journal is None or not ranking.found.docs.size:
            return [], 0, 0
        docs = ranking.found.docs.tolist()
        documents, expired, moved = await self._documents.fetch(query.ns, docs, ranking.journal, ranking.moves)
        hits = []
        for doc, matched, length in ranking.hits():
            if (document := documents.get(doc)) is None:
                continue
            explanation = None
            if query.explain:
                explanation = Explanation(length, ranking.avgdl, ranking.size, query.k1, query.b)
            score = 0.0
            for term in matched:
                score += term.score
            hits.append(Hit(**document.fields, score=score, matched_terms=matched, explanation=explanation))
        return hits, expired, moved
