"""Han runs: unbroken stretches of Han characters, and the terms in them."""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import pairwise

from jiyi.analysis.characters import COMMON, find_han_runs
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.segmenters import Segmenter
from jiyi.analysis.stop_words import OURS, StopWords
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Place, Rule, Token

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
        self._segmenter = segmenter
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

    def tokens(self, run: str) -> list[Token]:
        """Return the tokens of any Han run including stop words; those of another rule are the `terms` of the run."""
        if not self._split_phrases:
            return self._tokens(self._fold(run))
        tokens: list[Token] = []
        for number, part in enumerate(self._split(self._fold(run))):
            tokens += [Token(part, "stop", part)] if number % 2 else self._tokens(part)
        return tokens

    def words(self, run: str) -> tuple[str, set[str]]:
        """Return a run in simplified characters, and what the segmenter calls words in it."""
        folded = self._fold(run)
        return folded, set(self._words(folded))

    def core(self, run: str) -> list[str]:
        """Return those terms of any Han run that are its words, without what the net has besides.

        A word that is left to its pairs gives these, and so do adjacent characters that are no words.
        """
        found: list[str] = []
        for part in self._split(self._fold(run))[::2]:
            words = self._words(part)
            if not self._bigrams:
                found += words
                continue
            net, single = set(self._net(part, words)), ""
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
        wanted = {term for term in wanted if term in text}
        if not self._split_phrases:
            yield from self._places(text, 0, wanted, stop=stop)
            return
        for run in find_han_runs(text) if wanted else ():
            start = run.start()
            for number, part in enumerate(self._split(run[0])):
                if number % 2 == 0:
                    yield from self._places(part, start, wanted, stop=stop)
                elif stop and part in wanted:
                    yield Place(start, start + len(part), part)
                start += len(part)

    def _places(self, text: str, start: int, wanted: AbstractSet[str], *, stop: bool) -> Iterator[Place]:
        """Yield the places in a folded text without stop phrases, which is at `start`."""
        words = set()
        for term in wanted:
            if self._is_of_the_net(term, stop=stop):
                yield from _occurrences(text, start, term)
            elif self._is_of_the_words(term, stop=stop):
                words.add(term)
        if words:
            for run in find_han_runs(text):
                if any(word in run[0] for word in words):
                    yield from self._located(run[0], start + run.start(), words)

    def _is_of_the_net(self, term: str, *, stop: bool) -> bool:
        """Tell whether every occurrence of `term` in a folded text is one of its tokens, whatever stands around."""
        are_common = [character in self._stop_words.common_han for character in term]
        return self._bigrams and are_common in ([[True]] if stop else [[False], [False, False], [True, True]])

    def _is_of_the_words(self, term: str, *, stop: bool) -> bool:
        """Tell whether `term` is a token where the segmenter finds it, and only there."""
        if not self._bigrams:
            return (term in self._stop_words.han) is stop
        if len(term) > _PAIR:
            return not stop and term in self._own
        are_common = {character in self._stop_words.common_han for character in term}
        return not stop and len(term) == len(are_common) == _PAIR and term not in self._stop_words.han

    def _located(self, run: str, start: int, words: AbstractSet[str]) -> Iterator[Place]:
        for piece in _pieces(run):
            for word, begin, end in [(piece, 0, 1)] if _uncommon(piece) else self._segmenter.locate(piece):
                if word in words:
                    yield Place(start + begin, start + end, word)
            start += len(piece)

    def _tokens(self, run: str) -> list[Token]:
        words, own = self._words(run), self._own
        if not self._bigrams:
            return [Token(word, "stop" if word in self._stop_words.han else self._rule(word), word) for word in words]
        rules: dict[str, Rule] = {word: "dictionary" if word in own else "han" for word in words}
        common = self._stop_words.common_han
        tokens = [
            Token(term, rules.get(term) or ("character" if len(term) == 1 else "bigram"), term)
            for term in self._net(run, words)
        ]
        return tokens + [Token(character, "stop", character) for character in run if character in common]

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


def _occurrences(text: str, start: int, term: str) -> Iterator[Place]:
    """Yield where `term` is in a text that is at `start`."""
    at = text.find(term)
    while at >= 0:
        yield Place(start + at, start + at + len(term), term)
        at = text.find(term, at + 1)


def _splitter(phrases: Iterable[str]) -> Callable[[str], list[str]] | None:
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first)})").split if longest_first else None
