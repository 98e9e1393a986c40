"""Search: analyse the question, score one consistent snapshot, fetch the best memories, explain each."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AsyncExitStack
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import msgspec

from jiyi import metrics
from jiyi.analysis import TooManyTerms
from jiyi.errors import InvalidQueryError
from jiyi.memories import EARLIEST_MS, LATEST_MS, format_time
from jiyi_api.documents import Documents
from jiyi_api.folding import MOST_IDS, fold
from jiyi_api.hits import Explanation, Hit, IndexFigures, SearchResult, TimeFound
from jiyi_api.orders import Order
from jiyi_api.ranking import choose_ranker
from jiyi_api.rankings import Wanted, count_matches, rank_snapshots
from jiyi_api.snippets import snippet
from jiyi_api.time_words import find_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jiyi.analysis import Analyzer, Question
    from jiyi.connections import Database
    from jiyi_api.documents import Document
    from jiyi_api.filters import Filters
    from jiyi_api.queries import SearchQuery
    from jiyi_api.ranking import Ranker
    from jiyi_api.rankings import Ranking
    from jiyi_api.snapshots import SnapshotReader
    from jiyi_api.time_words import TimeSpan

_ATTEMPTS = 3
"""A hit that is rewritten between scoring and fetching is searched for again, this often."""
_SEARCHED = {True: metrics.SEARCHES.labels("hits"), False: metrics.SEARCHES.labels("empty")}
_MOST_PASSED_OVER = 1_000
"""Expired memories are passed over until they are swept, and others are folded into better ones; behind more than this
many, what comes next stays hidden."""
_FIRST_LOOK = 100
"""A document is looked for among so many of the best first, then among a hundred times as many."""
_SPARE = 3
"""So many times the limit is looked at first where hits are folded."""


class Found(NamedTuple):
    """Hits that were fetched, best first, and how many others have expired or moved on meanwhile."""

    hits: list[Hit]
    expired: int
    moved: int


class Placed(NamedTuple):
    """The place of a document among all that match, from 1, and its hit; both None for one that does not match."""

    rank: int | None
    total: int
    hit: Hit | None


class Searcher:
    """Answers searches. Keeps columns and documents, nothing that could not be thrown away."""

    def __init__(
        self,
        database: Database,
        analyzer: Analyzer,
        reader: SnapshotReader,
        ranker: Ranker | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._analyzer = analyzer
        self._reader = reader
        self._ranker = ranker or choose_ranker()
        self._documents = documents or Documents(database)

    async def search(self, query: SearchQuery, folded_ids: int = MOST_IDS) -> SearchResult:
        """Find the best memories for a question. Scores are exact for the documents alive at that instant.

        A hit names at most `folded_ids` of those that are folded into it.

        Raises `UnavailableError`, `AnalyzerMismatchError`, `CorruptIndexError`, and `InvalidQueryError` for a
        question of too many terms.
        """
        started = time.perf_counter()
        times = self.times(query)
        terms, synonym_of = self.question(query.text)
        tiers = self._tiers(query, terms, times)
        limit, rewritten = query.limit * (_SPARE if query.folds else 1), 0
        while True:
            rankings = await self._rank(query.namespaces, tiers, limit)
            total = count_matches(rankings)
            found = await self._fetch(query, rankings)
            hits = found.hits[: query.limit]
            if query.folds:
                hits = await fold(found.hits, query, self._analyzer, folded_ids)
            rewritten += found.moved > 0
            if len(hits) == min(query.limit, total) or rewritten == _ATTEMPTS:
                break
            wider = 2 * limit if query.folds else query.limit + 2 * found.expired
            wider = max(limit, min(wider, _MOST_PASSED_OVER + query.limit))
            if not found.moved and (limit >= total or wider == limit):
                break  # what is missing has expired, or is folded
            limit = wider
        await self._complete(hits, query, synonym_of)
        took_s = time.perf_counter() - started
        metrics.SEARCH_SECONDS.observe(took_s)
        _SEARCHED[bool(hits)].inc()
        metrics.HITS.observe(len(hits))
        figures = IndexFigures(rankings[0][0].size, rankings[0][0].avgdl)
        return SearchResult(hits, total, round(took_s * 1000, 3), figures, _told(times) if times else None)

    async def _complete(self, hits: Sequence[Hit], query: SearchQuery, synonym_of: Mapping[str, str]) -> None:
        """Add to hits what only those need that are shown."""
        if query.snippet:
            await anyio.to_thread.run_sync(self._add_snippets, hits, query.snippet)  # long memories take long
        for term in (term for hit in hits for term in hit.matched_terms) if synonym_of else ():
            term.synonym_of = synonym_of.get(term.term)

    def _add_snippets(self, hits: Sequence[Hit], width: int) -> None:
        for hit in hits:
            contributions = {term.term: term.score for term in hit.matched_terms}
            hit.snippet = snippet(hit.content, contributions, self._analyzer, width)

    async def place(self, query: SearchQuery, doc: int) -> Placed | None:
        """Tell where a document of the first namespace stands among all that match; None when it is no longer there.

        Errors as of `search`.
        """
        terms, synonym_of = self.question(query.text)
        tiers = self._tiers(query, terms, self.times(query))
        limit = _FIRST_LOOK
        while True:
            rankings = await self._rank([query.ns], tiers, limit)
            journal, total = rankings[-1][0].journal, count_matches(rankings)
            if journal is None or doc >= journal.lengths.size or not math.isfinite(journal.lengths[doc]):
                return None
            before: set[int] = set()
            for tier, (ranking,) in enumerate(rankings):
                docs = [one for one in ranking.found.docs.tolist() if one not in before]
                if doc in docs:
                    place = ranking.found.docs.tolist().index(doc)
                    found = await self._fetch(query, [[ranking.only(place)]])
                    if not found.hits:
                        return None
                    if len(tiers) > 1:
                        found.hits[0].matched_all = tier == 0
                    await self._complete(found.hits, query, synonym_of)
                    return Placed(len(before) + docs.index(doc) + 1, total, found.hits[0])
                if not ranking.is_whole:
                    break  # it may stand further down in this tier, before all of the next
                before.update(docs)
            if limit >= total:
                return Placed(None, total, None)
            limit *= _FIRST_LOOK

    async def rank(self, query: SearchQuery, terms: Mapping[str, float], limit: int) -> Ranking:
        """Score a snapshot of the first namespace by weighted terms, to match any: the index layer.

        One call to Redis when the columns are warm. Errors as of `search`.
        """
        ((ranking,),) = await self._rank([query.ns], [_wanted(query, terms)], limit)
        return ranking

    async def _rank(self, namespaces: Sequence[str], tiers: Sequence[Wanted], limit: int) -> list[list[Ranking]]:
        """Rank snapshots of all namespaces, tier by tier; gives the rankings of each tier, namespace by namespace."""
        reader, columns = self._reader, tiers[-1].columns
        known = reader.known(namespaces[0], columns) if len(namespaces) == 1 else None
        if known and (asked := reader.ask_state(known)) is not None:
            # What is known is ranked while the server is asked whether it still holds.
            try:
                if not asked.is_sent:
                    await asyncio.sleep(0)  # others may begin to read the columns on
                if asked.is_sent or known.stands():
                    rankings = [rank_snapshots(self._ranker, [known], wanted, limit) for wanted in tiers]
                    if await reader.is_still(known, asked):
                        return rankings
            finally:
                asked.answer.cancel()
        async with AsyncExitStack() as turns:
            for ns in sorted(namespaces):  # in one order for all, or two searches could wait for each other
                await turns.enter_async_context(reader.turn(ns))
            snapshots = [await reader.read(ns, columns) for ns in namespaces]
            # No await from here on: the columns stand still.
            return [rank_snapshots(self._ranker, snapshots, wanted, limit) for wanted in tiers]

    def question(self, text: str) -> Question:
        """Give the terms that a question asks for; raises `InvalidQueryError` if they are too many."""
        try:
            return self._analyzer.question(text)
        except TooManyTerms as error:
            raise InvalidQueryError("q", str(error)) from None

    def _tiers(self, query: SearchQuery, terms: Mapping[str, float], times: Sequence[TimeSpan]) -> list[Wanted]:
        """Say what is wanted, the best first; what an earlier tier has is not repeated by a later one."""
        spans = tuple((one.since_ms, one.until_ms) for one in times)
        order = None
        if query.ranking is not None or (spans and query.time_words == "boost"):
            order = Order(spans if query.time_words == "boost" else (), query.ranking, query.at_ms)
        wanted = _wanted(query, terms)
        wanted = msgspec.structs.replace(
            wanted,
            filters=self.filters(query, times),
            order=order,
            min_score=query.min_score,
        )
        if query.match == "any":
            return [wanted]
        required = [(term,) for term in self.required_terms(query, times)]
        complete = msgspec.structs.replace(wanted, required=required)
        return [complete] if query.match == "all" else [complete, wanted]

    def required_terms(self, query: SearchQuery, times: Sequence[TimeSpan]) -> list[str]:
        """Give the terms that a memory must have to match all; time words that filter say when, not what."""
        said = [one.text for one in times] if query.time_words == "filter" else []
        return self._analyzer.required_terms(query.text, said)

    @staticmethod
    def filters(query: SearchQuery, times: Sequence[TimeSpan]) -> Filters:
        """Give the filters of a question, and that of its time words if these shall filter."""
        if query.time_words != "filter":
            return query.filters
        return query.filters.within([(one.since_ms, one.until_ms) for one in times])

    @staticmethod
    def times(query: SearchQuery) -> list[TimeSpan]:
        """Find the time words of a question, if they are to count."""
        if query.time_words == "off":
            return []
        return list(find_time(query.text, datetime.fromtimestamp(query.at_ms / 1000, UTC), query.zone))

    async def _fetch(self, query: SearchQuery, tiers: Sequence[Sequence[Ranking]]) -> Found:
        """Fetch the ranked documents and put those of all namespaces in one order, tier by tier.

        The order has no gaps: where it is not known what comes next, as more may match in a namespace or a tier than
        were ranked, it ends.
        """
        hits: list[Hit] = []
        expired = moved = 0
        shown: set[tuple[str, int]] = set()
        for tier, rankings in enumerate(tiers):
            placed: list[tuple[int, Hit]] = []
            missing = -expired - moved
            for ns, ranking in zip(query.namespaces, rankings, strict=False):
                if ranking.journal is None or not ranking.found.docs.size:
                    continue
                docs = ranking.found.docs.tolist()
                fetched = await self._documents.fetch(ns, docs, ranking.journal, ranking.moves)
                expired, moved = expired + fetched.expired, moved + fetched.moved
                found = self._hits(query, ranking, fetched.documents)
                if len(tiers) > 1:
                    found = [(doc, hit) for doc, hit in found if (ns, doc) not in shown]
                    shown.update((ns, doc) for doc, _ in found)
                    for _, hit in found:
                        hit.matched_all = tier == 0
                if len(query.namespaces) > 1:
                    created = dict(zip(docs, ranking.created, strict=True))
                    for _, hit in found:
                        hit.ns = ns
                    found = [(created[doc], hit) for doc, hit in found]
                placed += found
            hits += _in_order(placed, rankings, missing + expired + moved)
            if not all(ranking.is_whole for ranking in rankings):
                break
        return Found(hits, expired, moved)

    @staticmethod
    def _hits(query: SearchQuery, ranking: Ranking, documents: Mapping[int, Document]) -> list[tuple[int, Hit]]:
        """Give number and hit of each document of a ranking that was fetched."""
        hits = []
        for place, (doc, matched, length) in enumerate(ranking.hits()):
            if (document := documents.get(doc)) is None:
                continue
            explanation = None
            if query.explain:
                explanation = Explanation(length, ranking.avgdl, ranking.size, query.k1, query.b)
            score = 0.0
            for term in matched:
                score += term.score
            hit = copy(document.blank)
            hit.score, hit.matched_terms, hit.explanation = score, matched, explanation
            if ranking.boosts is not None and (boost := ranking.boosts[place]) is not None:
                hit.boost = boost
                hit.score += boost.score
            if ranking.factors is not None:
                hit.factors = ranking.factors[place]
                hit.score = hit.factors.score
            hits.append((doc, hit))
        return hits


def _in_order(placed: list[tuple[int, Hit]], rankings: Sequence[Ranking], missing: int) -> list[Hit]:
    """Give the hits of all namespaces in one order; with each stands its time.

    Of several namespaces that have more than was ranked, the best of all are there, so many as were wanted, but for
    those `missing` that are not there any more. Behind them, one that was not ranked may stand: there the order ends.
    """
    if len(rankings) > 1:
        placed.sort(key=lambda one: (one[1].score, one[0]), reverse=True)
        if not all(ranking.is_whole for ranking in rankings):
            placed = placed[: max(rankings[0].wanted - missing, 0)]
    return [hit for _, hit in placed]


def _wanted(query: SearchQuery, terms: Mapping[str, float]) -> Wanted:
    return Wanted(terms=terms, filters=query.filters, k1=query.k1, b=query.b)


def _told(times: Sequence[TimeSpan]) -> list[TimeFound]:
    return [TimeFound(one.text, shown_time(one.since_ms), shown_time(one.until_ms)) for one in times]


def shown_time(time_ms: int) -> str | None:
    """Give a border of a span of time; None where it is open, or before all memories, or after."""
    return format_time(time_ms) if EARLIEST_MS <= time_ms <= LATEST_MS else None
