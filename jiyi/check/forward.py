"""The forward side of the index: the postings that the stored documents ought to have, sorted by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jiyi import keys
from jiyi.postings import MAX_TF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_DOC_BITS = np.uint64(32)


class Vocabulary(dict[bytes, int]):
    """Numbers terms of some buckets in the order in which they are met; -1 stands for terms of other buckets."""

    def __init__(self, buckets: frozenset[int]) -> None:
        super().__init__()
        self._buckets = buckets
        self.terms: list[bytes] = []

    def __missing__(self, term: bytes) -> int:
        number = -1
        if bucket_of(term) in self._buckets:
            number = len(self.terms)
            self.terms.append(term)
        self[term] = number
        return number


class Forward:
    """Postings as (term number, doc) keys, `term << 32 | doc` in u64, with their tf in u16: 10 bytes each.

    `alive` (bool per document number) tells the documents that it may hold: those alive when it was begun.
    """

    def __init__(self, buckets: frozenset[int], alive: NDArray[np.bool_]) -> None:
        self.buckets = buckets
        self.alive = alive
        self.vocabulary = Vocabulary(buckets)
        self._docs: list[int] = []
        self._counts: list[int] = []
        self._terms: list[bytes] = []
        self._tfs: list[int] = []
        self._key_parts: list[NDArray[np.uint64]] = []
        self._tf_parts: list[NDArray[np.uint16]] = []
        self._keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._tf: NDArray[np.uint16] = np.empty(0, np.uint16)

    def covers(self, doc: int) -> bool:
        """Tell whether a document was alive at the beginning."""
        return doc < len(self.alive) and bool(self.alive[doc])

    def covered(self, docs: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Tell the same of many documents."""
        inside = docs < len(self.alive)
        return inside & self.alive[np.where(inside, docs, 0)]

    def add(self, doc: int, terms: dict[bytes, int], filters: Sequence[bytes]) -> None:
        """Add the postings of one document."""
        self._docs.append(doc)
        self._counts.append(len(terms) + len(filters))
        self._terms += terms
        self._terms += filters
        self._tfs += terms.values()
        self._tfs += [1] * len(filters)

    def flush(self) -> None:
        """Pack what was added since the last time."""
        numbers = np.fromiter(map(self.vocabulary.__getitem__, self._terms), np.int64, len(self._terms))
        docs = np.repeat(np.array(self._docs, np.uint64), self._counts)
        tfs = np.array([min(tf, MAX_TF) for tf in self._tfs], np.uint16)
        ours = numbers >= 0
        self._key_parts.append(join(numbers[ours].astype(np.uint64), docs[ours]))
        self._tf_parts.append(tfs[ours])
        self._docs, self._counts, self._terms, self._tfs = [], [], [], []

    def finish(self) -> None:
        """Sort everything."""
        if not self._key_parts:
            return
        unsorted, tfs = np.concatenate(self._key_parts), np.concatenate(self._tf_parts)
        self._key_parts, self._tf_parts = [], []
        order = np.argsort(unsorted)
        self._keys, self._tf = unsorted[order], tfs[order]

    def of_terms(self, numbers: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
        """Give the sorted keys and the tfs of the postings of some terms."""
        numbers = np.sort(numbers)
        starts = np.searchsorted(self._keys, numbers << _DOC_BITS)
        ends = np.searchsorted(self._keys, (numbers + np.uint64(1)) << _DOC_BITS)
        counts = ends - starts
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(starts, counts) + offsets
        return self._keys[places], self._tf[places]


def join(numbers: NDArray[np.uint64], docs: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Join term numbers and document numbers to keys."""
    return numbers << _DOC_BITS | docs


def split(joined: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Split keys into term numbers and document numbers."""
    return joined >> _DOC_BITS, joined & np.uint64(0xFFFF_FFFF)


def bucket_of(term: bytes) -> int:
    """Bucket of a term as it is stored; one that is not UTF-8 was written by nobody and is right nowhere."""
    try:
        return keys.bucket_of(term.decode())
    except UnicodeDecodeError:
        return -1
