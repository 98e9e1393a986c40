"""The scoring kernel: BM25 over decoded postings, compiled with numba.

All arrays are one-dimensional and contiguous. `docs` (uint32) and `tfs` (uint16) are the columns of one
term's postings; `lengths` (float32), `created` (int64, epoch ms) and `importance` (float32) are indexed by
document number, with length infinity for a number that is dead or unborn. `scores` (float32) and `marks`
(uint8) are scratch space indexed by document number, all zero between queries.

`python -m jiyi_api.kernel` compiles everything and fills numba's cache.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I64 = NDArray[np.int64]
    U8 = NDArray[np.uint8]
    U16 = NDArray[np.uint16]
    U32 = NDArray[np.uint32]


FOREVER_MS = 2**62
"""Bound of a time range that is open: `since` = −FOREVER_MS, `until` = FOREVER_MS."""
MAX_HITS = 255
"""Most hits of one `frequencies` call: their numbers fit into a uint8 beside 0."""


@njit(cache=True, nogil=True)
def mark(docs: U32, step: int, marks: U8) -> None:
    """Raise the mark of each document from `step` to `step` + 1: it passes one more group of filters."""
    for i in range(docs.size):
        if marks[docs[i]] == step:
            marks[docs[i]] = step + 1


@njit(cache=True, nogil=True)
def clear_marks(docs: U32, marks: U8) -> None:
    """Set the marks of the documents back to zero."""
    for i in range(docs.size):
        marks[docs[i]] = 0


@njit(cache=True, nogil=True)
def accumulate(  # noqa: PLR0913 - numba takes arrays, not objects
    docs: U32,
    tfs: U16,
    weight: float,
    base: float,
    slope: float,
    lengths: F32,
    required: int,
    marks: U8,
    scores: F32,
    touched: U32,
    count: int,
) -> int:
    """Add one term's part of the score to every living document that contains it.

    The part is weight·tf / (tf + base + slope·length), with weight = idf·(k1 + 1), base = k1·(1 − b) and
    slope = k1·b/avgdl. Documents whose mark is not `required` are passed over (0: no filter). Documents
    scored for the first time are appended to `touched`; gives their new `count`.
    """
    for i in range(docs.size):
        doc = docs[i]
        length = lengths[doc]
        if length == inf or (required and marks[doc] != required):
            continue
        tf = np.float32(tfs[i])
        part = np.float32(weight) * tf / (tf + np.float32(base) + np.float32(slope) * length)
        if scores[doc] == 0.0:
            touched[count] = doc
            count += 1
        scores[doc] += part
    return count


@njit(cache=True, nogil=True)
def _worse(a: int, b: int, scores: F32, created: I64) -> bool:
    """Tell whether document `a` ranks below `b`: by score, then the newer first, then the later number."""
    if scores[a] != scores[b]:
        return bool(scores[a] < scores[b])
    if created[a] != created[b]:
        return bool(created[a] < created[b])
    return a < b


@njit(cache=True, nogil=True)
def _sift_down(heap: U32, size: int, scores: F32, created: I64) -> None:
    """Restore the heap (worst document on top) after its top was replaced."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _worse(heap[child + 1], heap[child], scores, created):
            child += 1
        if not _worse(heap[child], heap[at], scores, created):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@njit(cache=True, nogil=True)
def _sift_up(heap: U32, at: int, scores: F32, created: I64) -> None:
    while at > 0:
        parent = (at - 1) // 2
        if not _worse(heap[at], heap[parent], scores, created):
            return
        heap[at], heap[parent] = heap[parent], heap[at]
        at = parent


@njit(cache=True, nogil=True)
def select_top(  # noqa: PLR0913 - numba takes arrays, not objects
    touched: U32,
    count: int,
    scores: F32,
    created: I64,
    importance: F32,
    since: int,
    until: int,
    floor: float,
    heap: U32,
) -> tuple[int, int]:
    """Put the best touched documents into `heap`, best first, and set all touched scores back to zero.

    Only documents created in [since, until) with an importance of at least `floor` take part. Gives how many
    were put into `heap` (at most its size) and how many took part.
    """
    size = 0
    total = 0
    everything = since <= -FOREVER_MS and until >= FOREVER_MS and floor <= 0.0
    for i in range(count):
        doc = touched[i]
        if not everything and (created[doc] < since or created[doc] >= until or importance[doc] < floor):
            continue
        total += 1
        if size < heap.size:
            heap[size] = doc
            _sift_up(heap, size, scores, created)
            size += 1
        elif size and _worse(heap[0], doc, scores, created):
            heap[0] = doc
            _sift_down(heap, size, scores, created)
    for end in range(size - 1, 0, -1):  # heap sort: the worst goes to the end
        heap[0], heap[end] = heap[end], heap[0]
        _sift_down(heap, end, scores, created)
    for i in range(count):
        scores[touched[i]] = 0.0
    return size, total


@njit(cache=True, nogil=True)
def frequencies(docs: U32, tfs: U16, hits: U32, slots: U8, out: U16) -> None:
    """Look up the term frequency of each of at most `MAX_HITS` hits (0: not contained) into `out`.

    `slots` is scratch space like `marks`.
    """
    for i in range(hits.size):
        slots[hits[i]] = i + 1
    for i in range(docs.size):
        slot = slots[docs[i]]
        if slot:
            out[slot - 1] = tfs[i]
    for i in range(hits.size):
        slots[hits[i]] = 0


def warm_up() -> None:
    """Compile every function, or load it from numba's cache; takes seconds the first time."""
    docs, tfs = np.zeros(1, np.uint32), np.ones(1, np.uint16)
    lengths, created, importance = np.ones(1, np.float32), np.zeros(1, np.int64), np.ones(1, np.float32)
    marks, scores, touched = np.zeros(1, np.uint8), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    mark(docs, 0, marks)
    clear_marks(docs, marks)
    count = accumulate(docs, tfs, 1.0, 1.0, 1.0, lengths, 0, marks, scores, touched, 0)
    select_top(touched, count, scores, created, importance, -1, 1, 0.0, np.zeros(1, np.uint32))
    frequencies(docs, tfs, docs, marks, np.zeros(1, np.uint16))


if __name__ == "__main__":
    warm_up()
