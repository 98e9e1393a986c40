"""Han runs: unbroken stretches of Han characters, and the terms in them."""

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import pairwise

from jiyi.analysis import stop_words
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.segmenters import Segmenter
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Place, Rule, Token

# The longest run that a segmenter sees at once, in characters. Its search for new words copies the path at every
# character, so a run of 100,000 rare ones would take quadratic time; no sentence comes near this length.
MAX_RUN_LENGTH = 512

# What both segmenters call Han and cut alike; other Han characters are terms by themselves.
_COMMON = "\u4e00-\u9fd5"
# With the unified ideographs of all planes, the iteration mark 々 and the zero 〇. Of the compatibility block, NFKC
# leaves the dozen that are unified in truth.
_HAN = (
    f"{_COMMON}\u9fd6-\u9fff\u3400-\u4dbf々〇\U00020000-\U0002ee5f\U00030000-\U0003347f"
    "\ufa0e\ufa0f\ufa11\ufa13\ufa14\ufa1f\ufa21\ufa23\ufa24\ufa27-\ufa29"
)

split_han = re.compile(f"([{_HAN}]+)").split
"""Split a text into non-Han and Han in turn, beginning and ending with a possibly empty non-Han piece."""
split_common_han = re.compile(f"([{_COMMON}]+)").split
"""Like `split_han`, but uncommon Han characters stay in the non-Han pieces."""
find_han = re.compile(f"[{_HAN}]").search
_runs = re.compile(f"[{_HAN}]+").finditer

_pieces = re.compile(f"[{_COMMON}]{{1,{MAX_RUN_LENGTH}}}|[^{_COMMON}]").findall
_uncommon = re.compile(f"[^{_COMMON}]").match

# The shortest runs come again and again: three characters or fewer are a quarter of all runs.
_REMEMBERED = 1 << 15
_LONGEST_REMEMBERED = 3
_PAIR = 2


class HanRuns:
    """Turns a Han run, folded into simplified characters, into terms.

    With `bigrams`, a net is laid beside the words, in which unknown names and new jargon are caught: every character is
    a term, and every two adjacent ones, as often as they occur, be they a word or not. Only common characters
    (`COMMON_HAN`) are no terms by themselves, nor in a pair with one that is not common, unless that is a word. So
    every two characters of a text find it. Words of three characters and more are left to their pairs.
    """

    def __init__(self, segmenter: Segmenter, *, bigrams: bool) -> None:
        self._search = segmenter.search
        self._segmenter = segmenter
        self._bigrams = bigrams
        self._fold = open_folding()
        self._remembered = lru_cache(_REMEMBERED)(self._terms)

    def terms(self, run: str) -> Iterable[str]:
        """Return the terms of a run of common characters without stop words; one entry for each occurrence."""
        return self._remembered(run) if len(run) <= _LONGEST_REMEMBERED else self._terms(run)

    def tokens(self, run: str) -> Iterator[Token]:
        """Yield the tokens of any Han run including stop words; those of another rule are the `terms` of the run."""
        run = self._fold(run)
        words = self._words(run)
        if not self._bigrams:
            for word in words:
                yield Token(word, "stop" if word in stop_words.HAN else "han", word)
            return
        found = set(words)
        for term in self._net(run, words):
            rule: Rule = "han" if term in found else "character" if len(term) == 1 else "bigram"
            yield Token(term, rule, term)
        for character in run:
            if character in stop_words.COMMON_HAN:
                yield Token(character, "stop", character)

    def words(self, run: str) -> list[str]:
        """Return the words of any Han run that are terms, without what the net has besides; stop words included.

        A word that is left to its pairs gives these, and so do adjacent characters that are no words.
        """
        run = self._fold(run)
        words = self._words(run)
        if not self._bigrams:
            return words
        net, found = set(self._net(run, words)), []
        single = ""
        for word in [*words, ""]:
            if len(word) == 1:
                single += word
                continue
            for piece in (single, word):
                pairs = [first + second for first, second in pairwise(piece) if first + second in net]
                found += pairs or [character for character in piece if character in net]
            single = ""
        return found

    def places(self, text: str, wanted: Iterable[str], *, stop: bool = False) -> Iterator[Place]:
        """Yield where the Han runs of normalised `text` have terms of `wanted`, in any order.

        With `stop` they are the stop words among the `tokens` of the runs, else all others.
        """
        text = self._fold(text)
        words = set()
        for term in wanted:
            if term not in text:
                continue
            if self._is_of_the_net(term, stop=stop):
                yield from _occurrences(text, term)
            elif self._is_of_the_words(term, stop=stop):
                words.add(term)
        if words:
            for run in _runs(text):
                if any(word in run[0] for word in words):
                    yield from self._located(run[0], run.start(), words)

    def _is_of_the_net(self, term: str, *, stop: bool) -> bool:
        """Tell whether every occurrence of `term` in a folded text is one of its tokens, whatever stands around."""
        are_common = [character in stop_words.COMMON_HAN for character in term]
        return self._bigrams and are_common in ([[True]] if stop else [[False], [False, False], [True, True]])

    def _is_of_the_words(self, term: str, *, stop: bool) -> bool:
        """Tell whether `term` is a token where the segmenter finds it, and only there."""
        if not self._bigrams:
            return (term in stop_words.HAN) is stop
        are_common = {character in stop_words.COMMON_HAN for character in term}
        return not stop and len(term) == len(are_common) == _PAIR and term not in stop_words.HAN

    def _located(self, run: str, start: int, words: AbstractSet[str]) -> Iterator[Place]:
        for piece in _pieces(run):
            for word, begin, end in [(piece, 0, 1)] if _uncommon(piece) else self._segmenter.locate(piece):
                if word in words:
                    yield Place(start + begin, start + end, word)
            start += len(piece)

    def _terms(self, run: str) -> list[str]:
        run = self._fold(run)
        words = self._search(run) if len(run) <= MAX_TERM_LENGTH else self._words(run)
        if self._bigrams:
            return self._net(run, words)
        stop = stop_words.HAN
        return [word for word in words if word not in stop]

    @staticmethod
    def _net(run: str, words: Iterable[str]) -> list[str]:
        common, stop = stop_words.COMMON_HAN, stop_words.HAN
        are_common = [character in common for character in run]
        terms = [character for character, is_common in zip(run, are_common, strict=True) if not is_common]
        pairs = zip(run, run[1:], are_common, are_common[1:], strict=False)
        terms += [first + second for first, second, one, other in pairs if one is other]
        terms += [
            word
            for word in words
            if len(word) == _PAIR and (word[0] in common) is not (word[1] in common) and word not in stop
        ]
        return terms

    def _words(self, run: str) -> list[str]:
        words: list[str] = []
        for piece in _pieces(run):
            words += (piece,) if _uncommon(piece) else self._search(piece)
        return [word for word in words if len(word) <= MAX_TERM_LENGTH]


def _occurrences(text: str, term: str) -> Iterator[Place]:
    start = text.find(term)
    while start >= 0:
        yield Place(start, start + len(term), term)
        start = text.find(term, start + 1)
