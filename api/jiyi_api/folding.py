"""Folding: hits that say the same as a better one, or come from the same place, stand behind it and are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    It names the first `most_ids` of these. What ranks below the last hit kept is not looked at, and not counted.
    """
    folding = _Folding(query, analyzer, most_ids)
    for hit in hits:
        await folding.take(hit)
        if len(folding.kept) > query.limit:
            break
    return folding.kept[: query.limit]


class _Folding:
    def __init__(self, query: SearchQuery, analyzer: Analyzer, most_ids: int) -> None:
        self._query = query
        self._analyzer = analyzer
        self._most_ids = most_ids
        self.kept: list[Hit] = []
        self._terms: list[Mapping[str, int]] = []  # of each that is kept
        self._by_label: dict[str, Hit] = {}
        self._sessions: dict[tuple[str | None, str], list[Hit]] = {}

    async def take(self, hit: Hit) -> None:
        """Keep a hit, or fold it into a better one."""
        terms: Mapping[str, int] = {}
        label = None
        if self._query.collapse == NEAR:
            await anyio.lowlevel.checkpoint()
            terms = self._compared(hit)
            better = next(
                (kept for kept, other in zip(self.kept, self._terms, strict=True) if _near(terms, other)), None
            )
        else:
            label = self._query.collapse and getattr(hit, self._query.collapse)
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
        self._terms.append(terms)

    def _count(self, better: Hit, hit: Hit) -> None:
        if better.folded is None:
            better.folded = Folded(0, [])
        better.folded.count += 1
        if len(better.folded.ids) < self._most_ids:
            better.folded.ids.append(hit.id)

    def _compared(self, hit: Hit) -> Mapping[str, int]:
        try:
            return self._analyzer.terms(hit.content[:COMPARED_CHARACTERS])
        except TooManyTerms:  # of a reader with a lower limit than the worker's
            return {}


def _near(some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Tell whether two documents are near duplicates. Nothing is a duplicate of a document without terms."""
    if not some or not others or len(some) < len(others) * NEAR_DUPLICATE or len(others) < len(some) * NEAR_DUPLICATE:
        return False
    shared = sum(min(count, others[term]) for term, count in some.items() if term in others)
    return shared >= NEAR_DUPLICATE * (sum(some.values()) + sum(others.values()) - shared)
