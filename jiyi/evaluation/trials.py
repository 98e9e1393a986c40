"""Trials: what other settings would find, scored in this process, exactly as the reader scores.

`jiyi tune` tries many settings on the same questions; an index and a service for each would take minutes.
"""

from __future__ import annotations

from binascii import crc32
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jiyi.evaluation.measures import DEPTH, Scores, measure
from jiyi.scoring import DEFAULT_B, DEFAULT_K1, average_length, idf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from jiyi.analysis import Analyzer
    from jiyi.evaluation.judged import JudgedQuery, JudgedSet

K1 = (0.6, 0.9, DEFAULT_K1, 1.5, 1.8, 2.2)
B = (0.2, 0.4, DEFAULT_B, 0.75, 0.9)


class Trial(NamedTuple):
    """Scores of one setting, on the half that is tuned on and on the half that is held out."""

    k1: float
    b: float
    tuned: Scores
    held_out: Scores


def is_held_out(query: JudgedQuery) -> bool:
    """Tell whether a question belongs to the half that nothing is chosen by; by its id, so it always does."""
    return bool(crc32(query.id.encode()) & 1)


def try_all(
    judged: JudgedSet,
    analyzer: Analyzer,
    k1: Sequence[float] = K1,
    b: Sequence[float] = B,
    on_step: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Trial]:
    """Try every k1 with every b. `on_step` is called with the questions done, and how many there are."""
    grid = [(one, other) for one in k1 for other in b]
    indexes = {ns: _Index(rows, analyzer, grid) for ns, rows in _by_namespace(judged)}
    found: list[list[list[str]]] = []
    for done, query in enumerate(judged.queries, 1):
        found.append(indexes[query.ns].search(analyzer.query_terms(query.query)))
        on_step(done, len(judged.queries))
    return [
        Trial(*setting, *(_scores(judged.queries, found, number, held_out=held_out) for held_out in (False, True)))
        for number, setting in enumerate(grid)
    ]


def _scores(
    queries: Sequence[JudgedQuery], found: Sequence[Sequence[Sequence[str]]], number: int, *, held_out: bool
) -> Scores:
    return measure(
        (rankings[number], query.relevant)
        for query, rankings in zip(queries, found, strict=True)
        if is_held_out(query) is held_out
    )


def _by_namespace(judged: JudgedSet) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    rows: dict[str, list[tuple[str, str]]] = {}
    for row in judged.documents:
        rows.setdefault(row["ns"], []).append((row["id"], row["content"]))
    return iter(rows.items())


class _Index:
    """The documents of one namespace, scored for all settings of a grid at once. The later document wins a tie."""

    def __init__(
        self, rows: Sequence[tuple[str, str]], analyzer: Analyzer, grid: Sequence[tuple[float, float]]
    ) -> None:
        self._ids = [memory_id for memory_id, _ in rows]
        postings: dict[str, list[tuple[int, int]]] = {}
        lengths = np.zeros(len(rows))
        for doc, (_, content) in enumerate(rows):
            terms = analyzer.terms(content)
            lengths[doc] = sum(terms.values())
            for term, tf in terms.items():
                postings.setdefault(term, []).append((doc, tf))
        self._postings: dict[str, NDArray[np.int64]] = {term: np.array(found).T for term, found in postings.items()}
        k1, b = (np.array(column)[:, np.newaxis] for column in zip(*grid, strict=True))
        average = average_length(int(lengths.sum()), len(rows))
        relative = lengths / average if average else np.ones(len(rows))
        self._k1 = k1
        self._norms = k1 * (1.0 - b + b * relative)

    def search(self, terms: Mapping[str, float]) -> list[list[str]]:
        """Give the ids found under each setting, best first."""
        size = len(self._ids)
        scores = np.zeros((len(self._k1), size))
        for term, weight in terms.items():
            if (found := self._postings.get(term)) is not None:
                docs, tfs = found
                scores[:, docs] += weight * idf(size, len(docs)) * tfs * (self._k1 + 1.0) / (tfs + self._norms[:, docs])
        depth = min(DEPTH, size)
        best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        rankings = []
        for row, docs in zip(scores, best, strict=True):
            order = docs[np.lexsort((docs, row[docs]))[::-1]]
            rankings.append([self._ids[doc] for doc in order.tolist() if row[doc] > 0.0])
        return rankings
