"""The ranker for where numba has no wheel: NumPy alone, which reads every posting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jiyi.sealed_postings import unseal
from jiyi_api.ranking import Question, Ranked, Scored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jiyi.sealed_postings import Columns
    from jiyi_api.columns import Postings


class NumpyRanker:
    """See `Ranker`."""

    name = "numpy"

    def __init__(self) -> None:
        self._scores: NDArray[np.float32] = np.zeros(0, np.float32)

    def rank(self, question: Question) -> Ranked:
        """See `Ranker`."""
        matching, scores = self.score_all(question)
        created = question.journal.created
        found = self.explain(question, _best(matching, scores, created[matching], question.limit))
        best, parts = found.docs, found.parts
        totals = parts.cumsum(axis=1)[:, -1] if parts.size else np.zeros(best.size)  # one after the other, as all do
        order = np.lexsort((best, created[best], totals))[::-1]
        return Ranked(best[order], found.tfs[order], parts[order], int(matching.size))

    def score_all(self, question: Question) -> Scored:
        """See `Ranker`."""
        journal = question.journal
        if self._scores.size < journal.lengths.size:
            self._scores = np.zeros(journal.lengths.size * 5 // 4, np.float32)
        allowed = allowed_documents(question)
        scores = self._scores
        base, slope = np.float32(question.base), np.float32(question.slope)
        weights = (np.array(question.idfs) * (question.k1 + 1.0)).astype(np.float32)
        touched: list[NDArray[np.uint32]] = []
        for column, weight in zip(question.columns, weights, strict=True):
            docs, tfs = column.docs, column.tfs
            keep = allowed[docs] & (tfs > 0)
            docs, tf = docs[keep], tfs[keep].astype(np.float32)
            scores[docs] += weight * (tf / (tf + base + slope * journal.lengths[docs]))
            touched.append(docs)
        matching = np.unique(np.concatenate(touched)) if touched else np.empty(0, np.uint32)
        found = scores[matching]
        scores[matching] = 0.0
        return Scored(matching, found)

    def explain(self, question: Question, docs: NDArray[np.uint32]) -> Ranked:
        """See `Ranker`."""
        tfs = np.array([_frequencies(column, docs) for column in question.columns], np.uint16)
        tfs = tfs.reshape(len(question.columns), docs.size).T
        return Ranked(docs, tfs, _parts(question, docs, tfs), docs.size)

    def unseal(self, sealed: bytes) -> Columns:
        """See `Ranker`."""
        return unseal(sealed)

    def warm_up(self) -> None:
        """There is nothing to compile."""


def allowed_documents(question: Question) -> NDArray[np.bool_]:
    """Tell of each document number whether it is alive and meets all conditions but the terms."""
    journal = question.journal
    allowed = np.isfinite(journal.lengths)
    for group in question.filters:
        passing = np.zeros(allowed.size, np.bool_)
        for column in group:
            passing[column.docs] = True
        allowed &= passing
    for column in question.excluded:
        allowed[column.docs] = False
    if question.spans:
        inside = [(begin <= journal.created) & (journal.created < end) for begin, end in question.spans]
        allowed &= np.logical_or.reduce(inside)
    if question.floor > 0.0:
        allowed &= journal.importance >= question.floor
    return allowed


def _best(
    docs: NDArray[np.uint32], scores: NDArray[np.float32], created: NDArray[np.int64], limit: int
) -> NDArray[np.uint32]:
    if 0 < limit < docs.size:  # all that may be among the best, with those that tie with the last
        keep = scores >= np.partition(scores, docs.size - limit)[docs.size - limit]
        docs, scores, created = docs[keep], scores[keep], created[keep]
    return docs[np.lexsort((docs, created, scores))[::-1][:limit]]


def _frequencies(column: Postings, docs: NDArray[np.uint32]) -> NDArray[np.uint16]:
    if not column.size:
        return np.zeros(docs.size, np.uint16)
    at = np.minimum(np.searchsorted(column.docs, docs), column.size - 1)
    return np.where(column.docs[at] == docs, column.tfs[at], 0).astype(np.uint16)


def _parts(question: Question, docs: NDArray[np.uint32], tfs: NDArray[np.uint16]) -> NDArray[np.float64]:
    k1, b = question.k1, question.b
    relative = np.ones(docs.size)
    if question.avgdl:
        relative = question.journal.lengths[docs].astype(np.float64) / question.avgdl
    tf = tfs.astype(np.float64)
    with np.errstate(invalid="ignore"):  # 0/0 where k1 is 0 and the term is not there
        saturation = tf * (k1 + 1.0) / (tf + (k1 * (1.0 - b + b * relative))[:, np.newaxis])
    return np.where(tfs > 0, np.array(question.idfs) * saturation, 0.0)
