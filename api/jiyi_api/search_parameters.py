"""Query parameters of searches and listings, declared once for all routes that have them (as their dependencies)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.params import Parameter

from jiyi.scoring import DEFAULT_B, DEFAULT_K1
from jiyi_api.filters import MAX_NAMESPACES, FilterRequest
from jiyi_api.queries import Match, Rank, SearchRequest, TimeWords

_TIME = "ISO 8601 (without a zone: UTC) or epoch milliseconds."


def _filter(what: str, query: str | None = None) -> Any:
    return Parameter(query=query, description=f"Only of this {what}, byte by byte; given again: of any of them.")


def filter_parameters(  # noqa: PLR0913 - the filters
    ns: Annotated[
        str | None,
        Parameter(description="Namespace: the wall between users. Compared byte by byte; default: default."),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        Parameter(description=f"Instead of ns, up to {MAX_NAMESPACES} times: these together, scored as one index."),
    ] = None,
    author: Annotated[list[str] | None, _filter("author")] = None,
    source_system: Annotated[list[str] | None, _filter("source system", "sourceSystem")] = None,
    user_id: Annotated[list[str] | None, _filter("user", "userId")] = None,
    session_id: Annotated[list[str] | None, _filter("session", "sessionId")] = None,
    kind: Annotated[list[str] | None, _filter("kind")] = None,
    tags: Annotated[list[str] | None, Parameter(description="Only with this tag; given again: with any.")] = None,
    tags_all: Annotated[
        list[str] | None, Parameter(query="tagsAll", description="Only with this tag; given again: with all of them.")
    ] = None,
    tags_none: Annotated[
        list[str] | None, Parameter(query="tagsNone", description="Only without this tag; given again: without any.")
    ] = None,
    since: Annotated[str | None, Parameter(description=f"Only from this time on. {_TIME}")] = None,
    until: Annotated[str | None, Parameter(description=f"Only before this time. {_TIME}")] = None,
    min_importance: Annotated[
        float | None, Parameter(query="minImportance", description="Only memories of at least this importance, 0 to 1.")
    ] = None,
) -> FilterRequest:
    """Filters from the query; several must all hold."""
    return FilterRequest(
        ns=ns, namespaces=namespaces, author=author, source_system=source_system, user_id=user_id,
        session_id=session_id, kind=kind, tags=tags, tags_all=tags_all, tags_none=tags_none, since=since, until=until,
        min_importance=min_importance,
    )  # fmt: skip


def search_parameters(  # noqa: PLR0913 - the parameters of the search
    filters: FilterRequest,
    q: Annotated[str, Parameter(description="The question, as a person asks it; at least one word.")] = "",
    limit: Annotated[int, Parameter(description="Most hits; 0: only the figures.")] = 10,
    k1: Annotated[float, Parameter(description="BM25: how soon repetition of a term stops counting.")] = DEFAULT_K1,
    b: Annotated[float, Parameter(description="BM25: how much long memories are held back, 0 to 1.")] = DEFAULT_B,
    explain: Annotated[bool, Parameter(description="Add to each hit the numbers that its score comes from.")] = False,
    match: Annotated[
        Match, Parameter(description="Memories with any word of the question, all words, or (auto) those first.")
    ] = "any",
    rank: Annotated[
        Rank, Parameter(description="By bm25 alone, or (memory) by relevance, importance and freshness.")
    ] = "bm25",
    ranking: Annotated[
        str | None, Parameter(description='For rank=memory, JSON: {"weights": …, "halfLifeDays": …, "kinds": …}.')
    ] = None,
    min_score: Annotated[float | None, Parameter(query="minScore", description="Only hits of at least this.")] = None,
    collapse: Annotated[
        str | None, Parameter(description="Fold near duplicates (near), or hits of the same author, sessionId, …")
    ] = None,
    per_session: Annotated[
        int | None, Parameter(query="perSession", description="At most so many hits of one session.")
    ] = None,
    time_words: Annotated[
        TimeWords,
        Parameter(query="timeWords", description="What last week in the question does: favour, filter, or nothing."),
    ] = "boost",
    at: Annotated[str | None, Parameter(description=f"Reference time; default now. {_TIME}")] = None,
    tz: Annotated[str, Parameter(description="Time zone of the time words, like Asia/Shanghai.")] = "UTC",
    snippet: Annotated[int, Parameter(description="Add the best passage of this many characters; 0: none.")] = 0,
) -> SearchRequest:
    """A search from the query."""
    return SearchRequest(
        **msgspec.structs.asdict(filters), q=q, limit=limit, k1=k1, b=b, explain=explain,
        match=match, rank=rank, ranking=ranking, min_score=min_score, collapse=collapse, per_session=per_session,
        time_words=time_words, at=at, tz=tz, snippet=snippet,
    )  # fmt: skip
