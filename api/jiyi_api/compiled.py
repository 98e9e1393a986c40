"""The ranker that calls the compiled kernel: prepares tables and bounds, and keeps scratch space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jiyi.sealed_postings import RECORD, seal
from jiyi_api import kernel, unsealing
from jiyi_api.columns import Journal, Postings
from jiyi_api.ranking import Question, Ranked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jiyi.sealed_postings import Columns

_AHEAD = 0.97
"""Bounds are worked out for documents that count as this much shorter: they stay right while avgdl grows a little."""
_NO_GROUPS = np.empty(0, np.int64)
_NO_ROWS = np.empty((0, 6), np.int64)


def _bound(column: Postings, journal: Journal, form: tuple[float, float]) -> float:
    """Give the largest saturation (without k1 + 1) that a posting of the column can have, for a base and a slope."""
    base, slope = form
    known = column.bounded_for
    if known is None or known[0] != base or known[1] > slope:
        column.bounded_for = known = (base, slope * _AHEAD)
        column.bound, column.bounded = 0.0, 0
    if column.bounded < column.size:
        found = kernel.bound(column.docs, column.tfs, column.bounded, journal.lengths, *known)
        column.bound, column.bounded = max(column.bound, found), column.size
    return column.bound


class NumbaRanker:
    """See `Ranker`. `prunes=False` reads everything, for comparison."""

    name = "numba"

    def __init__(self, *, prunes: bool = True) -> None:
        self._prunes = prunes
        self._scores: NDArray[np.float32] = np.zeros(0, np.float32)
        self._documents: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._bits: NDArray[np.uint64] = np.zeros((2, 0), np.uint64)

    def rank(self, question: Question) -> Ranked:
        """See `Ranker`."""
        journal, columns, limit = question.journal, question.columns, question.limit
        self._reach(journal.lengths.size)
        rows = [column.row for column in columns]
        groups = _NO_GROUPS
        if question.filters:
            rows += [column.row for group in question.filters for column in group]
            groups = np.array([len(group) for group in question.filters], np.int64)
        terms = len(columns)
        form, factor = (question.base, question.slope), question.k1 + 1.0
        bounds = [
            idf * factor * _bound(column, journal, form) for column, idf in zip(columns, question.idfs, strict=True)
        ]
        heap = np.empty(limit, np.uint32)
        tfs, parts, places = np.empty((limit, terms), np.uint16), np.empty((limit, terms)), np.empty(limit, np.int64)
        size, total = kernel.rank(
            np.array(rows, np.int64) if rows else _NO_ROWS,
            groups,
            np.array(question.idfs, np.float64),
            np.array(bounds, np.float64),
            journal.alive,
            journal.lengths,
            journal.created,
            journal.importance,
            question.since,
            question.until,
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

    def unseal(self, sealed: bytes) -> Columns:
        """See `Ranker`."""
        return unsealing.unseal(sealed)

    def warm_up(self) -> None:
        """Compile everything, or load it from numba's cache; takes seconds the first time."""
        journal, column = Journal(""), Postings()
        journal.reach(1)
        column.extend(b"", 0, bytes(6), 1)
        self.unseal(*seal([np.zeros(1, RECORD)]))
        self.rank(Question(journal=journal, columns=[column], idfs=[1.0], filters=[[column]], k1=1.0, b=0.5, avgdl=1.0,
                           limit=1))  # fmt: skip

    def _reach(self, size: int) -> None:
        if self._scores.size < size:
            room = size + size // 4
            self._scores, self._documents = np.zeros(room, np.float32), np.zeros(room + 1, np.uint32)
            self._bits = np.zeros((2, (room + 63) // 64 + 1), np.uint64)


if __name__ == "__main__":
    NumbaRanker().warm_up()
