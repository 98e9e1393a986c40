"""Why a memory was found, or was not: the question about one answer of a search."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import anyio.to_thread
import msgspec
import numpy as np

from jiyi.analysis import TooManyTerms
from jiyi.errors import InvalidQueryError
from jiyi.keys import filter_term
from jiyi.memories import parse_time, to_camel
from jiyi_api.folding import MOST_IDS
from jiyi_api.hits import Hit  # noqa: TC001 - msgspec reads the annotations
from jiyi_api.searcher import shown_time
from jiyi_api.stored import StoredMemory, fetch_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from jiyi.analysis import Analyzer
    from jiyi.connections import Database
    from jiyi_api.filters import Filters
    from jiyi_api.queries import SearchQuery
    from jiyi_api.readiness import ReadinessReader
    from jiyi_api.searcher import Searcher
    from jiyi_api.time_words import TimeSpan

Verdict = Literal[
    "found", "outranked", "folded", "below_min_score", "filtered", "no_shared_term", "pending", "deleted", "failed",
    "unknown",
]  # fmt: skip
_STATES = {"deleted": "it was deleted", "failed": "its event could not be applied", "pending": "not applied yet"}
_ATTEMPTS = 5
"""A memory that is rewritten while it is looked for is looked for again, this often."""


class Condition(msgspec.Struct):
    """A parameter of the search that a memory does not meet: what it asks for, and what the memory has."""

    parameter: str
    wanted: str
    has: str


class Why(msgspec.Struct, rename="camel", omit_defaults=True):
    """Why a memory is or is not among the hits of a search.

    `verdict` is `found` or `outranked` (then `rank` is its place among `total`, `hit` its score and what it is made of,
    and `lost_to` the hits that the search gives before it), `folded` (into the first of `lost_to`), `below_min_score`,
    `filtered` (`conditions`), `no_shared_term` (compare the two lists of terms), or the state of a memory that cannot
    be found yet or any more: `pending`, `deleted`, `failed`, `unknown` (`reason`).
    """

    id: str
    verdict: Verdict
    reason: str
    rank: int | None = None
    total: int | None = None
    hit: Hit | None = None
    lost_to: list[Hit] = []
    conditions: list[Condition] = []
    question_terms: list[str] = []
    memory_terms: list[str] = []


class Explainer:
    """Answers why; asks the same parts that a search asks."""

    def __init__(self, database: Database, analyzer: Analyzer, searcher: Searcher, readiness: ReadinessReader) -> None:
        self._database = database
        self._analyzer = analyzer
        self._searcher = searcher
        self._readiness = readiness

    async def why(self, memory_id: str, query: SearchQuery) -> Why:
        """Say why a memory is or is not among the hits; errors as of a search, and of one in several namespaces."""
        if len(query.namespaces) > 1:
            raise InvalidQueryError("namespaces", "are several; a memory is in one of them: give its ns")
        for _ in range(_ATTEMPTS):
            if (answer := await self._look(memory_id, query)) is not None:
                return answer
        return Why(memory_id, "pending", "it is rewritten faster than it can be looked at; ask again")

    async def _look(self, memory_id: str, query: SearchQuery) -> Why | None:
        """Look once; None when the memory has moved meanwhile."""
        (state,) = await self._readiness.ready(query.ns, [(memory_id, None)], 0.0)
        if state.state == "unknown":
            told = "no version of it has been applied: was it written in this namespace, under this id?"
            return Why(memory_id, "unknown", f"{told} GET /memory/ready with its entry says more")
        (stored,) = await fetch_documents(self._database, query.ns, [memory_id])
        if "content" not in stored:
            if state.state == "ready":
                return None
            return Why(memory_id, state.state, state.reason or _STATES[state.state])
        if state.state == "deleted":
            return Why(memory_id, "deleted", state.reason or _STATES["deleted"])
        memory, doc = StoredMemory.from_stored(memory_id, stored), int(stored["doc"])
        times = self._searcher.times(query)
        meant = times if query.time_words == "filter" else ()
        if conditions := [*_unmet(memory, query.filters), *_unmet_times(memory, meant)]:
            names = ", ".join(one.parameter for one in conditions)
            return Why(memory_id, "filtered", f"it does not meet {names}", conditions=conditions)
        asked = self._searcher.question(query.text).weights
        has = await anyio.to_thread.run_sync(self._terms, memory.content)  # a long memory takes long
        answer = await self._ranked(memory, doc, query, times, asked.keys(), has.keys())
        if answer is not None:
            answer.question_terms, answer.memory_terms = list(asked), list(has)
        return answer

    def _terms(self, content: str) -> Mapping[str, object]:
        try:
            return self._analyzer.terms(content)
        except TooManyTerms:  # of a reader with a lower limit than the worker's
            return dict.fromkeys(token.term for token in self._analyzer.explain(content))

    async def _ranked(  # noqa: PLR0913
        self,
        memory: StoredMemory,
        doc: int,
        query: SearchQuery,
        times: Sequence[TimeSpan],
        asked: AbstractSet[str],
        has: AbstractSet[str],
    ) -> Why | None:
        """Tell where a memory that meets all filters stands."""
        if not asked & has:
            return Why(memory.id, "no_shared_term", "no term of the question is in the memory")
        if query.match == "all" and (missing := set(self._searcher.required_terms(query, times)) - has):
            condition = Condition("match", "all", f"not {', '.join(sorted(missing))}")
            return Why(memory.id, "filtered", "it has not every word of the question", conditions=[condition])
        placed = await self._searcher.place(query, doc)
        if placed is None or (placed.hit is None and query.min_score is None):
            return None
        rank, total, hit = placed
        if hit is None:
            return Why(memory.id, "below_min_score", f"its score is below minScore {query.min_score:g}")
        answer = Why(memory.id, "found", "it is among the hits", rank, total, hit)
        result = await self._searcher.search(query, folded_ids=sys.maxsize)
        shown = next((at for at, other in enumerate(result.hits) if other.id == memory.id), None)
        folding = next((other for other in result.hits if other.folded and memory.id in other.folded.ids), None)
        for one in result.hits:
            if one.folded is not None:
                del one.folded.ids[MOST_IDS:]
        if shown is not None:
            answer.hit, answer.lost_to = result.hits[shown], result.hits[:shown]
        elif folding is not None:
            answer.verdict, answer.lost_to = "folded", [folding]
            answer.reason = f"it is folded into {folding.id}, which ranks before it"
        else:
            answer.verdict, answer.lost_to = "outranked", result.hits
            answer.reason = f"it is number {rank} of {total}; the limit is {query.limit}"
        return answer


def _unmet(memory: StoredMemory, filters: Filters) -> Iterator[Condition]:
    """Give the filters that a memory does not meet."""
    for name, group in filters.groups:
        field = "tags" if name.startswith("tags") else name
        has = memory.tags if field == "tags" else [value] if (value := getattr(memory, field)) is not None else []
        if not {filter_term(field, value) for value in has} & set(group):
            wanted = " or ".join(term.partition(":")[2] for term in group)
            yield Condition(to_camel(name), wanted, ", ".join(has) or "nothing")
    for term in filters.excluded:
        if term in {filter_term("tags", tag) for tag in memory.tags}:
            yield Condition("tagsNone", f"not {term.partition(':')[2]}", ", ".join(memory.tags))
    created = parse_time("timestamp", memory.timestamp)
    for since, until in filters.spans:  # one at most
        if created < since:
            yield Condition("since", f"{shown_time(since)} or later", memory.timestamp)
        if created >= until:
            yield Condition("until", f"before {shown_time(until)}", memory.timestamp)
    if np.float32(memory.importance) < np.float32(filters.min_importance):
        yield Condition("minImportance", f"{filters.min_importance:g} or more", f"{memory.importance:g}")


def _unmet_times(memory: StoredMemory, times: Sequence[TimeSpan]) -> Iterator[Condition]:
    """Give what the time words of the question ask for, if a memory is of none of these times."""
    created = parse_time("timestamp", memory.timestamp)
    if times and not any(one.since_ms <= created < one.until_ms for one in times):
        yield Condition("timeWords", " or ".join(map(_meant, times)), memory.timestamp)


def _meant(time: TimeSpan) -> str:
    """Write a time as the question has it, and the span that it was taken for."""
    since, until = shown_time(time.since_ms), shown_time(time.until_ms)
    span = [f"from {since}" if since else "", f"before {until}" if until else ""]
    return f"{time.text} ({', '.join(part for part in span if part)})"
