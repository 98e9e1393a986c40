"""The ASGI application, composed from its routes and a `Service`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from litestar import Litestar
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig

from jiyi import __version__, metrics
from jiyi_api import analyze, dead, failures, memories, operations, search
from jiyi_api.callers import refuse_other_sites
from jiyi_api.direct import search_directly
from jiyi_api.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from jiyi.settings import Settings


def create_app(settings: Settings, *, patience_s: float = 0.0) -> ASGIApp:
    """Build the application; its service starts with the server and stops with it.

    The server takes requests when the service can answer them or knows why not, at the latest after `patience_s`.
    """
    service = Service(settings)

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        async with service.running(patience_s):
            yield

    def provide_service() -> Service:
        return service

    app = Litestar(
        route_handlers=[
            memories.write_memories,
            memories.delete_memory,
            memories.delete_namesake,
            memories.get_memory,
            memories.ready,
            search.search_by_body,
            search.search_by_query,
            search.why,
            search.list_by_query,
            search.list_by_body,
            dead.list_dead_letters,
            dead.get_dead_letter,
            dead.replay_dead_letter,
            dead.replay_dead_letters,
            dead.drop_dead_letter,
            dead.drop_dead_letters,
            analyze.analyze_body,
            analyze.analyze_query,
            operations.metrics_page,
            operations.healthz,
            operations.readyz,
        ],
        dependencies={"service": Provide(provide_service, sync_to_thread=False)},
        exception_handlers=failures.HANDLERS,
        guards=[refuse_other_sites],
        lifespan=[running],
        middleware=[_count_requests],
        openapi_config=OpenAPIConfig(title="jiyi", version=__version__, path="/schema"),
        request_max_body_size=settings.max_request_bytes,
        signature_types=[Service],
        logging_config=None,
    )
    return search_directly(cast("ASGIApp", app), service)


def _count_requests(app: ASGIApp) -> ASGIApp:
    """Count answers by route template (never by path: that holds ids) and status."""

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("path_template") or "unknown"
                metrics.HTTP_REQUESTS.labels(route, str(message["status"])).inc()
            await send(message)

        await app(scope, receive, sending)

    return counting
