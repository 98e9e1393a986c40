"""Every failure as one shape: `{"error": {"code", "message"}}` with the right HTTP status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException

from jiyi import metrics
from jiyi.errors import (
    AnalyzerMismatchError,
    InvalidEventError,
    InvalidQueryError,
    JiyiError,
    UnavailableError,
)
from jiyi.logs import get_logger
from jiyi_api.service import retry_headers

if TYPE_CHECKING:
    from litestar import Request

log = get_logger()

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media"}


class Failure(msgspec.Struct):
    """A stable word for programs and a sentence for people."""

    code: str
    message: str


class FailureBody(msgspec.Struct):
    """Body of every answer that is not a success."""

    error: Failure


def answer(status: int, code: str, message: str, headers: dict[str, Any] | None = None) -> Response[FailureBody]:
    """Build a failure answer."""
    return Response(FailureBody(Failure(code, message)), status_code=status, headers=headers)


def refused(_: Request[Any, Any, Any], error: InvalidEventError | InvalidQueryError) -> Response[FailureBody]:
    """400: the request is wrong and stays wrong."""
    code = error.code if isinstance(error, InvalidEventError) else "invalid_query"
    return answer(413 if code == "too_large" else 400, code, str(error))


def unavailable(_: Request[Any, Any, Any], error: JiyiError) -> Response[FailureBody]:
    """503: not now."""
    metrics.SEARCHES.labels("unavailable").inc()
    if isinstance(error, UnavailableError):
        return answer(503, "unavailable", str(error), retry_headers(error))
    code = "analyzer_mismatch" if isinstance(error, AnalyzerMismatchError) else "unavailable"
    return answer(503, code, str(error), {"Retry-After": "10"})


def http_failure(_: Request[Any, Any, Any], error: HTTPException) -> Response[FailureBody]:
    """Failures that the framework finds: wrong JSON, wrong types, no such path."""
    message = error.detail
    if isinstance(error.extra, list):
        message = "; ".join(f"{one.get('key', 'request')}: {one.get('message')}" for one in error.extra)
    return answer(error.status_code, _CODES.get(error.status_code, "http_error"), message, error.headers)


def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[FailureBody]:
    """500: a defect of ours; the log has the traceback, the answer has no detail."""
    log.error("request_failed", method=request.method, error=type(error).__name__, exc_info=error)
    return answer(500, "internal_error", "the reader failed on this request; its log says why")


HANDLERS: dict[int | type[Exception], Any] = {
    InvalidEventError: refused,
    InvalidQueryError: refused,
    JiyiError: unavailable,
    HTTPException: http_failure,
    Exception: unexpected,
}
