"""Words that the rules of English share, in small letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jiyi_api.time_words.dates import LEFT, RIGHT
from jiyi_api.time_words.rules import rules

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

    from jiyi_api.time_words.clock import Clock, Days, Range
    from jiyi_api.time_words.rules import Cycle, Meaning, Rule

TURNS = {"last": -1, "previous": -1, "past": -1, "this": 0, "current": 0, "next": 1, "coming": 1}
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SPACE = " {1,3}"
WEEKDAY = (
    "(?P<weekday>mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs?(?:day)?)?|fri(?:day)?|saturday|sunday)(?![a-z])"
)
"""A weekday; of the short forms not sat and sun, which are words."""
PART = rf"(?:,?{SPACE}(?:in{SPACE}the{SPACE})?(?P<part>morning|noon|afternoon|evening|night))?"


def spoken(days: Days, match: re.Match[str], clock: Clock) -> Range:
    """Give the days, or the part of them that the match names; it names one of single days only."""
    part = match.groupdict().get("part")
    return clock.part(days.first, part) if part else clock.range(days)


def english(signs: Iterable[str], *meanings: tuple[str, Meaning], comes_again: Cycle | None = None) -> tuple[Rule, ...]:
    """Make rules for whole words."""
    whole = [(f"{LEFT}(?:{pattern}){RIGHT}", meaning) for pattern, meaning in meanings]
    return rules(signs, *whole, comes_again=comes_again)
