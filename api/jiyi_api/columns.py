"""Decoded columns of the index, as a reader keeps them: postings per term and the journal per namespace.

Everything here can be thrown away and read again. Columns only grow: a reader that has the first bytes of a
key needs only those after them, as long as the key's generation stands.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from jiyi.errors import CorruptIndexError
from jiyi.postings import DEATH, GENERATION_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.generic)

POSTING = np.dtype([("doc", "<u4"), ("tf", "<u2")])
JOURNAL = np.dtype([("doc", "<u4"), ("length", "<u4"), ("created", "<i8"), ("importance", "<f4")])


def _grown(array: NDArray[_Number], size: int, fill: float = 0) -> NDArray[_Number]:
    """Give an array of at least `size` items that begins with the old ones; `fill` for the rest."""
    if size <= array.size:
        return array
    larger = np.full(max(size, array.size + array.size // 2, 16), fill, array.dtype)
    larger[: array.size] = array
    return larger


def _records(data: bytes, kind: np.dtype[np.void], next_doc: int) -> NDArray[np.void]:
    """Decode records. The kernel indexes by document number unchecked, so numbers are checked here."""
    if len(data) % kind.itemsize:
        raise CorruptIndexError("a record of the index is cut short; run: jiyi check")
    records = np.frombuffer(data, kind)
    if records.size and records["doc"].max() >= next_doc:
        raise CorruptIndexError("the index names a document number that was never given out; run: jiyi check")
    return records


class Postings:
    """The postings of one term: parallel columns of document number and term frequency."""

    __slots__ = ("_docs", "_tfs", "generation", "seen", "size")

    def __init__(self) -> None:
        self._docs: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._tfs: NDArray[np.uint16] = np.empty(0, np.uint16)
        self.size = 0
        self.generation = b""
        self.seen = 0  # bytes of the key that are decoded here

    @property
    def docs(self) -> NDArray[np.uint32]:
        """Document numbers, uint32."""
        return self._docs[: self.size]

    @property
    def tfs(self) -> NDArray[np.uint16]:
        """Term frequencies, uint16."""
        return self._tfs[: self.size]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._docs.nbytes + self._tfs.nbytes + 200

    def extend(self, generation: bytes, start: int, data: bytes, next_doc: int) -> None:
        """Take in bytes [start, start + len(data)) of the key; an older generation is forgotten.

        Raises `CorruptIndexError` for a document number that has never been given out, that is from `next_doc` on.
        """
        records = _records(data, POSTING, next_doc)
        if generation != self.generation or start < self.seen:
            self.size, self.generation, self.seen = 0, generation, start
        end = self.size + records.size
        self._docs = _grown(self._docs, end)
        self._tfs = _grown(self._tfs, end)
        self._docs[self.size : end] = records["doc"]
        self._tfs[self.size : end] = records["tf"]
        self.size, self.seen = end, start + len(data)


def inline_postings(data: bytes, next_doc: int) -> Postings:
    """Decode the postings of a term that come whole with its dictionary entry."""
    postings = Postings()
    postings.extend(b"", 0, data, next_doc)
    return postings


class Journal:
    """Length, creation time and importance of every document number of a namespace."""

    __slots__ = ("created", "epoch", "generation", "ids", "importance", "lengths", "seen", "server")

    def __init__(self, epoch: str, server: str = "") -> None:
        self.epoch = epoch
        self.server = server  # the process that it was read from
        self._reset(b"", GENERATION_BYTES)

    def _reset(self, generation: bytes, start: int) -> None:
        self.generation, self.seen = generation, start
        self.lengths: NDArray[np.float32] = np.empty(0, np.float32)
        self.created: NDArray[np.int64] = np.empty(0, np.int64)
        self.importance: NDArray[np.float32] = np.empty(0, np.float32)
        self.ids: dict[int, str] = {}  # a number never changes its memory within an epoch

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return self.lengths.nbytes + self.created.nbytes + self.importance.nbytes + 150 * len(self.ids) + 500

    def extend(self, generation: bytes, start: int, data: bytes, next_doc: int) -> None:
        """Take in bytes [start, start + len(data)) of the journal; errors as in `Postings.extend`."""
        records = _records(data, JOURNAL, next_doc)
        if generation != self.generation or start < self.seen:
            self._reset(generation, start)
        self.seen = start + len(data)
        if not records.size:
            return
        births = records[records["length"] != DEATH]
        docs = births["doc"]
        self.reach(int(records["doc"].max()) + 1)
        self.lengths[docs] = births["length"]
        self.created[docs] = births["created"]
        self.importance[docs] = births["importance"]
        # Deaths after births: a number that is born and dies in the same bytes is dead.
        self.lengths[records["doc"][records["length"] == DEATH]] = np.inf

    def reach(self, size: int) -> None:
        """Have room for document numbers below `size`; unborn ones count as dead."""
        self.lengths = _grown(self.lengths, size, np.inf)
        self.created = _grown(self.created, size)
        self.importance = _grown(self.importance, size)


class ColumnCache:
    """Journals and postings of all namespaces, bounded in bytes; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[tuple[str, str], Journal | Postings] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}
        self.nbytes = 0

    def journal(self, ns: str) -> Journal | None:
        """The journal of a namespace, if it is here."""
        found = self._entries.get((ns, ""))
        return found if isinstance(found, Journal) else None

    def postings(self, ns: str, term: str) -> Postings | None:
        """The postings of a term, if they are here."""
        found = self._entries.get((ns, term))
        return found if isinstance(found, Postings) else None

    def touch(self, ns: str, term: str) -> None:
        """Count an entry as used just now, if it is here."""
        if (ns, term) in self._entries:
            self._entries.move_to_end((ns, term))

    def keep(self, ns: str, term: str, entry: Journal | Postings) -> None:
        """Store an entry that is new or has grown (the journal under the empty term), then evict what is too much."""
        key = (ns, term)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self.nbytes += entry.nbytes - self._sizes.get(key, 0)
        self._sizes[key] = entry.nbytes
        while self.nbytes > self._limit_bytes and len(self._entries) > 1:
            oldest, _ = self._entries.popitem(last=False)
            self.nbytes -= self._sizes.pop(oldest)

    def forget(self, ns: str) -> None:
        """Drop everything of a namespace: it was wiped or rebuilt."""
        for key in [key for key in self._entries if key[0] == ns]:
            del self._entries[key]
            self.nbytes -= self._sizes.pop(key)
