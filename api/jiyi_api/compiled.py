"""The ranker that calls the compiled kernel: prepares tables and bounds, and keeps scratch space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jiyi.sealed_postings import RECORD, seal
from jiyi_api import kernel, unsealing
from jiyi_api.columns import Form, Journal, Postings
from jiyi_api.ranking import Question, Ranked, Scored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jiyi.sealed_postings import Columns

_WINDOW = 8_192
"""Documents whose scores are summed up together: 32 kB of them, which fit beside what is read."""
_NO_GROUPS = np.empty(0, np.int64)
_NO_SPANS = np.empty((0, 2), np.int64)


def _saturate(column: Postings, journal: Journal, form: Form) -> float:
    """Work out the saturations of a column that are not there yet; gives the largest."""
    if column.saturated_for != form:
        column.saturated_for, column.saturated, column.bound = form, 0, 0.0
    if column.saturated < column.size:
        base, slope, *_ = form
        found = kernel.saturate(
            column.docs, column.tfs, column.saturated, journal.lengths, base, slope, column.saturations
        )
        column.saturated, column.bound = column.size, max(column.bound, found)
    return column.bound


def _form(question: Question) -> Form:
    return question.base, question.slope, question.journal.token, question.journal.generation


def _table(question: Question) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the rows of all columns, terms first, and the sizes of the groups of filters."""
    rows, groups = [column.row for column in question.columns], _NO_GROUPS
    if question.filters or question.excluded:
        rows += [column.row for group in question.filters for column in group]
        rows += [column.row for column in question.excluded]
        sizes = [len(group) for group in question.filters]
        groups = np.array([*sizes, -len(question.excluded)] if question.excluded else sizes, np.int64)
    return np.frombuffer(b"".join(rows), np.int64).reshape(-1, 7), groups


def _spans(question: Question) -> NDArray[np.int64]:
    return np.array(question.spans, np.int64).reshape(-1, 2) if question.spans else _NO_SPANS


class NumbaRanker:
    """See `Ranker`. For comparison, `prunes=False` reads everything; `window` documents are scored at once."""

    name = "numba"

    def __init__(self, *, prunes: bool = True, window: int = _WINDOW) -> None:
        self._prunes = prunes
        self._scores: NDArray[np.float32] = np.zeros(window, np.float32)
        self._documents: NDArray[np.uint32] = np.zeros(window + 1, np.uint32)
        self._bits: NDArray[np.uint64] = np.zeros((2, 0), np.uint64)

    def rank(self, question: Question) -> Ranked:
        """See `Ranker`."""
        journal, columns, limit = question.journal, question.columns, question.limit
        self._reach(journal.lengths.size)
        table, groups = _table(question)
        terms = len(columns)
        form, factor = _form(question), question.k1 + 1.0
        bounds = [
            idf * factor * _saturate(column, journal, form) for column, idf in zip(columns, question.idfs, strict=True)
        ]
        heap = np.empty(limit, np.uint32)
        tfs, parts, places = np.empty((limit, terms), np.uint16), np.empty((limit, terms)), np.empty(limit, np.int64)
        size, total = kernel.rank(
            table,
            groups,
            np.array(question.idfs, np.float64),
            np.array(bounds, np.float64),
            journal.alive,
            journal.lengths,
            journal.created,
            journal.importance,
            _spans(question),
            question.floor,
            question.k1,
            question.b,
            question.avgdl,
            self._scores,
            self._documents,
            self._bits,
            heap,
            tfs,
            parts,
            places,
            self._prunes,
        )
        order = places[:size]
        return Ranked(heap[order], tfs[order], parts[order], total)

    def score_all(self, question: Question) -> Scored:
        """See `Ranker`."""
        journal = question.journal
        self._reach(journal.lengths.size)
        form = _form(question)
        for column in question.columns:
            _saturate(column, journal, form)
        docs, scores = kernel.score_all(
            *_table(question),
            np.array(question.idfs, np.float64),
            journal.alive,
            journal.created,
            journal.importance,
            _spans(question),
            question.floor,
            question.k1,
            self._scores,
            self._documents,
            self._bits,
        )
        return Scored(docs, scores)

    def explain(self, question: Question, docs: NDArray[np.uint32]) -> Ranked:
        """See `Ranker`."""
        shape = docs.size, len(question.columns)
        tfs, parts = np.empty(shape, np.uint16), np.empty(shape)
        table, _ = _table(question)
        idfs = np.array(question.idfs, np.float64)
        kernel.explain(table, idfs, question.journal.lengths, question.k1, question.b, question.avgdl, docs, tfs, parts)
        return Ranked(docs, tfs, parts, docs.size)

    def unseal(self, sealed: bytes) -> Columns:
        """See `Ranker`."""
        return unsealing.unseal(sealed)

    def warm_up(self) -> None:
        """Compile everything, or load it from numba's cache; takes seconds the first time."""
        journal, column = Journal(""), Postings()
        journal.reach(1)
        column.extend(b"", 0, bytes(6), 1)
        self.unseal(*seal([np.zeros(1, RECORD)]))
        question = Question(
            journal=journal, columns=[column], idfs=[1.0], filters=[[column]], k1=1.0, b=0.5, avgdl=1.0, limit=1
        )
        self.explain(question, self.rank(question).docs)
        self.score_all(question)

    def _reach(self, size: int) -> None:
        if self._bits.shape[1] * 64 < size:
            self._bits = np.zeros((2, (size + size // 4) // 64 + 1), np.uint64)


if __name__ == "__main__":
    NumbaRanker().warm_up()
