"""Time words of Chinese, in simplified characters: the larger unit comes first, so pieces stand side by side.

Chinese puts no space between words, so much of the patterns says what a piece must not be the end or the beginning of:
版本周期 has no 本周 in it, 如今年轻 no 今年, 日本月饼 no 本月, 上周一起 is a 上周 and not a 上周一.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from jiyi_api.time_words.clock import (
    FEW,
    Count,
    Days,
    half_of,
    months,
    one_day,
    part_of_month,
    part_of_year,
    quarter_of,
)
from jiyi_api.time_words.dates import YEAR
from jiyi_api.time_words.rules import rules

if TYPE_CHECKING:
    from jiyi_api.time_words.clock import Clock, Range

_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"两": 2}
_WEEKDAYS = {character: value for value, character in enumerate("一二三四五六日")} | {"天": 6}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "月": "month", "季度": "quarter",
          "年": "year", "小时": "hour", "钟头": "hour", "分钟": "minute", "秒钟": "second", "秒": "second"}  # fmt: skip
_HALVES = {"年": (6, "month"), "月": (15, "day"), "小时": (30, "minute"), "钟头": (30, "minute")}
_DAY_WORDS = {"大前": -3, "前": -2, "昨": -1, "今": 0, "明": 1, "后": 2, "大后": 3}
_YEAR_WORDS = {"大前": -3, "前": -2, "去": -1, "上": -1, "今": 0, "本": 0, "明": 1, "后": 2}
_PARTS = {"凌晨": "dawn", "清": "morning", "早": "morning", "晨": "morning", "上午": "morning", "中午": "noon",
          "午间": "noon", "下午": "afternoon", "午后": "afternoon", "傍": "dusk"}  # fmt: skip
_THIRDS = {"初": 0, "上": 0, "中": 1, "底": 2, "末": 2, "下": 2}
_YEARS_AHEAD = 10
"""How far in the future a year of two digits may lie; further, it is one of the last century."""

# What stands on the left of no time. A number is one only as a whole.
_NUMBER_LEFT = r"(?<![a-z0-9_./#零一二两三四五六七八九十百千万几第每隔数同])(?<![a-z0-9_]-)(?<!--)"
_OWN = "(?<![日基原根样版成脚课剧书资文副读标抄])本"
_THIS = f"(?:这|{_OWN})"
_LAST = "(?<![爱线网晚早马碰恋撞遇赶楼])上上?上?"
_NEXT = "(?<![以之如及一线楼])下下?下?"
_TURN = f"(?P<turn>{_THIS}|{_LAST}|{_NEXT})"
# And on the right.
_NO_WEEK = "(?!期(?![末中间待望])|围(?!绕)|边(?!界)|岁|转[率金期]|杰伦|星驰)"
_NO_WEEKDAY = (
    "(?![次回遍个位场年岁期名篇份种条件项围鸣福十百些]|(?<=一)(?:[起直共样定般切旦家]|下(?!午))"
    "|(?<=日)[本常期程志报记语元]|(?<=天)[气天数线]|天(?!气))"
)
_NO_MONTH = "(?![球亮台光饼色牙嫂次龄])"
_NO_NAMED_MONTH = "(?!大的|花(?![了费在掉销钱])|革命|天(?!气)|[一两三四几][次回])"
_NO_YEAR = "(?![轻龄级糕味画纪代]|货节)"
_NO_BEFORE = "(?![端面后台天几两三四五六七八九十0-9者期任辈段提景沿置言缀往进来去半年夫妻])"
_NO_AFTER = "(?![端面台来续果者期悔勤备门缀天几两三四五六七八九十0-9半年遗援])"
_NO_MIDDLE = "(?![国文午餐心断等秋间途年学超])"

_PART = (
    "(?: ?的?(?P<part>凌晨|清[晨早]|早[上晨间]|上午|中午|午间|下午|午后|傍晚|晚[上间]|夜[里间晚]|[半深]夜"
    "|[早晚](?![会餐饭点宴于期年班了到就已些先])))"
)
_WEEK = "(?:周|星期|礼拜)"
_WEEKDAY = f"(?P<weekday>[一二三四五六日天]){_NO_WEEKDAY}{_PART}?"
_DAY_NUMBER = "(?P<day>3[01]|[12][0-9]|0?[1-9]|三十一?|二?十[一二三四五六七八九]?|[一二三四五六七八九]) ?[日号]"
_END = f"(?:初(?![中稿步恋级衷])|底(?![层特薪座部线牌])|末(?![尾班梢])|中{_NO_MIDDLE})"
_DAY = f"{_DAY_NUMBER}(?: ?[(]?{_WEEK}[一二三四五六日天]{_NO_WEEKDAY}[)]?)?{_PART}?"
_IN_MONTH = f"(?: ?的? ?(?:{_DAY}|月?(?P<third>[上中下](?=旬)|{_END})旬?))?"
_MONTH = f"(?P<month>1[0-2]|0?[1-9]|十[一二]?|[一二三四五六七八九]) ?月{_NO_MONTH}{_NO_NAMED_MONTH}份?{_IN_MONTH}"
_QUARTER = "第?(?P<quarter>[1-4一二三四])季度"
_HALF = "(?P<half>[上下])半年"
_YEAR = (
    f"(?:{_NUMBER_LEFT}(?:(?P<year>{YEAR}|(?:一九|二零)[零一二三四五六七八九]{{2}})"
    "|(?P<short>[0-9]{2})(?= ?年 ?1?[0-9] ?月))"
    "|(?P<word>大前|(?<![以之目从先生提面跟日当])前|(?<![过失])去|(?<![以之])上|(?<![如现而])今"
    f"|{_OWN}|(?<![文证说声表指透发])明|(?<![以之今此往最背随然])后)) ?年"
)
_COUNT = f"(?!{YEAR} ?年)(?P<count>[0-9]{{1,4}}|[一二两三四五六七八九十百]{{1,4}}|[几数半]) ?"
_UNIT = "(?P<unit>天|个?星期|个?礼拜|周|个月|个?季度|年(?!级)|个?小时|个?钟头|分钟|秒钟?)"
_DAY_WORD = (
    "(?P<word>大[前后](?=天)|(?<![以之目从日先跟年月周天个])前(?=天|晚)|昨|今(?!日头条)|(?<![文证说声表指透发])明"
    "|(?<![以之先最今日然随背天])后(?=天(?!性|形成|养成|条件)))"
)
# 4号 is also the number of a metro line, a house, a player.
_SURELY_DAY = "(?=那[天晚]|当天|[之以][前后]|以来|至今|[我咱]|开会|的?会议|的会|的?讨论|聊|的?日[报志])"

PREFIX = re.compile("(?:(?P<since>自从|自打)|(?P<until>截至|截止到?)|(?P<origin>[自从])) ?$")
SUFFIX = re.compile(
    " ?(?:(?P<since>以来|至今|到现在|起(?![来床飞因源码步点名初草诉]))|(?P<origin>开始)"
    f"|(?P<before>[以之]前|前{_NO_BEFORE})|(?P<after>[以之往]后|后{_NO_AFTER}))"
)


def _number(text: str) -> Count:
    """Read 3, 十二, 两三 (two to three) or 几; raises ValueError for what is no number."""
    if text in {"几", "数"}:
        return FEW
    if text.isdecimal():
        return Count(int(text), int(text))
    if len(text) == 2 and all(character in _DIGITS for character in text):  # noqa: PLR2004 - 两三
        low, high = sorted(_DIGITS[character] for character in text)
        return Count(low, high)
    value, digit = 0, 0
    for character in text:
        if character in _DIGITS:
            if digit:
                raise ValueError("two digits without a unit between them")
            digit = _DIGITS[character]
        else:
            value, digit = value + (digit or 1) * (10 if character == "十" else 100), 0
    return Count(value + digit, value + digit)


def _year(match: re.Match[str], clock: Clock) -> int | None:
    groups = match.groupdict()
    if word := groups.get("word"):
        return clock.today.year + _YEAR_WORDS[word]
    if short := groups.get("short"):
        return int(short) + (2000 if 2000 + int(short) <= clock.today.year + _YEARS_AHEAD else 1900)
    year = groups.get("year")
    return int("".join(str(_DIGITS.get(character, character)) for character in year)) if year else None


def _in_year(match: re.Match[str], year: int) -> Days:
    """Give what the match names in this year."""
    groups = match.groupdict()
    if groups["half"]:
        return half_of(year, 1 if groups["half"] == "上" else 2)
    if quarter := groups["quarter"] or groups.get("letter"):
        return quarter_of(year, _number(quarter).low)
    if groups["month"]:
        return _in_month(groups, *divmod(year * 12 + _number(groups["month"]).low - 1, 12))
    if groups.get("season"):
        return part_of_year(year, _THIRDS[groups["season"]])
    return months(year, 1, 12)


def _in_month(groups: dict[str, str | None], year: int, month0: int) -> Days:
    first, end = months(year, month0 + 1)
    if groups["day"]:
        return one_day(first.replace(day=_number(groups["day"]).low))
    if groups["third"]:
        return part_of_month(year, month0 + 1, _THIRDS[groups["third"]])
    return Days(first, end)


def _spoken(days: Days | None, match: re.Match[str], clock: Clock) -> Range | None:
    """Give the days, or the part of them that the match names; it names one of single days only."""
    part = match.groupdict().get("part")
    if days is None:
        return None
    return clock.part(days.first, _PARTS.get(part, _PARTS.get(part[0], "night"))) if part else clock.range(days)


def _calendar(match: re.Match[str], clock: Clock) -> Range | None:
    year = _year(match, clock)
    days = clock.recent(lambda recent: _in_year(match, recent)) if year is None else _in_year(match, year)
    return _spoken(days, match, clock)


def _years(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(Days(months(int(match["first"]), 1).first, months(int(match["year"]), 1, 12).end))


def _decade(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(months(int(match["year"]), 1, 120))


def _turn(match: re.Match[str]) -> int:
    """Read 这, 本, 上, 上上, 下 as an offset."""
    turn = match["turn"]
    return {"上": -len(turn), "下": len(turn)}.get(turn[0], 0)


def _month(match: re.Match[str], clock: Clock) -> Range | None:
    first = clock.month(_turn(match)).first
    return _spoken(_in_month(match.groupdict(), first.year, first.month - 1), match, clock)


def _quarter(match: re.Match[str], clock: Clock) -> Range:
    return clock.range(clock.quarter(_turn(match)))


def _week(match: re.Match[str], clock: Clock) -> Range | None:
    offset = _turn(match)
    if match["weekend"]:
        return clock.range(clock.weekend(offset))
    week = clock.week(offset)
    if match["weekday"]:
        return _spoken(one_day(week.first + timedelta(days=_WEEKDAYS[match["weekday"]])), match, clock)
    return clock.range(week)


def _weekday(match: re.Match[str], clock: Clock) -> Range | None:
    return _spoken(one_day(clock.weekday(_WEEKDAYS[match["weekday"]])), match, clock)


def _weekend(_match: re.Match[str], clock: Clock) -> Range:
    return clock.range(clock.recent_weekend())


def _day(match: re.Match[str], clock: Clock) -> Range | None:
    day = clock.day(_DAY_WORDS[match["word"]])
    if joined := match["joined"]:
        return clock.part(day, "morning" if joined in "早晨" else "night")
    return _spoken(one_day(day), match, clock)


def _day_of_month(match: re.Match[str], clock: Clock) -> Range | None:
    """Give the latest such day; a month without it is passed over."""
    number = _number(match["day"]).low
    for offset in (0, -1, -2):
        first, end = clock.month(offset)
        day = first + timedelta(days=number - 1)
        if day < end and day <= clock.today:
            return _spoken(one_day(day), match, clock)
    return None


def _amount(match: re.Match[str]) -> tuple[Count, str]:
    unit = match["unit"].removeprefix("个")
    if match["count"] == "半":
        number, unit = _HALVES.get(unit, (0, ""))
        if not number:
            raise ValueError("half of this unit is nothing that people say")
        return Count(number, number), unit
    return _number(match["count"]), _UNITS[unit]


def _ago(match: re.Match[str], clock: Clock) -> Range:
    count, unit = _amount(match)
    if match["count"] == "半":  # nobody means the day or month alone
        count = Count(count.low - count.low // 5, count.high + count.high // 5)
    return clock.ago(count, unit)


def _last(match: re.Match[str], clock: Clock) -> Range:
    return clock.last(*_amount(match))


def _these_days(match: re.Match[str], clock: Clock) -> Range:
    high = 3 if match["count"] == "两" else FEW.high  # 前两天 is said of three days as well
    return clock.ago(Count(1, high), _UNITS[match["unit"].removeprefix("个")])


def _just_now(_match: re.Match[str], clock: Clock) -> Range:
    return clock.just_now()


RULES = (
    *rules(
        "年",
        (
            (
                f"{_YEAR}{_NO_YEAR}度?(?: ?的? ?(?:{_HALF}|{_QUARTER}|{_MONTH}|年?(?P<season>{_END})"
                "|q(?P<letter>[1-4])(?![a-z0-9_])))?"
            ),
            _calendar,
        ),
    ),
    *rules(
        "年",
        (f"{_NUMBER_LEFT}(?P<first>{YEAR}) ?年? ?[到至~–-] ?(?P<year>{YEAR}) ?年", _years),
        (f"{_NUMBER_LEFT}(?P<year>(?:19|20)[0-9]0) ?年代", _decade),
    ),
    # The year before it may be one that is not understood: 475年9月.
    *rules("月季年", (f"{_NUMBER_LEFT}(?<!年)(?<!年的)(?:{_QUARTER}|{_MONTH}|{_HALF})", _calendar), comes_again="year"),
    *rules("月", (f"{_TURN}(?:一?个)?月{_NO_MONTH}{_IN_MONTH}", _month)),
    *rules("季", (f"{_TURN}(?:一?个)?季度", _quarter)),
    *rules(
        "周星礼",
        (f"{_TURN}一?个?{_WEEK}{_NO_WEEK}(?:的?(?:周|(?<=周))(?P<weekend>末)|(?:的?{_WEEK})?{_WEEKDAY})?", _week),
    ),
    *rules(
        "周星礼",
        (f"(?<![一二两三四五六七八九十几半每各隔单双多整数0-9]){_WEEK}{_WEEKDAY}", _weekday),
        ("(?<![每隔单双])周末(?!愉快|快乐)", _weekend),
        comes_again="week",
    ),
    *rules(
        "今昨明前后",
        (f"{_DAY_WORD}(?:[天日儿]{_PART}?|(?P<joined>[早晚晨]|(?<!前)夜)(?:上(?![线市班台传课网映学架]))?)", _day),
    ),
    *rules("日号", (f"{_NUMBER_LEFT}{_DAY_NUMBER}(?:{_PART}|{_SURELY_DAY})", _day_of_month), comes_again="month"),
    *rules(
        "近去这",
        (
            (
                "(?:最近|(?<![附接将靠新邻远临贴])近|过去|这(?!一天)) ?的? ?"
                f"{_COUNT}{_UNIT.replace('天|', '[天日]|', 1)}"
                "(?:[以之]?[来内]|里|间)?"
            ),
            _last,
        ),
    ),
    *rules(
        "前",
        (f"{_NUMBER_LEFT}{_COUNT}{_UNIT}(?:[以之]前|前(?![端台后沿]))", _ago),
        (f"(?<![的之以大从目提日年月周天节跟面])前(?P<count>[几两些]){_UNIT}", _these_days),
    ),
    *rules("刚", ("刚才|刚刚(?!好)", _just_now)),
)
