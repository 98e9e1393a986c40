"""Synonyms: what a question asks for besides its own words. They change no document, only questions.

A line says that what is on its left stands also for what is on its right, `redis => redis-server, redis-cli`, or,
without an arrow, that each of its phrases stands for the others, `住房公积金, 公积金`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from jiyi.analysis.tokens import QuestionTerm
from jiyi.analysis.word_files import Line, cut, read_lines

SETTING = "JIYI_SYNONYMS"
WEIGHT = 0.4
"""What a synonym counts, as a part of what it would count if it had been asked for.

Like a pair of Han characters that is no word: it may find what nothing else does, but what has the word that was asked
for comes first, unless the synonym is far rarer.
"""
_ARROW = "=>"


class Words(NamedTuple):
    """A text as synonyms see it.

    `units` are its words without stop words, stemmed, and its Han characters, in order; `han` are the words that the
    segmenter finds in it.
    """

    units: tuple[str, ...]
    han: frozenset[str]

    def contains(self, phrase: "Words", at: int) -> bool:
        """Tell whether a phrase stands at a unit, and the segmenter sees its words here too."""
        return self.units[at : at + len(phrase.units)] == phrase.units and phrase.han <= self.han


class Synonym(NamedTuple):
    """What a phrase stands for besides itself, as both are written."""

    phrase: str
    others: tuple[str, ...]
    line: Line


def read_synonyms(path: str) -> list[Synonym]:
    """Read a file. Raises `SettingsError`, which names file and line, for a line that is not as it must be."""
    return [synonym for line in read_lines(SETTING, path) for synonym in _synonyms(line)]


def _synonyms(line: Line) -> Iterator[Synonym]:
    sides = [[phrase.strip() for phrase in side.split(",")] for side in line.text.split(_ARROW)]
    if not all(phrase for side in sides for phrase in side):
        raise line.wrong("has nothing between two commas, or at one end; take the comma or arrow out")
    match sides:
        case [phrases] if len(phrases) > 1:
            for phrase in phrases:
                yield Synonym(phrase, tuple(other for other in phrases if other != phrase), line)
        case [phrases, others]:
            for phrase in phrases:
                yield Synonym(phrase, tuple(others), line)
        case _:
            raise line.wrong("must be `word => other, …` for one way, or `word, other, …` for both")


class Synonyms:
    """Finds the synonyms of a question's words."""

    def __init__(
        self,
        synonyms: Sequence[Synonym],
        words: Callable[[str], Words],
        question: Callable[[str], Iterable[QuestionTerm]],
    ) -> None:
        """Prepare them: `words` and `question` are how the analyzer sees a text and a question.

        Raises `SettingsError`, which names file and line, for a phrase by which no question can be recognised.
        """
        self._words = words
        self._beginning: dict[str, list[tuple[Words, list[QuestionTerm]]]] = {}
        for phrase, others, line in synonyms:
            for one in (phrase, *others):
                if not words(one).units:
                    told = "nothing but stop words, punctuation, or words too long to be terms"
                    raise line.wrong(f"has {told} in {cut(one)!r}")
            added = [term for other in others for term in question(other)]
            terms = [term._replace(weight=WEIGHT * term.weight, synonym_of=phrase) for term in added]
            seen = words(phrase)
            self._beginning.setdefault(seen.units[0], []).append((seen, terms))

    def of(self, text: str) -> Iterator[QuestionTerm]:
        """Yield the terms to be added to a question, weighted; one may come several times."""
        words = self._words(text)
        for at, unit in enumerate(words.units):
            for phrase, terms in self._beginning.get(unit, ()):
                if words.contains(phrase, at):
                    yield from terms
