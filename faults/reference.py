"""What searches must find: BM25 computed from the stored memories alone, without the index."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from jiyi import keys
from jiyi.connections import translated_errors
from jiyi.scoring import DEFAULT_B, DEFAULT_K1, average_length, idf, saturation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.analysis import Analyzer
    from jiyi.answers import SearchResult
    from jiyi.connections import Database

TOLERANCE = 1e-9


class Reference:
    """The memories of a namespace, analysed."""

    def __init__(self, analyzer: Analyzer, contents: dict[str, str]) -> None:
        self._analyzer = analyzer
        self._terms = {memory_id: analyzer.terms(content) for memory_id, content in contents.items()}

    @classmethod
    async def read(cls, database: Database, analyzer: Analyzer, ns: str, ids: Sequence[str]) -> Reference:
        """Read the memories with these ids, where they are."""
        with translated_errors():
            pipeline: Any = database.pipeline(transaction=False)
            for memory_id in ids:
                pipeline.hget(keys.memory_key(ns, memory_id), "content")
            rows = await pipeline.execute()
        found = {memory_id: raw.decode() for memory_id, raw in zip(ids, rows, strict=True) if raw is not None}
        return cls(analyzer, found)

    def scores(self, question: str) -> dict[str, float]:
        """Score every memory that matches."""
        docs = len(self._terms)
        lengths = {memory_id: sum(terms.values()) for memory_id, terms in self._terms.items()}
        avgdl = average_length(sum(lengths.values()), docs)
        scores: dict[str, float] = {}
        for term, weight in self._analyzer.query_terms(question).items():
            having = {memory_id: terms[term] for memory_id, terms in self._terms.items() if term in terms}
            for memory_id, tf in having.items():
                part = saturation(tf, lengths[memory_id], avgdl, DEFAULT_K1, DEFAULT_B) * idf(docs, len(having))
                scores[memory_id] = scores.get(memory_id, 0.0) + weight * part
        return scores

    def differs(self, question: str, result: SearchResult) -> str | None:
        """Say in what an answer with all matches is not what it must be; None when it is right."""
        expected = self.scores(question)
        found = {hit.id: hit.score for hit in result.hits}
        if expected.keys() != found.keys() or result.total != len(expected):
            return f"found {sorted(found)} of {result.total}, not {sorted(expected)}"
        for memory_id, score in expected.items():
            if not math.isclose(score, found[memory_id], rel_tol=TOLERANCE):
                return f"{memory_id!r} has score {found[memory_id]}, not {score}"
        return None
