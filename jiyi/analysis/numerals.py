r"""Numerals: quantities, long numbers and dates, which people write in many ways and mean as one.

The grammar, on normalised text; case does not matter:

    number      digits, in threes with commas or not, and a decimal part      1,000   3.5
    quantity    a number and a unit or %, with a space, a hyphen or nothing between       10GB   10 gb   64-bit   3.5 %
    date        2024-05-04   2024/5/4   May 4, 2024   4th of May 2024   2024年5月4日; and months, without the day

Only what can hardly be taken for something else is a numeral: years from 1900 to 2099, days that exist, units of two
letters and more ("3 m" may be anything), commas before every three digits. A version, an address or a telephone number
is none.
"""

import re
from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

from jiyi.analysis.characters import ALNUM, MARKS
from jiyi.analysis.normal_form import fold
from jiyi.analysis.tokens import Token

# Letters that behind a number mean nothing else; "us" is not among them, nor "in".
_UNIT_LIST = (
    "% kb mb gb tb pb kib mib gib tib pib kbit mbit gbit bit bits byte bytes bps kbps mbps gbps"
    " ns μs ms sec secs min mins hr hrs hz khz mhz ghz thz"
    " nm μm mm cm km kg mg μg ng ml μl dl mmol kda mmhg kcal kj mah kwh kw mw kv mv ma db dpi ppm rpm"
    " px qps tps rps fps"
)
_UNITS = frozenset(_UNIT_LIST.split())
_PLURALS = frozenset(("bits", "bytes", "secs", "mins", "hrs"))
_MONTH_LIST = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS = {name: str(at) for at, name in enumerate(_MONTH_LIST.split(), 1)}

_CONNECTOR = r"[._\-/@:\\]"
_LETTER = r"[^\W\d_]"
# Nor does a compound go on where the numeral ends.
_END = rf"(?!{ALNUM}|{_CONNECTOR}{{1,3}}{ALNUM}|['’]{ALNUM})"
# As many groups as fit into any integer of a machine; and it is not a piece of a longer list.
_GROUPED = r"(?<![0-9],[0-9])[0-9]{0,2}+(?:,[0-9]{3}(?![0-9])){1,6}+(?!,[0-9])"
_FRACTION = r"(?:\.[0-9]++)?+"
# Which words are units is looked up later: so many alternatives would be slow.
_UNIT = rf"{_LETTER}{{2,5}}+(?:/{_LETTER}{{1,4}}+)?+"
_QUANTITY = rf"(?:{_GROUPED}|[0-9]*+){_FRACTION}(?:[ \-]?{_UNIT}{_END}|[ ]?%(?!['’]?{ALNUM}))"
_LONG_NUMBER = rf"{_GROUPED}{_FRACTION}(?!['’]?{ALNUM}|\.[0-9])"
_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    rf"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)(?!{ALNUM})\.?"
)
_ORDINAL = "(?:st|nd|rd|th)?"
_YEAR = rf"(?:19|20)[0-9]{{2}}{_END}"
_DAY_FIRST = rf"(?i:[0-9]?{_ORDINAL} (?:of )?{_MONTH},? {_YEAR})"

has_digit = re.compile("[0-9]").search
may_have_numeral = re.compile(rf"[0-9](?:,[0-9]| ?%| {_LETTER}{{2}}|(?<= [12])[09][0-9][0-9](?![0-9]))").search
"""What every numeral has that is not one compound or word anyway; said sooner than where they are."""


class _Finders:
    """What finds numerals, where `before` is a letter, a digit or a mark.

    All begin with a digit, which the engine skips to quickly. It is the first of a compound: there is no letter or
    digit before it, nor one and connectors, but for a long number to which it is the other end. And it is not the last
    group of a number that was none.
    """

    def __init__(self, before: str) -> None:
        connected = "".join(rf"(?<!{before}{_CONNECTOR * count}[0-9])" for count in (1, 2, 3))
        start = (
            rf"[0-9](?<!{before}[0-9])(?:(?<!{_CONNECTOR}[0-9])|{connected}|(?<=,[0-9]{{3}}-[0-9]))"
            r"(?!(?<=[0-9],[0-9])[0-9]{2}(?![0-9]))"
        )
        year = rf"(?<= [12])(?P<year>[09][0-9]{{2}}){_END}"
        self.candidates = re.compile(rf"{start}(?:{_DAY_FIRST}|{year}|{_QUANTITY}|{_LONG_NUMBER})").finditer
        self.quantity_at = re.compile(start + _QUANTITY).match
        self.long_number_at = re.compile(start + _LONG_NUMBER).match
        self.month_before = re.compile(rf"(?<!{before})(?i:{_MONTH})(?: [0-9]{{1,2}}(?i:{_ORDINAL}),?|,)? \Z").search


_anywhere = _Finders(rf"[\w{MARKS}]")
# The test for a mark takes as long as all the rest.
_in_ascii = _Finders(r"\w")
_LONGEST_BEFORE = len("September. 30th, ")

_quantity = re.compile(rf"([0-9,]+{_FRACTION})[ \-]?({_UNIT}|%)").fullmatch
_number = re.compile(rf"[0-9,]+{_FRACTION}").match
_is_long_number = re.compile(rf"[0-9]{_LONG_NUMBER}").fullmatch
_numeric_dates = re.compile(
    r"(?<![0-9])((?:19|20)[0-9]{2})([\-/])(0?[1-9]|1[0-2])(?:\2(0?[1-9]|[12][0-9]|3[01]))?(?![0-9])"
).finditer
_han_dates = re.compile(
    r"(?<![0-9])((?:19|20)[0-9]{2}) ?年 ?(0?[1-9]|1[0-2]) ?月(?: ?(0?[1-9]|[12][0-9]|3[01]) ?[日号號])?"
).finditer
_words = re.compile(r"[^\W\d_]+|[0-9]+").findall
_DIGITS_OF_A_YEAR = 4


def find(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the numerals of a normalised text begin and end, in order.

    All but numbers without commas and dates of digits alone, which are words and compounds.
    """
    end = 0
    finders = _in_ascii if text.isascii() else _anywhere
    for match in finders.candidates(text):
        start, stop = match.span()
        if match["year"]:
            if month := finders.month_before(text, max(end, start - _LONGEST_BEFORE), start):
                start = month.start()
            elif quantity := finders.quantity_at(text, start):
                stop = quantity.end()
        numeral = text[start:stop]
        if not (quantity_of(numeral) or english_date(numeral)):
            # What follows the number is no unit.
            if not (number := finders.long_number_at(text, start)):
                continue
            stop = number.end()
        yield start, stop
        end = stop


class Quantity(NamedTuple):
    """A number without commas, and its unit in the singular, folded (gb, gb/s, %); `unit` is "" for a number alone."""

    number: str
    unit: str


class Date(NamedTuple):
    """A date as terms: `month` as 2024-05, `day` as 2024-05-04 or None; `source` is how it is written."""

    month: str
    day: str | None
    source: str

    def tokens(self) -> Iterator[Token]:
        """Yield day, if there is one, and month."""
        if self.day:
            yield Token(self.day, "date", self.source)
        yield Token(self.month, "month", self.source)


def quantity_of(numeral: str) -> Quantity | None:
    """Return what a numeral measures; None if it is a date, or no numeral."""
    if match := _quantity(numeral):
        unit, slash, per = fold(match[2]).partition("/")
        if unit in _UNITS:
            singular = unit[:-1] if unit in _PLURALS else unit
            return Quantity(match[1].replace(",", ""), singular + slash + per)
    return Quantity(numeral.replace(",", ""), "") if _is_long_number(numeral) else None


def number_of(numeral: str) -> str:
    """Return the number of a quantity as it is written."""
    match = _number(numeral)
    assert match is not None
    return match[0]


def english_date(numeral: str) -> Date | None:
    """Return the date that names its month, if a numeral is one."""
    month = day = year = None
    for word in _words(numeral):
        if not word.isdigit():
            month = month or _MONTHS.get(fold(word)[:3])
        elif len(word) == _DIGITS_OF_A_YEAR:
            year = word
        else:
            day = word
    return _date(year, month, day, numeral) if year and month else None


def numeric_dates(compound: str) -> Iterator[Date]:
    """Yield the dates with hyphens or slashes in a compound."""
    return _dates((match[1], match[3], match[4], match[0]) for match in _numeric_dates(compound))


def han_dates(text: str) -> Iterator[Date]:
    """Yield the dates with 年 and 月 in normalised text."""
    return _dates((match[1], match[2], match[3], match[0]) for match in _han_dates(text))


def _dates(found: Iterator[tuple[str, str, str | None, str]]) -> Iterator[Date]:
    return (one for one in (_date(*parts) for parts in found) if one)


def _date(year: str, month: str, day: str | None, source: str) -> Date | None:
    try:
        whole = date(int(year), int(month), int(day or 1)).isoformat()
    except ValueError:
        return None
    return Date(whole[: len("2024-05")], whole if day else None, source)
