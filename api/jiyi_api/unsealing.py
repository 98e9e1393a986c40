"""Compiled decoding of sealed postings: the same as `jiyi.sealed_postings.unseal`, a few times faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from jiyi import sealed_postings
from jiyi.postings import MAX_DOC, MAX_TF
from jiyi.sealed_postings import Columns, body_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BITS = 35
"""Of the longest number: five groups of seven."""


def unseal(sealed: bytes) -> Columns:
    """See `jiyi.sealed_postings.unseal`, which is asked what is wrong where something is."""
    docs, tfs, is_right = decoded(np.frombuffer(body_of(sealed), np.uint8))
    return Columns(docs, tfs) if is_right else sealed_postings.unseal(sealed)


@njit(cache=True, nogil=True)
def decoded(body: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint16], bool]:
    """Decode a body; the third tells whether it is what `seal` writes, else the others mean nothing.

    One loop over all bytes: a function for each number would cost more than the number.
    """
    docs, tfs, several = np.empty(0, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32)
    count, place, left, taken = np.int64(-1), 0, np.int64(0), 0
    doc, value, shift = np.int64(-1), np.int64(0), 0
    for byte in body:
        value |= np.int64(byte & 0x7F) << shift
        if byte > 0x7F:  # noqa: PLR2004 - the highest bit says that more is to come
            shift += 7
            if shift >= _BITS:
                return docs, tfs, False
            continue
        if byte == 0 and shift:
            return docs, tfs, False
        if place < count:
            doc += value >> 1
            if value < 2 or doc > MAX_DOC:  # noqa: PLR2004 - a distance of 0
                return docs, tfs, False
            docs[place] = doc
            several[left] = place  # without a branch, which would be guessed wrong too often
            left += 1 - (value & 1)
            place += 1
        elif count >= 0:
            if taken == left or value == 1 or value > MAX_TF:
                return docs, tfs, False
            tfs[several[taken]] = value
            taken += 1
        else:
            count = value
            if not 1 <= count < body.size:
                return docs, tfs, False
            docs, tfs, several = np.empty(count, np.uint32), np.ones(count, np.uint16), np.empty(count, np.uint32)
        value, shift = np.int64(0), 0
    return docs, tfs, place == count and taken == left and not shift
