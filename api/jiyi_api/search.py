"""Routes that find memories: search, why, and listing."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.di import Provide
from litestar.params import Parameter

from jiyi import metrics
from jiyi.errors import InvalidQueryError, JiyiError
from jiyi.memories import parse_id
from jiyi_api.failures import documented
from jiyi_api.filters import FilterRequest
from jiyi_api.hits import SearchResult
from jiyi_api.listing import ListQuery, ListRequest, MemoryPage
from jiyi_api.parameters import refuse_encoded, refuse_unknown
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.search_parameters import filter_parameters, search_parameters
from jiyi_api.service import Service
from jiyi_api.why import Why

PATH = "/memory/search"
FAILURE = "jiyi.failure"
"""Where in the scope of a request `direct` leaves what a search has failed with."""
FILTERS = Provide(filter_parameters, sync_to_thread=False)
SEARCH = Provide(search_parameters, sync_to_thread=False)


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
    responses=documented(400, 403, 413, 415, 503),
)
async def search_by_body(data: SearchRequest, service: Service) -> SearchResult:
    """Find the memories of a namespace that answer a question best, each with the terms that it matched."""
    return await search(data, service)


async def _refuse(request: Request[Any, Any, Any]) -> None:
    """Raise what `direct` has failed with; else `refuse_unknown`."""
    if isinstance(failure := request.scope.get(FAILURE), Exception):
        raise failure
    await refuse_unknown(request)


@get(
    PATH,
    summary="Search memories",
    before_request=_refuse,
    dependencies={"filters": FILTERS, "asked": SEARCH},
    responses=documented(400, 503),
)
async def search_by_query(asked: SearchRequest, service: Service) -> SearchResult:
    """Find memories; a filter that is given several times means any of its values."""
    return await search(asked, service)


@get(
    f"{PATH}/why",
    summary="Ask why a memory is, or is not, among the hits of a search",
    before_request=refuse_unknown,
    dependencies={"filters": FILTERS, "asked": SEARCH},
    responses=documented(400, 503),
)
async def why(
    asked: SearchRequest,
    service: Service,
    memory_id: Annotated[str, Parameter(query="id", description="Id of the memory.")],
) -> Why:
    """Say of one memory where it stands and what it lost to, which filter it does not meet, or why it is not there."""
    query = SearchQuery.from_request(asked, service.settings)
    return await service.parts.explainer.why(parse_id(memory_id), query)


@get(
    "/memory/list",
    summary="List memories, newest first",
    before_request=refuse_unknown,
    dependencies={"filters": FILTERS},
    responses=documented(400, 503),
)
async def list_by_query(
    filters: FilterRequest,
    service: Service,
    limit: Annotated[int, Parameter(description="Most memories of a page; 0: only the total.")] = 20,
    cursor: Annotated[str | None, Parameter(description="The next of the page before.")] = None,
) -> MemoryPage:
    """List the memories that meet the filters by their timestamp, page by page."""
    request = ListRequest(**msgspec.structs.asdict(filters), limit=limit, cursor=cursor)
    return await service.parts.lister.page(ListQuery.from_request(request, service.settings))


@post(
    "/memory/list",
    status_code=200,
    summary="List memories, newest first (JSON)",
    before_request=refuse_encoded,
    responses=documented(400, 403, 413, 415, 503),
)
async def list_by_body(data: ListRequest, service: Service) -> MemoryPage:
    """List the memories that meet the filters by their timestamp, page by page."""
    return await service.parts.lister.page(ListQuery.from_request(data, service.settings))
