"""Finding what a question says about when."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from jiyi_api.ranking import FOREVER_MS
from jiyi_api.time_words import chinese, dates, english
from jiyi_api.time_words.clock import EPOCH, HOUR_MS, Clock, Range
from jiyi_api.time_words.rules import find_signs
from jiyi_api.time_words.writing import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime, tzinfo

    from jiyi_api.time_words.rules import Rule

_RULES = (*dates.RULES, *chinese.RULES, *english.RULES)
_SIGNS = frozenset[str]().union(*(rule.signs for rule in _RULES))
_to = re.compile("[到至~–-]|--|to|until|till|through|thru").fullmatch
_SIX_DAYS_MS = (6 * 24 + 12) * HOUR_MS
"""Leads from a midnight to about noon of the sixth day after, whatever a zone does to its clocks in between."""
_REACH = 16
"""How far to the left of a time the word is looked for that bounds it: 'prior to the' with its spaces."""


class TimeSpan(NamedTuple):
    """A time in a question: what is written there, from character `start` to before `end`, and what it means.

    `since_ms` (inclusive) and `until_ms` (exclusive) are epoch milliseconds, and since is less than until; what is open
    to one side has ∓`FOREVER_MS` there.
    """

    text: str
    start: int
    end: int
    since_ms: int
    until_ms: int


class _Piece(NamedTuple):
    start: int
    end: int
    range: Range
    match: re.Match[str]
    rule: Rule | None
    """What it was found by; None: it was put together."""


def find_time(text: str, now: datetime, zone: tzinfo) -> list[TimeSpan]:
    """Return the times that `text` names, in order and without overlap; a text that names none gives an empty list.

    They are meant as of `now`, in days and weeks (from Monday) of `zone`. What comes every week or year and is named
    without one, such as Friday or 5月4日, is the latest that has begun. The longest reading wins. The time it takes is
    proportional to the length of the text. Raises ValueError if `now` has no zone, and nothing for any text.
    """
    if now.utcoffset() is None:
        raise ValueError("now has no zone; give an aware datetime, such as datetime.now(UTC)")
    folded = fold(text)
    signs = find_signs(folded)
    if _SIGNS.isdisjoint(signs):  # as in most questions
        return []
    present = frozenset(signs)
    rules = [rule for rule in _RULES if not rule.signs.isdisjoint(present)]
    clock = Clock(now, zone)
    spans: list[TimeSpan] = []
    pieces = _joined(folded, _longest(folded, _pieces(folded, clock, rules)), zone)
    for number, piece in enumerate(pieces):
        ceiling = pieces[number + 1].start if number + 1 < len(pieces) else len(folded)
        start, end, found = _bounded(folded, piece, ceiling)
        spans.append(TimeSpan(text[start:end], start, end, *found))
    return spans


def _longest(folded: str, pieces: Iterable[_Piece]) -> list[_Piece]:
    """Keep of overlapping pieces the longest, of equally long ones the first."""
    taken = bytearray(len(folded))
    kept = []
    for piece in sorted(pieces, key=lambda piece: (piece.start - piece.end, piece.start)):
        if not any(taken[piece.start : piece.end]):
            taken[piece.start : piece.end] = b"\1" * (piece.end - piece.start)
            kept.append(piece)
    return sorted(kept, key=lambda piece: piece.start)


def _pieces(folded: str, clock: Clock, rules: Iterable[Rule]) -> Iterator[_Piece]:
    for rule in rules:
        for match in rule.pattern.finditer(folded):
            if found := _meaning(rule, match, clock):
                yield _Piece(*match.span(), found, match, rule)


def _meaning(rule: Rule, match: re.Match[str], clock: Clock) -> Range | None:
    try:
        found = rule.meaning(match, clock)
    except (ValueError, OverflowError):  # 30 February, 9999 years ago
        return None
    # A day that a zone has skipped, to be on the other side of the date line, has no time in it.
    return found if found is not None and found.since_ms < found.until_ms else None


def _joined(folded: str, pieces: list[_Piece], zone: tzinfo) -> list[_Piece]:
    """Make one of two that belong together: from Monday to Friday, 3月到5月, the Friday before May 4."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and (both := _both(folded, joined[-1], piece, zone)):
            joined[-1] = _Piece(joined[-1].start, piece.end, both, piece.match, None)
        else:
            joined.append(piece)
    return joined


def _both(folded: str, first: _Piece, last: _Piece, zone: tzinfo) -> Range | None:
    """Say what two pieces mean together, if they do."""
    gap = folded[first.end : last.start].strip() if last.start - first.end <= _REACH else ""
    if _to(gap) or (gap == "and" and folded.endswith("between ", 0, first.start)):
        found = first.range
        if found.since_ms >= last.range.since_ms:  # March to May, asked in April: so late is the latest May
            found = _again(first, last.range.since_ms, zone) or found
        return Range(found.since_ms, last.range.until_ms) if found.since_ms < last.range.since_ms else None
    if gap in {"before", "after"} and first.rule and first.rule.comes_again == "week":
        return _again(first, last.range.since_ms - 1 if gap == "before" else last.range.until_ms + _SIX_DAYS_MS, zone)
    return None


def _again(piece: _Piece, now_ms: int, zone: tzinfo) -> Range | None:
    """Say what a piece that comes again means at another time."""
    if piece.rule is None or piece.rule.comes_again is None:
        return None
    try:
        then = Clock(EPOCH + timedelta(milliseconds=now_ms), zone)
    except OverflowError:
        return None
    return _meaning(piece.rule, piece.match, then)


def _bounded(folded: str, piece: _Piece, ceiling: int) -> tuple[int, int, Range]:
    """Take in the words beside a piece that make it a bound: since, before, after, until and their like.

    An origin (from, 从) is one only with an end (on, 开始): from Monday on.
    """
    left = max(0, piece.start - _REACH)
    prefix = english.PREFIX.search(folded, left, piece.start) or chinese.PREFIX.search(folded, left, piece.start)
    suffix = english.SUFFIX.match(folded, piece.end, ceiling) or chinese.SUFFIX.match(folded, piece.end, ceiling)
    before, after = prefix and prefix.lastgroup, suffix and suffix.lastgroup
    start, end = piece.start, piece.end
    if prefix and (before != "origin" or after in {"origin", "since"}):
        start = prefix.start()
    if suffix and (after != "origin" or before in {"origin", "since"}) and before not in {"before", "after", "until"}:
        end = suffix.end()
    if piece.rule is None or (start, end) == (piece.start, piece.end):
        return piece.start, piece.end, piece.range
    kind = before if before not in {None, "origin"} else after if after != "origin" else "since"
    since_ms, until_ms = piece.range
    meanings = {
        "since": Range(since_ms, FOREVER_MS),
        "before": Range(-FOREVER_MS, since_ms),
        "after": Range(until_ms, FOREVER_MS),
        "until": Range(-FOREVER_MS, until_ms),
    }
    return start, end, meanings[str(kind)]
