r"""Identifiers: the terms of everything that is not Han, from plain English words to URLs.

The grammar, on normalised text whose case is still as written:

    chunk           letters and digits of any script but Han, combining marks after them; or C++, C#, F#
    inner compound  chunks joined by one to three of  . _ -             ERR_CONN_RESET, v1.2.3, example.com
    compound        inner compounds joined by  / @ : \  among these      user@example.com, src/app/main.py
    URL             scheme://..., up to white space, a quote, a bracket or punctuation that no URL needs

Each level is a term as a whole, folded but not stemmed, and then gives the terms of its parts. So an exact query
finds its identifier first, and a query of a part still finds it.
"""

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from importlib import import_module
from threading import Lock
from typing import TypeAlias
from unicodedata import category

from jiyi.analysis import stop_words
from jiyi.analysis.han_runs import find_han
from jiyi.analysis.normal_form import fold, normalise
from jiyi.analysis.tokens import MAX_TERM_LENGTH, Place, Rule, Token

# Everyday language repeats itself: this many identifiers are remembered with their terms, a few MB. Longer ones (and
# whole sentences between two Han runs) are not worth the memory.
_REMEMBERED = 1 << 15
_LONGEST_REMEMBERED = 48
# Tokens with their places are asked for only where a question has matched.
_REMEMBERED_TOKENS = 1 << 10

# Where Unicode keeps its combining marks; looking only there saves most of the start-up time.
_MARK_BLOCKS = ((0x300, 0x3100), (0xA66F, 0xAC00), (0xFB1E, 0xFE30), (0x10000, 0x12000), (0x16000, 0x17000),
                (0x1BC00, 0x1BD00), (0x1D000, 0x1DB00), (0x1E000, 0x1EA00))  # fmt: skip
_MARKS = "".join(chr(c) for start, stop in _MARK_BLOCKS for c in range(start, stop) if category(chr(c))[0] == "M")

# Possessive throughout, so that every pattern reads its input once, however it ends; and each begins with a character
# class, which the engine skips to quickly. The look-ahead spares Latin text the slow test for a combining mark.
_ALNUM = r"[^\W_]"
_MARKED = rf"(?:(?![\0-\u02ff])[{_MARKS}]++{_ALNUM}*+)*+"
_C_LANGUAGE = (
    rf"(?:\+\+(?<=[Cc]\+\+)(?<!{_ALNUM}[Cc]\+\+)(?<![{_MARKS}][Cc]\+\+)"
    rf"|\#(?<=[CcFf]\#)(?<!{_ALNUM}[CcFf]\#)(?<![{_MARKS}][CcFf]\#))(?![^\W\d])"
)
_CHUNK = rf"{_ALNUM}{_ALNUM}*+{_MARKED}(?:{_C_LANGUAGE})?+"
_INNER = rf"{_CHUNK}(?:[._\-]{{1,3}}+{_CHUNK})*+"
_COMPOUND = rf"{_INNER}(?:[._\-/@:\\]{{1,3}}+{_INNER})*+"
_CONTRACTION = rf"['’](?i:s|t|m|d|ll|re|ve)(?!{_ALNUM})(?![{_MARKS}])"

_identifiers = re.compile(rf"{_COMPOUND}(?:{_CONTRACTION})?+").findall
_contraction = re.compile(_CONTRACTION).search
_outer_parts = re.compile(r"[._\-]*[/@:\\][._\-/@:\\]*").split
_inner_parts = re.compile(r"[._\-]+").split
_is_version = re.compile(r"[Vv][0-9]").match
# fooBar, HTTPServer, base64Encoder; not iPhone, whose i is no word.
_camel_parts = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])").split
_has_two_letters = re.compile(r"[A-Za-z][0-9]*[A-Za-z]").search

_Started: TypeAlias = tuple[Token, int]

_SCHEME_END = "://"
# A scheme has at most 15 characters here, else looking for its end at every word would take quadratic time. No scheme
# has an ß, but in capitals nobody can tell it from SS.
_url = re.compile(
    rf"(?<!{_ALNUM})(?=[A-Za-zß])(?<![{_MARKS}])[A-Za-zß][A-Za-z0-9ß+\-]{{0,14}}+{_SCHEME_END}"
    r"[^\s\x00-\x1f\x7f-\x9f\u200b\ud800-\udfff<>\"'`(){}\[\]|\\^,;!“”‘’«»「」『』《》〈〉【】〔〕〖〗、。·・]*[^\W_]"
    rf"[{_MARKS}]*+"
)


def split_identifiers(text: str) -> list[str]:
    """Return the URLs, compounds and words of non-Han `text` in order, as they are written."""
    if _SCHEME_END not in text:
        return _identifiers(text)
    found: list[str] = []
    end = 0
    for match in _url.finditer(text):
        found += _identifiers(text[end : match.start()])
        found.append(match[0])
        end = match.end()
    return found + _identifiers(text[end:])


class Identifiers:
    """Turns non-Han text into terms."""

    def __init__(self) -> None:
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

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the tokens of normalised `text` including stop words; those of another rule are `terms(text)`."""
        for identifier in split_identifiers(text):
            for token, _ in self._tokens(identifier):
                yield token

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
            is_short = len(identifier) <= _LONGEST_REMEMBERED
            for token, begin in (self._remembered_tokens if is_short else self._tokens)(identifier):
                if token.term in wanted and (token.rule == "stop") is stop:
                    yield Place(start + begin, start + begin + len(token.source), token.term)

    def _text_terms(self, text: str) -> tuple[str, ...] | None:
        normal = normalise(text)
        if (text and not normal) or (not normal.isascii() and find_han(normal)):
            return None
        terms: list[str] = []
        remembered = self._remembered_word
        for word in split_identifiers(normal):
            terms += remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._word_terms(word)
        return tuple(terms)

    def _terms_of(self, identifier: str) -> tuple[str, ...]:
        return (self._remembered_word if len(identifier) <= _LONGEST_REMEMBERED else self._word_terms)(identifier)

    def _word_terms(self, identifier: str) -> tuple[str, ...]:
        return tuple(token.term for token, _ in self._tokens(identifier) if token.rule != "stop")

    def _tokens(self, identifier: str) -> Iterator[_Started]:
        """Yield the tokens of one URL, compound or word, each with where in it its source begins."""
        if identifier.isalnum():
            yield from self._chunk(identifier, 0, is_part=False)
        elif _SCHEME_END in identifier and _url.fullmatch(identifier):
            yield from _whole(identifier, "url", 0)
            scheme, rest = identifier.split(_SCHEME_END, 1)
            for part, start in _placed(_identifiers(rest), rest, len(scheme) + len(_SCHEME_END)):
                yield from self._compound(part, start)
        else:
            yield from self._compound(identifier, 0)

    def _compound(self, compound: str, start: int) -> Iterator[_Started]:
        if apostrophe := _contraction(compound):
            compound = compound[: apostrophe.start()]
        parts = _outer_parts(compound)
        if len(parts) == 1:
            yield from self._inner_compound(compound, start, is_part=False)
            return
        yield from _whole(compound, "compound", start)
        for part, begin in _placed(parts, compound, start):
            yield from self._inner_compound(part, begin, is_part=True)

    def _inner_compound(self, inner: str, start: int, *, is_part: bool) -> Iterator[_Started]:
        parts = _inner_parts(inner)
        if len(parts) == 1:
            yield from self._chunk(inner, start, is_part=is_part)
            return
        yield from _whole(inner, "compound", start)
        if _is_version(inner):
            inner, start = inner[1:], start + 1
            yield from _whole(inner, "version", start)
            parts[0] = parts[0][1:]
        for part, begin in _placed(parts, inner, start):
            yield from self._chunk(part, begin, is_part=True)

    def _chunk(self, chunk: str, start: int, *, is_part: bool) -> Iterator[_Started]:
        yield from self._word(chunk, "word", start, is_part=is_part)
        if _is_version(chunk):
            yield from self._word(chunk[1:], "version", start + 1, is_part=is_part)
        parts = _camel_parts(chunk) if chunk.isascii() and not chunk.islower() else ()
        if len(parts) > 1 and all(map(_has_two_letters, parts)):
            for part, begin in _placed(parts, chunk, start):
                yield from self._word(part, "camel", begin, is_part=True)

    def _word(self, word: str, rule: Rule, start: int, *, is_part: bool) -> Iterator[_Started]:
        """Yield the token of a word without connectors; a single ASCII character counts only where it stands alone."""
        term = fold(word)
        if len(term) > MAX_TERM_LENGTH or (is_part and len(term) == 1 and term.isascii()):
            return
        if not (term.isascii() and term.isalpha()):
            yield Token(term, "literal" if rule == "word" else rule, word), start
        elif term in stop_words.ENGLISH:
            yield Token(term, "stop", word), start
        else:
            with self._stemming:
                yield Token(self._stem_word(term), rule, word), start


def _whole(source: str, rule: Rule, start: int) -> Iterator[_Started]:
    term = fold(source)
    if len(term) <= MAX_TERM_LENGTH:
        yield Token(term, rule, source), start


def _placed(parts: Iterable[str], whole: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield `parts`, which hold all letters and digits of `whole` in order, with their places if it is at `start`."""
    end = 0
    for part in parts:
        begin = whole.index(part, end)
        end = begin + len(part)
        yield part, start + begin
