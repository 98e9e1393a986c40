"""Folding: hits that say the same as a better one, or come from the same place, stand behind it and are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from jiyi.analysis import TooManyTerms
from jiyi_api.hits import Folded
from jiyi_api.queries import NEAR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jiyi.analysis import Analyzer
    from jiyi_api.hits import Hit
    from jiyi_api.queries import SearchQuery

NEAR_DUPLICATE = 0.85
"""Two memories are near duplicates when they share this much of their terms, occurrences counted (weighted Jaccard
index): a full stop, a correction or a word more or less."""
COMPARED_CHARACTERS = 2_000
"""So much of a memory is compared, and analysed between two turns of the event loop."""
MOST_IDS = 10
"""Ids of so many folded hits are told."""


async def fold(hits: Sequence[Hit], query: SearchQuery, analyzer: Analyzer, most_ids: int) -> list[Hit]:
    """Keep the hits that stand for themselves, best first, up to the limit; each counts what is folded into it.

    It names the first `most_ids` of these. What ranks below the last hit that there is room for is not looked at, and
    not counted: so the counts do not depend on how many hits were fetched.
    """
    folding = _Folding(query, analyzer, most_ids)
    for hit in hits:
        if len(folding.kept) == query.limit:
            break
        await folding.take(hit)
    return folding.kept


class _Compared(NamedTuple):
    """The terms that a hit is compared by, with their frequencies, and the sum of these."""

    terms: Mapping[str, int]
    length: int


_NOTHING = _Compared({}, 0)


class _Folding:
    def __init__(self, query: SearchQuery, analyzer: Analyzer, most_ids: int) -> None:
        self._query = query
        self._analyzer = analyzer
        self._most_ids = most_ids
        self.kept: list[Hit] = []
        self._compared: list[_Compared] = []  # of each that is kept
        self._by_label: dict[tuple[str | None, str], Hit] = {}
        self._sessions: dict[tuple[str | None, str], list[Hit]] = {}

    async def take(self, hit: Hit) -> None:
        """Keep a hit, or fold it into a better one."""
        compared, label = _NOTHING, None
        if self._query.collapse == NEAR:
            await anyio.lowlevel.checkpoint()
            compared = self._compare(hit)
            pairs = zip(self.kept, self._compared, strict=True)
            better = next((kept for kept, other in pairs if _near(compared, other)), None)
        else:
            label = self._label(hit)
            better = self._by_label.get(label) if label else None
        session = self._sessions.setdefault((hit.ns, hit.session_id), []) if hit.session_id is not None else []
        if better is None and self._query.per_session is not None and len(session) >= self._query.per_session:
            better = session[0]
        if better is not None:
            self._count(better, hit)
            return
        session.append(hit)
        if label:
            self._by_label[label] = hit
        self.kept.append(hit)
        self._compared.append(compared)

    def _count(self, better: Hit, hit: Hit) -> None:
        if better.folded is None:
            better.folded = Folded(0, [])
        better.folded.count += 1
        if len(better.folded.ids) < self._most_ids:
            better.folded.ids.append(hit.id)

    def _label(self, hit: Hit) -> tuple[str | None, str] | None:
        """Give the label that hits are folded by. A session is one of its namespace; a name is the same in all."""
        name = self._query.collapse
        if not name or not (label := getattr(hit, name)):
            return None
        return (hit.ns if name == "session_id" else None, label)

    def _compare(self, hit: Hit) -> _Compared:
        try:
            terms = self._analyzer.terms(hit.content[:COMPARED_CHARACTERS])
        except TooManyTerms:  # of a reader with a lower limit than the worker's
            return _NOTHING
        return _Compared(terms, sum(terms.values()))


def _near(one: _Compared, other: _Compared) -> bool:
    """Tell whether two documents are near duplicates. Nothing is a duplicate of a document without terms."""
    shorter, longer = sorted((one.length, other.length))
    if not shorter or shorter < NEAR_DUPLICATE * longer:  # also if it shares all that it has
        return False
    shared = sum(min(count, other.terms[term]) for term, count in one.terms.items() if term in other.terms)
    return shared >= NEAR_DUPLICATE * (shorter + longer - shared)
