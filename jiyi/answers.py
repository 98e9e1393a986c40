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


class Hit(StoredMemory, frozen=True, kw_only=True, rename="camel"):
    """A memory that was found, with its BM25 score and what each term gave to it; `explain` adds `explanation`."""

    score: float
    matched_terms: tuple[MatchedTerm, ...] = ()
    explanation: Explanation | None = None


class IndexStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """What the scores were computed with: documents alive and their mean length in tokens."""

    docs: int
    avgdl: float


class SearchResult(msgspec.Struct, frozen=True, rename="camel"):
    """The best hits, best first, and how many memories matched in all."""

    hits: tuple[Hit, ...]
    total: int
    took_ms: float
    index: IndexStatistics


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
