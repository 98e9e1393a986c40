"""rank_bm25: BM25 in Python and numpy over all documents, in this process. It cannot be added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines import TOP, AbsentError, InProcess
from benchmarks.peers import why_absent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question


class RankBm25(InProcess):
    """`BM25Okapi` with its own formula and k1 = 1.5, b = 0.75."""

    name = "rank_bm25"

    def __init__(self, tokens: Sequence[list[str]]) -> None:
        try:
            from rank_bm25 import BM25Okapi  # noqa: PLC0415 - a peer may be absent
        except ImportError as error:
            raise AbsentError(why_absent("rank-bm25")) from error
        self._index = BM25Okapi(tokens)

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Score all documents and select the best; its own `get_top_n` would sort all of them."""
        scores = self._index.get_scores(question.terms)
        top = np.argpartition(scores, -TOP)[-TOP:]
        top = top[np.argsort(-scores[top])]
        return list(zip(top.tolist(), scores[top].tolist(), strict=True))
