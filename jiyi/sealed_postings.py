"""Lists of postings in a key of their own: an open part of plain records, and before it a sealed one of few bytes.

What follows the generation of a list is either records alone (see `jiyi.postings`), or

| bytes | content |
| --- | --- |
| 4 | `SEALED`, where a list without a sealed part has the number of its first document |
| 4 | u32: bytes of the body |
| 4 | u32: CRC-32 of the body |
| body | whole numbers, each in as few groups of seven bits as it needs, the lowest first (LEB128) |
| rest | records, as in any list: whatever was added since |

The numbers of the body are: how many postings there are; for each, in ascending order of the documents, twice the
distance to the document before (the first: to -1), and one more where the term frequency is 1; then the frequencies of
the others, in the same order. So a list that nobody has sealed looks as it always did, whoever appends needs not know
of the rest, and the body is decoded in one go.

A flipped bit in a distance would move all documents behind it: hence the checksum, which finds it. Nothing is decoded
from a body that is not, byte for byte, what `seal` writes.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from jiyi.errors import CorruptIndexError
from jiyi.postings import MAX_DOC, MAX_TF, POSTING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RECORD = np.dtype([("doc", "<u4"), ("tf", "<u2")])
"""A posting as it is stored in an open part."""
assert RECORD.itemsize == POSTING.size
SEALED = 0xFFFF_FFFF
"""No document has this number, so no record begins with it."""
_HEAD = struct.Struct("<III")
_GROUPS = 5
"""Most bytes of one number: twice a document number has 33 bits."""
_MORE = 0x80
_LOW = 0x7F


class Columns(NamedTuple):
    """Postings as parallel arrays: document numbers (u32, strictly ascending) and term frequencies (u16)."""

    docs: NDArray[np.uint32]
    tfs: NDArray[np.uint16]


def sealed_bytes(data: bytes) -> int | None:
    """Length of the sealed part with which `data`, the bytes after a generation, begins; None if that is cut off."""
    if data[:4] != b"\xff\xff\xff\xff":
        return 0
    if len(data) < _HEAD.size:
        return None
    return _HEAD.size + int(_HEAD.unpack_from(data)[1])


def seal(lists: Sequence[NDArray[np.void]]) -> list[bytes]:
    """Give the sealed part for each of some lists of records (dtype `RECORD`), none of them empty.

    Raises `ValueError` unless the documents of each ascend strictly and are no larger than `MAX_DOC`.
    """
    numbers = [_numbers(postings) for postings in lists]
    if not numbers:
        return []
    ends = np.cumsum([len(one) for one in numbers])
    raw, starts = _encoded(np.concatenate(numbers))
    bounds = [*starts[ends - [len(one) for one in numbers]].tolist(), len(raw)]
    bodies = [raw[begin:end].tobytes() for begin, end in pairwise(bounds)]
    return [_HEAD.pack(SEALED, len(body), crc32(body)) + body for body in bodies]


def _numbers(postings: NDArray[np.void]) -> NDArray[np.uint64]:
    """Give the numbers of a body."""
    docs, tfs = postings["doc"], postings["tf"]
    ascends = (docs[1:] > docs[:-1]).all()
    if not len(docs) or not ascends or docs[-1] > MAX_DOC:
        raise ValueError("only postings of distinct documents, in ascending order, can be sealed")
    once = tfs == 1
    several = tfs[~once]
    numbers = np.empty(1 + len(docs) + len(several), np.uint64)
    numbers[0] = len(docs)
    distances = numbers[1 : 1 + len(docs)]
    distances[:] = docs
    distances[1:] -= docs[:-1]
    distances[0] += 1
    distances <<= 1
    distances |= once
    numbers[1 + len(docs) :] = several
    return numbers


def body_of(sealed: bytes) -> memoryview:
    """Give the body of a sealed part; `CorruptIndexError` where it is not what the checksum says."""
    if len(sealed) < _HEAD.size:
        raise _corrupt("is cut short")
    mark, size, checksum = _HEAD.unpack_from(sealed)
    body = memoryview(sealed)[_HEAD.size :]
    if mark != SEALED or size != len(body) or checksum != crc32(body):
        raise _corrupt("is not what was written")
    return body


def unseal(sealed: bytes) -> Columns:
    """Decode a sealed part; `CorruptIndexError` for anything that `seal` does not write."""
    numbers = _decoded(np.frombuffer(body_of(sealed), np.uint8))
    count = int(numbers[0])
    if not 1 <= count < len(numbers):
        raise _corrupt("has another number of postings than it says")
    distances, others = numbers[1 : count + 1] >> 1, numbers[count + 1 :]
    docs = np.cumsum(distances, dtype=np.uint64)
    if not distances.all() or docs[-1] > MAX_DOC + 1:
        raise _corrupt("has documents out of order")
    several = np.flatnonzero((numbers[1 : count + 1] & 1) == 0)
    if len(others) != len(several) or (len(others) and (others.max() > MAX_TF or (others == 1).any())):
        raise _corrupt("has impossible term frequencies")
    tfs = np.ones(count, np.uint16)
    tfs[several] = others
    docs -= np.uint64(1)
    return Columns(docs.astype(np.uint32), tfs)


def plain(data: bytes) -> bytes:
    """Give what follows the generation of a list as records alone, as if it had never been sealed.

    What is torn at its end stays so. Errors as of `unseal`.
    """
    sealed = sealed_bytes(data)
    if sealed == 0:
        return data
    docs, tfs = unseal(data[:sealed])
    records = np.empty(len(docs), RECORD)
    records["doc"], records["tf"] = docs, tfs
    return records.tobytes() + data[sealed:]


def open_part(data: bytes) -> bytes:
    """Give the records behind the sealed part, whatever that holds; none where it is said to reach beyond the end."""
    sealed = sealed_bytes(data)
    return b"" if sealed is None else data[sealed:]


def contents_of(lists: Sequence[NDArray[np.void]]) -> list[bytes]:
    """Give what follows the generation of lists with these postings and no others; errors as of `seal`."""
    return [min(sealed, postings.tobytes(), key=len) for sealed, postings in zip(seal(lists), lists, strict=True)]


def _encoded(numbers: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Encode numbers; gives the bytes, and where each number begins."""
    lengths = np.ones(len(numbers), np.int64)
    for groups in range(1, _GROUPS):
        lengths += numbers >= 1 << 7 * groups
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    at = starts
    while len(numbers):
        more = numbers > _LOW
        out[at] = numbers & np.uint64(_LOW) | more.astype(np.uint64) << np.uint64(7)
        at, numbers = at[more] + 1, numbers[more] >> np.uint64(7)
    return out, starts


def _decoded(raw: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
    """Decode all numbers of a body, at least one; in 32 bits where they fit, which is twice as fast."""
    ends = np.flatnonzero(raw < _MORE)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise _corrupt("ends within a number")
    lengths = np.empty(len(ends), np.int64)
    lengths[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=lengths[1:])
    longest = int(lengths.max())
    if longest > _GROUPS:
        raise _corrupt("has a number that is too long")
    kind: Any = np.uint32 if longest < _GROUPS else np.uint64
    numbers = raw[ends].astype(kind)
    which = np.flatnonzero(lengths > 1)
    if not numbers[which].all():
        raise _corrupt("has a number with needless bytes")
    for group in range(1, longest):
        low = raw[ends[which] - group] & np.uint8(_LOW)
        numbers[which] = numbers[which] << 7 | low
        which = which[lengths[which] > group + 1]
    return numbers


def _corrupt(what: str) -> CorruptIndexError:
    return CorruptIndexError(f"the sealed part of a list of postings {what}; run: jiyi check")
