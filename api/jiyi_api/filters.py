"""Filters: which memories may be found or listed at all, whatever the question is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from jiyi.errors import InvalidEventError, InvalidQueryError
from jiyi.keys import filter_term
from jiyi.memories import DEFAULT_NAMESPACE, LABELS, MAX_LABEL_BYTES, parse_namespace, parse_time
from jiyi_api.ranking import FOREVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FILTER_VALUES = 64
MAX_NAMESPACES = 16
"""Each is read by itself, with its own round trip to the server."""


class FilterRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Filters as they arrive: where is looked (`ns`, or several `namespaces`), and for what.

    A list of values means any of them; several filters must all hold.

    Of `tags` a memory must have any, of `tags_all` all, of `tags_none` none. `since` (inclusive) and `until`
    (exclusive) bound the memory's `timestamp`: ISO 8601 or epoch ms.
    """

    ns: str | None = None
    namespaces: str | list[str] | None = None
    author: str | list[str] | None = None
    source_system: str | list[str] | None = None
    user_id: str | list[str] | None = None
    session_id: str | list[str] | None = None
    kind: str | list[str] | None = None
    tags: str | list[str] | None = None
    tags_all: str | list[str] | None = None
    tags_none: str | list[str] | None = None
    since: str | int | None = None
    until: str | int | None = None
    min_importance: float | None = None


class Filters(msgspec.Struct, frozen=True):
    """Checked filters: in a column of each of `groups`, in none of `excluded`, created in one of the `spans`.

    Groups are named by the parameter that they come from; terms are those of the index (`filter_term`). Spans are
    [begin, end) in epoch ms; none: any time.
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    excluded: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    min_importance: float = 0.0

    @classmethod
    def from_request(cls, request: FilterRequest) -> Filters:
        """Check filters; raises `InvalidQueryError` that names the parameter."""
        groups = [(name, values) for name in (*LABELS, "tags") if (values := _terms(request, name, name)) is not None]
        groups += [("tags_all", (term,)) for term in _terms(request, "tags_all", "tags") or ()]
        floor = 0.0 if request.min_importance is None else request.min_importance
        if math.isnan(floor):
            raise InvalidQueryError("minImportance", "must be a number from 0 to 1")
        since, until = _time(request, "since", -FOREVER_MS), _time(request, "until", FOREVER_MS)
        spans = ((since, until),) if since > -FOREVER_MS or until < FOREVER_MS else ()
        return cls(tuple(groups), _terms(request, "tags_none", "tags") or (), spans, floor)

    @property
    def terms(self) -> Iterator[str]:
        """All terms whose columns are needed; one may come twice."""
        for _, group in self.groups:
            yield from group
        yield from self.excluded

    def within(self, spans: Sequence[tuple[int, int]]) -> Filters:
        """Narrow to memories created also in one of some spans; none of them: as before."""
        if not spans:
            return self
        narrowed = [
            (max(begin, other), min(end, another))
            for begin, end in self.spans or ((-FOREVER_MS, FOREVER_MS),)
            for other, another in spans
        ]
        return msgspec.structs.replace(self, spans=tuple(narrowed))


def parse_namespaces(ns: str | None, namespaces: str | list[str] | None) -> tuple[str, ...]:
    """Check the namespaces of a request, each once; raises `InvalidQueryError`.

    Not both ways of naming them: a gateway that sets `ns` must be able to rely on it.
    """
    if namespaces is None:
        names = [DEFAULT_NAMESPACE if ns is None else ns]
    else:
        names = list(dict.fromkeys([namespaces] if isinstance(namespaces, str) else namespaces))
        if ns is not None:
            raise InvalidQueryError("namespaces", "is given beside ns; give one of them")
        if not 1 <= len(names) <= MAX_NAMESPACES:
            raise InvalidQueryError("namespaces", f"are {len(names)}; 1 to {MAX_NAMESPACES} are searched at once")
    try:
        return tuple(parse_namespace(name) for name in names)
    except InvalidEventError as error:
        raise InvalidQueryError(error.field, str(error).removeprefix(f"{error.field}: ")) from None


def _time(request: FilterRequest, field: str, default: int) -> int:
    given = getattr(request, field)
    try:
        return default if given is None else parse_time(field, given)
    except InvalidEventError as error:
        raise InvalidQueryError(error.field, str(error).removeprefix(f"{error.field}: ")) from None


def _terms(request: FilterRequest, parameter: str, field: str) -> tuple[str, ...] | None:
    given = getattr(request, parameter)
    if given is None:
        return None
    values = list(dict.fromkeys([given] if isinstance(given, str) else given))
    if len(values) > MAX_FILTER_VALUES:
        raise InvalidQueryError(parameter, f"has {len(values)} values; at most {MAX_FILTER_VALUES} are allowed")
    if any(len(value.encode(errors="replace")) > MAX_LABEL_BYTES for value in values):
        raise InvalidQueryError(parameter, f"has a value of more than {MAX_LABEL_BYTES} bytes")
    return tuple(filter_term(field, value) for value in values)
