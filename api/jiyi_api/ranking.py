"""Ranking a snapshot: the best documents for some terms, exactly, by the compiled kernel or by NumPy alone."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from jiyi.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from jiyi.sealed_postings import Columns
    from jiyi_api.columns import Journal, Postings

FOREVER_MS = 2**62
"""Bound of a span of time that is open: it begins at −FOREVER_MS, or ends at FOREVER_MS."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is ranked: columns of distinct terms with their idf, and what documents must fulfil.

    Parts of scores are added up in the order of the terms: to be fast, the largest idf must come first. A document must
    be in a column of each group of `filters` and in none of `excluded`, created in one of the `spans` [begin, end) in
    epoch ms (none: at any time), and of at least the importance `floor`. `avgdl` 0 takes the length out of the formula
    (see `jiyi.scoring`).
    """

    journal: Journal
    columns: Sequence[Postings]
    idfs: Sequence[float]
    filters: Sequence[Sequence[Postings]]
    excluded: Sequence[Postings] = ()
    k1: float
    b: float
    avgdl: float
    limit: int
    spans: Sequence[tuple[int, int]] = ()
    floor: float = 0.0

    @property
    def base(self) -> float:
        """The part of the formula's denominator that is the same for all documents."""
        return self.k1 * (1.0 - self.b) if self.avgdl else self.k1

    @property
    def slope(self) -> float:
        """What a token of length adds to the denominator."""
        return self.k1 * self.b / self.avgdl if self.avgdl else 0.0


class Ranked(NamedTuple):
    """The best `limit` documents, best first, and how many match in all.

    Best is the highest sum of the parts of the score, then the newest, then the highest number. Which documents these
    are is decided in single precision.

    `tfs` (uint16) and `parts` (float64) hold a row for each of `docs` (uint32) and in it, term by term, the frequency
    and the part of the score in double precision.
    """

    docs: NDArray[np.uint32]
    tfs: NDArray[np.uint16]
    parts: NDArray[np.float64]
    total: int


class Scored(NamedTuple):
    """All documents that match, in no order (uint32), and their scores in single precision (float32)."""

    docs: NDArray[np.uint32]
    scores: NDArray[np.float32]


class Ranker(Protocol):
    """Ranks; gives the same whatever it is made with."""

    name: str

    def rank(self, question: Question) -> Ranked:
        """Rank the documents that match, by score, then the newer first, then the later number."""
        ...

    def score_all(self, question: Question) -> Scored:
        """Score every document that matches, whatever `limit` is: for orders that are not of the score alone."""
        ...

    def explain(self, question: Question, docs: NDArray[np.uint32]) -> Ranked:
        """Give frequencies and parts of documents that match, in their order; `total` is their number."""
        ...

    def unseal(self, sealed: bytes) -> Columns:
        """Decode a sealed part of a list; see `jiyi.sealed_postings`."""
        ...

    def warm_up(self) -> None:
        """Do what takes time once."""
        ...


def choose_ranker(kernel: str = "auto") -> Ranker:
    """Give the ranker for `JIYI_KERNEL`: `numba`, `numpy`, or with `auto` numba where it is installed.

    Raises `SettingsError` when numba is asked for and not there.
    """
    has_numba = importlib.util.find_spec("numba") is not None
    if kernel == "numba" and not has_numba:
        raise SettingsError("JIYI_KERNEL is numba, which is not installed here; install it or set JIYI_KERNEL=numpy")
    if kernel == "numpy" or not has_numba:
        from jiyi_api.vectorised import NumpyRanker  # noqa: PLC0415 - only one of the two is needed

        return NumpyRanker()
    from jiyi_api.compiled import NumbaRanker  # noqa: PLC0415 - may not be importable here

    return NumbaRanker()
