"""Routes of search."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.params import Parameter

from jiyi import metrics
from jiyi.errors import InvalidQueryError, JiyiError
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi_api.failures import documented
from jiyi_api.parameters import refuse_unknown
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import SearchResult
from jiyi_api.service import Service


async def _search(request: SearchRequest, service: Service) -> SearchResult:
    try:
        query = SearchQuery.from_request(request, service.settings)
        return await service.parts.searcher.search(query)
    except InvalidQueryError:
        metrics.SEARCHES.labels("refused").inc()
        raise
    except JiyiError:
        metrics.SEARCHES.labels("unavailable").inc()
        raise


@post(
    "/memory/search",
    status_code=200,
    summary="Search memories (JSON)",
    before_request=refuse_unknown,
    responses=documented(400, 503),
)
async def search_by_body(data: SearchRequest, service: Service) -> SearchResult:
    """Find the memories of a namespace that answer a question best, each with the terms that it matched."""
    return await _search(data, service)


@get("/memory/search", summary="Search memories", before_request=refuse_unknown, responses=documented(400, 503))
async def search_by_query(  # noqa: PLR0913 - the parameters of the search
    service: Service,
    q: str = "",
    ns: str = DEFAULT_NAMESPACE,
    limit: int = 10,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
    explain: bool = False,
    author: list[str] | None = None,
    source_system: Annotated[list[str] | None, Parameter(query="sourceSystem")] = None,
    user_id: Annotated[list[str] | None, Parameter(query="userId")] = None,
    session_id: Annotated[list[str] | None, Parameter(query="sessionId")] = None,
    kind: list[str] | None = None,
    tags: list[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    min_importance: Annotated[float | None, Parameter(query="minImportance")] = None,
) -> SearchResult:
    """Find memories; a filter that is given several times means any of its values."""
    request = SearchRequest(
        q=q, ns=ns, limit=limit, k1=k1, b=b, explain=explain, author=author, source_system=source_system,
        user_id=user_id, session_id=session_id, kind=kind, tags=tags, since=since, until=until,
        min_importance=min_importance,
    )  # fmt: skip
    return await _search(request, service)
