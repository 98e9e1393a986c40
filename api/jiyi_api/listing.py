"""Listing: memories that meet filters, without a question, newest first, page by page."""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from jiyi.errors import InvalidQueryError, UnavailableError
from jiyi_api.filters import FilterRequest, Filters, parse_namespaces
from jiyi_api.ranking import Question
from jiyi_api.stored import StoredMemory
from jiyi_api.vectorised import allowed_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from jiyi.settings import Settings
    from jiyi_api.documents import Documents
    from jiyi_api.snapshots import Snapshot, SnapshotReader

_ATTEMPTS = 3
"""A memory that is rewritten between reading the index and fetching is looked for again, this often."""


class ListRequest(FilterRequest, kw_only=True):
    """A listing as it arrives; `cursor` is the `next` of the page before."""

    limit: int = 20
    cursor: str | None = None


class ListedMemory(StoredMemory, rename="camel", omit_defaults=True, kw_only=True):
    """A memory of a listing; `ns` is given when several namespaces were asked."""

    ns: str | None = None


class MemoryPage(msgspec.Struct):
    """Memories, newest `timestamp` first; `total` counts all that meet the filters.

    `next` is to be given as `cursor` for the page after this; None at the end.
    """

    memories: list[ListedMemory]
    total: int
    next: str | None = None


class Place(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Where a document stands in a listing: the higher, the earlier. `space` counts namespaces from the last."""

    created: int
    space: int
    doc: int
    epoch: str

    def as_cursor(self) -> str:
        """Give the text that stands for this place."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def from_cursor(cls, cursor: str) -> Place:
        """Read such a text; raises `InvalidQueryError`."""
        try:
            packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            return msgspec.msgpack.decode(packed, type=cls)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            raise InvalidQueryError("cursor", "must be the next of a page, as it came") from None


class ListQuery(NamedTuple):
    """A checked listing."""

    namespaces: tuple[str, ...]
    filters: Filters
    limit: int
    after: Place | None

    @classmethod
    def from_request(cls, request: ListRequest, settings: Settings) -> ListQuery:
        """Check a request; raises `InvalidQueryError` that names the parameter."""
        if not 0 <= request.limit <= settings.max_limit:
            raise InvalidQueryError("limit", f"is {request.limit}; it must be 0 to {settings.max_limit}")
        namespaces = parse_namespaces(request.ns, request.namespaces)
        after = None if request.cursor is None else Place.from_cursor(request.cursor)
        if after is not None and not 0 <= after.space < len(namespaces):
            raise InvalidQueryError("cursor", "is that of a listing of other namespaces")
        return cls(namespaces, Filters.from_request(request), request.limit, after)


class _Matching(NamedTuple):
    """The documents of a namespace that meet the filters, and their times, as of one instant.

    The times are no longer to be had from the journal once something else is awaited: others read it on, and compacted
    it does not know those that have died since.
    """

    docs: NDArray[np.uint32]
    created: NDArray[np.int64]
    epoch: str


class Lister:
    """Lists memories from the columns that searches use too."""

    def __init__(self, reader: SnapshotReader, documents: Documents) -> None:
        self._reader = reader
        self._documents = documents

    async def page(self, query: ListQuery) -> MemoryPage:
        """Give a page. What is not written meanwhile is listed exactly once; what is written anew moves to its place.

        Raises `UnavailableError`, `AnalyzerMismatchError`, `CorruptIndexError`, and `InvalidQueryError` for a cursor
        of a namespace that has been made anew.
        """
        for _ in range(_ATTEMPTS):
            found = await self._look(query)
            if isinstance(found, MemoryPage):
                return found
        raise UnavailableError("memories are rewritten faster than they can be listed")

    async def _look(self, query: ListQuery) -> MemoryPage | None:
        """Read the index and fetch; None when a memory has moved meanwhile."""
        snapshots, matching = await self._matching(query)
        total = sum(one.docs.size for one in matching)
        memories: list[ListedMemory] = []
        after = query.after
        while len(memories) < query.limit:
            places = list(_next_places(matching, after, query.limit - len(memories)))
            if not places:
                return MemoryPage(memories, total)
            fetched = await self._fetch(query, snapshots, places)
            if fetched is None:
                return None
            memories += fetched  # those that have expired are missing: the next places fill up
            after = places[-1]
        more = after is not None and next(_next_places(matching, after, 1), None) is not None
        return MemoryPage(memories, total, after.as_cursor() if more and after else None)

    async def _matching(self, query: ListQuery) -> tuple[list[Snapshot | None], list[_Matching]]:
        """Read all namespaces; gives what meets the filters in each."""
        terms, spaces = list(dict.fromkeys(query.filters.terms)), query.namespaces
        async with AsyncExitStack() as turns:
            for ns in sorted(spaces):
                await turns.enter_async_context(self._reader.turn(ns))
            snapshots = [await self._reader.read(ns, terms) for ns in spaces]
            if (after := query.after) is not None:
                snapshot = snapshots[len(spaces) - 1 - after.space]
                if snapshot is None or snapshot.journal.epoch != after.epoch:
                    raise InvalidQueryError("cursor", "is that of a namespace that was made anew; begin without one")
            return snapshots, [_match(snapshot, query.filters) for snapshot in snapshots]

    async def _fetch(
        self, query: ListQuery, snapshots: Sequence[Snapshot | None], places: Sequence[Place]
    ) -> list[ListedMemory] | None:
        """Fetch the memories of some places; None when one has moved."""
        found: dict[Place, ListedMemory] = {}
        spaces = query.namespaces
        for at, (ns, snapshot) in enumerate(zip(spaces, snapshots, strict=True)):
            here = [place for place in places if place.space == len(spaces) - 1 - at]
            if snapshot is None or not here:
                continue
            docs = [place.doc for place in here]
            fetched = await self._documents.fetch(ns, docs, snapshot.journal, snapshot.moves)
            if fetched.moved:
                return None
            for place in here:
                if (document := fetched.documents.get(place.doc)) is not None:
                    found[place] = ListedMemory(**document.fields, ns=ns if len(spaces) > 1 else None)
        return [found[place] for place in places if place in found]


def _match(snapshot: Snapshot | None, filters: Filters) -> _Matching:
    if snapshot is None:
        return _Matching(np.empty(0, np.uint32), np.empty(0, np.int64), "")
    columns = snapshot.terms
    question = Question(
        journal=snapshot.journal,
        columns=[],
        idfs=[],
        filters=[[columns[term] for term in group] for _, group in filters.groups],
        excluded=[columns[term] for term in filters.excluded],
        k1=0.0,
        b=0.0,
        avgdl=0.0,
        limit=0,
        spans=filters.spans,
        floor=float(np.float32(filters.min_importance)),
    )
    docs = np.flatnonzero(allowed_documents(question)).astype(np.uint32)
    return _Matching(docs, snapshot.journal.created[docs], snapshot.journal.epoch)


def _next_places(matching: Sequence[_Matching], after: Place | None, count: int) -> Iterator[Place]:
    """Give the first places after another, of all namespaces together."""
    found: list[Place] = []
    for at, one in enumerate(matching):
        found += _first_places(one, len(matching) - 1 - at, after, count)
    yield from sorted(found, reverse=True)[:count]


def _first_places(matching: _Matching, space: int, after: Place | None, count: int) -> list[Place]:
    """Give the first places after another, of one namespace."""
    docs, created, epoch = matching
    if after is not None:
        is_later = created < after.created
        if space <= after.space:
            tied = created == after.created
            is_later |= tied if space < after.space else tied & (docs < after.doc)
        docs, created = docs[is_later], created[is_later]
    if docs.size > count:  # all that may be among the first, with those that tie with the last
        keep = created >= np.partition(created, docs.size - count)[docs.size - count]
        docs, created = docs[keep], created[keep]
    order = np.lexsort((docs, created))[::-1][:count]
    pairs = zip(created[order].tolist(), docs[order].tolist(), strict=True)
    return [Place(when, space, doc, epoch) for when, doc in pairs]
