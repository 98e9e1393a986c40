"""jiyi at its index layer: `Searcher.rank`, in this process, against its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.engines import TOP, ServerLoad
from jiyi.analysis import Analyzer
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.ranking import choose_ranker
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question
    from jiyi.connections import Database
    from jiyi.settings import Settings

CACHE_BYTES = 2**30


class Jiyi:
    """The reader's own path from terms to documents and scores: one question to Redis, scoring, exact rescoring.

    Not timed: the analysis of the question (a row of its own) and the fetching of the memories (timed over HTTP).
    """

    def __init__(self, settings: Settings, database: Database, places: dict[str, int], name: str = "jiyi") -> None:
        self.name = name
        self._settings = settings
        self._database = database
        self._places = places
        analyzer = Analyzer()
        ranker = choose_ranker()
        reader = SnapshotReader(database, analyzer.fingerprint, CACHE_BYTES, unseal=ranker.unseal)
        self._searcher = Searcher(database, analyzer, reader, ranker)
        self._queries: dict[str, SearchQuery] = {}
        self.matched = 0

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Rank; documents are called by their number."""
        ranking = await self._searcher.rank(self._query(question), dict.fromkeys(question.terms, 1.0), TOP)
        self.matched += ranking.total
        found = ranking.found
        return list(zip(found.docs.tolist(), found.parts.sum(axis=1).tolist(), strict=True))

    async def places(self, question: Question, found: Sequence[tuple[Any, float]]) -> list[int]:  # noqa: ARG002
        """Search for the question with everything that belongs to it: hits carry their ids."""
        result = await self._searcher.search(self._query(question))
        return [self._places.get(hit.id, -1) for hit in result.hits]

    async def server_load(self) -> ServerLoad | None:
        """Read the server's own accounts."""
        return await server_load(self._database)

    def _query(self, question: Question) -> SearchQuery:
        if (query := self._queries.get(question.text)) is None:
            query = SearchQuery.from_request(SearchRequest(q=question.text), self._settings)
            self._queries[question.text] = query
        return query

    async def close(self) -> None:
        """Give back nothing: server and connection belong to whoever made them."""


async def server_load(database: Any) -> ServerLoad:
    """Read what a server has used of the processor, and what its commands took, as it says itself."""
    cpu = await database.info("cpu")
    commands = await database.info("commandstats")
    took_us = sum(stats["usec"] for name, stats in commands.items() if name != "cmdstat_info")
    return ServerLoad(cpu["used_cpu_user"] + cpu["used_cpu_sys"], took_us / 1e6)
