"""The clock and calendar of the one who asks: what days and hours are in epoch milliseconds."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LEAP_DISTANCE = 8
"""29 February comes again after eight years at the latest."""
HOUR_MS = 3_600_000
INSTANT_MS = {"second": 1_000, "minute": 60_000, "hour": HOUR_MS}
"""Units that are lengths of time; days and longer ones are pieces of the calendar, of varying length."""
PARTS = {
    "dawn": (0, 6),
    "morning": (5, 12),
    "noon": (11, 14),
    "afternoon": (12, 18),
    "dusk": (17, 20),
    "evening": (17, 24),
    "night": (18, 30),
}
"""Parts of a day, in hours since its midnight; a night ends on the next morning. They overlap as people's words do."""
RECENT_MS = HOUR_MS
"""How long ago 'just now' may be."""


class Days(NamedTuple):
    """Whole days of the calendar; `end` is the first day after them."""

    first: date
    end: date


class Range(NamedTuple):
    """A range of time in epoch milliseconds; `since_ms` belongs to it, `until_ms` does not."""

    since_ms: int
    until_ms: int


class Count(NamedTuple):
    """How many, at least and at most: 'three' is 3 to 3, 'a few' 2 to 7."""

    low: int
    high: int


FEW = Count(2, 7)


def one_day(day: date) -> Days:
    """Give one day."""
    return Days(day, day + timedelta(days=1))


def months(year: int, month: int, count: int = 1) -> Days:
    """Give `count` whole months from this one on; `month` may lie outside 1 to 12 and then counts on from the year."""
    return Days(_first_of(year, month), _first_of(year, month + count))


def quarter_of(year: int, quarter: int) -> Days:
    """Give a quarter, 1 to 4."""
    return months(year, 3 * quarter - 2, 3)


def half_of(year: int, half: int) -> Days:
    """Give a half of a year, 1 or 2."""
    return months(year, 6 * half - 5, 6)


def part_of_month(year: int, month: int, third: int) -> Days:
    """Give the first ten days of a month (0), the next ten (1), or the rest (2)."""
    first, end = months(year, month)
    cuts = (first, first + timedelta(days=10), first + timedelta(days=20), end)
    return Days(cuts[third], cuts[third + 1])


def part_of_year(year: int, third: int) -> Days:
    """Give what people call the beginning of a year (0: January to March), its middle (1: May to August), or its end
    (2: October to December).
    """  # noqa: D205 - one sentence
    return months(year, (1, 5, 10)[third], (3, 4, 3)[third])


def _first_of(year: int, month: int) -> date:
    index = year * 12 + month - 1
    return date(index // 12, index % 12 + 1, 1)


class Clock:
    """An aware time as now, in a zone.

    A day begins with the first instant that the zone's clocks call so: at a jump over midnight, right after it. All
    methods raise ValueError or OverflowError for what lies outside the calendar (years 1 to 9999).
    """

    def __init__(self, now: datetime, zone: tzinfo) -> None:
        self._zone = zone
        self.today = now.astimezone(zone).date()
        self.now_ms = (now - EPOCH) // _MS

    def range(self, days: Days) -> Range:
        """Give these days from midnight to midnight."""
        return Range(self._ms(days.first, 0), self._ms(days.end, 0))

    def part(self, day: date, part: str | None) -> Range:
        """Give a part of a day (`PARTS`), or with None all of it."""
        since, until = PARTS[part] if part else (0, 24)
        return Range(self._ms(day, since), self._ms(day, until))

    def until_now(self, first: date) -> Range:
        """Give the time from this day on, this very millisecond included."""
        return Range(self._ms(first, 0), self.now_ms + 1)

    def day(self, offset: int) -> date:
        """Give a day: 0 is today, -1 yesterday."""
        return self.today + timedelta(days=offset)

    def week(self, offset: int) -> Days:
        """Give a week from Monday to Sunday: 0 is this one."""
        monday = self.day(7 * offset - self.today.weekday())
        return Days(monday, monday + timedelta(days=7))

    def weekend(self, offset: int) -> Days:
        """Give Saturday and Sunday of a week."""
        monday, end = self.week(offset)
        return Days(monday + timedelta(days=5), end)

    def recent_weekend(self) -> Days:
        """Give the weekend that is now, else the last one."""
        return self.weekend(0 if self.today.weekday() >= 5 else -1)  # noqa: PLR2004 - Saturday

    def weekday(self, weekday: int, before: int = 0) -> date:
        """Give the latest such day (0 is Monday) that is at least `before` days ago."""
        latest = self.day(-before)
        return latest - timedelta(days=(latest.weekday() - weekday) % 7)

    def month(self, offset: int, count: int = 1) -> Days:
        """Give `count` months from one on: 0 is this one."""
        return months(self.today.year, self.today.month + offset, count)

    def quarter(self, offset: int) -> Days:
        """Give a quarter: 0 is this one."""
        return quarter_of(self.today.year, (self.today.month + 2) // 3 + offset)

    def year(self, offset: int) -> Days:
        """Give a year: 0 is this one."""
        return months(self.today.year + offset, 1, 12)

    def unit(self, unit: str, offset: int) -> Days:
        """Give a day, week, weekend, month, quarter or year: 0 is the one that is now."""
        if unit == "day":
            return one_day(self.day(offset))
        named: dict[str, Callable[[int], Days]] = {
            "week": self.week,
            "weekend": self.weekend,
            "month": self.month,
            "quarter": self.quarter,
            "year": self.year,
        }
        return named[unit](offset)

    def recent(self, of_year: Callable[[int], Days], before: date | None = None) -> Days | None:
        """Give what comes every year, from the latest year in which it has begun by today (or ended by `before`)."""
        for year in range(self.today.year, self.today.year - _LEAP_DISTANCE - 1, -1):
            try:
                days = of_year(year)
            except ValueError:  # this year has no 29 February
                continue
            if days.first <= self.today if before is None else days.end <= before:
                return days
        return None

    def ago(self, count: Count, unit: str) -> Range:
        """Give the calendar's unit so many back: of two weeks ago, that week from Monday to Sunday.

        Of hours and shorter units, the instant with half the distance on each side.
        """
        if unit in INSTANT_MS:
            low, high = count.low * INSTANT_MS[unit], count.high * INSTANT_MS[unit]
            return Range(self.now_ms - high - high // 2, self.now_ms - low + low // 2)
        return self.range(Days(self.unit(unit, -count.high).first, self.unit(unit, -count.low).end))

    def last(self, count: Count, unit: str) -> Range:
        """Give the latest so many units until now: of three days, from the midnight that began the day three days ago.

        Of hours and shorter units, to the millisecond.
        """
        high = count.high
        if unit in INSTANT_MS:
            return Range(self.now_ms - high * INSTANT_MS[unit], self.now_ms + 1)
        if unit in {"day", "week"}:
            return self.until_now(self.day(-high * (7 if unit == "week" else 1)))
        first, end = self.month(-high * {"month": 1, "quarter": 3, "year": 12}[unit])
        return self.until_now(min(first + timedelta(days=self.today.day - 1), end - timedelta(days=1)))

    def just_now(self) -> Range:
        """Give the last `RECENT_MS`."""
        return Range(self.now_ms - RECENT_MS, self.now_ms + 1)

    def _ms(self, day: date, hour: int) -> int:
        """Give the first instant at which clocks show this hour, or have jumped over it."""
        local = datetime.combine(day + timedelta(days=hour // 24), time(hour % 24), self._zone)
        return (local - EPOCH) // _MS
