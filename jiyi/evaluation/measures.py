"""Measures of a ranking against the ids that are relevant; relevance is yes or no, and unknown ids are not relevant.

nDCG as of Järvelin and Kekäläinen (2002), with gain 1 and discount 1/log2(rank + 1).
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

DEPTH = 100
"""How many hits of a question are looked at."""
_TOP = 10


class Scores(msgspec.Struct, frozen=True, rename="camel"):
    """Means over the questions, each from 0 to 1."""

    questions: int
    ndcg_10: float
    recall_10: float
    recall_100: float
    mrr_10: float


def measure(rankings: Iterable[tuple[Sequence[str], Collection[str]]]) -> Scores:
    """Measure (ids found, best first; ids that are relevant, at least one) of each question."""
    rows = [
        (ndcg(found, relevant), recall(found, relevant, _TOP), recall(found, relevant, DEPTH), mrr(found, relevant))
        for found, relevant in rankings
    ]
    means = [fmean(column) for column in zip(*rows, strict=True)] if rows else [0.0] * 4
    return Scores(len(rows), *means)


def ndcg(found: Sequence[str], relevant: Collection[str], k: int = _TOP) -> float:
    """Give the discounted gain of the first k, as a share of the best that is possible."""
    gain = sum(1.0 / math.log2(rank + 1) for rank, memory_id in enumerate(found[:k], 1) if memory_id in relevant)
    return gain / sum(1.0 / math.log2(rank + 1) for rank in range(1, min(k, len(relevant)) + 1))


def recall(found: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Give the share of what is relevant that is among the first k."""
    return len(set(found[:k]).intersection(relevant)) / len(relevant)


def mrr(found: Sequence[str], relevant: Collection[str], k: int = _TOP) -> float:
    """Give 1/rank of the first relevant one, 0 if it is not among the first k."""
    return next((1.0 / rank for rank, memory_id in enumerate(found[:k], 1) if memory_id in relevant), 0.0)
