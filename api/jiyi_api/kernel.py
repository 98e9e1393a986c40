"""The compiled ranking of one search: BM25 over decoded postings, exact, and without looking at what cannot matter.

All matching documents are counted with bitmaps. Scores are summed up term by term, those terms first that can add
most. As soon as the terms that are left cannot lift an unseen document into the best k any more (MaxScore; Turtle &
Flood, "Query evaluation: strategies and optimizations", 1995), they are looked up for the documents that still can get
there, and their lists are not read.

Columns come as rows of a `table` (int64): addresses of documents (uint32, ascending), term frequencies (uint16), bitmap
words and their ranks (see `columns.Bitmap`), then the numbers of postings and of words. The first rows are the terms of
the question, the others those of the filters. The caller keeps the arrays alive.

`python -m jiyi_api.compiled` compiles everything and fills numba's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
    I64 = NDArray[np.int64]
    U16 = NDArray[np.uint16]
    U32 = NDArray[np.uint32]
    U64 = NDArray[np.uint64]

SLACK = 1.00001
"""Bounds are raised by this much: scores are summed up in single precision."""
_MOST_PRUNED = 1_000
"""With more hits than this nothing is pruned: the threshold would cost more than it saves."""
_DOCS, _TFS, _WORDS, _RANKS, _SIZE, _WORD_COUNT = range(6)


def _pointer(kind: Any) -> Any:
    """Give a compiled function that turns an address into a pointer to items of a kind."""

    def pointer(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return intrinsic(pointer)


def _count_bits(_context: Any, word: Any) -> Any:
    """Give the code of a function that counts the bits of a word."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), generate


def _lowest_bit(_context: Any, word: Any) -> Any:
    """Give the code of a function that gives the position of the lowest bit of a word that is not zero."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 1))

    return word(word), generate


_u16, _u32, _u64 = _pointer(types.uint16), _pointer(types.uint32), _pointer(types.uint64)
_popcount: Any = intrinsic(_count_bits)
_trailing_zeros: Any = intrinsic(_lowest_bit)


@njit(cache=True, nogil=True)
def _unite(row: I64, union: U64) -> None:
    """Add the documents of a column to a bitmap."""
    if row[_WORD_COUNT]:
        words = carray(_u64(row[_WORDS]), row[_WORD_COUNT])
        for i in range(min(words.size, union.size)):
            union[i] |= words[i]
    else:
        docs = carray(_u32(row[_DOCS]), row[_SIZE])
        for doc in docs:
            union[doc >> 6] |= np.uint64(1) << np.uint64(doc & 63)


@njit(cache=True, nogil=True)
def _narrow(union: U64, created: I64, importance: F32, spans: I64, floor: float) -> None:
    """Take the documents out of a bitmap that were created in none of the spans, or are below the floor."""
    for i in range(union.size):
        word = union[i]
        while word:
            bit = _trailing_zeros(word)
            word &= word - np.uint64(1)
            doc = i * 64 + np.int64(bit)
            is_inside = spans.shape[0] == 0
            for j in range(spans.shape[0]):
                is_inside |= spans[j, 0] <= created[doc] < spans[j, 1]
            if not is_inside or importance[doc] < floor:
                union[i] &= ~(np.uint64(1) << bit)


@njit(cache=True, nogil=True)
def match(  # noqa: PLR0913
    table: I64, terms: int, groups: I64, alive: U64, union: U64, group: U64
) -> None:
    """Set `union` to the living documents that contain a term and, of each filter group, one of its columns.

    `groups` says how many rows after the terms belong to each filter group; of a group whose size is negative, a
    document must be in no column. `group` is scratch space.
    """
    union[:] = 0
    for i in range(terms):
        _unite(table[i], union)
    for i in range(union.size):
        union[i] &= alive[i]
    at = terms
    for size in groups:
        group[:] = 0
        for _ in range(abs(size)):
            _unite(table[at], group)
            at += 1
        for i in range(union.size):
            union[i] &= group[i] if size >= 0 else ~group[i]


@njit(cache=True, nogil=True)
def _find(row: I64, doc: int) -> int:
    """Term frequency of a document in a column; 0 where it is not there."""
    position: Any = -1
    if row[_WORD_COUNT]:
        at = doc >> 6
        if at < row[_WORD_COUNT]:
            word = carray(_u64(row[_WORDS]), row[_WORD_COUNT])[at]
            bit = np.uint64(1) << np.uint64(doc & 63)
            if word & bit:
                before = _popcount(word & (bit - np.uint64(1)))
                position = np.int64(carray(_u32(row[_RANKS]), row[_WORD_COUNT])[at]) + np.int64(before)
    else:
        docs = carray(_u32(row[_DOCS]), row[_SIZE])
        low, high = 0, docs.size
        while low < high:
            middle = (low + high) >> 1
            if docs[middle] < doc:
                low = middle + 1
            else:
                high = middle
        if low < docs.size and docs[low] == doc:
            position = low
    if position < 0 or position >= row[_SIZE]:
        return 0
    return np.int64(carray(_u16(row[_TFS]), row[_SIZE])[position])


@njit(cache=True, nogil=True)
def _worse(a: int, b: int, scores: F32, created: I64) -> bool:
    """Tell whether document `a` ranks below `b`: by score, then the newer first, then the later number."""
    if scores[a] != scores[b]:
        return bool(scores[a] < scores[b])
    if created[a] != created[b]:
        return bool(created[a] < created[b])
    return a < b


@njit(cache=True, nogil=True)
def _sift_down(heap: U32, at: int, size: int, scores: F32, created: I64) -> None:
    """Restore the heap (worst document on top) where one of its places has got another document."""
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
def _select(documents: U32, count: int, scores: F32, created: I64, heap: U32) -> int:
    """Put the best documents into `heap`, the worst of them on top; gives how many they are."""
    size = min(count, heap.size)
    for i in range(size):
        heap[i] = documents[i]
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, at, size, scores, created)
    worst = scores[heap[0]] if size else np.float32(0.0)
    for i in range(size, count):
        doc = documents[i]
        if scores[doc] >= worst and _worse(heap[0], doc, scores, created):
            heap[0] = doc
            _sift_down(heap, 0, size, scores, created)
            worst = scores[heap[0]]
    return size


@njit(cache=True, nogil=True)
def bound(  # noqa: PLR0913
    docs: U32, tfs: U16, begin: int, lengths: F32, base: float, slope: float
) -> float:
    """Largest tf / (tf + base + slope·length) of the postings from position `begin` on."""
    most = np.float32(0.0)
    for i in range(begin, docs.size):
        tf = np.float32(tfs[i])
        most = max(most, tf / (tf + np.float32(base) + np.float32(slope) * lengths[docs[i]]))
    return float(most)


@njit(cache=True, nogil=True)
def _read(  # noqa: PLR0913
    row: I64,
    weight: float,
    base: float,
    slope: float,
    union: U64,
    lengths: F32,
    scores: F32,
    documents: U32,
    count: int,
) -> int:
    """Add a term's part to the score of every document of its list that is in `union`.

    The part is weight·tf / (tf + base + slope·length), with weight = idf·(k1 + 1), base = k1·(1 − b) and
    slope = k1·b/avgdl. Documents with a score for the first time are appended to the `count` ones of `documents`, which
    has room for one more than there are; gives their new number.
    """
    docs, tfs = carray(_u32(row[_DOCS]), row[_SIZE]), carray(_u16(row[_TFS]), row[_SIZE])
    for i in range(docs.size):
        doc = docs[i]
        if not (union[doc >> 6] >> np.uint64(doc & 63)) & np.uint64(1) or not tfs[i]:
            continue
        tf = np.float32(tfs[i])
        part = weight * tf / (tf + base + slope * lengths[doc])
        before = scores[doc]
        documents[count] = doc  # always, for nobody can foresee whether it stays
        count += before == 0.0
        scores[doc] = before + part
    return count


@njit(cache=True, nogil=True)
def _look_up(  # noqa: PLR0913
    row: I64, weight: float, base: float, slope: float, lengths: F32, scores: F32, documents: U32, count: int
) -> None:
    """Add a term's part to the scores of some documents, where they contain it."""
    for i in range(count):
        doc = documents[i]
        frequency = _find(row, doc)
        if frequency:
            tf = np.float32(frequency)
            scores[doc] += weight * tf / (tf + base + slope * lengths[doc])


@njit(cache=True, nogil=True)
def accumulate(  # noqa: PLR0913
    table: I64,
    weights: F32,
    bounds: F64,
    union: U64,
    lengths: F32,
    base: np.float32,
    slope: np.float32,
    scores: F32,
    documents: U32,
    best: F32,
    prunes: bool,
) -> tuple[int, int]:
    """Sum up the scores of the documents in `union`, term by term (see `_read`).

    `bounds` is the largest part that each term can have. Gives how many documents have got a score, which are then the
    first of `documents`, and how many of these, again the first, contain all of the best `best.size`; only their
    scores are complete. `best` is scratch space.
    """
    terms = weights.size
    left = bounds.sum()
    unread = 0
    for i in range(terms):
        unread += table[i, _SIZE]
    threshold = np.float32(0.0)
    reach = 0.0  # the threshold cannot have got beyond this
    count = at = open_ = 0
    while at < terms:
        count = _read(table[at], weights[at], base, slope, union, lengths, scores, documents, count)
        open_ = count
        left -= bounds[at]
        reach += bounds[at]
        unread -= table[at, _SIZE]
        at += 1
        # Looked at where it may tell something, and can save more than it costs.
        if prunes and reach > left * SLACK and unread > 3 * count and count >= best.size:
            threshold = _threshold(documents, count, scores, best)
            reach = float(threshold)
            if threshold > left * SLACK:
                open_ = _still_open(documents, count, scores, threshold, left)
                if open_ * _steps(table, at, terms) < unread:
                    break
    while at < terms:
        _look_up(table[at], weights[at], base, slope, lengths, scores, documents, open_)
        left -= bounds[at]
        at += 1
        if open_ > 2 * best.size:
            threshold = _threshold(documents, open_, scores, best)
            open_ = _still_open(documents, open_, scores, threshold, left)
    return count, open_


@njit(cache=True, nogil=True)
def _steps(table: I64, begin: int, end: int) -> int:
    """What it takes to look a document up in some columns, in postings that could be read meanwhile."""
    steps = 0
    for i in range(begin, end):
        steps += 3 if table[i, _WORD_COUNT] else 2 * int(np.log2(table[i, _SIZE] + 2))
    return steps


@njit(cache=True, nogil=True)
def _threshold(documents: U32, count: int, scores: F32, best: F32) -> np.float32:
    """Score of the last of the `best.size` best of at least so many documents."""
    best[:] = np.float32(0.0)
    for i in range(count):
        score = scores[documents[i]]
        if score > best[0]:  # the lowest of a heap
            at = 0
            while True:
                child = 2 * at + 1
                if child >= best.size:
                    break
                if child + 1 < best.size and best[child + 1] < best[child]:
                    child += 1
                if best[child] >= score:
                    break
                best[at] = best[child]
                at = child
            best[at] = score
    return best[0]  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def _still_open(documents: U32, count: int, scores: F32, threshold: np.float32, left: float) -> int:
    """Bring those documents to the front that `left` can lift to the threshold; gives how many they are."""
    open_ = 0
    for i in range(count):
        doc = documents[i]
        if (scores[doc] + left) * SLACK >= threshold:
            documents[i], documents[open_] = documents[open_], doc
            open_ += 1
    return open_


@njit(cache=True, nogil=True)
def _sort(heap: U32, size: int, totals: F64, created: I64, places: I64) -> None:
    """Set `places` to the positions in `heap`, best first."""
    for i in range(size):
        at = i
        while at > 0:
            j = places[at - 1]
            a, b = heap[i], heap[j]
            if totals[i] != totals[j]:
                better = totals[i] > totals[j]
            elif created[a] != created[b]:
                better = created[a] > created[b]
            else:
                better = a > b
            if not better:
                break
            places[at] = j
            at -= 1
        places[at] = i


@njit(cache=True, nogil=True)
def explain(  # noqa: PLR0913
    table: I64, idfs: F64, lengths: F32, k1: float, b: float, avgdl: float, docs: U32, tfs: U16, parts: F64
) -> None:
    """Set the rows of `tfs` and `parts` to each term's frequency in, and its part of the score of, some documents."""
    for i in range(docs.size):
        length = float(lengths[docs[i]])
        relative = length / avgdl if avgdl else 1.0
        for j in range(idfs.size):
            tf = _find(table[j], docs[i])
            tfs[i, j] = tf
            parts[i, j] = idfs[j] * (tf * (k1 + 1.0) / (tf + k1 * (1.0 - b + b * relative))) if tf else 0.0


@njit(cache=True, nogil=True)
def score_all(  # noqa: PLR0913
    table: I64,
    groups: I64,
    idfs: F64,
    alive: U64,
    lengths: F32,
    created: I64,
    importance: F32,
    spans: I64,
    floor: float,
    k1: float,
    b: float,
    avgdl: float,
    scores: F32,
    documents: U32,
    bits: U64,
) -> tuple[U32, F32]:
    """Give all documents that match, in no order, with their scores in single precision; arguments as of `rank`."""
    union = bits[0, : alive.size]
    match(table, idfs.size, groups, alive, union, bits[1, : alive.size])
    if spans.shape[0] or floor > 0.0:
        _narrow(union, created, importance, spans, floor)
    base, slope = np.float32(k1 * (1.0 - b) if avgdl else k1), np.float32(k1 * b / avgdl if avgdl else 0.0)
    weights = (idfs * (k1 + 1.0)).astype(np.float32)
    count = 0
    for i in range(idfs.size):
        count = _read(table[i], weights[i], base, slope, union, lengths, scores, documents, count)
    docs, found = documents[:count].copy(), np.empty(count, np.float32)
    for i in range(count):
        found[i] = scores[docs[i]]
        scores[docs[i]] = 0.0
    return docs, found


@njit(cache=True, nogil=True)
def rank(  # noqa: PLR0913
    table: I64,
    groups: I64,
    idfs: F64,
    bounds: F64,
    alive: U64,
    lengths: F32,
    created: I64,
    importance: F32,
    spans: I64,
    floor: float,
    k1: float,
    b: float,
    avgdl: float,
    scores: F32,
    documents: U32,
    bits: U64,
    heap: U32,
    tfs: U16,
    parts: F64,
    places: I64,
    prunes: bool,
) -> tuple[int, int]:
    """Rank the documents that match; gives how many are in `heap` (at most its size) and how many match in all.

    Only documents created in one of the `spans` (rows of begin and end; none: at any time) with an importance of at
    least `floor` take part. `heap` then holds the best, with their term frequencies and each term's part of the score,
    in double precision, in the rows of `tfs` and `parts`; `places` says where in it they stand, best first. `scores`
    (all zero before and after), `documents` and `bits` (two rows of words) are scratch space, for all document numbers.
    """
    terms = idfs.size
    union = bits[0, : alive.size]
    match(table, terms, groups, alive, union, bits[1, : alive.size])
    if spans.shape[0] or floor > 0.0:
        _narrow(union, created, importance, spans, floor)
    total = np.uint64(0)
    for word in union:
        total += _popcount(word)
    if heap.size == 0:
        return 0, np.int64(total)
    base, slope = np.float32(k1 * (1.0 - b) if avgdl else k1), np.float32(k1 * b / avgdl if avgdl else 0.0)
    weights = (idfs * (k1 + 1.0)).astype(np.float32)
    count, open_ = accumulate(
        table, weights, bounds, union, lengths, base, slope, scores, documents, np.empty(heap.size, np.float32),
        prunes and heap.size <= _MOST_PRUNED,
    )  # fmt: skip
    size = _select(documents, open_, scores, created, heap)
    for i in range(count):
        scores[documents[i]] = 0.0
    explain(table, idfs, lengths, k1, b, avgdl, heap[:size], tfs, parts)
    totals = np.zeros(size)
    for i in range(size):
        for j in range(terms):
            totals[i] += parts[i, j]
    _sort(heap, size, totals, created, places)
    return size, np.int64(total)
