"""What a check found: counts, and problems that name a place without repeating any memory content."""

from __future__ import annotations

from enum import StrEnum

import msgspec

KEPT_PER_KIND = 100
"""Problems of one kind that a report spells out; the rest is counted."""


class Kind(StrEnum):
    """What is wrong: stable words for programs."""

    DF = "df"
    DEAD_LETTER = "dead_letter"
    EXPIRY = "expiry"
    FENCE = "fence"
    FORWARD_LIST = "forward_list"
    IDS = "ids"
    INDEX_KEY = "index_key"
    JOURNAL = "journal"
    LENGTH = "length"
    MEMORY = "memory"
    NAMESPACE = "namespace"
    POSTING = "posting"
    STATS = "stats"
    STRAY_KEY = "stray_key"
    STRAY_LETTER = "stray_letter"
    TERM = "term"
    TOMBSTONE = "tombstone"


_MEND = "Run: jiyi check --repair"
BY_HAND = (
    "Restore it from a backup; or delete its key (DEL), run jiyi check --repair, and write the memory again, if it is "
    "to live."
)
ADVICE = {
    Kind.DF: f"Scores of this term are off by the difference. {_MEND}",
    Kind.DEAD_LETTER: "What is noted of a dead letter does not fit: where a memory is reported as failed and its event "
    f"is gone, send it again; else deletes may be forgotten too early, or never. {_MEND}",
    Kind.EXPIRY: f"The memory expires at the wrong time or never. {_MEND}",
    Kind.FENCE: f"Nobody can tell which version is stored, so no event of this memory is applied. {BY_HAND}",
    Kind.FORWARD_LIST: f"The next write or delete would take the wrong postings back. {_MEND}",
    Kind.IDS: f"A hit on this document cannot be translated into its memory. {_MEND}",
    Kind.INDEX_KEY: f"The postings in this key are not found by any query. {_MEND}",
    Kind.JOURNAL: f"Readers learn wrong lengths or a wrong set of documents. {_MEND}",
    Kind.LENGTH: f"The score of this document is off, and so is the mean length. {_MEND}",
    Kind.MEMORY: f"The memory and the index disagree about what is stored. {_MEND}",
    Kind.NAMESPACE: f"Housekeeping does not visit this namespace. {_MEND}",
    Kind.POSTING: f"Queries for this term miss a memory, find a wrong one, or score it wrongly. {_MEND}",
    Kind.STATS: f"All scores of the namespace are off, or none of its events is applied. {_MEND}",
    Kind.STRAY_KEY: "jiyi does not use this key. Find out which program wrote it, and give that one another prefix.",
    Kind.STRAY_LETTER: "No worker has filed this entry, or somebody has changed it since. Look at it (jiyi dead show), "
    "drop it (jiyi dead drop), and find out which program wrote it.",
    Kind.TERM: f"Queries for this term do not find its memories. {_MEND}",
    Kind.TOMBSTONE: f"The delete may be forgotten too early, or never. {_MEND}",
}
"""What each kind means for users and what to do about it."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One disagreement. Memory ids and terms are named by their hash only (`jiyi.logs.id_hash`)."""

    kind: Kind
    where: str
    expected: str
    found: str
    advice: str


class Report(msgspec.Struct, kw_only=True):
    """The result of checking one namespace. `counts` counts all problems, `problems` holds the first of each kind.

    `live_postings` and `dead_postings` count records in postings lists, filters included; `index_bytes` are the
    bytes of terms, postings and journal. Numbers are those of the moments at which the parts were read.
    """

    namespace: str
    documents: int = 0
    tokens: int = 0
    terms: int = 0
    live_postings: int = 0
    dead_postings: int = 0
    index_bytes: int = 0
    seconds: float = 0.0
    problems: list[Problem] = []
    counts: dict[Kind, int] = {}

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def add(self, kind: Kind, where: str, expected: object, found: object) -> None:
        """Record a problem that stands."""
        if self.counts.get(kind, 0) < KEPT_PER_KIND:
            self.problems.append(
                Problem(kind=kind, where=where, expected=str(expected), found=str(found), advice=ADVICE[kind])
            )
        self.count(kind, 1)

    def count(self, kind: Kind, number: int) -> None:
        """Count problems that are not spelt out."""
        if number:
            self.counts[kind] = self.counts.get(kind, 0) + number
