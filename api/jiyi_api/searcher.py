"""Search: analyse the question, score one consistent snapshot, fetch the best memories, explain each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from jiyi import keys, metrics, scripts
from jiyi.analysis import TooManyTerms
from jiyi.connections import server_of
from jiyi.errors import InvalidQueryError
from jiyi.memories import DEFAULT_IMPORTANCE, Memory, format_time
from jiyi.scoring import average_length, idf, saturation
from jiyi_api import kernel
from jiyi_api.damage import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from jiyi.analysis import Analyzer
    from jiyi.connections import Database
    from jiyi_api.columns import Journal
    from jiyi_api.queries import SearchQuery
    from jiyi_api.snapshots import Snapshot, SnapshotReader

_ATTEMPTS = 3
"""A hit that is rewritten between scoring and fetching is searched for again, this often."""
_MOST_EXPIRED = 1_000
"""Expired memories are passed over until they are swept; behind more than this many, better ones stay hidden."""
DOCUMENT_FIELDS = (
    "doc", "entry", "indexed_at", "content", "author", "source_system", "user_id", "session_id", "kind", "tags",
    "timestamp", "importance", "expires_at", "metadata",
)  # fmt: skip


class MatchedTerm(msgspec.Struct, rename="camel"):
    """What one term of the question contributes to a hit; the scores of all add up to the hit's."""

    term: str
    tf: int
    df: int
    idf: float
    score: float


class Explanation(msgspec.Struct, rename="camel"):
    """The numbers that the parts of a score are made of; the formula is in `jiyi.scoring`."""

    length: int
    avgdl: float
    docs: int
    k1: float
    b: float
    formula: str = "idf * tf*(k1+1) / (tf + k1*(1 - b + b*length/avgdl)), idf = ln(1 + (docs-df+0.5)/(df+0.5))"


class StoredMemory(msgspec.Struct, rename="camel", omit_defaults=True):
    """A memory as it is given back. Times are ISO 8601 in UTC."""

    id: str
    content: str
    entry: str
    indexed_at: str
    timestamp: str
    importance: float
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    expires_at: str | None = None
    metadata: msgspec.Raw | None = None

    @classmethod
    def from_stored(cls, memory_id: str, stored: dict[str, str]) -> StoredMemory:
        """Build from the memory's hash in Redis."""
        memory = Memory.from_stored(stored)
        if memory.metadata is not None:
            msgspec.json.decode(memory.metadata)  # it goes into the answer unread, and would break all of it
        return cls(
            id=memory_id,
            content=memory.content,
            entry=stored["entry"],
            indexed_at=format_time(int(stored["indexed_at"])),
            timestamp=format_time(memory.timestamp or 0),
            importance=DEFAULT_IMPORTANCE if memory.importance is None else memory.importance,
            author=memory.author,
            source_system=memory.source_system,
            user_id=memory.user_id,
            session_id=memory.session_id,
            kind=memory.kind,
            tags=memory.tags,
            expires_at=None if memory.expires_at is None else format_time(memory.expires_at),
            metadata=None if memory.metadata is None else msgspec.Raw(memory.metadata.encode()),
        )


class Hit(StoredMemory, rename="camel", omit_defaults=True, kw_only=True):
    """A memory that was found, and why."""

    score: float
    matched_terms: list[MatchedTerm]
    explanation: Explanation | None = None


class IndexFigures(msgspec.Struct, rename="camel"):
    """Size of the namespace at the instant of the search."""

    docs: int
    avgdl: float


class SearchResult(msgspec.Struct, rename="camel"):
    """Hits, best first; `total` counts all matching memories."""

    hits: list[Hit]
    total: int
    took_ms: float
    index: IndexFigures


class _Scored(NamedTuple):
    """A document number with its exact score and the parts of it."""

    doc: int
    score: float
    length: int
    terms: list[MatchedTerm]


class _Ranking(NamedTuple):
    """The best documents of a snapshot, whose numbers mean something in the epoch of its journal alone."""

    best: list[_Scored]
    total: int
    docs: int
    avgdl: float
    journal: Journal | None


class Searcher:
    """Answers searches. Keeps scratch arrays and columns, nothing that could not be thrown away."""

    def __init__(self, database: Database, analyzer: Analyzer, reader: SnapshotReader) -> None:
        self._database = database
        self._analyzer = analyzer
        self._reader = reader
        self._scores: NDArray[np.float32] = np.zeros(0, np.float32)
        self._marks: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._touched: NDArray[np.uint32] = np.zeros(0, np.uint32)

    async def search(self, query: SearchQuery) -> SearchResult:
        """Find the best memories for a question. Scores are exact for the documents alive at that instant.

        Raises `UnavailableError`, `AnalyzerMismatchError`, `CorruptIndexError`, and `InvalidQueryError` for a
        question of too many terms.
        """
        started = time.perf_counter()
        try:
            terms = self._analyzer.query_terms(query.text)
        except TooManyTerms as error:
            raise InvalidQueryError("q", str(error)) from None
        wanted, rewritten = query.limit, 0
        while True:
            ranking = await self.rank(query, terms, wanted)
            hits, expired, moved = await self._fetch(query, ranking)
            hits = hits[: query.limit]
            rewritten += moved > 0
            wider = min(query.limit + 2 * expired, _MOST_EXPIRED + query.limit)
            if len(hits) == min(query.limit, ranking.total) or rewritten == _ATTEMPTS:
                break
            if not moved and (len(ranking.best) == ranking.total or wider <= wanted):
                break  # what is missing has expired
            wanted = max(wanted, wider)
        took_s = time.perf_counter() - started
        metrics.SEARCH_SECONDS.observe(took_s)
        metrics.SEARCHES.labels("hits" if hits else "empty").inc()
        metrics.HITS.observe(len(hits))
        return SearchResult(hits, ranking.total, round(took_s * 1000, 3), IndexFigures(ranking.docs, ranking.avgdl))

    async def rank(self, query: SearchQuery, terms: Sequence[str], limit: int) -> _Ranking:
        """Score a snapshot: the index layer of a search, one call to Redis when the columns are warm."""
        wanted = [*terms, *(term for group in query.filters for term in group)]
        async with self._reader.turn(query.ns):
            snapshot = await self._reader.read(query.ns, wanted)
            if snapshot is None:
                return _Ranking([], 0, 0, 0.0, None)
            # No await from here on: the columns stand still.
            return self._score(snapshot, query, terms, limit)

    def _score(self, snapshot: Snapshot, query: SearchQuery, terms: Sequence[str], limit: int) -> _Ranking:
        avgdl = average_length(snapshot.tokens, snapshot.docs)
        self._reach(snapshot.journal.lengths.size)
        floor = float(np.float32(query.min_importance))  # in the precision of the index, else 0.7 is not at least 0.7
        groups = [[snapshot.terms[term] for term in group] for group in query.filters]
        for step, group in enumerate(groups):
            for term in group:
                kernel.mark(term.postings.docs, step, self._marks)
        base = query.k1 * (1.0 - query.b) if avgdl else query.k1
        slope = query.k1 * query.b / avgdl if avgdl else 0.0
        count = 0
        journal = snapshot.journal
        weights = {name: idf(snapshot.docs, term.df) for name in terms if (term := snapshot.terms[name]).df}
        for name, weight in weights.items():
            postings = snapshot.terms[name].postings
            count = kernel.accumulate(
                postings.docs, postings.tfs, weight * (query.k1 + 1.0), base, slope, journal.lengths,
                len(groups), self._marks, self._scores, self._touched, count,
            )  # fmt: skip
        heap = np.empty(limit, np.uint32)
        size, total = kernel.select_top(
            self._touched, count, self._scores, journal.created, journal.importance,
            query.since_ms, query.until_ms, floor, heap,
        )  # fmt: skip
        for term in groups[0] if groups else ():
            kernel.clear_marks(term.postings.docs, self._marks)
        best = self._explain(snapshot, query, weights, heap[:size], avgdl)
        return _Ranking(best, total, snapshot.docs, avgdl, journal)

    def _explain(
        self, snapshot: Snapshot, query: SearchQuery, weights: dict[str, float], hits: NDArray[np.uint32], avgdl: float
    ) -> list[_Scored]:
        """Score the hits again with the reference functions, in double precision, term by term."""
        docs = hits.tolist()
        if not docs:
            return []
        lengths: list[int] = snapshot.journal.lengths[hits].astype(np.int64).tolist()
        created: list[int] = snapshot.journal.created[hits].tolist()
        parts: list[list[MatchedTerm]] = [[] for _ in docs]
        tfs = np.empty(hits.size, np.uint16)
        for name, weight in weights.items():
            term = snapshot.terms[name]
            tfs[:] = 0
            for at in range(0, hits.size, kernel.MAX_HITS):
                part = slice(at, at + kernel.MAX_HITS)
                kernel.frequencies(term.postings.docs, term.postings.tfs, hits[part], self._marks, tfs[part])
            for tf, length, found in zip(tfs.tolist(), lengths, parts, strict=True):
                if tf:
                    score = weight * saturation(tf, length, avgdl, query.k1, query.b)
                    found.append(MatchedTerm(name, tf, term.df, weight, score))
        scores = [sum(part.score for part in found) for found in parts]
        order = sorted(range(len(docs)), key=lambda i: (-scores[i], -created[i], -docs[i]))
        return [_Scored(docs[i], scores[i], lengths[i], parts[i]) for i in order]

    def _reach(self, size: int) -> None:
        if self._scores.size < size:
            self._scores = np.zeros(size, np.float32)
            self._marks = np.zeros(size, np.uint8)
            self._touched = np.zeros(size, np.uint32)

    async def _fetch(self, query: SearchQuery, ranking: _Ranking) -> tuple[list[Hit], int, int]:
        """Fetch the ranked documents; gives also how many have expired and how many have moved on.

        All have, when the namespace was made anew since, or another server process answers for it.
        """
        if ranking.journal is None:
            return [], 0, 0
        ns, journal = query.ns, ranking.journal
        ids = await self._ids(ns, [scored.doc for scored in ranking.best], journal)
        known = [(scored, memory_id) for scored, memory_id in zip(ranking.best, ids, strict=True) if memory_id]
        moved, expired, now_ms = len(ids) - len(known), 0, time.time_ns() // 10**6
        documents = await fetch_documents(self._database, ns, [memory_id for _, memory_id in known], journal.epoch)
        if server_of(self._database, keys.stats_key(ns)) != journal.server:
            return [], 0, len(ids)
        hits = []
        with reading("a stored memory"):
            for (scored, memory_id), stored in zip(known, documents, strict=True):
                if stored.get("doc") != str(scored.doc):
                    moved += 1
                elif int(stored.get("expires_at", now_ms + 1)) <= now_ms:
                    expired += 1
                else:
                    hits.append(_hit(query, ranking, scored, memory_id, stored))
        return hits, expired, moved

    async def _ids(self, ns: str, docs: Sequence[int], journal: Journal) -> list[str | None]:
        cache = journal.ids
        missing = [doc for doc in docs if doc not in cache]
        if missing:
            if len(cache) > len(missing) + 100_000:
                cache.clear()
                missing = list(docs)
            found = await scripts.read_ids(self._database, ns, missing, epoch=journal.epoch)
            with reading("the id of a document"):
                cache.update({doc: raw.decode() for doc, raw in zip(missing, found, strict=True) if raw is not None})
        return [cache.get(doc) for doc in docs]


async def fetch_documents(database: Database, ns: str, ids: Sequence[str], epoch: str = "") -> list[dict[str, str]]:
    """Read memories with all fields that are given back; absent fields are left out, and all after the `epoch`."""
    if not ids:
        return []
    rows = await scripts.read_documents(database, ns, ids, DOCUMENT_FIELDS, epoch=epoch)
    with reading("a stored memory"):
        return [
            {name: value.decode() for name, value in zip(DOCUMENT_FIELDS, row, strict=True) if value is not None}
            for row in rows
        ]
    raise AssertionError  # the context swallows nothing; the type checker cannot know


def _hit(query: SearchQuery, ranking: _Ranking, scored: _Scored, memory_id: str, stored: dict[str, str]) -> Hit:
    memory = StoredMemory.from_stored(memory_id, stored)
    explanation = None
    if query.explain:
        explanation = Explanation(scored.length, ranking.avgdl, ranking.docs, query.k1, query.b)
    return Hit(
        **msgspec.structs.asdict(memory), score=scored.score, matched_terms=scored.terms, explanation=explanation
    )
