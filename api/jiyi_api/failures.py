"""Every failure as one shape: `{"error": {"code", "message"}}` with the right HTTP status."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException, SerializationException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.openapi.datastructures import ResponseSpec

from jiyi.errors import (
    AnalyzerMismatchError,
    BacklogFullError,
    CorruptIndexError,
    InvalidEventError,
    InvalidQueryError,
    JiyiError,
    NotConfirmedError,
    UnavailableError,
)
from jiyi.logs import get_logger
from jiyi_api.parameters import UnknownParameterError
from jiyi_api.queries import CHOICES
from jiyi_api.service import retry_headers

if TYPE_CHECKING:
    from litestar import Request

log = get_logger()

_MEANINGS = {
    400: "The request is wrong; the message names the field or parameter",
    403: "A page of another site asks, by somebody's browser; only a server, or a page of the same site, may",
    404: "There is no such memory, or dead letter, in this namespace",
    429: "Too many events wait for the workers; Retry-After says when to write again",
    413: "The body, or a part of it, is larger than is accepted",
    415: "The body is compressed; send it as it is",
    503: "Redis cannot be asked now, or not this index; Retry-After says when to ask again",
}
_REFUSALS = {AnalyzerMismatchError: "analyzer_mismatch", CorruptIndexError: "corrupt_index"}
# What the decoder says of JSON that ends too early, and of half a surrogate pair.
_MEANT = {
    "Input data was truncated": "is no whole JSON: it ends too early, or an escape like \\ud83d has no second half"
}
_CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media",
}


class Failure(msgspec.Struct):
    """A stable word for programs and a sentence for people."""

    code: str
    message: str


class FailureBody(msgspec.Struct):
    """Body of every answer that is not a success."""

    error: Failure


def documented(*statuses: int) -> dict[int, ResponseSpec]:
    """Give what OpenAPI says about the failures of a route."""
    return {
        status: ResponseSpec(FailureBody, generate_examples=False, description=_MEANINGS[status]) for status in statuses
    }


def answer(status: int, code: str, message: str, headers: dict[str, Any] | None = None) -> Response[FailureBody]:
    """Build a failure answer."""
    return Response(FailureBody(Failure(code, message)), status_code=status, headers=headers)


def refused(_: Request[Any, Any, Any], error: InvalidEventError | InvalidQueryError) -> Response[FailureBody]:
    """400: the request is wrong and stays wrong."""
    code = error.code if isinstance(error, InvalidEventError) else "invalid_query"
    field = error.field if isinstance(error, UnknownParameterError) else _spelt(error.field)
    message = field + str(error).removeprefix(error.field)
    return answer(413 if code == "too_large" else 400, code, message)


def unavailable(_: Request[Any, Any, Any], error: JiyiError) -> Response[FailureBody]:
    """503: not now."""
    if isinstance(error, UnavailableError):
        return answer(503, "unavailable", str(error), retry_headers(error))
    if isinstance(error, NotConfirmedError):
        return answer(503, "not_confirmed", str(error), {"Retry-After": "1"})
    code = next((word for kind, word in _REFUSALS.items() if isinstance(error, kind)), "unavailable")
    return answer(503, code, str(error), {"Retry-After": "10"})


def backlog_full(_: Request[Any, Any, Any], error: BacklogFullError) -> Response[FailureBody]:
    """429: workers are too far behind for more writes."""
    return answer(429, "backlog_full", str(error), {"Retry-After": str(max(1, round(error.retry_after_s)))})


def http_failure(request: Request[Any, Any, Any], error: HTTPException) -> Response[FailureBody]:
    """Failures that the framework finds: wrong JSON, wrong types, no such path."""
    message = error.detail
    if isinstance(error.extra, list):
        message = "; ".join(_problem(one) for one in error.extra)
    elif isinstance(error, RequestEntityTooLarge):
        message = f"body: is too large; at most {request.app.request_max_body_size} bytes are read"
    elif isinstance(error.__cause__, SerializationException):
        message = f"body: {_MEANT.get(message, message)}"
    return answer(error.status_code, _CODES.get(error.status_code, "http_error"), message, error.headers)


def _problem(found: dict[str, Any]) -> str:
    """Say what the framework found wrong; it calls the body `data`, and an absent one just that."""
    key, message = _spelt(found.get("key", "request")), str(found.get("message"))
    if key in CHOICES and message.startswith("Invalid enum value"):
        message = f"must be one of {', '.join(CHOICES[key])}"
    if key != "data":
        return f"{key}: {_with_spelling(message)}"
    return "body: is missing; send JSON" if message == "'data'" else f"body: {_with_spelling(message)}"


def _with_spelling(message: str) -> str:
    """Add how HTTP spells a field, where it came as Python, the stream and the command line spell it."""
    unknown = re.search(r"unknown field `(\w+)`", message)
    if unknown is None or _spelt(unknown[1]) == unknown[1]:
        return message
    return f"{message}; over HTTP names are in camelCase: {_spelt(unknown[1])}"


def _spelt(field: str) -> str:
    """Give a field's name as HTTP spells it, in camelCase."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), field)


def too_deep(_: Request[Any, Any, Any], _error: RecursionError) -> Response[FailureBody]:
    """400: JSON nested beyond what the decoder follows; nothing else here recurses."""
    return answer(400, _CODES[400], "body: is nested too deeply")


def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[FailureBody]:
    """500: a defect of ours; the log has the traceback, the answer has no detail."""
    log.error("request_failed", method=request.method, error=type(error).__name__, exc_info=error)
    return answer(500, "internal_error", "the reader failed on this request; its log says why")


HANDLERS: dict[int | type[Exception], Any] = {
    InvalidEventError: refused,
    InvalidQueryError: refused,
    BacklogFullError: backlog_full,
    JiyiError: unavailable,
    HTTPException: http_failure,
    RecursionError: too_deep,
    Exception: unexpected,
}
