"""Han runs: unbroken stretches of Han characters, and the terms in them."""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache

from jiyi.analysis.characters import COMMON
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.segmenters import Segmenter
from jiyi.analysis.stop_words import OURS, StopWords
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Rule, Token

# The longest run that a segmenter sees at once, in characters. Its search for new words copies the path at every
# character, so a run of 100,000 rare ones would take quadratic time; no sentence comes near this length.
MAX_RUN_LENGTH = 512

_pieces = re.compile(f"[{COMMON}]{{1,{MAX_RUN_LENGTH}}}|[^{COMMON}]").findall
_uncommon = re.compile(f"[^{COMMON}]").match

# The shortest runs come again and again: three characters or fewer are a quarter of all runs.
_REMEMBERED = 1 << 15
_LONGEST_REMEMBERED = 3
_PAIR = 2


class HanRuns:
    """Turns a Han run, folded into simplified characters, into terms.

    With `bigrams`, a net is laid beside the words, in which unknown names and new jargon are caught: every character is
    a term, and every two adjacent ones, as often as they occur, be they a word or not. Only common characters
    (`common_han`) are no terms by themselves, nor in a pair with one that is not common, unless that is a word. So
    every two characters of a text find it. Words of three characters and more are left to their pairs, but for those
    of the user dictionary, `own`.
    """

    def __init__(
        self, segmenter: Segmenter, *, bigrams: bool, stop_words: StopWords = OURS, own: Container[str] = ()
    ) -> None:
        self._search = segmenter.search
        self._bigrams = bigrams
        self._stop_words = stop_words
        self._own = own
        self._fold = open_folding()
        self._split_phrases = _splitter(stop_words.han_phrases)
        self._remembered = lru_cache(_REMEMBERED)(self._terms)

    def terms(self, run: str) -> Iterable[str]:
        """Return the terms of a run of common characters without stop words; one entry for each occurrence."""
        return self._remembered(run) if len(run) <= _LONGEST_REMEMBERED else self._terms(run)

    def tokens(self, run: str) -> Iterator[Token]:
        """Yield the tokens of any Han run including stop words; those of another rule are the `terms` of the run."""
        for number, part in enumerate(self._split(self._fold(run))):
            if number % 2:
                yield Token(part, "stop", part)
            else:
                yield from self._tokens(part)

    def words(self, run: str) -> tuple[str, set[str]]:
        """Return a run in simplified characters, and what the segmenter calls words in it."""
        folded = self._fold(run)
        return folded, set(self._words(folded))

    def _tokens(self, run: str) -> Iterator[Token]:
        words = self._words(run)
        if not self._bigrams:
            for word in words:
                yield Token(word, "stop" if word in self._stop_words.han else self._rule(word), word)
            return
        found = set(words)
        for term in self._net(run, words):
            rule: Rule = self._rule(term) if term in found else "character" if len(term) == 1 else "bigram"
            yield Token(term, rule, term)
        for character in run:
            if character in self._stop_words.common_han:
                yield Token(character, "stop", character)

    def _rule(self, word: str) -> Rule:
        return "dictionary" if word in self._own else "han"

    def _split(self, run: str) -> list[str]:
        """Return what stands between stop phrases and the phrases in turn, beginning and ending with the former."""
        return self._split_phrases(run) if self._split_phrases else [run]

    def _terms(self, run: str) -> list[str]:
        run = self._fold(run)
        if not self._split_phrases:
            return self._terms_between(run)
        return [term for part in self._split_phrases(run)[::2] for term in self._terms_between(part)]

    def _terms_between(self, run: str) -> list[str]:
        words = self._search(run) if len(run) <= MAX_TERM_LENGTH else self._words(run)
        if self._bigrams:
            return self._net(run, words)
        stop = self._stop_words.han
        return [word for word in words if word not in stop]

    def _net(self, run: str, words: Iterable[str]) -> list[str]:
        common, stop, own = self._stop_words.common_han, self._stop_words.han, self._own
        are_common = [character in common for character in run]
        terms = [character for character, is_common in zip(run, are_common, strict=True) if not is_common]
        pairs = zip(run, run[1:], are_common, are_common[1:], strict=False)
        terms += [first + second for first, second, one, other in pairs if one is other]
        terms += [
            word
            for word in words
            if len(word) == _PAIR and (word[0] in common) is not (word[1] in common) and word not in stop
        ]
        if own:
            terms += [word for word in words if len(word) > _PAIR and word in own]
        return terms

    def _words(self, run: str) -> list[str]:
        words: list[str] = []
        for piece in _pieces(run):
            words += (piece,) if _uncommon(piece) else self._search(piece)
        return [word for word in words if len(word) <= MAX_TERM_LENGTH]


def _splitter(phrases: Iterable[str]) -> Callable[[str], list[str]] | None:
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first)})").split if longest_first else None
