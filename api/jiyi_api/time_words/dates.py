"""Dates in digits, the same in all languages."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from jiyi_api.time_words.clock import months
from jiyi_api.time_words.rules import rules

if TYPE_CHECKING:
    import re

    from jiyi_api.time_words.clock import Clock, Range

LEFT = r"(?<![a-z0-9_\u00c0-\u024f./\\@#=$+])(?<![a-z0-9_]-)(?<!--)"
"""No part of an identifier, path, number or option stands on the left."""
RIGHT = r"(?![a-z0-9_\u00c0-\u024f]|[.\-/@][a-z0-9_]|[\\=(])"
"""Nor on the right."""
YEAR = "(?:19|20)[0-9]{2}"
_MONTHS = 12
# The hour of an ISO 8601 date is read over: what was written on that day is what is looked for.
_HOUR = r"(?:[t ][0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?(?:z|[+-][0-9]{2}:?[0-9]{2})?)?"


def _day(match: re.Match[str], clock: Clock) -> Range:
    return clock.part(date(int(match["year"]), int(match["month"]), int(match["day"])), None)


def _month(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(months(int(match["year"]), int(match["month"])))


def _day_in_some_order(match: re.Match[str], clock: Clock) -> Range | None:
    month, day = sorted((int(match["one"]), int(match["other"])))
    if month != day <= _MONTHS:  # American or European: nobody can tell
        return None
    return clock.part(date(int(match["year"]), month, day), None)


RULES = rules(
    "-/",
    (
        (
            rf"{LEFT}(?P<year>{YEAR})(?P<mark>[-/])(?P<month>1[0-2]|0?[1-9])(?P=mark)(?P<day>3[01]|[12][0-9]|0?[1-9]){_HOUR}"
            f"{RIGHT}"
        ),
        _day,
    ),
    (f"{LEFT}(?P<year>{YEAR})[-/](?P<month>1[0-2]|0[1-9]){RIGHT}(?!年)", _month),
    (
        f"{LEFT}(?P<one>[0-3]?[0-9])(?P<mark>[-/])(?P<other>[0-3]?[0-9])(?P=mark)(?P<year>{YEAR}){RIGHT}",
        _day_in_some_order,
    ),
)
