"""Text analysis: how a text becomes the terms of the index.

There is one function for writer and reader, `Analyzer.terms`, and its order is fixed:

1. NFKC and removal of invisible characters (`normal_form`);
2. the text is split into Han runs and the rest (`han_runs`);
3. the rest goes through the identifier pass, which finds whole identifiers and their parts, folds case,
   drops English stop words and stems (`identifiers`);
4. Han runs are folded into simplified characters (`han_folding`) and go to a segmenter in search mode (`segmenters`),
   and unless that is turned off through the net of characters and pairs (`han_runs`).

Two analyzers with the same `fingerprint` give the same terms for every text.
"""

from jiyi.analysis.analyzer import Analyzer
from jiyi.analysis.segmenters import Segmenter, SegmenterName
from jiyi.analysis.tokens import Place, Rule, Token, TooManyTerms

__all__ = ["Analyzer", "Place", "Rule", "Segmenter", "SegmenterName", "Token", "TooManyTerms"]
