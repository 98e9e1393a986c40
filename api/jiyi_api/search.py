"""Routes of search."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.params import Parameter

from jiyi import metrics
from jiyi.errors import InvalidQueryError, JiyiError
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi_api.failures import documented
from jiyi_api.parameters import Namespace, refuse_encoded, refuse_unknown
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import SearchResult
from jiyi_api.service import Service

PATH = "/memory/search"
FAILURE = "jiyi.failure"
"""Where in the scope of a request `direct` leaves what a search has failed with."""
_TIME = "ISO 8601 (without a zone: UTC) or epoch milliseconds."


def _filter(what: str, query: str | None = None) -> Any:
    return Parameter(query=query, description=f"Only of this {what}, byte by byte; given again: of any of them.")


async def search(request: SearchRequest, service: Service) -> SearchResult:
    """Answer a search, and count what does not come to an answer."""
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
    PATH,
    status_code=200,
    summary="Search memories (JSON)",
    before_request=refuse_encoded,
    responses=documented(400, 413, 415, 503),
)
async def search_by_body(data: SearchRequest, service: Service) -> SearchResult:
    """Find the memories of a namespace that answer a question best, each with the terms that it matched."""
    return await search(data, service)


async def _refuse(request: Request[Any, Any, Any]) -> None:
    """Raise what `direct` has failed with; else `refuse_unknown`."""
    if isinstance(failure := request.scope.get(FAILURE), Exception):
        raise failure
    await refuse_unknown(request)


@get(PATH, summary="Search memories", before_request=_refuse, responses=documented(400, 503))
async def search_by_query(  # noqa: PLR0913 - the parameters of the search
    service: Service,
    q: Annotated[str, Parameter(description="The question, as a person asks it; at least one word.")] = "",
    ns: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, Parameter(description="Most hits; 0: only the figures.")] = 10,
    k1: Annotated[float, Parameter(description="BM25: how soon repetition of a term stops counting.")] = DEFAULT_K1,
    b: Annotated[float, Parameter(description="BM25: how much long memories are held back, 0 to 1.")] = DEFAULT_B,
    explain: Annotated[bool, Parameter(description="Add to each hit the numbers that its score comes from.")] = False,
    author: Annotated[list[str] | None, _filter("author")] = None,
    source_system: Annotated[list[str] | None, _filter("source system", "sourceSystem")] = None,
    user_id: Annotated[list[str] | None, _filter("user", "userId")] = None,
    session_id: Annotated[list[str] | None, _filter("session", "sessionId")] = None,
    kind: Annotated[list[str] | None, _filter("kind")] = None,
    tags: Annotated[list[str] | None, _filter("tag")] = None,
    since: Annotated[str | None, Parameter(description=f"Only from this time on. {_TIME}")] = None,
    until: Annotated[str | None, Parameter(description=f"Only before this time. {_TIME}")] = None,
    min_importance: Annotated[
        float | None, Parameter(query="minImportance", description="Only memories of at least this importance, 0 to 1.")
    ] = None,
) -> SearchResult:
    """Find memories; a filter that is given several times means any of its values."""
    request = SearchRequest(
        q=q, ns=ns, limit=limit, k1=k1, b=b, explain=explain, author=author, source_system=source_system,
        user_id=user_id, session_id=session_id, kind=kind, tags=tags, since=since, until=until,
        min_importance=min_importance,
    )  # fmt: skip
    return await search(request, service)
