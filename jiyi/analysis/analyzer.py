"""The analyzer: from a text to its terms, the same for the writer and for the reader."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from jiyi.analysis import han_folding
from jiyi.analysis.alignment import Alignment
from jiyi.analysis.characters import find_han, split_common_han, split_han
from jiyi.analysis.han_runs import HanRuns
from jiyi.analysis.identifiers import Identifiers
from jiyi.analysis.normal_form import normalise
from jiyi.analysis.numerals import han_dates
from jiyi.analysis.segmenters import SegmenterName, open_segmenter
from jiyi.analysis.stop_words import OURS, StopWords
from jiyi.analysis.synonyms import Synonym, Synonyms, Words, read_synonyms
from jiyi.analysis.tokens import Place, QuestionTerm, Rule, Token, TooManyTerms
from jiyi.analysis.user_dictionary import DictionaryReport, UserDictionary
from jiyi.settings import Settings

# To be raised with every change that gives any text other terms. What stands in lists and files of words need not be
# remembered: their content is part of the fingerprint.
ANALYSIS_VERSION = 3
WEIGHTS = {
    "bigram": 0.4, "character": 0.3, "compound": 0.3, "url": 0.5, "quantity": 0.3, "unit": 0.3, "month": 0.5,
}  # fmt: skip
"""What terms of these rules count in a question; others count 1. Found by trying, on the sets of docs/quality.md."""
_YEAR, _MONTH = "年", "月"
_PARTS_OF_A_DATE = 5
"""年, the month, 月, the day, 日."""
# What the words of a text become; tokens of other rules stand for several of them, or for a part of one.
_PLAIN: frozenset[Rule] = frozenset(("word", "literal", "number", "unit", "date", "month"))


class Question(NamedTuple):
    """The distinct terms of a question with what each counts, in the order of first appearance.

    `synonym_of` has, for each term that was added, the word or phrase of the question that it is a synonym of.
    """

    weights: dict[str, float]
    synonym_of: dict[str, str]


class Analyzer:
    """Turns texts into terms: pure, deterministic, and safe to call from several threads at once.

    `fingerprint` names everything that decides about terms: this package's version, stop words, segmenter and
    dictionaries, stemmer, bigrams. Indexes and queries of different fingerprints do not fit together. Left out are
    synonyms, which change questions only, `max_terms`, which changes the terms of no text that it accepts, and
    Python's Unicode version, because Unicode promises never to change the normal form of a character once assigned.
    `rjieba` and `jieba` count as different: their words differ in rare near ties.
    """

    def __init__(  # noqa: PLR0913 - what an analyzer is made of
        self,
        segmenter: SegmenterName = "rjieba",
        han_bigrams: bool = True,
        max_terms: int = 10_000,
        *,
        dictionary: UserDictionary = UserDictionary(),  # noqa: B008 - a constant
        stop_words: StopWords = OURS,
        synonyms: Sequence[Synonym] = (),
    ) -> None:
        self._segmenter = open_segmenter(segmenter, dictionary.words)
        self._dictionary = dictionary
        self._stop_words = stop_words
        self._han_bigrams = han_bigrams
        self._max_terms = max_terms
        self._identifiers = Identifiers(stop_words)
        self._han_runs = HanRuns(self._segmenter, bigrams=han_bigrams, stop_words=stop_words, own=dictionary.words)
        decisive = json.dumps({**self.describe(), "max_terms": None}, sort_keys=True)
        self.fingerprint = blake2b(decisive.encode(), digest_size=8).hexdigest()
        self._synonyms: Synonyms | None = None
        self._synonyms = Synonyms(synonyms, self._words, self.explain_question) if synonyms else None

    @classmethod
    def from_settings(cls, settings: Settings) -> "Analyzer":
        """Build the analyzer of a deployment: the one way for workers, readers and commands, so that none differs.

        Raises `SettingsError`, which names setting, file and line, for a file of words that is not as it must be.
        """
        return cls(
            settings.segmenter,
            settings.han_bigrams,
            settings.max_terms,
            dictionary=UserDictionary.read(settings.user_dictionary) if settings.user_dictionary else UserDictionary(),
            stop_words=StopWords.read(settings.stop_words) if settings.stop_words else OURS,
            synonyms=read_synonyms(settings.synonyms) if settings.synonyms else (),
        )

    def describe(self) -> dict[str, str | int | bool]:
        """Return what this analyzer consists of, ready to be shown or logged."""
        return {
            "version": ANALYSIS_VERSION,
            "segmenter": self._segmenter.identity,
            "dictionary": self._dictionary.digest(),
            "stemmer": self._identifiers.stemmer_identity,
            "stop_words": self._stop_words.digest(),
            "han_folding": han_folding.identity(),
            "han_bigrams": self._han_bigrams,
            "max_terms": self._max_terms,
        }

    def warm_up(self) -> None:
        """Load the dictionary, so that the first text takes no longer than the second."""
        self.terms("记忆 warm-up")

    def check_dictionary(self) -> DictionaryReport:
        """Cut every entry of the user dictionary alone, and tell which do not come out whole."""
        others: dict[str, Rule] = {}
        not_whole = []
        fold_han = han_folding.open_folding()
        for entry in self._dictionary.entries:
            rules = [token.rule for token in self.explain(entry) if token.source == fold_han(entry)]
            found = [rule for rule in rules if rule not in ("stop", "bigram", "character")]
            if not found:
                not_whole.append(entry)
            elif "dictionary" not in found:
                others[entry] = found[0]
        return DictionaryReport(len(self._dictionary.entries), others, not_whole)

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

    def question(self, text: str) -> Question:
        """Return the terms of a question and of its synonyms, which count less. Errors as in `terms`.

        What is no word, and what counts by its parts as well, counts less too (`WEIGHTS`). Words that ask are left
        out, unless nothing else is in the question.
        """
        tokens = self.explain(text)
        weights: dict[str, float] = {}
        asking = self._stop_words.han_questions
        for token in tokens:
            if token.term not in asking:
                weights[token.term] = max(weights.get(token.term, 0.0), WEIGHTS.get(token.rule, 1.0))
        weights = weights or dict.fromkeys([token.term for token in tokens], 1.0)
        synonym_of: dict[str, str] = {}
        if self._synonyms:
            for one in self._synonyms.of(text):
                if one.synonym_of and (one.term in synonym_of or one.term not in weights):
                    weights[one.term] = max(weights.get(one.term, 0.0), one.weight)
                    synonym_of.setdefault(one.term, one.synonym_of)
        if len(weights) > self._max_terms:
            raise TooManyTerms(len(weights), self._max_terms)
        return Question(weights, synonym_of)

    def query_terms(self, text: str) -> dict[str, float]:
        """Return the weights of `question(text)`."""
        return self.question(text).weights

    def required_terms(self, text: str, passed_over: Iterable[str] = ()) -> list[str]:
        """Return those of the `query_terms` that a text must have to say all that the question says.

        Left out are synonyms, and what a net of Han characters and pairs has besides the words: pairs across the border
        of two words, and characters of a word; and what stands in the pieces of the text that are `passed_over`. Where
        the segmenter knows no word, the pairs count. Errors as in `question`.
        """
        weights, synonym_of = self.question(text)
        for piece in passed_over:
            text = text.replace(piece, " ", 1)
        required: dict[str, None] = {}
        for number, part in enumerate(split_han(normalise(text))):
            terms = self._han_runs.core(part) if number % 2 else [one.term for one in self._identifiers.tokens(part)]
            required |= dict.fromkeys(term for term in terms if term in weights and term not in synonym_of)
        return list(required or weights)

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
        end = 0
        for date in han_dates(text) if _YEAR in text and not stop else ():
            start = text.index(date.source, end)
            end = start + len(date.source)
            for token in date.tokens():
                if token.term in wanted:
                    yield Place(start, end, token.term)
        yield from self._han_runs.places(text, filter(find_han, wanted), stop=stop)
        start = 0
        for number, part in enumerate(split_han(text)):
            if number % 2 == 0:
                for begin, stop_at, term in self._identifiers.places(part, wanted, stop=stop):
                    yield Place(start + begin, start + stop_at, term)
            start += len(part)

    def explain(self, text: str) -> list[Token]:
        """Return the tokens of `text` with the rule that made each; counted, they are `terms(text)`."""
        tokens = self._tokens(normalise(text))
        return [token for token in tokens if token.rule != "stop"] or tokens

    def explain_question(self, text: str) -> list[QuestionTerm]:
        """Return the terms of `question(text)` with the rule by which each counts what it counts."""
        weights, synonym_of = self.question(text)
        rules: dict[str, Rule] = {}
        for term, rule, _ in self.explain(text):
            if term not in rules or WEIGHTS.get(rule, 1.0) > WEIGHTS.get(rules[term], 1.0):
                rules[term] = rule
        for one in self._synonyms.of(text) if self._synonyms else ():
            rules.setdefault(one.term, one.rule)
        return [QuestionTerm(term, rules[term], weight, synonym_of.get(term)) for term, weight in weights.items()]

    def _words(self, text: str) -> Words:
        """Return a text as synonyms see it."""
        units: list[str] = []
        han: set[str] = set()
        for number, part in enumerate(split_han(normalise(text))):
            if number % 2:
                run, words = self._han_runs.words(part)
                units += run
                han |= words
            else:
                units += (token.term for token in self._identifiers.tokens(part) if token.rule in _PLAIN)
        return Words(tuple(units), frozenset(han))

    def _tokens(self, text: str) -> list[Token]:
        tokens = [token for date in han_dates(text) for token in date.tokens()] if _YEAR in text else []
        for number, part in enumerate(split_han(text)):
            tokens += (self._han_runs if number % 2 else self._identifiers).tokens(part)
        return tokens

    def _content(self, text: str) -> list[str] | None:
        """Return the terms of all occurrences without stop words, or None if that takes the way of `explain`.

        The same rules as there, but the text is cut first and its pieces are normalised one by one, so that frequent
        pieces are looked up. Common Han characters are their own normal form and never compose.
        """
        terms: list[str] = []
        dates: list[str] = []
        han, other = self._han_runs.terms, self._identifiers.terms
        is_han = False
        parts = split_common_han(text)
        for at, part in enumerate(parts):
            # Only the last run of a date may have a second character: that with 日, or with 月 where there is no day.
            if part == _YEAR and at + 2 < len(parts) and parts[at + 2].startswith(_MONTH):
                around = normalise("".join(parts[at - 1 : at + _PARTS_OF_A_DATE]))
                dates += (token.term for date in han_dates(around) for token in date.tokens())
            found = han(part) if is_han else other(part)
            if found is None:
                return None
            terms += found
            is_han = not is_han
        return dates + terms if dates else terms
