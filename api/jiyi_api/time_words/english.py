"""Time words of English that start from now: days, weekdays, weeks and longer, so long ago, the last so many.

`sun`, `second`, `now` and other words that are also something else count only where the words beside them leave no
doubt.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from jiyi_api.time_words import english_dates
from jiyi_api.time_words.clock import FEW, Count, one_day, part_of_month, part_of_year
from jiyi_api.time_words.english_dates import THIRD, THIRDS
from jiyi_api.time_words.english_words import PART, SPACE, TURNS, WEEKDAY, WEEKDAYS, english, spoken

if TYPE_CHECKING:
    from jiyi_api.time_words.clock import Clock, Range

_NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {word: value for value, word in enumerate(_NUMBER_WORDS, 1)} | {"a": 1, "an": 1, "": 1}
_WEEKDAY_WORDS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_WEEKDAY_WORDS = ("mon", "tue", "tues", "wed", "thu", "thur", "thurs", "fri")
_DAY_WORDS = {"yesterday": -1, "today": 0, "tomorrow": 1, "last": -1, "this": 0}
_HALVES = {"year": (6, "month"), "hour": (30, "minute")}

_TURN = "(?P<turn>last|previous|this|current|next|coming)"
_COUNT = f"(?P<count>[0-9]{{1,4}}|an?|{'|'.join(_NUMBER_WORDS)}|(?:a{SPACE})?(?:couple(?:{SPACE}of)?|few)|several)"
_UNIT = "(?P<unit>day|week|month|quarter|year|hour|minute|second)s?"
_LONG_UNIT = "(?P<unit>week|weekend|month|quarter|year)"
_NOT_OF = rf"(?!{SPACE}of\b)"
# A habit or a name. The short forms need a word before them that leaves no doubt.
_NO_WEEKDAY = "".join(
    f"(?<!{word} )" for word in ("every", "each", "black", "good", "ash", "palm", "easter", "cyber", "casual")
)
_AFTER_PLACE = "(?:" + "|".join(rf"(?<=\b{word} )" for word in ("on", "since", "before", "after", "until")) + ")"
# The day before Monday is not before Monday.
_NO_DISTANCE = "".join(rf"(?<!\b{word} )" for word in ("day", "night", "week", "month", "year"))

PREFIX = re.compile(
    rf"\b(?:(?P<since>since)|(?P<before>{_NO_DISTANCE}before|prior{SPACE}to)|(?P<after>{_NO_DISTANCE}after)"
    rf"|(?P<until>until|till|up{SPACE}to)|(?P<origin>from)){SPACE}(?:the{SPACE})?$"
)
SUFFIX = re.compile(rf"{SPACE}(?:(?P<since>onwards?|and{SPACE}later)|(?P<origin>on))\b(?!-)")


def _number(text: str) -> Count:
    if text.isdecimal():
        return Count(int(text), int(text))
    if "few" in text or text == "several":
        return FEW
    number = 2 if "couple" in text else _NUMBERS[text]
    return Count(number, number)


def _unit(match: re.Match[str], clock: Clock) -> Range:
    """Give last week, this year, the end of next month."""
    unit, third = match["unit"], match["third"]
    days = clock.unit(unit, TURNS[match["turn"]])
    if third and unit == "month":
        days = part_of_month(days.first.year, days.first.month, THIRDS[third])
    if third and unit == "year":
        days = part_of_year(days.first.year, THIRDS[third])
    return clock.range(days)


def _unit_before_last(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(clock.unit(match["unit"], -2))


def _weekday(match: re.Match[str], clock: Clock) -> Range:
    """Give Friday, the latest one, today included."""
    return spoken(one_day(clock.weekday(WEEKDAYS.index(match["weekday"][:3]))), match, clock)


def _turned_weekday(match: re.Match[str], clock: Clock) -> Range:
    """Give last Friday, the latest one before today; this or next Friday, of that week."""
    weekday, turn = WEEKDAYS.index(match["weekday"][:3]), TURNS[match["turn"]]
    if turn < 0:
        return spoken(one_day(clock.weekday(weekday, before=1)), match, clock)
    return _weekday_of_week(match, clock)


def _weekday_of_week(match: re.Match[str], clock: Clock) -> Range:
    monday = clock.week(TURNS[match["turn"]]).first
    return spoken(one_day(monday + timedelta(days=WEEKDAYS.index(match["weekday"][:3]))), match, clock)


def _weekend(_match: re.Match[str], clock: Clock) -> Range:
    return clock.range(clock.recent_weekend())


def _day(match: re.Match[str], clock: Clock) -> Range:
    return spoken(one_day(clock.day(_DAY_WORDS[match["word"]])), match, clock)


def _night_before_last(_match: re.Match[str], clock: Clock) -> Range:
    return clock.part(clock.day(-2), "night")


def _tonight(_match: re.Match[str], clock: Clock) -> Range:
    return clock.part(clock.today, "night")


def _other_day(match: re.Match[str], clock: Clock) -> Range:
    """Give the day before yesterday, the day after tomorrow."""
    return clock.range(one_day(clock.day(-2 if match["side"] else 2)))


def _amount(match: re.Match[str]) -> tuple[Count, str]:
    return _number(match["count"]), match["unit"]


def _ago(match: re.Match[str], clock: Clock) -> Range:
    return clock.ago(*_amount(match))


def _half_ago(match: re.Match[str], clock: Clock) -> Range:
    number, unit = _HALVES[match["unit"]]
    return clock.ago(Count(number - number // 5, number + number // 5), unit)  # nobody means that month alone


def _last(match: re.Match[str], clock: Clock) -> Range:
    return clock.last(*_amount(match))


def _recent_day(_match: re.Match[str], clock: Clock) -> Range:
    return clock.ago(Count(1, FEW.high), "day")


def _just_now(_match: re.Match[str], clock: Clock) -> Range:
    return clock.just_now()


RULES = (
    *english_dates.RULES,
    *english(
        ("week", "weekend", "month", "quarter", "year"),
        (rf"{THIRD}?{_TURN}{SPACE}{_LONG_UNIT}{_NOT_OF}", _unit),
        (
            (
                rf"(?:the{SPACE})?{_LONG_UNIT}{SPACE}before{SPACE}last"
                rf"(?!{SPACE}(?:[a-z]{{2,6}}day|night|week|month|quarter|year)\b)"
            ),
            _unit_before_last,
        ),
    ),
    *english(("weekend",), (f"the{SPACE}weekend", _weekend), comes_again="week"),
    *english(
        (*_WEEKDAY_WORDS, *_SHORT_WEEKDAY_WORDS),
        (rf"{WEEKDAY}{PART}{SPACE}(?:of{SPACE})?(?:the{SPACE})?{_TURN}{SPACE}week", _weekday_of_week),
        (rf"{_TURN}{SPACE}week(?:'s)?{SPACE}(?:on{SPACE})?{WEEKDAY}{PART}", _weekday_of_week),
        (rf"(?P<turn>last|previous|past|this|next|coming){SPACE}{WEEKDAY}{PART}", _turned_weekday),
    ),
    *english(
        (*_WEEKDAY_WORDS, *_SHORT_WEEKDAY_WORDS),
        (f"{_NO_WEEKDAY}(?P<weekday>{'|'.join(_WEEKDAY_WORDS)}){PART}", _weekday),
        (f"{_AFTER_PLACE}{WEEKDAY}{PART}", _weekday),
        comes_again="week",
    ),
    *english(("yesterday", "today", "tomorrow"), (f"(?P<word>yesterday|today|tomorrow){PART}", _day)),
    *english(
        ("morning", "afternoon", "evening", "night"),
        (f"(?P<word>this){SPACE}(?P<part>morning|afternoon|evening)", _day),
        (f"(?P<word>last){SPACE}(?P<part>night|evening)", _day),
        (f"(?:the{SPACE})?night{SPACE}before{SPACE}last", _night_before_last),
    ),
    *english(("tonight",), ("tonight", _tonight)),
    *english(
        ("day",),
        (f"(?:the{SPACE})?day{SPACE}(?:(?P<side>before){SPACE}yesterday|after{SPACE}tomorrow)", _other_day),
        (f"the{SPACE}other{SPACE}day", _recent_day),
    ),
    *english(
        ("ago",),
        (f"{_COUNT}{SPACE}{_UNIT}{SPACE}ago", _ago),
        (f"half{SPACE}an?{SPACE}(?P<unit>year|hour){SPACE}ago", _half_ago),
    ),
    *english(
        ("last", "past", "previous"),
        (f"(?:the{SPACE})?(?:last|past|previous){SPACE}{_COUNT}{SPACE}{_UNIT}{_NOT_OF}", _last),
        # The last week is the seven days until now; last week is the calendar's.
        (
            f"(?:the{SPACE}(?:last|past)|past){SPACE}(?P<count>)(?P<unit>day|week|month|quarter|year|hour){_NOT_OF}",
            _last,
        ),
    ),
    *english(("now",), (f"just{SPACE}now", _just_now)),
)
