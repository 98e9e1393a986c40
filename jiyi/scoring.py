"""BM25 as pure functions of numbers: the reference that kernels and explanations are held to.

Formula: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the
idf of Lucene's BM25Similarity, ln(1 + (N − df + 0.5)/(df + 0.5)), which is positive for every df ≤ N.
"""

from __future__ import annotations

from math import log

DEFAULT_K1 = 1.2
DEFAULT_B = 0.65
"""What did best over all judged sets together (docs/quality.md); `jiyi tune` tries others on your own."""


def idf(docs: int, df: int) -> float:
    """Inverse document frequency of a term that `df` of `docs` documents contain; greater than 0."""
    return log(1.0 + (docs - df + 0.5) / (df + 0.5))


def average_length(tokens: int, docs: int) -> float:
    """Average document length in tokens; 0 for an empty index."""
    return tokens / docs if docs else 0.0


def saturation(tf: int, length: int, avgdl: float, k1: float, b: float) -> float:
    """Weight of a term frequency: tf·(k1 + 1) / (tf + k1·(1 − b + b·length/avgdl)).

    `tf` ≥ 1. With `avgdl` 0 (nothing but empty documents) the length has no influence.
    """
    relative = length / avgdl if avgdl else 1.0
    return tf * (k1 + 1.0) / (tf + k1 * (1.0 - b + b * relative))
