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
from collections.abc import Set as AbstractSet
from functools import lru_cache
from importlib import import_module
from threading import Lock
from typing import NamedTuple

from jiyi.analysis import numerals
from jiyi.analysis.characters import ALNUM, MARKS, find_han
from jiyi.analysis.normal_form import fold, normalise
from jiyi.analysis.stop_words import StopWords
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Place, Rule, Token

# Everyday language repeats itself: this many identifiers are remembered with their terms, a few MB. Longer ones (and
# whole sentences between two Han runs) are not worth the memory.
_REMEMBERED = 1 << 15
_LONGEST_REMEMBERED = 48
# Tokens are asked for only of questions, and of memories that one has found: fewer, but each costs more memory.
_REMEMBERED_TOKENS = 1 << 12

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
# fooBar, HTTPServer, base64Encoder; not iPhone, whose i is no word, nor mRNA, IgG or the URLs of an API: of two parts,
# both must be long enough to be words.
_camel_parts = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])").split
_is_long = re.compile(r".{3}").match
_has_two_letters = re.compile(r"[A-Za-z][0-9]*[A-Za-z]").search

_SCHEME_END = "://"
_YEAR = len("2024")
_THOUSAND = "000"
_PAIR = 2
# A scheme has at most 15 characters here, else looking for its end at every word would take quadratic time. No scheme
# has an ß, but in capitals nobody can tell it from SS.
_url = re.compile(
    rf"(?<!{ALNUM})(?=[A-Za-zß])(?<![{MARKS}])[A-Za-zß][A-Za-z0-9ß+\-]{{0,14}}+{_SCHEME_END}"
    r"[^\s\x00-\x1f\x7f-\x9f\u200b\ud800-\udfff<>\"'`(){}\[\]|\\^,;!“”‘’«»「」『』《》〈〉【】〔〕〖〗、。·・]*[^\W_]"
    rf"[{MARKS}]*+"
)


class _Placed(NamedTuple):
    """A token, and where in the text its source begins and ends."""

    token: Token
    start: int
    end: int


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
        self._remembered_tokens = lru_cache(_REMEMBERED_TOKENS)(lambda identifier: tuple(self._tokens(identifier)))

    def terms(self, text: str) -> Iterable[str] | None:
        """Return the terms of `text` without stop words; one entry for each occurrence.

        `text` is a piece between two runs of common Han characters, not yet normalised. None if its normal form cannot
        be told from the piece alone: it contains Han, or nothing but what joins its neighbours.
        """
        return self._remembered_text(text) if len(text) <= _LONGEST_REMEMBERED else self._text_terms(text)

    def tokens(self, text: str) -> list[Token]:
        """Return the tokens of normalised `text` including stop words; those of another rule are `terms(text)`."""
        return [token for identifier in split_identifiers(text) for token, _, _ in self._tokens_of(identifier)]

    def places(self, text: str, wanted: AbstractSet[str], *, stop: bool = False) -> Iterator[Place]:
        """Yield where the `tokens` of normalised `text` have terms of `wanted`, in order of appearance.

        With `stop` they are the stop words among the tokens, else all others.
        """
        if not stop and len(text) <= _LONGEST_REMEMBERED:
            terms = self._remembered_text(text)
            if terms is not None and wanted.isdisjoint(terms):
                return
        identifiers = split_identifiers(text)
        # Each different one is looked at once, and most texts have few that matter.
        found = {one for one in set(identifiers) if stop or not wanted.isdisjoint(self._terms_of(one))}
        if not found:
            return
        for identifier, start in _placed(identifiers, text):
            if identifier not in found:
                continue
            for token, begin, end in self._tokens_of(identifier):
                if token.term in wanted and (token.rule == "stop") is stop:
                    yield Place(start + begin, start + end, token.term)

    def _text_terms(self, text: str) -> tuple[str, ...] | None:
        normal = normalise(text)
        if (text and not normal) or (not normal.isascii() and find_han(normal)):
            return None
        terms: list[str] = []
        remembered = self._remembered_word
        for word in split_identifiers(normal):
            terms += remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._word_terms(word)
        return tuple(terms)

    def _tokens_of(self, identifier: str) -> Iterable[_Placed]:
        return (self._remembered_tokens if len(identifier) <= _LONGEST_REMEMBERED else self._tokens)(identifier)

    def _terms_of(self, identifier: str) -> tuple[str, ...]:
        return (self._remembered_word if len(identifier) <= _LONGEST_REMEMBERED else self._word_terms)(identifier)

    def _word_terms(self, identifier: str) -> tuple[str, ...]:
        return tuple(token.term for token, _, _ in self._tokens(identifier) if token.rule != "stop")

    def _tokens(self, identifier: str) -> Iterator[_Placed]:
        """Yield the tokens of one URL, numeral, compound or word, with their places in it."""
        if identifier.isalpha():
            yield from self._chunk(identifier, 0, is_part=False)
        elif numerals.has_digit(identifier) and (found := self._numeral(identifier)):
            yield from found
        elif identifier.isalnum():
            yield from self._chunk(identifier, 0, is_part=False)
        elif _SCHEME_END in identifier and _url.fullmatch(identifier):
            yield from _whole(identifier, "url", identifier, 0)
            scheme, rest = identifier.split(_SCHEME_END, 1)
            for part, start in _placed(_identifiers(rest), rest, len(scheme) + len(_SCHEME_END)):
                yield from self._compound(part, start)
        else:
            yield from self._compound(identifier, 0)

    def _numeral(self, numeral: str) -> Iterator[_Placed] | None:
        """Return the tokens of a numeral; None for everything else, and for a date that is a compound."""
        if quantity := numerals.quantity_of(numeral):
            return self._quantity(quantity, numeral)
        if " " in numeral and (date := numerals.english_date(numeral)):
            return self._date(date, numeral)
        return None

    def _date(self, date: numerals.Date, source: str) -> Iterator[_Placed]:
        for token in date.tokens():
            yield _Placed(token, 0, len(source))
        for word, start in _placed(_identifiers(source), source):
            yield from self._compound(word, start)

    def _quantity(self, quantity: numerals.Quantity, source: str) -> Iterator[_Placed]:
        number, unit = quantity
        if unit:
            yield from _whole(f"{number}{unit}", "quantity", source, 0)
            written = numerals.number_of(source)
            yield from _whole(number, "number", written, 0)
            if unit != "%":
                rest = source[len(written) :].lstrip(" -")
                yield from _whole(unit, "unit", rest, len(source) - len(rest))
            return
        yield from _whole(number, "number", source, 0)
        # It may be a list all the same, of ports, say; but of what would 000 be the name?
        for part, start in _placed(source.replace(".", ",").split(","), source):
            if part != _THOUSAND:
                yield from self._word(part, "word", start, is_part=True)

    def _compound(self, compound: str, start: int) -> Iterator[_Placed]:
        if apostrophe := _contraction(compound):
            compound = compound[: apostrophe.start()]
        parts = _outer_parts(compound)
        dates = list(numerals.numeric_dates(compound)) if numerals.has_digit(compound) else []
        if dates and dates[0].source == compound:
            for token in dates[0].tokens():
                yield _Placed(token, start, start + len(compound))
            yield from self._word(compound[:_YEAR], "word", start, is_part=True)
            return
        is_part = len(parts) > 1
        if is_part:
            yield from _whole(compound, "compound", compound, start)
        for part, begin in _placed(parts, compound, start):
            yield from self._inner_compound(part, begin, is_part=is_part)
        for date, (source, begin) in zip(dates, _placed([one.source for one in dates], compound, start), strict=True):
            for token in date.tokens():
                yield _Placed(token, begin, begin + len(source))

    def _inner_compound(self, inner: str, start: int, *, is_part: bool) -> Iterator[_Placed]:
        parts = _inner_parts(inner)
        if len(parts) == 1:
            yield from self._chunk(inner, start, is_part=is_part)
            return
        if _is_version(inner):
            yield from _whole(inner, "compound", inner, start)
            inner, start = inner[1:], start + 1
            yield from _whole(inner, "version", inner, start)
            parts[0] = parts[0][1:]
        elif inner == "-".join(parts) and len(parts) == _PAIR and not (joined := "".join(parts)).isdecimal():
            yield from self._word(joined, "compound", start, is_part=False, source=inner)
        else:
            yield from _whole(inner, "compound", inner, start)
        for part, begin in _placed(parts, inner, start):
            yield from self._chunk(part, begin, is_part=True)

    def _chunk(self, chunk: str, start: int, *, is_part: bool) -> Iterator[_Placed]:
        yield from self._word(chunk, "word", start, is_part=is_part)
        if _is_version(chunk):
            yield from self._word(chunk[1:], "version", start + 1, is_part=is_part)
        parts = _camel_parts(chunk) if chunk.isascii() and not chunk.islower() else ()
        if len(parts) > 1 and all(map(_has_two_letters, parts)) and (len(parts) > _PAIR or all(map(_is_long, parts))):
            for part, begin in _placed(parts, chunk, start):
                yield from self._word(part, "camel", begin, is_part=True)

    def _word(self, word: str, rule: Rule, start: int, *, is_part: bool, source: str = "") -> Iterator[_Placed]:
        """Yield the token of a word without connectors; a single ASCII character counts only where it stands alone."""
        source = source or word
        end = start + len(source)
        term = fold(word)
        if len(term) > MAX_TERM_LENGTH or (is_part and len(term) == 1 and term.isascii()):
            return
        if term in self._stop_words:
            yield _Placed(Token(term, "stop", source), start, end)
        elif not (term.isascii() and term.isalpha()):
            yield _Placed(Token(term, "literal" if rule == "word" else rule, source), start, end)
        else:
            with self._stemming:
                yield _Placed(Token(self._stem_word(term), rule, source), start, end)


def _whole(term: str, rule: Rule, source: str, start: int) -> Iterator[_Placed]:
    """Yield the token of a term that is not stemmed."""
    folded = fold(term)
    if len(folded) <= MAX_TERM_LENGTH:
        yield _Placed(Token(folded, rule, source), start, start + len(source))


def _placed(parts: Iterable[str], whole: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield `parts`, which hold all letters and digits of `whole` in order, with their places if it is at `start`."""
    end = 0
    for part in parts:
        begin = whole.index(part, end)
        end = begin + len(part)
        yield part, start + begin
