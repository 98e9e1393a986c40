"""Borders in a text: where it may be cut between characters, words, clauses and sentences. Offsets are code points."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from unicodedata import category, combining

from jiyi.analysis.characters import find_han

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    IsBorder = Callable[[str, int], bool]

# What counts as one character with what stands before it and is no combining mark: non-joiner and joiner, half-width
# kana marks, skin tones, tags.
_EXTENDS = re.compile("[\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]").match
_JOINER = "\u200d"
_VIRAMA = 9
"""The combining class of what joins two Indic letters into one."""
_FLAGS = ("\U0001f1e6", "\U0001f1ff")
_pairs = re.compile(
    "\r\n|[\ud800-\udbff][\udc00-\udfff]"
    # a syllable of Hangul that is written in its parts
    "|[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff][\u1160-\u11ff\ud7b0-\ud7ff]"
).match

# The white space after a border belongs to what it ends.
_sentence_ends = re.compile(r"(?:[。！？!?…\n\r]|\.(?=\s))[\"'”’」』》)）\]】]*\s*+").finditer
_clause_ends = re.compile(r"(?:[，；：、]|[,;:](?=\s)|——|\s[-–—]\s)\s*+").finditer
_REACH = 8
"""How far before a stretch is looked for a sentence that ends just there."""


def is_character_border(text: str, place: int) -> bool:
    """Tell whether a cut at `place` leaves whole what people see as one character.

    Kept together are combining sequences, emoji with their joiners, tones and tags, flags, Hangul syllables, Indic
    conjuncts, CR LF, and surrogates: the rules of UAX #29, a little stricter about joiners.
    """
    if not 0 < place < len(text):
        return True
    before, after = text[place - 1], text[place]
    if _pairs(text, place - 1) or before == _JOINER:
        return False
    if after.isascii():
        return True
    if category(after)[0] == "M" or _EXTENDS(after) or (combining(before) == _VIRAMA and after.isalpha()):
        return False
    return not _is_flag(after) or _flags_before(text, place) % 2 == 0


def is_word_border(text: str, place: int) -> bool:
    """Tell whether a cut at `place` leaves characters and words whole; between Han characters every place is one."""
    if not is_character_border(text, place):
        return False
    if not 0 < place < len(text):
        return True
    around = text[place - 1 : place + 1]
    return find_han(around) is not None or not all(one.isalnum() or one == "_" for one in around)


def last_border(text: str, lowest: int, highest: int, is_border: IsBorder) -> int | None:
    """Return the last border from `lowest` to `highest`, both included, or None."""
    return next((place for place in range(highest, lowest - 1, -1) if is_border(text, place)), None)


def first_border(text: str, lowest: int, highest: int, is_border: IsBorder) -> int | None:
    """Return the first border from `lowest` to `highest`, both included, or None."""
    return next((place for place in range(lowest, highest + 1) if is_border(text, place)), None)


def beginnings(text: str, lowest: int, highest: int) -> Iterator[list[int]]:
    """Yield where sentences begin from `lowest` to `highest`, both included and ascending, then where clauses do."""
    for ends in (_sentence_ends, _clause_ends):
        found = [0, *(match.end() for match in ends(text, max(0, lowest - _REACH), highest))]
        yield [place for place in found if lowest <= place and is_character_border(text, place)]


def _is_flag(character: str) -> bool:
    return _FLAGS[0] <= character <= _FLAGS[1]


def _flags_before(text: str, place: int) -> int:
    count = 0
    while count < place and _is_flag(text[place - 1 - count]):
        count += 1
    return count
