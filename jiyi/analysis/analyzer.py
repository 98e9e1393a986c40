"""The analyzer: from a text to its terms, the same for the writer and for the reader."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from jiyi.analysis import han_folding, stop_words
from jiyi.analysis.alignment import Alignment
from jiyi.analysis.han_runs import HanRuns, find_han, split_common_han, split_han
from jiyi.analysis.identifiers import Identifiers
from jiyi.analysis.normal_form import normalise
from jiyi.analysis.segmenters import SegmenterName, open_segmenter
from jiyi.analysis.tokens import Place, Token, TooManyTerms

# To be raised with every change that gives any text other terms. Lists of stop words need not be remembered: their
# content is part of the fingerprint.
ANALYSIS_VERSION = 2
WEIGHTS = {"bigram": 0.4, "character": 0.3, "compound": 0.5, "url": 0.5}
"""What terms of these rules count in a question; others count 1. Found by trying, on the sets of docs/quality.md."""


class Analyzer:
    """Turns texts into terms: pure, deterministic, and safe to call from several threads at once.

    `fingerprint` names everything that decides about terms: this package's version and stop words, segmenter and
    dictionary, stemmer, bigrams. Indexes and queries of different fingerprints do not fit together. Left out are
    `max_terms`, which changes the terms of no text that it accepts, and Python's Unicode version, because Unicode
    promises never to change the normal form of a character once assigned. `rjieba` and `jieba` count as
    different: their words differ in rare near ties.
    """

    def __init__(self, segmenter: SegmenterName = "rjieba", han_bigrams: bool = True, max_terms: int = 10_000) -> None:
        self._segmenter = open_segmenter(segmenter)
        self._han_bigrams = han_bigrams
        self._max_terms = max_terms
        self._identifiers = Identifiers()
        self._han_runs = HanRuns(self._segmenter, bigrams=han_bigrams)
        decisive = json.dumps({**self.describe(), "max_terms": None}, sort_keys=True)
        self.fingerprint = blake2b(decisive.encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, str | int | bool]:
        """Return what this analyzer consists of, ready to be shown or logged."""
        words = " ".join(sorted(stop_words.ENGLISH | stop_words.HAN) + sorted(stop_words.COMMON_HAN))
        return {
            "version": ANALYSIS_VERSION,
            "segmenter": self._segmenter.identity,
            "stemmer": self._identifiers.stemmer_identity,
            "stop_words": blake2b(words.encode(), digest_size=8).hexdigest(),
            "han_folding": han_folding.identity(),
            "han_bigrams": self._han_bigrams,
            "max_terms": self._max_terms,
        }

    def warm_up(self) -> None:
        """Load the dictionary, so that the first text takes no longer than the second."""
        self.terms("记忆 warm-up")

    def terms(self, text: str) -> dict[str, int]:
        """Return each term of `text` with its frequency, in the order of first appearance.

        The sum of the values is the document's length in tokens. Stop words are left out, unless nothing else is in
        the text: "who are you" is found by "who are you". A text without letters and digits has no terms.
        Raises TooManyTerms if the text has more than `max_terms` distinct ones.
        """
        terms = Counter(self._content(text) or [token.term for token in self.explain(text)])
        if len(terms) > self._max_terms:
            raise TooManyTerms(len(terms), self._max_terms)
        return dict(terms)

    def query_terms(self, text: str) -> dict[str, float]:
        """Return the distinct terms of a question with what each counts, in the order of first appearance.

        What is no word, and what counts by its parts as well, counts less (`WEIGHTS`). Words that ask are left out,
        unless nothing else is in the question. Errors as in `terms`.
        """
        tokens = self.explain(text)
        weights: dict[str, float] = {}
        for token in tokens:
            if token.term not in stop_words.HAN_QUESTIONS:
                weights[token.term] = max(weights.get(token.term, 0.0), WEIGHTS.get(token.rule, 1.0))
        weights = weights or dict.fromkeys([token.term for token in tokens], 1.0)
        if len(weights) > self._max_terms:
            raise TooManyTerms(len(weights), self._max_terms)
        return weights

    def required_terms(self, text: str) -> list[str]:
        """Return those of the `query_terms` that a text must have to say all that the question says.

        Left out is what a net of Han characters and pairs has besides the words: pairs across the border of two words,
        and characters of a word. Where the segmenter knows no word, the pairs count. Errors as in `query_terms`.
        """
        weights = self.query_terms(text)
        required: dict[str, None] = {}
        for number, part in enumerate(split_han(normalise(text))):
            terms = self._han_runs.words(part) if number % 2 else [one.term for one in self._identifiers.tokens(part)]
            required |= dict.fromkeys(term for term in terms if term in weights)
        return list(required or weights)

    def explain(self, text: str) -> list[Token]:
        """Return the tokens of `text` with the rule that made each; counted, they are `terms(text)`."""
        tokens = list(self._tokens(normalise(text)))
        return [token for token in tokens if token.rule != "stop"] or tokens

    def places(self, text: str, wanted: Iterable[str]) -> list[Place]:
        """Return where in `text`, as it is given, it has the terms of `wanted`, in ascending order.

        There are as many places of a term as its frequency in `terms(text)`. They may overlap, as an identifier and
        its parts do. Where normalisation joins several characters or takes one apart, a place has them all. Faster
        than `explain`: a run of Han characters is cut into words only for a term that cannot be seen without.
        """
        wanted = set(wanted)
        if not wanted:
            return []
        aligned = Alignment(text)
        places = list(self._places(aligned.normal, wanted, stop=False))
        if not places and all(token.rule == "stop" for token in self._tokens(aligned.normal)):
            places = list(self._places(aligned.normal, wanted, stop=True))
        return sorted(Place(aligned.start(start), aligned.end(end), term) for start, end, term in places)

    def _places(self, text: str, wanted: set[str], *, stop: bool) -> Iterator[Place]:
        yield from self._han_runs.places(text, filter(find_han, wanted), stop=stop)
        start = 0
        for number, part in enumerate(split_han(text)):
            if number % 2 == 0:
                for begin, end, term in self._identifiers.places(part, wanted, stop=stop):
                    yield Place(start + begin, start + end, term)
            start += len(part)

    def _tokens(self, text: str) -> Iterator[Token]:
        for number, part in enumerate(split_han(text)):
            yield from (self._han_runs if number % 2 else self._identifiers).tokens(part)

    def _content(self, text: str) -> list[str] | None:
        """Return the terms of all occurrences without stop words, or None if that takes the way of `explain`.

        The same rules as there, but the text is cut first and its pieces are normalised one by one, so that frequent
        pieces are looked up. Common Han characters are their own normal form and never compose.
        """
        terms: list[str] = []
        han, other = self._han_runs.terms, self._identifiers.terms
        is_han = False
        for part in split_common_han(text):
            found = han(part) if is_han else other(part)
            if found is None:
                return None
            terms += found
            is_han = not is_han
        return terms
