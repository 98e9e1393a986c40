"""Routes for operators: metrics, liveness, readiness of the reader itself."""

from __future__ import annotations

from contextlib import suppress

from litestar import Response, get

from jiyi import metrics
from jiyi.errors import UnavailableError
from jiyi_api.service import Health, Service


@get("/metrics", media_type="text/plain; version=0.0.4", summary="Prometheus metrics")
async def metrics_page(service: Service) -> bytes:
    """Give the metrics of this process, or of all processes that share a metrics folder."""
    with suppress(UnavailableError):  # the gauges keep their last values; /readyz tells
        await service.measure(service.parts)
    return metrics.render()


@get("/healthz", summary="Is the process alive?")
async def healthz() -> dict[str, str]:
    """Answer as long as the event loop turns."""
    return {"status": "alive"}


@get("/readyz", summary="Can the reader answer?")
async def readyz(service: Service) -> Response[Health]:
    """200 when a search would be answered now, else 503; the checks say why."""
    health = await service.health()
    return Response(health, status_code=503 if health.status == "not ready" else 200)
