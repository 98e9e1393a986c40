"""The compiled ranking of one search: BM25 over decoded postings, exact, and without looking at what cannot matter.

All matching documents are counted with bitmaps. Scores are summed up window by window of document numbers, so that
those of a window stay in the processor's nearest memory, and term by term, those terms first that can add most. Once
the last terms together cannot lift a document among the best k that were found before (MaxScore; Turtle & Flood, "Query
evaluation: strategies and optimizations", 1995), their lists are not read any more: they are looked up for the
documents of the window that still can get there. How many terms are left out so is changed from window to window, for
looking a document up takes much longer than reading a posting.

Columns come as rows of a `table` (int64): addresses of documents (uint32, ascending), term frequencies (uint16),
saturations (float32, see `saturate`), bitmap words and their ranks (see `columns.Bitmap`), then the numbers of postings
and of words. The first rows are the terms of the question, the others those of the filters. The caller keeps the arrays
alive.

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
_BIT, _HALVING = 40.0, 10.0
"""To look a document up takes as long as reading so many postings: by its bit, and for each halving of a list. Tried
out; a processor that has to guess where to read next loses that much."""
_DOCS, _TFS, _SATURATIONS, _WORDS, _RANKS, _SIZE, _WORD_COUNT = range(7)


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
_f32 = _pointer(types.float32)
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
def _count(union: U64) -> int:
    """Count the documents of a bitmap."""
    total = np.uint64(0)
    for word in union:
        total += _popcount(word)
    return np.int64(total)


# Inlined where it is called, as numba counts references to arrays whenever one is handed over.
@njit(inline="always")
def _position(table: I64, i: int, doc: int) -> int:
    """Position of a document in a column; -1 where it is not there."""
    position: Any = np.int64(-1)
    if table[i, _WORD_COUNT]:
        at = doc >> 6
        if at < table[i, _WORD_COUNT]:
            word = carray(_u64(table[i, _WORDS]), table[i, _WORD_COUNT])[at]
            bit = np.uint64(1) << np.uint64(doc & 63)
            if word & bit:
                before = _popcount(word & (bit - np.uint64(1)))
                position = np.int64(carray(_u32(table[i, _RANKS]), table[i, _WORD_COUNT])[at]) + np.int64(before)
    else:
        position = _first_from(table, i, 0, doc)
        if position < table[i, _SIZE] and carray(_u32(table[i, _DOCS]), table[i, _SIZE])[position] != doc:
            position = -1
    return position if position < table[i, _SIZE] else -1


@njit(inline="always")
def _first_from(table: I64, i: int, low: int, doc: int) -> int:
    """First position of a column from `low` on whose document is not below `doc`; its size where there is none."""
    docs = carray(_u32(table[i, _DOCS]), table[i, _SIZE])
    high = docs.size
    while low < high:
        middle = (low + high) >> 1
        if docs[middle] < doc:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def saturate(  # noqa: PLR0913
    docs: U32, tfs: U16, begin: int, lengths: F32, base: float, slope: float, saturations: F32
) -> float:
    """Set tf / (tf + base + slope·length) of the postings from position `begin` on; gives the largest.

    It is 0 for a dead document, whose length is infinite, and for a frequency of 0.
    """
    most = np.float32(0.0)
    for i in range(begin, docs.size):
        tf, length = np.float32(tfs[i]), lengths[docs[i]]
        saturation = np.float32(0.0)
        if tf > 0.0 and length < np.inf:
            saturation = tf / (tf + np.float32(base) + np.float32(slope) * length)
        saturations[i] = saturation
        most = max(most, saturation)
    return float(most)


@njit(cache=True, nogil=True)
def _worse(a: int, b: int, score_a: float, score_b: float, created: I64) -> bool:
    """Tell whether document `a` ranks below `b`: by score, then the newer first, then the later number."""
    if score_a != score_b:
        return bool(score_a < score_b)
    if created[a] != created[b]:
        return bool(created[a] < created[b])
    return a < b


@njit(cache=True, nogil=True)
def _sift_down(heap: U32, best: F32, at: int, created: I64) -> None:
    """Restore the heap (worst document on top) where one of its places has got another document."""
    while True:
        child = 2 * at + 1
        if child >= heap.size:
            return
        if child + 1 < heap.size and _worse(heap[child + 1], heap[child], best[child + 1], best[child], created):
            child += 1
        if not _worse(heap[child], heap[at], best[child], best[at], created):
            return
        heap[at], heap[child] = heap[child], heap[at]
        best[at], best[child] = best[child], best[at]
        at = child


@njit(cache=True, nogil=True)
def _offer(  # noqa: PLR0913
    doc: int, score: float, heap: U32, best: F32, size: int, created: I64
) -> int:
    """Put a document among the best, whose scores are in `best`, if it is one of them; gives how many they are then."""
    if size == heap.size:
        if _worse(heap[0], doc, best[0], score, created):
            heap[0], best[0] = doc, score
            _sift_down(heap, best, 0, created)
        return size
    heap[size], best[size] = doc, score
    size += 1
    if size == heap.size:
        for at in range(size // 2 - 1, -1, -1):
            _sift_down(heap, best, at, created)
    return size


@njit(cache=True, nogil=True)
def _next_window(table: I64, terms: int, positions: I64) -> int:
    """First document of the first `terms` columns that has not been read; -1 where there is none."""
    begin = np.int64(-1)
    for i in range(terms):
        if positions[i] < table[i, _SIZE]:
            doc = np.int64(carray(_u32(table[i, _DOCS]), table[i, _SIZE])[positions[i]])
            begin = doc if begin < 0 else min(begin, doc)
    return begin


@njit(cache=True, nogil=True)
def _read(  # noqa: PLR0913
    table: I64, terms: int, positions: I64, begin: int, weights: F32, union: U64, scores: F32, documents: U32
) -> int:
    """Sum up the scores of a window's documents that are in `union`, from the first `terms` columns.

    The window begins at document `begin` and is as large as `scores`. A term's part is weight·saturation, with weight =
    idf·(k1 + 1). The documents with a score are put into `documents`, which has room for one more than the window has;
    gives their number. `positions` says where to read on in each column.
    """
    count, end = 0, begin + scores.size
    for i in range(terms):
        docs = carray(_u32(table[i, _DOCS]), table[i, _SIZE])
        saturations = carray(_f32(table[i, _SATURATIONS]), table[i, _SIZE])
        weight, at = weights[i], positions[i]
        while at < docs.size and docs[at] < end:
            doc, saturation = docs[at], saturations[at]
            if (union[doc >> 6] >> np.uint64(doc & 63)) & np.uint64(1) and saturation > 0.0:
                before = scores[doc - begin]
                documents[count] = doc  # always, for nobody can foresee whether it stays
                count += before == 0.0
                scores[doc - begin] = before + weight * saturation
            at += 1
        positions[i] = at
    return count


@njit(cache=True, nogil=True)
def _take(  # noqa: PLR0913
    table: I64,
    terms: int,
    begin: int,
    weights: F32,
    rest: F64,
    steps: F64,
    created: I64,
    scores: F32,
    documents: U32,
    heap: U32,
    best: F32,
    size: int,
) -> tuple[int, float]:
    """Complete the scores of a window's `documents`, whose first `terms` terms have been read, and take the best.

    A document is given up as soon as the `rest` of its terms cannot lift it among the best any more. Gives how many are
    the best now, and what looking up has cost, in `steps`. `scores` are all zero afterwards.
    """
    spent, threshold = 0.0, best[0] if size == heap.size else np.float32(0.0)
    for doc in documents:
        score = scores[doc - begin]
        scores[doc - begin] = 0.0
        i = terms
        while i < weights.size and score * SLACK + rest[i] >= threshold:
            position = _position(table, i, doc)
            if position >= 0:
                score += weights[i] * carray(_f32(table[i, _SATURATIONS]), table[i, _SIZE])[position]
            spent += steps[i]
            i += 1
        if i == weights.size and score >= threshold:
            size = _offer(doc, score, heap, best, size, created)
            if size == heap.size:
                threshold = best[0]
    return size, spent


@njit(cache=True, nogil=True)
def select(  # noqa: PLR0913
    table: I64,
    weights: F32,
    bounds: F64,
    union: U64,
    created: I64,
    scores: F32,
    documents: U32,
    heap: U32,
    prunes: bool,
) -> int:
    """Put the best documents in `union` into `heap`, in no order; gives how many they are.

    `bounds` is the largest part that each term can have in a score. `scores` (all zero before and after) and
    `documents` are scratch space of `_read`.
    """
    terms = weights.size
    # Of the terms from each on: the most that they can add, and the postings of theirs that a window has.
    rest, spared, steps = np.zeros(terms + 1), np.zeros(terms + 1), np.zeros(terms)
    for i in range(terms - 1, -1, -1):
        rest[i] = rest[i + 1] + bounds[i] * SLACK
        spared[i] = spared[i + 1] + table[i, _SIZE] * scores.size / (64.0 * union.size)
        steps[i] = _BIT if table[i, _WORD_COUNT] else _HALVING * np.log2(table[i, _SIZE] + 2.0)
    positions, best = np.zeros(terms, np.int64), np.empty(heap.size, np.float32)
    essential, size = terms, 0
    begin = _next_window(table, essential, positions)
    while begin >= 0:
        count = _read(table, essential, positions, begin, weights, union, scores, documents)
        size, spent = _take(
            table, essential, begin, weights, rest, steps, created, scores, documents[:count], heap, best, size
        )
        if prunes and size == heap.size:
            if spent > spared[essential]:
                positions[essential] = _first_from(table, essential, positions[essential], begin + scores.size)
                essential += 1
            elif essential and rest[essential - 1] < best[0]:
                essential -= 1
        begin = _next_window(table, essential, positions)
    return size


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
            position = _position(table, j, docs[i])
            tf = np.int64(carray(_u16(table[j, _TFS]), table[j, _SIZE])[position]) if position >= 0 else 0
            tfs[i, j] = tf
            parts[i, j] = idfs[j] * (tf * (k1 + 1.0) / (tf + k1 * (1.0 - b + b * relative))) if tf else 0.0


@njit(cache=True, nogil=True)
def score_all(  # noqa: PLR0913
    table: I64,
    groups: I64,
    idfs: F64,
    alive: U64,
    created: I64,
    importance: F32,
    spans: I64,
    floor: float,
    k1: float,
    scores: F32,
    documents: U32,
    bits: U64,
) -> tuple[U32, F32]:
    """Give all documents that match, in no order, with their scores in single precision; arguments as of `rank`."""
    union = bits[0, : alive.size]
    match(table, idfs.size, groups, alive, union, bits[1, : alive.size])
    if spans.shape[0] or floor > 0.0:
        _narrow(union, created, importance, spans, floor)
    weights, total = (idfs * (k1 + 1.0)).astype(np.float32), _count(union)
    docs, found, at = np.empty(total, np.uint32), np.empty(total, np.float32), 0
    positions = np.zeros(weights.size, np.int64)
    begin = _next_window(table, weights.size, positions)
    while begin >= 0:
        count = _read(table, weights.size, positions, begin, weights, union, scores, documents)
        for doc in documents[:count]:
            docs[at], found[at] = doc, scores[doc - begin]
            scores[doc - begin] = 0.0
            at += 1
        begin = _next_window(table, weights.size, positions)
    return docs[:at], found[:at]


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
    in double precision, in the rows of `tfs` and `parts`; `places` says where in it they stand, best first. `bits`
    (two rows of words, for all document numbers), `scores` and `documents` (see `select`) are scratch space.
    """
    terms = idfs.size
    union = bits[0, : alive.size]
    match(table, terms, groups, alive, union, bits[1, : alive.size])
    if spans.shape[0] or floor > 0.0:
        _narrow(union, created, importance, spans, floor)
    total = _count(union)
    if heap.size == 0 or total == 0:  # a namespace may have no document numbers at all
        return 0, total
    weights = (idfs * (k1 + 1.0)).astype(np.float32)
    size = select(table, weights, bounds, union, created, scores, documents, heap, prunes)
    explain(table, idfs, lengths, k1, b, avgdl, heap[:size], tfs, parts)
    totals = np.zeros(size)
    for i in range(size):
        for j in range(terms):
            totals[i] += parts[i, j]
    _sort(heap, size, totals, created, places)
    return size, total
