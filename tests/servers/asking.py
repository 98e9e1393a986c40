"""The reader's own parts in the test's process, with nothing cached: what somebody would be told who asks now."""

from __future__ import annotations

from jiyi.streams import EventStream
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.readiness import ReadinessReader
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader


class Asker:
    """A searcher and a readiness reader with empty caches on a database."""

    def __init__(self, database, settings, analyzer):
        self._settings = settings
        snapshots = SnapshotReader(database, analyzer.fingerprint, settings.cache_bytes)
        self._searcher = Searcher(database, analyzer, snapshots)
        stream = EventStream(database, settings.stream, settings.group)
        self._readiness = ReadinessReader(database, stream, settings.max_content_bytes)

    async def search(self, q, ns="default", **fields):
        """The result of a search with all hits."""
        request = SearchRequest(q=q, ns=ns, limit=100, **fields)
        return await self._searcher.search(SearchQuery.from_request(request, self._settings))

    async def scores(self, q, ns="default", **fields):
        """Scores by id, and the size of the index."""
        result = await self.search(q, ns, **fields)
        return {hit.id: hit.score for hit in result.hits}, result.total, result.index

    async def ready(self, asked, ns="default"):
        """Answers for (id, entry) pairs."""
        return await self._readiness.ready(ns, asked, 0)
