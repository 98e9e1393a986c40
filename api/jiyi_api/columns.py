"""Decoded columns of the index, as a reader keeps them: postings per term and the journal per namespace.

Everything here can be thrown away and read again. Columns only grow: a reader that has the first bytes of a
key needs only those after them, as long as the key's generation stands.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from jiyi.errors import CorruptIndexError
from jiyi.postings import DEATH, GENERATION_BYTES
from jiyi.sealed_postings import RECORD, Columns, sealed_bytes, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Unseal = Callable[[bytes], Columns]

Form: TypeAlias = tuple[float, float, int, bytes]
"""What saturations are worked out for: base and slope of the formula, and the journal that has the lengths, by its
token and its generation."""

_Number = TypeVar("_Number", bound=np.generic)

JOURNAL = np.dtype([("doc", "<u4"), ("length", "<u4"), ("created", "<i8"), ("importance", "<f4")])
DENSE = 32
"""A term that at least one in so many documents contains gets a bitmap: it costs no more than its postings."""
_OBJECT_BYTES = 400
"""What a column costs besides its arrays, about."""
_BITS = np.uint64(63)
_SHIFT = np.uint64(6)
_ONE = np.uint64(1)
_NO_DOCS: NDArray[np.uint32] = np.empty(0, np.uint32)
_NO_TFS: NDArray[np.uint16] = np.empty(0, np.uint16)


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
    _check_numbers(records["doc"], next_doc)
    return records


def _check_numbers(docs: NDArray[np.uint32], next_doc: int) -> None:
    if docs.size and docs.max() >= next_doc:
        raise CorruptIndexError("the index names a document number that was never given out; run: jiyi check")


def _decoded(
    content: bytes, sealed: int | None, next_doc: int, unseal: Unseal, *, whole: bool
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], int]:
    """Decode postings whose first `sealed` bytes are sealed; gives also how many bytes at the end are cut off."""
    first = unseal(content[:sealed]) if sealed != 0 else Columns(_NO_DOCS, _NO_TFS)
    _check_numbers(first.docs, next_doc)
    rest = content[sealed:]
    cut = 0 if whole else len(rest) % RECORD.itemsize
    records = _records(rest[: len(rest) - cut], RECORD, next_doc)
    if not first.docs.size:
        return records["doc"], records["tf"], cut
    return np.concatenate([first.docs, records["doc"]]), np.concatenate([first.tfs, records["tf"]]), cut


class Bitmap:
    """The documents of a term as bits, with the number of bits before each word: finds a posting in one step."""

    __slots__ = ("ranks", "size", "words")

    def __init__(self) -> None:
        self.words: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.ranks: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.size = 0

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.words.nbytes + self.ranks.nbytes

    def update(self, docs: NDArray[np.uint32], begin: int) -> None:
        """Take in ascending documents of which those before position `begin` are the same as at the last time."""
        first = int(docs[begin]) >> 6
        begin = int(np.searchsorted(docs, first << 6))
        self.size = (int(docs[-1]) >> 6) + 1
        self.words, self.ranks = _grown(self.words, self.size), _grown(self.ranks, self.size)
        bits = np.zeros((self.size - first) << 6, np.bool_)
        bits[docs[begin:] - np.uint32(first << 6)] = True
        words = np.packbits(bits, bitorder="little").view("<u8")
        counts = np.cumsum(np.bitwise_count(words), dtype=np.uint32)
        self.words[first : self.size] = words
        self.words[self.size :] = 0
        self.ranks[first] = begin
        self.ranks[first + 1 : self.size] = begin + counts[:-1]


class Postings:
    """The postings of one term: parallel columns of document number, ascending, and term frequency.

    `df` and `as_of` say what the server said last: the document frequency, and the state of the namespace
    (`Journal.changes`) at which the column was known to be whole.
    """

    __slots__ = (
        "_begun", "_docs", "_row", "_saturations", "_tfs", "_twins", "as_of", "bitmap", "bound", "df", "generation",
        "saturated", "saturated_for", "seen", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self._docs: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._tfs: NDArray[np.uint16] = np.empty(0, np.uint16)
        self._saturations: NDArray[np.float32] = np.empty(0, np.float32)
        self._row: bytes | None = None
        self._twins = False  # a document is there more than once
        self.size = 0
        self.df = 0
        self.as_of: bytes | None = None
        self.generation = b""
        self.seen = 0  # bytes of the key that are here
        self._begun = b""  # those of a sealed part that has not come whole yet
        self.bitmap: Bitmap | None = None
        # Of how many postings the saturations are there, for what `saturated_for` says, and the largest of them.
        self.saturated, self.bound = 0, 0.0
        self.saturated_for: Form | None = None

    @property
    def docs(self) -> NDArray[np.uint32]:
        """Document numbers, uint32."""
        return self._docs[: self.size]

    @property
    def tfs(self) -> NDArray[np.uint16]:
        """Term frequencies, uint16."""
        return self._tfs[: self.size]

    @property
    def saturations(self) -> NDArray[np.float32]:
        """Room for what each posting gives to a score at most, before it is weighted, float32: for a ranker to fill."""
        return self._saturations[: self.size]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        arrays = self._docs.nbytes + self._tfs.nbytes + self._saturations.nbytes
        bitmap = self.bitmap.nbytes if self.bitmap is not None else 0
        return arrays + bitmap + len(self._begun) + _OBJECT_BYTES

    @property
    def is_cut(self) -> bool:
        """Whether a sealed part has come in part only: what is here cannot be used before the rest."""
        return bool(self._begun)

    @property
    def row(self) -> bytes:
        """A row of the kernel's table, int64s: five addresses of arrays, the numbers of postings and of words."""
        if self._row is None:
            bitmap = self.bitmap or _NO_BITMAP
            arrays = (self._docs, self._tfs, self._saturations, bitmap.words, bitmap.ranks)
            addresses = [array.__array_interface__["data"][0] for array in arrays]
            self._row = np.array([*addresses, self.size, bitmap.size], np.int64).tobytes()
        return self._row

    def extend(  # noqa: PLR0913 - the last two have defaults for all but the reader of snapshots
        self,
        generation: bytes,
        start: int,
        data: bytes,
        next_doc: int,
        *,
        whole: bool = True,
        unseal: Unseal = unseal,
    ) -> None:
        """Take in bytes [start, start + len(data)) of the key; an older generation is forgotten.

        `whole` says that the key ends there. If it does not, a record that is cut off is left to be read again, and
        a sealed part is kept until all of it is here; `unseal` decodes it.

        Raises `CorruptIndexError`, and changes nothing, for a document number that has never been given out, that is
        from `next_doc` on, for a damaged sealed part and for an end within one or within a record.
        """
        known = generation == self.generation and start >= self.seen
        begun = self._begun if known else b""
        content = begun + data
        sealed = sealed_bytes(content) if generation and (begun or start == GENERATION_BYTES) else 0
        if not whole and (sealed is None or sealed > len(content)):
            docs, tfs, kept, end = _NO_DOCS, _NO_TFS, content, start + len(data)
        else:
            docs, tfs, cut = _decoded(content, sealed, next_doc, unseal, whole=whole)
            kept, end = b"", start + len(data) - cut
        if not known:
            self.size, self.generation, self.bitmap, self.saturated_for, self._twins = 0, generation, None, None, False
        self._row = None
        self._begun, self.seen = kept, end
        if docs.size:
            begin = self._append(docs, tfs)
            if self._twins:  # in a damaged list only; there, bits would not tell positions
                self.bitmap = None
            elif self.bitmap is not None or self.size * DENSE >= next_doc:
                if self.bitmap is None:
                    self.bitmap, begin = Bitmap(), 0
                self.bitmap.update(self.docs, begin)

    def _append(self, new_docs: NDArray[np.uint32], new_tfs: NDArray[np.uint16]) -> int:
        """Add postings and keep the order; gives the position up to which nothing has changed."""
        begin, end = self.size, self.size + new_docs.size
        self._docs, self._tfs = _grown(self._docs, end), _grown(self._tfs, end)
        self._saturations = _grown(self._saturations, end)
        self._docs[begin:end] = new_docs
        self._tfs[begin:end] = new_tfs
        self.size = end
        docs = self._docs[:end]
        around = docs[max(0, begin - 1) :]
        if (around[1:] > around[:-1]).all():
            return begin
        # Workers apply side by side, so numbers come a little out of order.
        begin = int(np.searchsorted(docs[:begin], docs[begin:].min()))
        order = begin + np.argsort(docs[begin:], kind="stable")
        docs[begin:], self._tfs[begin:end] = docs[order], self._tfs[order]
        around = docs[max(0, begin - 1) :]
        self._twins = self._twins or bool((around[1:] == around[:-1]).any())
        self.saturated = min(self.saturated, begin)
        return begin


_NO_BITMAP = Bitmap()


class Journal:
    """Length, creation time and importance of every document number of a namespace, and its counters.

    `changes` and `moves` are the server's: the first differs after every change of what searches read, the second
    after every event that moved nothing but the fence of a memory; `changes` is None while not all has come. Arrays are
    indexed by document number; `alive` has a bit for each that is alive.
    """

    __slots__ = (
        "alive", "changes", "created", "docs", "epoch", "generation", "ids", "importance", "lengths", "moves", "ns",
        "restless", "seen", "server", "token", "tokens",
    )  # fmt: skip

    _tokens = count()

    def __init__(self, epoch: str, ns: str = "", server: str = "") -> None:
        self.epoch = epoch
        self.ns = ns
        self.server = server  # the process that it was read from
        self.token = next(self._tokens)  # never given to another journal
        self.docs = self.tokens = 0
        self.changes: bytes | None = None
        self.moves = b""
        self.restless = False  # it had changed when it was looked at last
        self._reset(b"", GENERATION_BYTES)

    def _reset(self, generation: bytes, start: int) -> None:
        self.generation, self.seen = generation, start
        self.lengths: NDArray[np.float32] = np.empty(0, np.float32)
        self.created: NDArray[np.int64] = np.empty(0, np.int64)
        self.importance: NDArray[np.float32] = np.empty(0, np.float32)
        self.alive: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.ids: dict[int, str] = {}  # a number never changes its memory within an epoch

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        arrays = (self.lengths, self.created, self.importance, self.alive)
        return sum(array.nbytes for array in arrays) + 150 * len(self.ids) + _OBJECT_BYTES

    def extend(self, generation: bytes, start: int, data: bytes, next_doc: int) -> None:
        """Take in bytes [start, start + len(data)) of the journal; errors as in `Postings.extend`."""
        records = _records(data, JOURNAL, next_doc)
        if generation != self.generation or start < self.seen:
            self._reset(generation, start)
        self.seen = start + len(data)
        if not records.size:
            return
        is_birth = records["length"] != DEATH
        births, deaths = records[is_birth], records["doc"][~is_birth]
        docs = births["doc"]
        self.reach(int(records["doc"].max()) + 1)
        self.lengths[docs] = births["length"]
        self.created[docs] = births["created"]
        self.importance[docs] = births["importance"]
        np.bitwise_or.at(self.alive, docs >> _SHIFT, _ONE << (docs & _BITS))
        # Deaths after births: a number that is born and dies in the same bytes is dead.
        self.lengths[deaths] = np.inf
        np.bitwise_and.at(self.alive, deaths >> _SHIFT, ~(_ONE << (deaths & _BITS)))

    def reach(self, size: int) -> None:
        """Have room for document numbers below `size`; unborn ones count as dead."""
        self.lengths = _grown(self.lengths, size, np.inf)
        self.created = _grown(self.created, size)
        self.importance = _grown(self.importance, size)
        self.alive = _grown(self.alive, (self.lengths.size + 63) >> 6)


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
        """The postings of a term, if they are here; counts as use."""
        found = self._entries.get((ns, term))
        if not isinstance(found, Postings):
            return None
        self._entries.move_to_end((ns, term))
        return found

    def all_postings(self, ns: str, terms: Iterable[str], as_of: bytes) -> dict[str, Postings] | None:
        """The postings of all terms, if all are here and of one state of the namespace; counts as use."""
        entries, found = self._entries, {}
        for term in terms:
            key = ns, term
            column = entries.get(key)
            if not isinstance(column, Postings) or column.as_of != as_of:
                return None
            entries.move_to_end(key)
            found[term] = column
        return found

    def touch(self, ns: str, term: str) -> None:
        """Count an entry as used just now, if it is here."""
        if (ns, term) in self._entries:
            self._entries.move_to_end((ns, term))

    def keep(self, ns: str, term: str, entry: Journal | Postings) -> None:
        """Store an entry that is new or has grown (the journal under the empty term), then evict what is too much."""
        key = (ns, term)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        size = entry.nbytes
        self.nbytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while self.nbytes > self._limit_bytes and len(self._entries) > 1:
            oldest, _ = self._entries.popitem(last=False)
            self.nbytes -= self._sizes.pop(oldest)

    def forget(self, ns: str) -> None:
        """Drop everything of a namespace: it was wiped or rebuilt."""
        for key in [key for key in self._entries if key[0] == ns]:
            del self._entries[key]
            self.nbytes -= self._sizes.pop(key)
