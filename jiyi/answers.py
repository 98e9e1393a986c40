"""What the reader answers, as the clients give it."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from typing import Any

import msgspec

from jiyi.events import Accepted  # noqa: TC001 - as above


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a memory can be found. When `ready`, the next query sees `entry` or a later version.

    `state` is `ready`, `pending`, `deleted`, `failed` (then `reason` says why) or `unknown`.
    """

    id: str
    ready: bool
    state: str
    entry: str | None = None
    indexed_at: datetime | None = None
    reason: str | None = None

    def is_final(self) -> bool:
        """Tell whether waiting longer would change nothing."""
        return self.state in ("ready", "deleted", "failed")


class MatchedTerm(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one term in a hit's score; the scores of all terms add up to the hit's.

    `synonym_of` is the word or phrase of the question for which a synonym was found; None for what was asked.
    """

    term: str
    tf: int
    df: int
    idf: float
    score: float
    weight: float = 1.0
    synonym_of: str | None = None


class StoredMemory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A memory as the index holds it."""

    id: str
    content: str
    ns: str | None = None
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    timestamp: datetime | None = None
    importance: float | None = None
    expires_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    entry: str | None = None
    indexed_at: datetime | None = None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers that the parts of a score are made of, and the formula."""

    length: int
    avgdl: float
    docs: int
    k1: float
    b: float
    formula: str = ""


class Boost(msgspec.Struct, frozen=True):
    """What a hit gains for the time that the question names: `factor` of the sum of its matched terms' scores."""

    factor: float
    score: float


class Factor(msgspec.Struct, frozen=True, rename="camel"):
    """One factor of a score of `rank="memory"`: its value from 0 to 1, its weight, and their product, its part.

    Only freshness has `age_days` and `half_life_days`.
    """

    value: float
    weight: float
    score: float
    age_days: float | None = None
    half_life_days: float | None = None


class Factors(msgspec.Struct, frozen=True):
    """What a score of `rank="memory"` is made of: the parts, added in this order."""

    relevance: Factor
    importance: Factor
    freshness: Factor


class Folded(msgspec.Struct, frozen=True):
    """What a hit stands for besides itself: how many hits that rank below it, and the ids of the first of them."""

    count: int
    ids: tuple[str, ...]


class Snippet(msgspec.Struct, frozen=True):
    """The passage of a memory that answers the question best.

    `text` is the passage, not escaped, with an ellipsis where something is left out; `start` and `end` say where in
    the content it stands, `highlights` what in `text` was matched: [start, end], ascending, apart from each other. All
    offsets are UTF-16 code units, as JavaScript counts and Python does not: here, take `parts`. `html` is the only
    field that is safe as HTML, as the content of an element.
    """

    text: str
    start: int
    end: int
    highlights: tuple[tuple[int, int], ...]
    html: str

    def parts(self) -> list[tuple[str, bool]]:
        """Give `text` in pieces, none of them empty, each with whether it is highlighted."""
        units = self.text.encode("utf-16-le")
        bounds, at = list[tuple[int, int, bool]](), 0
        for start, end in self.highlights:
            bounds += (at, start, False), (start, end, True)
            at = end
        bounds.append((at, len(units) // 2, False))
        return [(units[2 * start : 2 * end].decode("utf-16-le"), lit) for start, end, lit in bounds if start < end]


class Hit(StoredMemory, frozen=True, kw_only=True, rename="camel"):
    """A memory that was found, and why.

    `score` is the sum of the parts of `factors` with `rank="memory"`; else that of the scores of `matched_terms`, and
    of `boost` if there is one. `ns` is given when several were asked, `matched_all` with `match="auto"`, `explanation`
    with `explain`, the rest where it was asked for.
    """

    score: float
    matched_terms: tuple[MatchedTerm, ...] = ()
    matched_all: bool | None = None
    boost: Boost | None = None
    factors: Factors | None = None
    folded: Folded | None = None
    snippet: Snippet | None = None
    explanation: Explanation | None = None


class IndexStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """What the scores were computed with: documents alive and their mean length in tokens."""

    docs: int
    avgdl: float


class TimeFound(msgspec.Struct, frozen=True):
    """Time words of the question, and the span that they were taken for; `until` is exclusive, None: open."""

    text: str
    since: datetime | None
    until: datetime | None


class SearchResult(msgspec.Struct, frozen=True, rename="camel"):
    """The best hits, best first, how many memories matched in all, and the time words that counted."""

    hits: tuple[Hit, ...]
    total: int
    took_ms: float
    index: IndexStatistics
    time_words: tuple[TimeFound, ...] = ()


class MemoryPage(msgspec.Struct, frozen=True):
    """Memories, newest `timestamp` first; `total` counts all that meet the filters.

    `next` is to be given as `cursor` for the page after this, None at the end.
    """

    memories: tuple[StoredMemory, ...]
    total: int
    next: str | None = None


class Condition(msgspec.Struct, frozen=True):
    """A parameter of the search that a memory does not meet: what it asks for, and what the memory has."""

    parameter: str
    wanted: str
    has: str


class Why(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a memory is or is not among the hits of a search; `reason` says it in words.

    `verdict` is `found` or `outranked` (then `rank` is its place among `total`, `hit` its score and what that is made
    of, and `lost_to` the hits before it), `folded` (into the first of `lost_to`), `below_min_score`, `filtered`
    (`conditions`), `no_shared_term` (compare the two lists of terms), or the state of a memory that cannot be found:
    `pending`, `deleted`, `failed`, `unknown`.
    """

    id: str
    verdict: str
    reason: str
    rank: int | None = None
    total: int | None = None
    hit: Hit | None = None
    lost_to: tuple[Hit, ...] = ()
    conditions: tuple[Condition, ...] = ()
    question_terms: tuple[str, ...] = ()
    memory_terms: tuple[str, ...] = ()


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event that could not be applied, without its content; `id` is None where none can be read.

    `letter` is its name among the dead letters, `entry` was its entry in the stream, `code` and `reason` say why.
    """

    letter: str
    ns: str
    entry: str
    code: str
    reason: str
    dead_at: datetime
    deliveries: int
    id: str | None = None


class EventField(msgspec.Struct, frozen=True):
    """A field of an event. `exact` is False where it had to be changed to be shown (bytes that are no UTF-8)."""

    name: str
    value: Any
    exact: bool = True


class DeadLetterEvent(DeadLetter, frozen=True, kw_only=True, rename="camel"):
    """A dead letter with the fields of its event, in their order."""

    fields: tuple[EventField, ...]


class DeadLetterPage(msgspec.Struct):
    """Dead letters, oldest first; `next` is to be given as `after`, None at the end."""

    letters: list[DeadLetter]
    next: str | None = None


class Replayed(msgspec.Struct, frozen=True):
    """The event of a dead letter is on the stream again as `entry`, in the version that it had."""

    letter: str
    ns: str
    entry: str
    id: str | None = None


class Dropped(msgspec.Struct, frozen=True):
    """A dead letter that is gone for good."""

    letter: str
    ns: str
    id: str | None = None


class LetterStep(msgspec.Struct):
    """A step over all dead letters of a namespace: how many it was, and whether more remain up to `until`."""

    count: int
    more: bool
    until: str | None = None


class AcceptedMany(msgspec.Struct):
    """Answer to a write of several memories, in their order."""

    accepted: list[Accepted]


class ReadinessMany(msgspec.Struct):
    """Answer to a question about several ids, in their order."""

    memories: list[Readiness]


class ErrorBody(msgspec.Struct):
    """Why the reader has refused: a word for programs and a sentence for people."""

    code: str = "unknown"
    message: str = ""


class ErrorAnswer(msgspec.Struct):
    """Answer with a status of 400 or more."""

    error: ErrorBody
