"""Questions about memories: search, why and listing, checked before anything is sent.

Names and words are checked here; limits and numbers, some of which are settings of the reader, it checks itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args
from urllib.parse import urlencode

import msgspec

from jiyi.answers import MemoryPage, SearchResult, Why
from jiyi.errors import InvalidQueryError
from jiyi.http import Request
from jiyi.memories import DEFAULT_NAMESPACE, parse_id, shown, to_camel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime

Match = Literal["any", "all", "auto"]
Rank = Literal["bm25", "memory"]
TimeWords = Literal["boost", "filter", "off"]
Collapse = Literal["near", "author", "source_system", "user_id", "session_id", "kind"]


class Filters(TypedDict, total=False):
    """Which memories are looked at: a memory must meet all, and of several values one.

    `namespaces` are several instead of `ns`. Of `tags` a memory must have any, of `tags_all` all, of `tags_none` none.
    `since` (inclusive) and `until` (exclusive) bound its `timestamp`.
    """

    namespaces: str | Sequence[str] | None
    user_id: str | Sequence[str] | None
    session_id: str | Sequence[str] | None
    author: str | Sequence[str] | None
    source_system: str | Sequence[str] | None
    kind: str | Sequence[str] | None
    tags: str | Sequence[str] | None
    tags_all: str | Sequence[str] | None
    tags_none: str | Sequence[str] | None
    since: datetime | str | int | None
    until: datetime | str | int | None
    min_importance: float | None


class Weights(TypedDict, total=False):
    """What each factor of `rank="memory"` counts; the reader's own are 0.6, 0.25 and 0.15."""

    relevance: float
    importance: float
    freshness: float


class KindRanking(TypedDict, total=False):
    """What is different for memories of one kind."""

    weights: Weights
    half_life_days: float


class Ranking(KindRanking, total=False):
    """Settings of `rank="memory"`; freshness halves every `half_life_days` (30 unless given)."""

    kinds: Mapping[str, KindRanking]


class Choices(Filters, total=False):
    """How a search goes about it, besides its filters; docs/search.md explains them one by one.

    `match` asks for any word of the question, all, or those with all first (`auto`). `rank="memory"` weighs relevance,
    importance and freshness, by `ranking` (or that as JSON, as in HTTP). `min_score` leaves out what is below.
    `collapse` and `per_session` fold hits into better ones. `time_words` says what "last week" in the question does;
    `at` is the time that it is reckoned from, and the age of memories; `tz` its zone. `snippet` is the width of a
    passage in characters.
    """

    match: Match | None
    rank: Rank | None
    ranking: Ranking | str | None
    min_score: float | None
    collapse: Collapse | str | None
    per_session: int | None
    time_words: TimeWords | None
    at: datetime | str | int | None
    tz: str | None
    snippet: int | None


_WORDS: dict[str, tuple[str, ...]] = {
    "match": get_args(Match),
    "rank": get_args(Rank),
    "time_words": get_args(TimeWords),
    "collapse": get_args(Collapse),
}
_CONDITIONS_OF_NONE = ("tags_all", "tags_none")
"""Filters that an empty list leaves as if they were not given. No memory meets the others when their list is empty."""


def search(q: str, parameters: Mapping[str, Any], choices: Mapping[str, Any]) -> Request[SearchResult]:
    """Ask for the best memories. Raises `InvalidQueryError` for an unknown choice and what JSON cannot say."""
    body = _asked({"q": q, **parameters}, choices, Choices.__annotations__)
    return Request("POST", "/memory/search", SearchResult, msgspec.json.encode(body))


def why(memory_id: str, q: str, parameters: Mapping[str, Any], choices: Mapping[str, Any]) -> Request[Why]:
    """Ask about one memory and a search. Raises as `search`, for several namespaces, and for a list without values."""
    asked = {"id": parse_id(memory_id), **_asked({"q": q, **parameters}, choices, Choices.__annotations__)}
    for name in Filters.__annotations__:
        value = choices.get(name)
        if name not in _CONDITIONS_OF_NONE and value is not None and not isinstance(value, str) and _is_empty(value):
            raise InvalidQueryError(name, "is an empty list, which no memory meets; give a value, or leave it out")
    if len(_listed(asked.get("namespaces", ()))) > 1:
        raise InvalidQueryError("namespaces", "are several; a memory is in one of them: give its ns")
    return Request("GET", f"/memory/search/why?{_query(asked)}", Why)


def listing(parameters: Mapping[str, Any], filters: Mapping[str, Any]) -> Callable[[str | None], Request[MemoryPage]]:
    """Check a listing, raising as `search`; gives what asks for the page after a cursor, for None the first."""
    return partial(_page, _asked(parameters, filters, Filters.__annotations__))


def _page(body: Mapping[str, Any], cursor: str | None) -> Request[MemoryPage]:
    given = body if cursor is None else {**body, "cursor": _sayable("cursor", cursor)}
    return Request("POST", "/memory/list", MemoryPage, msgspec.json.encode(given))


def _asked(parameters: Mapping[str, Any], choices: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Give checked parameters under their names in HTTP, without those that are None."""
    for name in choices:
        if name not in known:
            raise InvalidQueryError(shown(name), f"is no choice here; there are {', '.join(known)}")
    given = {name: value for name, value in {**parameters, **choices}.items() if value is not None}
    _check_namespaces(given)
    for name, words in _WORDS.items():
        if name in given and given[name] not in words:
            raise InvalidQueryError(name, f"must be {', '.join(words[:-1])} or {words[-1]}")
    if "ranking" in given:
        if given.get("rank") != "memory":
            raise InvalidQueryError("ranking", 'is for rank="memory"; give that too')
        given["ranking"] = _ranking(given["ranking"])
    if "collapse" in given:
        given["collapse"] = to_camel(given["collapse"])
    return {to_camel(name): _sayable(name, value) for name, value in given.items()}


def _check_namespaces(given: dict[str, Any]) -> None:
    """Add the namespace that is meant when none is given."""
    if "namespaces" not in given:
        given.setdefault("ns", DEFAULT_NAMESPACE)
    elif "ns" in given:
        raise InvalidQueryError("namespaces", "is given beside ns; give one of them")
    elif _is_empty(given["namespaces"]):
        raise InvalidQueryError("namespaces", "is empty; give one, several, or leave it out")


def _ranking(given: Any) -> Any:
    """Check the names in a ranking, and give it as HTTP has it; what is text is JSON already."""
    if isinstance(given, str):
        return given
    ranking = _kind_ranking("", given, Ranking.__annotations__)
    if "kinds" in ranking:
        kinds = _named("kinds", ranking["kinds"])
        own = KindRanking.__annotations__
        ranking["kinds"] = {name: _kind_ranking(f"kinds.{name}.", kind, own) for name, kind in kinds.items()}
    return ranking


def _kind_ranking(where: str, given: Any, known: Iterable[str]) -> dict[str, Any]:
    ranking = {to_camel(name): value for name, value in _named(where, given, known).items()}
    if "weights" in ranking:
        ranking["weights"] = _named(f"{where}weights.", ranking["weights"], Weights.__annotations__)
    for name, value in {**ranking, **ranking.get("weights", {})}.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidQueryError("ranking", f"{where}{name} must be a finite number")
    return ranking


def _named(where: str, given: Any, known: Iterable[str] | None = None) -> dict[str, Any]:
    """Check that something is a mapping from names, and from no others than those that are known."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidQueryError("ranking", f"{where.rstrip('.')} must be a dict with names for keys".lstrip())
    for name in given:
        if known is not None and name not in known:
            raise InvalidQueryError("ranking", f"{where}{shown(name)} is not known; there are {', '.join(known)}")
    return dict(given)


def _sayable(name: str, value: Any) -> Any:
    """Refuse what JSON cannot say: NaN and infinity would arrive as null, that is, as not given."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidQueryError(name, "must be a finite number")
    try:
        msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidQueryError(name, "must be text, a number, a time, or a list of texts; UTF-8 throughout") from None
    return value


def _query(asked: Mapping[str, Any]) -> str:
    """Write checked parameters as a query string: lists by repetition, times and numbers as JSON has them."""
    pairs = []
    for name, value in asked.items():
        plain = msgspec.to_builtins(value)
        for one in _listed(plain):
            text = one if isinstance(one, str) else msgspec.json.encode(one).decode()
            pairs.append((name, text))
    return urlencode(pairs)


def _listed(value: Any) -> Collection[Any]:
    return value if isinstance(value, list | tuple | set | frozenset) else [value]


def _is_empty(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and not value
