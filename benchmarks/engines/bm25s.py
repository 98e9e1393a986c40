"""bm25s: scores computed at indexing time into a sparse matrix, in this process. It cannot be added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from benchmarks.engines import TOP, AbsentError, InProcess
from benchmarks.peers import why_absent
from jiyi.scoring import DEFAULT_B, DEFAULT_K1

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question


class Bm25s(InProcess):
    """bm25s with Lucene's formula: `numpy` is what it does by default, `numba` its compiled way."""

    def __init__(self, tokens: Sequence[list[str]], backend: Literal["numpy", "numba"]) -> None:
        try:
            import bm25s  # noqa: PLC0415 - a peer may be absent
        except ImportError as error:
            raise AbsentError(why_absent("bm25s")) from error
        self.name = "bm25s" if backend == "numpy" else f"bm25s_{backend}"
        self._index = bm25s.BM25(method="lucene", k1=DEFAULT_K1, b=DEFAULT_B, backend=backend)
        self._index.index(tokens, show_progress=False)

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Retrieve for one question at a time."""
        docs, scores = self._index.retrieve([question.terms], k=TOP, show_progress=False, n_threads=0)
        return list(zip(docs[0].tolist(), scores[0].tolist(), strict=True))
