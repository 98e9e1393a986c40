"""Dates, months, quarters and years in English.

`may`, `march`, `jan` and the like count only where the words beside them leave no doubt, for they are also verbs and
names: in May, May 4, last March, May 2024. So does a year, for it is also a number: in 2024.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jiyi_api.time_words.clock import Days, half_of, months, one_day, part_of_month, part_of_year, quarter_of
from jiyi_api.time_words.dates import YEAR
from jiyi_api.time_words.english_words import PART, SPACE, TURNS, WEEKDAY, english, spoken

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from jiyi_api.time_words.clock import Clock, Range

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PLAIN_MONTHS = ("january", "february", "july", "september", "october", "november", "december")
"""What is neither a verb nor anybody's name."""
_MONTH_WORDS = (*_MONTHS, *_PLAIN_MONTHS, "march", "april", "june", "august", "sept")
_YEAR_WORDS = tuple(map(str, range(1900, 2100)))
_ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4}
THIRDS = {"early": 0, "start": 0, "beginning": 0, "mid": 1, "middle": 1, "late": 2, "end": 2}

_MONTH = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    "|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?P<day>3[01]|[12][0-9]|0?[1-9])"
# Not a size, a place in a list or an amount: after 2000 requests, march 5 miles.
_NO_AMOUNT = (
    rf"(?![0-9a-z_%]|[.:,][0-9]|{SPACE}(?:[mµn]s|[kmgt]?b|px|rpm|usd|km|(?:dollar|euro|line|row|request|token|byte|item"
    "|case|time|step|file|user|word|char|character|record|point|error|test|commit|iteration|epoch|message|document|pixel"
    r"|mile|meter|metre|day|hour|minute|second|millisecond|percent)s?|entries|people|memories)\b)"
)
_YEAR = f"(?P<year>{YEAR}){_NO_AMOUNT}"
_OF_YEAR = f"(?:,?{SPACE}(?:(?:of|in){SPACE})?(?:{_YEAR}|(?P<year_turn>last|this|next){SPACE}year))"
_PLACES = ("in", "of", "by", "from", "since", "before", "after", "until", "till", "during")
_AFTER_PLACE = "(?:" + "|".join(rf"(?<=\b{word} )" for word in _PLACES) + ")"
THIRD = (
    f"(?:(?P<third>early|mid|late|(?:start|beginning|middle|end)(?={SPACE}of))(?:{SPACE}of)?"
    f"(?:-|{SPACE})(?:the{SPACE})?)"
)
_WEEKDAY = f"(?:{WEEKDAY},?{SPACE})?"
_TH = "(?:st|nd|rd|th)"


def _latest(of_year: Callable[[int], Days], match: re.Match[str], clock: Clock) -> Days | None:
    """Give what comes every year, of the year that the match names or else the latest."""
    groups = match.groupdict()
    if year := groups.get("year"):
        return of_year(int(year))
    if turn := groups.get("year_turn"):
        return of_year(clock.today.year + TURNS[turn])
    return clock.recent(of_year)


def _yearly(of_year: Callable[[int], Days], match: re.Match[str], clock: Clock) -> Range | None:
    days = _latest(of_year, match, clock)
    return None if days is None else spoken(days, match, clock)


def _month_number(match: re.Match[str]) -> int:
    return _MONTHS.index(match["month"][:3]) + 1


def _date(match: re.Match[str], clock: Clock) -> Range | None:
    month, day = _month_number(match), int(match["day"])
    return _yearly(lambda year: one_day(months(year, month).first.replace(day=day)), match, clock)


def _month(match: re.Match[str], clock: Clock) -> Range | None:
    month, third = _month_number(match), match.groupdict().get("third")
    if third:
        return _yearly(lambda year: part_of_month(year, month, THIRDS[third]), match, clock)
    return _yearly(lambda year: months(year, month), match, clock)


def _months(match: re.Match[str], clock: Clock) -> Range | None:
    """Give the months up to the latest such, from one that may lie in the year before."""
    first, last = _MONTHS.index(match["first"][:3]) + 1, _month_number(match)
    end = _latest(lambda year: months(year, last), match, clock)
    return end and clock.range(Days(months(end.first.year - (first > last), first).first, end.end))


def _turned_month(match: re.Match[str], clock: Clock) -> Range:
    """Give last March, which is over, this March, of this year, or next March, which has not begun."""
    month, turn, today = _month_number(match), TURNS[match["turn"]], clock.today
    is_other_year = (turn < 0 and month >= today.month) or (turn > 0 and month <= today.month)
    return clock.range(months(today.year + (turn if is_other_year else 0), month))


def _year(match: re.Match[str], clock: Clock) -> Range | None:
    third = match.groupdict().get("third")
    if third:
        return _yearly(lambda year: part_of_year(year, THIRDS[third]), match, clock)
    return _yearly(lambda year: months(year, 1, 12), match, clock)


def _years(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(Days(months(int(match["first"]), 1).first, months(int(match["year"]), 1, 12).end))


def _decade(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(months(int(match["year"]), 1, 120))


def _quarter(match: re.Match[str], clock: Clock) -> Range | None:
    number = _ordinal(match["quarter"])
    return _yearly(lambda year: quarter_of(year, number), match, clock)


def _half(match: re.Match[str], clock: Clock) -> Range | None:
    number = _ordinal(match["half"])
    return _yearly(lambda year: half_of(year, number), match, clock)


def _ordinal(text: str) -> int:
    return _ORDINALS[text] if text in _ORDINALS else int(text)


RULES = (
    *english(
        _MONTH_WORDS,
        (rf"{_WEEKDAY}{_MONTH}\.?{SPACE}(?:the{SPACE})?{_DAY}{_TH}?{_NO_AMOUNT}{_OF_YEAR}?{PART}", _date),
        (rf"{_WEEKDAY}(?:the{SPACE})?{_DAY}{_TH}{SPACE}of{SPACE}{_MONTH}\b{_OF_YEAR}?{PART}", _date),
        (rf"{_WEEKDAY}{_DAY}{_TH}?{SPACE}{_MONTH}\b\.?{_OF_YEAR}{PART}", _date),
        # 4 may, 4 march and 4 mar say nothing without a year.
        (rf"{_DAY}{_TH}?{SPACE}(?!may|mar){_MONTH}\b{PART}", _date),
        (rf"(?<![0-9] ){THIRD}?{_MONTH}\.?{_OF_YEAR}", _month),
        (rf"{THIRD}{_MONTH}", _month),
        (rf"{_AFTER_PLACE}{_MONTH}", _month),
        (f"(?P<month>{'|'.join(_PLAIN_MONTHS)})(?! [0-9]{{1,2}}(?![0-9]))", _month),
        comes_again="year",
    ),
    *english(
        _MONTH_WORDS,
        (
            (
                rf"(?:(?<=from )|(?<=between )){_MONTH.replace('month', 'first', 1)}{SPACE}(?:to|and|until|through)"
                rf"{SPACE}{_MONTH}{_OF_YEAR}?"
            ),
            _months,
        ),
        (rf"(?P<turn>last|past|this|next){SPACE}(?!(?<=this )may){_MONTH}", _turned_month),
    ),
    *english(
        _YEAR_WORDS,
        (rf"(?:{_AFTER_PLACE}|{THIRD}){_YEAR}", _year),
        (r"(?<=\bthe )(?P<year>(?:19|20)[0-9]0)s", _decade),
        (rf"(?<=\bfrom )(?P<first>{YEAR}){SPACE}?(?:to|until|through|-){SPACE}?{_YEAR}", _years),
        (rf"(?<=\bbetween )(?P<first>{YEAR}){SPACE}and{SPACE}{_YEAR}", _years),
    ),
    *english(
        ("q", "quarter"),
        (rf"q(?P<quarter>[1-4]){_OF_YEAR}?", _quarter),
        (rf"(?P<year>{YEAR})[ -]?q(?P<quarter>[1-4])", _quarter),
        (rf"(?P<quarter>first|second|third|fourth|1st|2nd|3rd|4th){SPACE}quarter{_OF_YEAR}", _quarter),
        comes_again="year",
    ),
    *english(
        ("h", "half"),
        (rf"h(?P<half>[12]){_OF_YEAR}", _half),
        (rf"(?P<half>first|second|1st|2nd){SPACE}half{_OF_YEAR}", _half),
    ),
)
