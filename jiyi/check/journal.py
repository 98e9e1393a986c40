"""The journal as arrays: which document numbers are alive, and what is recorded of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jiyi.check.report import KEPT_PER_KIND, Kind
from jiyi.postings import DEATH, JOURNAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jiyi.check.report import Report

UNKNOWN, ALIVE, DEAD = 0, 1, 2
RECORD = np.dtype([("doc", "<u4"), ("length", "<u4"), ("created", "<i8"), ("importance", "<f4")])
assert RECORD.itemsize == JOURNAL.size
_MARGIN = 65_536
_SPARSE = 64
"""Numbers have gaps, but arrays are not grown for a garbled one: beyond `next_doc`, and also beyond `_MARGIN` and
so many numbers a record, it is reported and left out."""


class Journal:
    """Births and deaths read so far. A number is UNKNOWN, then ALIVE, then DEAD, and never goes back.

    `state` (u8), `lengths` (u32 tokens), `created` (i64 epoch ms) and `importance` (f4) have one value per
    document number below `len(state)`; numbers beyond are UNKNOWN.
    """

    def __init__(self, report: Report, where: str) -> None:
        self._report = report
        self._where = where
        self.records = 0
        self.highest = -1
        self.state: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.lengths: NDArray[np.uint32] = np.zeros(1, np.uint32)
        self.created: NDArray[np.int64] = np.zeros(1, np.int64)
        self.importance: NDArray[np.float32] = np.zeros(1, np.float32)

    def absorb(self, records: bytes, next_doc: int) -> None:
        """Take in whole records in their order, and report what contradicts those before."""
        found = np.frombuffer(records, RECORD)
        self.records += len(found)
        found = self._plausible(found, next_doc)
        is_death = found["length"] == DEATH
        births, deaths = found[~is_death], found[is_death]
        self._absorb_births(births)
        self._absorb_deaths(deaths)
        # Only a number that is born and dies in this piece can do so in the wrong order unnoticed.
        _, first, second = np.intersect1d(births["doc"], deaths["doc"], return_indices=True)
        early = np.flatnonzero(~is_death)[first] > np.flatnonzero(is_death)[second]
        self._complain(births["doc"][first][early], "a death after the birth", "a death before it")

    def _plausible(self, found: NDArray[np.void], next_doc: int) -> NDArray[np.void]:
        limit = max(next_doc, _MARGIN + _SPARSE * self.records)
        absurd = found["doc"] >= limit
        self._complain(found["doc"][absurd], f"a number below {next_doc}", "a number far beyond")
        found = found[~absurd]
        if len(found):
            self.highest = max(self.highest, int(found["doc"].max()))
            self._grow(self.highest + 1)
        return found

    def _grow(self, size: int) -> None:
        missing = size - len(self.state)
        if missing > 0:
            more = max(missing, len(self.state) // 2)
            self.state, self.lengths, self.created, self.importance = (
                np.concatenate([column, np.zeros(more, column.dtype)])
                for column in (self.state, self.lengths, self.created, self.importance)
            )

    def _absorb_births(self, births: NDArray[np.void]) -> None:
        docs = births["doc"]
        distinct, counts = np.unique(docs, return_counts=True)
        again = self.state[distinct] != UNKNOWN
        self._complain(distinct[again | (counts > 1)], "one birth", "another birth of the same number")
        self.state[docs] = ALIVE
        for column, name in ((self.lengths, "length"), (self.created, "created"), (self.importance, "importance")):
            column[docs] = births[name]

    def _absorb_deaths(self, deaths: NDArray[np.void]) -> None:
        distinct, counts = np.unique(deaths["doc"], return_counts=True)
        unborn = self.state[distinct] == UNKNOWN
        twice = (self.state[distinct] == DEAD) | (counts > 1)
        self._complain(distinct[unborn], "a birth before the death", "no birth")
        self._complain(distinct[twice & ~unborn], "one death", "another death of the same number")
        self.state[distinct] = DEAD

    def _complain(self, docs: NDArray[np.uint32], expected: str, found: str) -> None:
        for doc in docs[:KEPT_PER_KIND]:
            self._report.add(Kind.JOURNAL, f"{self._where} doc {doc}", expected, found)
        self._report.count(Kind.JOURNAL, len(docs[KEPT_PER_KIND:]))

    def states(self, docs: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Give the state (u8) of each document number."""
        inside = docs < len(self.state)
        return np.where(inside, self.state[np.where(inside, docs, 0)], np.uint8(UNKNOWN))

    def is_alive(self, doc: int) -> bool:
        """Tell whether one document number is alive."""
        return doc < len(self.state) and bool(self.state[doc] == ALIVE)

    def totals(self) -> tuple[int, int]:
        """Count the live documents and their tokens."""
        alive = self.state == ALIVE
        return int(alive.sum()), int(self.lengths[alive].sum(dtype=np.uint64))
