"""Snippets: the passage of a memory that answers a question best, with what was matched in it. Pure, no I/O.

To show one, either put `html` into the page as it is, or build it from `text` and `highlights`, in JavaScript with
`text.slice(start, end)` and `textContent`. `text` is what somebody has written: never put it into a page as HTML.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from html import escape
from math import frexp, isfinite, ldexp
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from jiyi_api import borders
from jiyi_api.borders import is_character_border, is_word_border

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jiyi.analysis import Analyzer, Place

MARK = ("<mark>", "</mark>")
ELLIPSIS = "…"
Span: TypeAlias = tuple[int, int]

_REACH = 32
"""How many characters a cut is moved to spare a word; longer ones are cut."""
_BITS = 40
"""Contributions are turned into whole numbers of so many bits, whose sums are exact in any order."""
_beyond_utf16 = re.compile("[\U00010000-\U0010ffff]").finditer


class Snippet(msgspec.Struct, frozen=True, rename="camel"):
    """A passage of a memory's content and what was matched in it.

    All offsets are UTF-16 code units, as JavaScript, Java and C# count: most emoji count two. (Python counts code
    points; they differ in nothing else.)

    `text` is the passage, not escaped, with an ellipsis where something is left out before or after it; `start` and
    `end` say where in the content it stands, without the ellipses. `highlights` are [start, end] in `text`, ascending,
    neither overlapping nor touching. `html` is `text` with each highlight between the tags, and the only field that is
    safe as HTML: `&`, `<`, `>` and both quotes are escaped. It is the content of an element; in an attribute its tags
    would be text.
    """

    text: str
    start: int
    end: int
    highlights: list[Span]
    html: str


def snippet(
    content: str, terms: Mapping[str, float], analyzer: Analyzer, width: int, mark: tuple[str, str] = MARK
) -> Snippet:
    """Return the best passage of `content`: at most `width` code points, in which `terms` are highlighted.

    `terms` are the matched terms with what each contributes to the score. The best passage has the largest sum of
    contributions, each term counted once; of several, the one with more occurrences, then the earlier. Where it costs
    none of them, it begins with a sentence, else with a clause. A character as people see it is not cut unless it is
    longer than the passage, nor is a word unless there is no other place nearby. What is highlighted is what `analyzer`
    makes the terms from, parts of identifiers as well as whole ones. A content without any of the terms gives its
    beginning, one that fits is given whole.

    `mark` are the tags of a highlight. They go into `html` as they are: take them from the program, never from a
    request. Takes time in proportion to the length of the content. Raises ValueError if `width` is not positive.
    """
    if width < 1:
        raise ValueError(f"width is {width}; it must be at least 1")
    places = analyzer.places(content, terms)
    start, end = _passage(content, places, terms, width)
    before = ELLIPSIS if content[:start].strip() else ""
    after = ELLIPSIS if content[end:].strip() else ""
    text = before + content[start:end] + after
    highlights = _merged(places, start, end, len(before))
    html = _marked(text, highlights, mark)
    passage_start = _in_utf16(content[:start], [(start, start)])[0][0]
    return Snippet(
        text=text,
        start=passage_start,
        end=passage_start + _in_utf16(text, [(len(before), len(text) - len(after))])[0][1] - len(before),
        highlights=_in_utf16(text, highlights),
        html=html,
    )


def _passage(content: str, places: Sequence[Place], terms: Mapping[str, float], width: int) -> Span:
    """Return where the best passage begins and ends."""
    size = len(content)
    if size <= width:
        return 0, size
    first, last = _best_window(places, terms, width)
    # Part of an identifier may have matched: the rest of it is to be seen as well, where there is room.
    after = borders.first_border(content, last, min(last + _REACH, first + width, size), is_word_border)
    last = last if after is None else after
    before = borders.last_border(content, max(0, first - _REACH, last - width), first, is_word_border)
    first = first if before is None else before
    start = _beginning(content, max(0, last - width), first, last, width)
    most = min(start + width, size)
    end = most if most == size else _ending(content, start, last, most)
    stripped = start + len(content[start:end].rstrip())
    border = borders.first_border(content, stripped, end, is_character_border)
    return start, end if border is None else border


def _beginning(content: str, lowest: int, first: int, last: int, width: int) -> int:
    """Return where a passage is to begin that has all from `first` to `last`: `lowest` or later.

    A beginning after `fills` leaves the passage shorter than it may be, for then the content is at its end.
    """
    fills = len(content) - width
    for places in borders.beginnings(content, lowest, first):
        if places and (best := next((place for place in places if place >= fills), places[-1])) <= fills + width // 2:
            return places[-1] if places[-1] <= fills else best
    wanted = max(lowest, min(first - (width - (last - first)) // 2, fills))
    start = borders.first_border(content, wanted, min(first, wanted + _REACH), is_word_border)
    if start is None:
        start = borders.last_border(content, lowest, first, is_character_border)
    if start is None:
        return first  # inside of what is longer than the passage
    while start < first and content[start].isspace() and is_character_border(content, start + 1):
        start += 1
    return start


def _ending(content: str, start: int, last: int, most: int) -> int:
    """Return where a passage from `start` is to end that has all up to `last`: `most` or, to spare a word, before."""
    lowest = max(last, start + 1)
    sentences, _ = borders.beginnings(content, max(lowest, most - (most - start) // 4), most)
    if sentences:
        return sentences[-1]
    end = borders.last_border(content, max(lowest, most - _REACH), most, is_word_border)
    return end or borders.last_border(content, start + 1, most, is_character_border) or most


def _best_window(places: Sequence[Place], terms: Mapping[str, float], width: int) -> Span:
    """Return where the best window's first occurrence begins and its last one ends; (0, 0) without any.

    The window slides from occurrence to occurrence. What enters and what leaves is counted, so each does once.
    """
    worth = _worth(terms)
    spans = [(start, min(end, start + width), term) for start, end, term in places]
    entering = sorted(spans, key=lambda span: span[1])
    counts = dict.fromkeys(terms, 0)
    entered = value = inside = 0
    best, best_start = (-1, -1), 0
    for start, _, term in spans:
        while entered < len(entering) and entering[entered][1] <= start + width:
            new = entering[entered][2]
            value += 0 if counts[new] else worth[new]
            counts[new] += 1
            inside += 1
            entered += 1
        if (value, inside) > best:
            best, best_start = (value, inside), start
        counts[term] -= 1
        inside -= 1
        value -= 0 if counts[term] else worth[term]
    ends = [end for start, end, _ in spans if best_start <= start and end <= best_start + width]
    return best_start, max(ends, default=0)


def _worth(terms: Mapping[str, float]) -> dict[str, int]:
    """Return the contributions as whole numbers; what is no positive number is worth nothing."""
    known = {term: value if isfinite(value) and value > 0 else 0.0 for term, value in terms.items()}
    _, exponent = frexp(max(known.values(), default=0.0))
    return {term: int(ldexp(value, _BITS - exponent)) for term, value in known.items()}


def _merged(places: Iterable[Place], start: int, end: int, shift: int) -> list[Span]:
    """Return what of `places` lies in the passage, in offsets of its text, joined where it overlaps or touches."""
    merged: list[Span] = []
    for begin, stop, _ in places:
        begin, stop = max(begin, start) - start + shift, min(stop, end) - start + shift  # noqa: PLW2901 - same places
        if begin >= stop:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((begin, stop))
    return merged


def _marked(text: str, highlights: Iterable[Span], mark: tuple[str, str]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in highlights:
        pieces += (escape(text[done:start]), mark[0], escape(text[start:end]), mark[1])
        done = end
    return "".join([*pieces, escape(text[done:])])


def _in_utf16(text: str, spans: list[Span]) -> list[Span]:
    """Turn offsets of `text` from code points into UTF-16 code units."""
    doubles = [match.start() for match in _beyond_utf16(text)]
    return [(start + bisect_left(doubles, start), end + bisect_left(doubles, end)) for start, end in spans]
