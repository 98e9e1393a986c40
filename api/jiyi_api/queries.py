"""Search requests: what may be asked, and its limits."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, tzinfo
from errno import EMFILE, ENFILE
from typing import TYPE_CHECKING, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from jiyi.errors import InvalidEventError, InvalidQueryError, UnavailableError
from jiyi.memories import LABELS, parse_time, to_camel
from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi_api.filters import FilterRequest, Filters, parse_namespaces
from jiyi_api.orders import MemoryRanking

if TYPE_CHECKING:
    from jiyi.settings import Settings

Rank = Literal["bm25", "memory"]
Match = Literal["any", "all", "auto"]
TimeWords = Literal["boost", "filter", "off"]
CHOICES: dict[str, tuple[str, ...]] = {
    "match": get_args(Match), "rank": get_args(Rank), "timeWords": get_args(TimeWords),
}  # fmt: skip
"""The words that a parameter may be, by its name in HTTP."""
NEAR = "near"
_UTC = "UTC"
_NO_ZONE = "must be the name of a time zone, like Asia/Shanghai or UTC"
MAX_SNIPPET = 10_000
_RANKING = "it may have weights (relevance, importance, freshness), halfLifeDays, and kinds, each with the two"
_MAX_K1 = 1_000.0
# What a question says of times is reckoned from there, and must be a date that there is.
_EARLIEST_MS, _LATEST_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1000, 9000))
_CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8."""


class SearchRequest(FilterRequest, kw_only=True):
    """A search as it arrives; GET gives `ranking` as JSON."""

    q: str = ""
    limit: int = 10
    k1: float = DEFAULT_K1
    b: float = DEFAULT_B
    explain: bool = False
    match: Match = "any"
    rank: Rank = "bm25"
    ranking: MemoryRanking | str | None = None
    min_score: float | None = None
    collapse: str | None = None
    per_session: int | None = None
    time_words: TimeWords = "boost"
    at: str | int | None = None
    tz: str = _UTC
    snippet: int = 0


class SearchQuery(msgspec.Struct, frozen=True):
    """A checked search. `at_ms` is the reference time of its time words and of the age of memories.

    `collapse` is `near`, the name of a label (in snake case), or None; `snippet` a width in characters, or 0.
    """

    text: str
    namespaces: tuple[str, ...]
    limit: int
    k1: float
    b: float
    explain: bool
    filters: Filters
    match: Match
    ranking: MemoryRanking | None
    min_score: float | None
    collapse: str | None
    per_session: int | None
    time_words: TimeWords
    at_ms: int
    zone: tzinfo
    snippet: int

    @property
    def ns(self) -> str:
        """The first namespace."""
        return self.namespaces[0]

    @property
    def folds(self) -> bool:
        """Whether hits may be folded into better ones."""
        return self.collapse is not None or self.per_session is not None

    @classmethod
    def from_request(cls, request: SearchRequest, settings: Settings) -> SearchQuery:
        """Check a request; raises `InvalidQueryError` that names the parameter."""
        _check_text(request.q, settings.max_query_bytes)
        _check_numbers(request, settings.max_limit)
        return cls(
            text=request.q,
            namespaces=parse_namespaces(request.ns, request.namespaces),
            limit=request.limit,
            k1=request.k1,
            b=request.b,
            explain=request.explain,
            filters=Filters.from_request(request),
            match=request.match,
            ranking=_ranking(request),
            min_score=request.min_score,
            collapse=_collapse(request.collapse),
            per_session=request.per_session,
            time_words=request.time_words,
            at_ms=_at(request.at),
            zone=_zone(request.tz),
            snippet=request.snippet,
        )


def _check_text(text: str, most: int) -> None:
    if not text.strip():
        raise InvalidQueryError("q", "is empty; ask for at least one word")
    if len(text) * _CHARACTER_BYTES > most and (size := len(text.encode(errors="replace"))) > most:
        raise InvalidQueryError("q", f"has {size} bytes; at most {most} are searched for")


def _check_numbers(request: SearchRequest, max_limit: int) -> None:
    if not 0 <= request.limit <= max_limit:
        raise InvalidQueryError("limit", f"is {request.limit}; it must be 0 to {max_limit}")
    if not 0.0 <= request.k1 <= _MAX_K1:  # also refuses nan
        raise InvalidQueryError("k1", f"must be a number from 0 to {_MAX_K1:g}")
    if not 0.0 <= request.b <= 1.0:
        raise InvalidQueryError("b", "must be a number from 0 to 1")
    if request.min_score is not None and not math.isfinite(request.min_score):
        raise InvalidQueryError("minScore", "must be a number")
    if request.per_session is not None and request.per_session < 1:
        raise InvalidQueryError("perSession", "must be 1 or more")
    if not 0 <= request.snippet <= MAX_SNIPPET:
        raise InvalidQueryError("snippet", f"must be a width in characters, at most {MAX_SNIPPET:,}; 0: none")


def _ranking(request: SearchRequest) -> MemoryRanking | None:
    if request.rank == "bm25":
        if request.ranking is not None:
            raise InvalidQueryError("ranking", "is for rank=memory; give that too")
        return None
    ranking = MemoryRanking() if request.ranking is None else request.ranking
    if isinstance(ranking, str):
        try:
            ranking = msgspec.json.decode(ranking, type=MemoryRanking)
        except msgspec.ValidationError as error:
            raise InvalidQueryError("ranking", f"{error}; {_RANKING}") from None
        except msgspec.DecodeError as error:
            raise InvalidQueryError("ranking", f"must be JSON ({error}); {_RANKING}") from None
    ranking.check()
    return ranking


def _collapse(given: str | None) -> str | None:
    if given is None:
        return None
    names = {to_camel(label): label for label in LABELS}
    if given != NEAR and given not in names:
        raise InvalidQueryError("collapse", f"must be {NEAR}, or one of {', '.join(names)}")
    return names.get(given, given)


def _at(given: str | int | None) -> int:
    if given is None:
        return time.time_ns() // 10**6
    try:
        at_ms = parse_time("at", given)
    except InvalidEventError as error:
        raise InvalidQueryError("at", str(error).removeprefix("at: ")) from None
    if not _EARLIEST_MS <= at_ms < _LATEST_MS:
        raise InvalidQueryError("at", "must be in the years from 1000 to 8999")
    return at_ms


def _zone(name: str) -> tzinfo:
    if name == _UTC:  # without a look at a file: most ask so
        return UTC
    try:
        return ZoneInfo(name)
    except OSError as error:
        if error.errno in (EMFILE, ENFILE):
            raise UnavailableError("the reader has no file descriptor left to read the time zone with") from None
        raise InvalidQueryError("tz", _NO_ZONE) from None
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidQueryError("tz", _NO_ZONE) from None
