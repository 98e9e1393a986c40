"""Text analysis: how a text becomes the terms of the index.

There is one function for writer and reader, `Analyzer.terms`, and its order is fixed:

1. NFKC and removal of invisible characters (`normal_form`);
2. the text is split into Han runs and the rest (`han_runs`);
3. the rest goes through the identifier pass, which finds whole identifiers and their parts, quantities and dates
   (`numerals`), folds case, drops stop words (`stop_words`) and stems (`identifiers`);
4. Han runs are folded into simplified characters (`han_folding`) and go to a segmenter in search mode (`segmenters`),
   which also knows the words of the `user_dictionary`, and unless that is turned off through the net of characters
   and pairs (`han_runs`).

Two analyzers with the same `fingerprint` give the same terms for every text. A question gets weights besides, and the
terms of its `synonyms`.
"""

from jiyi.analysis.analyzer import Analyzer, Question
from jiyi.analysis.segmenters import Segmenter, SegmenterName
from jiyi.analysis.stop_words import StopWords
from jiyi.analysis.synonyms import Synonym, read_synonyms
from jiyi.analysis.tokens import Place, QuestionTerm, Rule, Token, TooManyTerms
from jiyi.analysis.user_dictionary import DictionaryReport, UserDictionary

__all__ = [
    "Analyzer",
    "DictionaryReport",
    "Place",
    "Question",
    "QuestionTerm",
    "Rule",
    "Segmenter",
    "SegmenterName",
    "StopWords",
    "Synonym",
    "Token",
    "TooManyTerms",
    "UserDictionary",
    "read_synonyms",
]
