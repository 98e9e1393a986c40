"""Search requests: what may be asked, and its limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from jiyi.errors import InvalidEventError, InvalidQueryError
from jiyi.keys import filter_term
from jiyi.memories import DEFAULT_NAMESPACE, LABELS, MAX_LABEL_BYTES, parse_namespace, parse_time
from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi_api.ranking import FOREVER_MS

if TYPE_CHECKING:
    from jiyi.settings import Settings

MAX_FILTER_VALUES = 64
_MAX_K1 = 1_000.0
_CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8."""


class SearchRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A search as it arrives. A list of filter values means any of them; several filters must all hold.

    `since` (inclusive) and `until` (exclusive) bound the memory's `timestamp`: ISO 8601 or epoch ms.
    """

    q: str = ""
    ns: str = DEFAULT_NAMESPACE
    limit: int = 10
    k1: float = DEFAULT_K1
    b: float = DEFAULT_B
    explain: bool = False
    author: str | list[str] | None = None
    source_system: str | list[str] | None = None
    user_id: str | list[str] | None = None
    session_id: str | list[str] | None = None
    kind: str | list[str] | None = None
    tags: str | list[str] | None = None
    since: str | int | None = None
    until: str | int | None = None
    min_importance: float | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    """A checked search. `filters` holds groups of filter terms: any of a group, all groups."""

    text: str
    ns: str
    limit: int
    k1: float
    b: float
    explain: bool
    filters: tuple[tuple[str, ...], ...]
    since_ms: int
    until_ms: int
    min_importance: float

    @classmethod
    def from_request(cls, request: SearchRequest, settings: Settings) -> SearchQuery:
        """Check a request; raises `InvalidQueryError` that names the parameter."""
        text = request.q
        if not text.strip():
            raise InvalidQueryError("q", "is empty; ask for at least one word")
        most = settings.max_query_bytes
        if len(text) * _CHARACTER_BYTES > most and (size := len(text.encode(errors="replace"))) > most:
            raise InvalidQueryError("q", f"has {size} bytes; at most {most} are searched for")
        if not 0 <= request.limit <= settings.max_limit:
            raise InvalidQueryError("limit", f"is {request.limit}; it must be 0 to {settings.max_limit}")
        if not 0.0 <= request.k1 <= _MAX_K1:  # also refuses nan
            raise InvalidQueryError("k1", f"must be a number from 0 to {_MAX_K1:g}")
        if not 0.0 <= request.b <= 1.0:
            raise InvalidQueryError("b", "must be a number from 0 to 1")
        floor = 0.0 if request.min_importance is None else request.min_importance
        if math.isnan(floor):
            raise InvalidQueryError("minImportance", "must be a number from 0 to 1")
        try:
            ns = parse_namespace(request.ns)
            since = -FOREVER_MS if request.since is None else parse_time("since", request.since)
            until = FOREVER_MS if request.until is None else parse_time("until", request.until)
        except InvalidEventError as error:
            raise InvalidQueryError(error.field, str(error).removeprefix(f"{error.field}: ")) from None
        return cls(
            text=text,
            ns=ns,
            limit=request.limit,
            k1=request.k1,
            b=request.b,
            explain=request.explain,
            filters=_filters(request),
            since_ms=since,
            until_ms=until,
            min_importance=floor,
        )


def _filters(request: SearchRequest) -> tuple[tuple[str, ...], ...]:
    groups = []
    for field in (*LABELS, "tags"):
        given = getattr(request, field)
        if given is None:
            continue
        values = list(dict.fromkeys([given] if isinstance(given, str) else given))
        if len(values) > MAX_FILTER_VALUES:
            raise InvalidQueryError(field, f"has {len(values)} values; at most {MAX_FILTER_VALUES} are allowed")
        if any(len(value.encode(errors="replace")) > MAX_LABEL_BYTES for value in values):
            raise InvalidQueryError(field, f"has a value of more than {MAX_LABEL_BYTES} bytes")
        groups.append(tuple(filter_term(field, value) for value in values))
    return tuple(groups)
