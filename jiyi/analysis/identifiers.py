r"""Identifiers: the terms of everything that is not Han, from plain English words to URLs.

The grammar, on normalised text whose case is still as written:

    chunk           letters and digits of any script but Han, combining marks after them; or C++, C#, F#
    inner compound  chunks joined by one to three of  . _ -             ERR_CONN_RESET, v1.2.3, example.com
    compound        inner compounds joined by  / @ : \  among these      user@example.com, src/app/main.py
    URL             scheme://..., up to white space, a quote, a bracket or punctuation that no URL needs
    numeral         a quantity, a long number or a date, as in `numerals`                10 GB, 1,000, May 4, 2024

Each level is a term as a whole, folded but not stemmed, and then gives the terms of its parts. So an exact query
finds its identifier first, and a query of a part still finds it. Two chunks with a hyphen are, as a whole, the word
that they would be without it: re-index finds reindex, utf-8 utf8, and order-service OrderService. A numeral is the
same term however it is written.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from itertools import chain
from threading import Lock

from jiyi.analysis import numerals
from jiyi.analysis.characters import ALNUM, MARKS, find_han
from jiyi.analysis.normal_form import fold, normalise
from jiyi.analysis.stop_words import StopWords
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Rule, Token

# Everyday language repeats itself: this many identifiers are remembered with their terms, a few MB. Longer ones (and
# whole sentences between two Han runs) are not worth the memory.
_REMEMBERED = 1 << 15
_LONGEST_REMEMBERED = 48

# Possessive throughout, so that every pattern reads its input once, however it ends; and each begins with a character
# class, which the engine skips to quickly. The look-ahead spares Latin text the slow test for a combining mark.
_MARKED = rf"(?:(?![\0-\u02ff])[{MARKS}]++{ALNUM}*+)*+"
_C_LANGUAGE = (
    rf"(?:\+\+(?<=[Cc]\+\+)(?<!{ALNUM}[Cc]\+\+)(?<![{MARKS}][Cc]\+\+)"
    rf"|\#(?<=[CcFf]\#)(?<!{ALNUM}[CcFf]\#)(?<![{MARKS}][CcFf]\#))(?![^\W\d])"
)
_CHUNK = rf"{ALNUM}{ALNUM}*+{_MARKED}(?:{_C_LANGUAGE})?+"
_INNER = rf"{_CHUNK}(?:[._\-]{{1,3}}+{_CHUNK})*+"
_COMPOUND = rf"{_INNER}(?:[._\-/@:\\]{{1,3}}+{_INNER})*+"
_CONTRACTION = rf"['’](?i:s|t|m|d|ll|re|ve)(?!{ALNUM})(?![{MARKS}])"

_identifiers = re.compile(rf"{_COMPOUND}(?:{_CONTRACTION})?+").findall
_contraction = re.compile(_CONTRACTION).search
_outer_parts = re.compile(r"[._\-]*[/@:\\][._\-/@:\\]*").split
_inner_parts = re.compile(r"[._\-]+").split
_is_version = re.compile(r"[Vv][0-9]").match
# fooBar, HTTPServer, base64Encoder; not iPhone, whose i is no word.
_camel_parts = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])").split
_has_two_letters = re.compile(r"[A-Za-z][0-9]*[A-Za-z]").search

_SCHEME_END = "://"
_YEAR = len("2024")
_THOUSAND = "000"
_PAIR = 2
# A scheme has at most 15 characters here, else looking for its end at every word would take quadratic time.
_url = re.compile(
    rf"(?<!{ALNUM})(?=[A-Za-z])(?<![{MARKS}])[A-Za-z][A-Za-z0-9+\-]{{0,14}}+{_SCHEME_END}"
    r"[^\s\x00-\x1f\x7f-\x9f\u200b\ud800-\udfff<>\"'`(){}\[\]|\\^,;!“”‘’«»「」『』《》〈〉【】〔〕〖〗、。·・]*[^\W_]"
    rf"[{MARKS}]*+"
)


def split_identifiers(text: str) -> list[str]:
    """Return the URLs, numerals, compounds and words of non-Han `text` in order, as they are written."""
    if _SCHEME_END not in text:
        return _split_numerals(text)
    found: list[str] = []
    end = 0
    for match in _url.finditer(text):
        found += _split_numerals(text[end : match.start()])
        found.append(match[0])
        end = match.end()
    return found + _split_numerals(text[end:])


def _split_numerals(text: str) -> list[str]:
    if not numerals.may_have_numeral(text):
        return _identifiers(text)
    found: list[str] = []
    end = 0
    for start, stop in numerals.find(text):
        found += _identifiers(text[end:start])
        found.append(text[start:stop])
        end = stop
    return found + _identifiers(text[end:])


class Identifiers:
    """Turns non-Han text into terms."""

    def __init__(self, stop_words: StopWords) -> None:
        self._stop_words = stop_words.others
        stemmer = import_module("Stemmer")
        self.stemmer_identity = f"snowball english {stemmer.version()}"
        # Our memory is the cache of whole identifiers; a stemmer may not be used by two threads at once.
        self._stem_word = stemmer.Stemmer("english", 0).stemWord
        self._stemming = Lock()
        self._remembered_word = lru_cache(_REMEMBERED)(self._word_terms)
        self._remembered_text = lru_cache(_REMEMBERED)(self._text_terms)

    def terms(self, text: str) -> Iterable[str] | None:
        """Return the terms of `text` without stop words; one entry for each occurrence.

        `text` is a piece between two runs of common Han characters, not yet normalised. None if its normal form cannot
        be told from the piece alone: it contains Han, or nothing but what joins its neighbours.
        """
        return self._remembered_text(text) if len(text) <= _LONGEST_REMEMBERED else self._text_terms(text)

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the tokens of normalised `text` including stop words; those of another rule are `terms(text)`."""
        for identifier in split_identifiers(text):
            yield from self._tokens(identifier)

    def _text_terms(self, text: str) -> tuple[str, ...] | None:
        normal = normalise(text)
        if (text and not normal) or (not normal.isascii() and find_han(normal)):
            return None
        terms: list[str] = []
        remembered = self._remembered_word
        for word in split_identifiers(normal):
            terms += remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._word_terms(word)
        return tuple(terms)

    def _word_terms(self, identifier: str) -> tuple[str, ...]:
        return tuple(token.term for token in self._tokens(identifier) if token.rule != "stop")

    def _tokens(self, identifier: str) -> Iterator[Token]:
        """Yield the tokens of one URL, numeral, compound or word."""
        if identifier.isalpha():
            yield from self._chunk(identifier, is_part=False)
        elif numerals.has_digit(identifier) and (found := self._numeral(identifier)):
            yield from found
        elif identifier.isalnum():
            yield from self._chunk(identifier, is_part=False)
        elif _SCHEME_END in identifier and _url.fullmatch(identifier):
            yield from _whole(identifier, "url")
            for rest in _identifiers(identifier.split(_SCHEME_END, 1)[1]):
                yield from self._compound(rest)
        else:
            yield from self._compound(identifier)

    def _numeral(self, numeral: str) -> Iterator[Token] | None:
        """Return the tokens of a numeral; None for everything else, and for a date that is a compound."""
        if quantity := numerals.quantity_of(numeral):
            return self._quantity(quantity, numeral)
        if " " in numeral and (date := numerals.english_date(numeral)):
            words = (self._compound(word) for word in _identifiers(numeral))
            return chain(date.tokens(), chain.from_iterable(words))
        return None

    def _quantity(self, quantity: numerals.Quantity, source: str) -> Iterator[Token]:
        number, unit = quantity
        if unit:
            yield from _whole(f"{number}{unit}", "quantity", source)
            yield from _whole(number, "number", number)
            if unit != "%":
                yield from _whole(unit, "unit")
            return
        yield from _whole(number, "number", source)
        # It may be a list all the same, of ports, say; but of what would 000 be the name?
        for part in source.replace(".", ",").split(","):
            if part != _THOUSAND:
                yield from self._word(part, "word", is_part=True)

    def _compound(self, compound: str) -> Iterator[Token]:
        if apostrophe := _contraction(compound):
            compound = compound[: apostrophe.start()]
        parts = _outer_parts(compound)
        dates = list(numerals.numeric_dates(compound)) if numerals.has_digit(compound) else ()
        if dates and dates[0].source == compound:
            yield from dates[0].tokens()
            yield from self._word(compound[:_YEAR], "word", is_part=True)
            return
        is_part = len(parts) > 1
        if is_part:
            yield from _whole(compound, "compound")
        for part in parts:
            yield from self._inner_compound(part, is_part=is_part)
        for date in dates:
            yield from date.tokens()

    def _inner_compound(self, inner: str, *, is_part: bool) -> Iterator[Token]:
        parts = _inner_parts(inner)
        if len(parts) == 1:
            yield from self._chunk(inner, is_part=is_part)
            return
        if _is_version(inner):
            yield from _whole(inner, "compound")
            yield from _whole(inner[1:], "version")
            parts[0] = parts[0][1:]
        elif inner == "-".join(parts) and len(parts) == _PAIR and not (joined := "".join(parts)).isdecimal():
            yield from self._word(joined, "compound", is_part=False, source=inner)
        else:
            yield from _whole(inner, "compound")
        for part in parts:
            yield from self._chunk(part, is_part=True)

    def _chunk(self, chunk: str, *, is_part: bool) -> Iterator[Token]:
        yield from self._word(chunk, "word", is_part=is_part)
        if _is_version(chunk):
            yield from self._word(chunk[1:], "version", is_part=is_part)
        parts = _camel_parts(chunk) if chunk.isascii() and not chunk.islower() else ()
        if len(parts) > 1 and all(map(_has_two_letters, parts)):
            for part in parts:
                yield from self._word(part, "camel", is_part=True)

    def _word(self, word: str, rule: Rule, *, is_part: bool, source: str = "") -> Iterator[Token]:
        """Yield the token of a word without connectors; a single ASCII character counts only where it stands alone."""
        source = source or word
        term = fold(word)
        if len(term) > MAX_TERM_LENGTH or (is_part and len(term) == 1 and term.isascii()):
            return
        if term in self._stop_words:
            yield Token(term, "stop", source)
        elif not (term.isascii() and term.isalpha()):
            yield Token(term, "literal" if rule == "word" else rule, source)
        else:
            with self._stemming:
                yield Token(self._stem_word(term), rule, source)


def _whole(term: str, rule: Rule, source: str = "") -> Iterator[Token]:
    """Yield the token of a term that is not stemmed; `source` is by default the term itself."""
    folded = fold(term)
    if len(folded) <= MAX_TERM_LENGTH:
        yield Token(folded, rule, source or term)
