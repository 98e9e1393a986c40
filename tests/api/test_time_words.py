"""What a question says about when: the golden tables, and the properties that hold for every text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jiyi_api.ranking import FOREVER_MS
from jiyi_api.time_words import find_time, finder
from jiyi_api.time_words.rules import find_signs
from jiyi_api.time_words.writing import fold

SHANGHAI, NEW_YORK = ZoneInfo("Asia/Shanghai"), ZoneInfo("America/New_York")
WEDNESDAY = datetime(2025, 4, 16, 15, 30, tzinfo=SHANGHAI)
"""When the questions of the tables are asked, unless they say otherwise."""


def meant(text, now=WEDNESDAY, zone=SHANGHAI):
    """What was found, as 'words: since/until' in local time; midnight is left out, and what is open too."""
    return "; ".join(
        f"{span.text}: {shown(span.since_ms, zone)}/{shown(span.until_ms, zone)}" for span in found(text, now, zone)
    )


def found(text, now=WEDNESDAY, zone=SHANGHAI):
    spans = find_time(text, now, zone)
    for span in spans:
        assert text[span.start : span.end] == span.text
    return spans


def shown(ms, zone):
    if abs(ms) == FOREVER_MS:
        return ""
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(zone).replace(tzinfo=None)
    return local.isoformat(timespec="milliseconds").removesuffix(":00.000").removesuffix("T00:00")


CHINESE = {
    # days
    "今天": "2025-04-16/2025-04-17",
    "昨天": "2025-04-15/2025-04-16",
    "昨日": "2025-04-15/2025-04-16",
    "前天": "2025-04-14/2025-04-15",
    "大前天": "2025-04-13/2025-04-14",
    "明天": "2025-04-17/2025-04-18",
    "后天": "2025-04-18/2025-04-19",
    "今早": "2025-04-16T05:00/2025-04-16T12:00",
    "昨晚": "2025-04-15T18:00/2025-04-16T06:00",
    "昨夜": "2025-04-15T18:00/2025-04-16T06:00",
    "昨天晚上": "2025-04-15T18:00/2025-04-16T06:00",
    "今天上午": "2025-04-16T05:00/2025-04-16T12:00",
    "昨天的下午": "2025-04-15T12:00/2025-04-15T18:00",
    "前天凌晨": "2025-04-14/2025-04-14T06:00",
    "昨天中午": "2025-04-15T11:00/2025-04-15T14:00",
    # weeks
    "这周": "2025-04-14/2025-04-21",
    "本周": "2025-04-14/2025-04-21",
    "上周": "2025-04-07/2025-04-14",
    "上上周": "2025-03-31/2025-04-07",
    "上星期": "2025-04-07/2025-04-14",
    "上个礼拜": "2025-04-07/2025-04-14",
    "下周": "2025-04-21/2025-04-28",
    "上周五": "2025-04-11/2025-04-12",
    "上周五下午": "2025-04-11T12:00/2025-04-11T18:00",
    "上周的周五": "2025-04-11/2025-04-12",
    "上星期天": "2025-04-13/2025-04-14",
    "本周三": "2025-04-16/2025-04-17",
    "下周三": "2025-04-23/2025-04-24",
    "周三": "2025-04-16/2025-04-17",
    "周四": "2025-04-10/2025-04-11",
    "星期天": "2025-04-13/2025-04-14",
    "礼拜二晚上": "2025-04-15T18:00/2025-04-16T06:00",
    "周末": "2025-04-12/2025-04-14",
    "上周末": "2025-04-12/2025-04-14",
    "这周末": "2025-04-19/2025-04-21",
    # months
    "这个月": "2025-04-01/2025-05-01",
    "本月": "2025-04-01/2025-05-01",
    "上个月": "2025-03-01/2025-04-01",
    "上上个月": "2025-02-01/2025-03-01",
    "上月": "2025-03-01/2025-04-01",
    "下个月": "2025-05-01/2025-06-01",
    "上个月5号": "2025-03-05/2025-03-06",
    "上个月底": "2025-03-21/2025-04-01",
    "这个月初": "2025-04-01/2025-04-11",
    "上月中旬": "2025-03-11/2025-03-21",
    "三月": "2025-03-01/2025-04-01",
    "四月": "2025-04-01/2025-05-01",
    "5月": "2024-05-01/2024-06-01",
    "十二月份": "2024-12-01/2025-01-01",
    "三月底": "2025-03-21/2025-04-01",
    "5月4日": "2024-05-04/2024-05-05",
    "5月4号": "2024-05-04/2024-05-05",
    "4月16日": "2025-04-16/2025-04-17",
    "四月十七号": "2024-04-17/2024-04-18",
    "十二月三十一日晚上": "2024-12-31T18:00/2025-01-01T06:00",
    "5月4日（周六）下午": "2024-05-04T12:00/2024-05-04T18:00",
    "2月29日": "2024-02-29/2024-03-01",
    # years
    "今年": "2025-01-01/2026-01-01",
    "去年": "2024-01-01/2025-01-01",
    "前年": "2023-01-01/2024-01-01",
    "大前年": "2022-01-01/2023-01-01",
    "明年": "2026-01-01/2027-01-01",
    "去年三月": "2024-03-01/2024-04-01",
    "去年的3月": "2024-03-01/2024-04-01",
    "去年12月31号": "2024-12-31/2025-01-01",
    "今年五月": "2025-05-01/2025-06-01",
    "去年年底": "2024-10-01/2025-01-01",
    "2024年": "2024-01-01/2025-01-01",
    "二〇二四年": "2024-01-01/2025-01-01",
    "2024年5月": "2024-05-01/2024-06-01",
    "24年5月": "2024-05-01/2024-06-01",
    "2024年5月4日": "2024-05-04/2024-05-05",
    "2024年2月29日": "2024-02-29/2024-03-01",
    "98年7月": "1998-07-01/1998-08-01",
    "1990年代": "1990-01-01/2000-01-01",
    "第一季度": "2025-01-01/2025-04-01",
    "三季度": "2024-07-01/2024-10-01",
    "去年第四季度": "2024-10-01/2025-01-01",
    "2024年Q3": "2024-07-01/2024-10-01",
    "上个季度": "2025-01-01/2025-04-01",
    "上半年": "2025-01-01/2025-07-01",
    "下半年": "2024-07-01/2025-01-01",
    "去年下半年": "2024-07-01/2025-01-01",
    # so long ago
    "三天前": "2025-04-13/2025-04-14",
    "3天以前": "2025-04-13/2025-04-14",
    "两三天前": "2025-04-13/2025-04-15",
    "两周前": "2025-03-31/2025-04-07",
    "两个月前": "2025-02-01/2025-03-01",
    "十二年前": "2013-01-01/2014-01-01",
    "半年前": "2024-09-01/2024-12-01",
    "半个月前": "2025-03-29/2025-04-05",
    "2小时前": "2025-04-16T12:30/2025-04-16T14:30",
    "几天前": "2025-04-09/2025-04-15",
    "前几天": "2025-04-09/2025-04-16",
    "最近三天": "2025-04-13/2025-04-16T15:30:00.001",
    "过去两周": "2025-04-02/2025-04-16T15:30:00.001",
    "近半年": "2024-10-16/2025-04-16T15:30:00.001",
    "过去24小时": "2025-04-15T15:30/2025-04-16T15:30:00.001",
    "这两天": "2025-04-14/2025-04-16T15:30:00.001",
    "刚才": "2025-04-16T14:30/2025-04-16T15:30:00.001",
    "刚刚": "2025-04-16T14:30/2025-04-16T15:30:00.001",
    # bounds and ranges
    "5月以来": "2024-05-01/",
    "昨天之前": "/2025-04-15",
    "上周以后": "2025-04-14/",
    "2024年前": "/2024-01-01",
    "从3月开始": "2025-03-01/",
    "自从上周": "2025-04-07/",
    "截至昨天": "/2025-04-16",
    "去年三月到五月": "2024-03-01/2024-06-01",
    "3月到5月": "2024-03-01/2024-06-01",
    "周三到周一": "2025-04-09/2025-04-15",
    "2024-05-04到2024-05-06": "2024-05-04/2024-05-07",
}
ENGLISH = {
    "today": "2025-04-16/2025-04-17",
    "Yesterday": "2025-04-15/2025-04-16",
    "tomorrow": "2025-04-17/2025-04-18",
    "the day before yesterday": "2025-04-14/2025-04-15",
    "yesterday morning": "2025-04-15T05:00/2025-04-15T12:00",
    "last night": "2025-04-15T18:00/2025-04-16T06:00",
    "this morning": "2025-04-16T05:00/2025-04-16T12:00",
    "the night before last": "2025-04-14T18:00/2025-04-15T06:00",
    "tonight": "2025-04-16T18:00/2025-04-17T06:00",
    "this week": "2025-04-14/2025-04-21",
    "last week": "2025-04-07/2025-04-14",
    "the last week": "2025-04-09/2025-04-16T15:30:00.001",
    "past week": "2025-04-09/2025-04-16T15:30:00.001",
    "the week before last": "2025-03-31/2025-04-07",
    "next week": "2025-04-21/2025-04-28",
    "last weekend": "2025-04-12/2025-04-14",
    "the weekend": "2025-04-12/2025-04-14",
    "last month": "2025-03-01/2025-04-01",
    "end of last month": "2025-03-21/2025-04-01",
    "past month": "2025-03-16/2025-04-16T15:30:00.001",
    "last quarter": "2025-01-01/2025-04-01",
    "last year": "2024-01-01/2025-01-01",
    "Wednesday": "2025-04-16/2025-04-17",
    "Thursday": "2025-04-10/2025-04-11",
    "last Monday": "2025-04-14/2025-04-15",
    "last Wednesday": "2025-04-09/2025-04-10",
    "last Friday afternoon": "2025-04-11T12:00/2025-04-11T18:00",
    "this Friday": "2025-04-18/2025-04-19",
    "next Friday": "2025-04-25/2025-04-26",
    "Monday of last week": "2025-04-07/2025-04-08",
    "3 days ago": "2025-04-13/2025-04-14",
    "two weeks ago": "2025-03-31/2025-04-07",
    "a couple of months ago": "2025-02-01/2025-03-01",
    "a few days ago": "2025-04-09/2025-04-15",
    "a year ago": "2024-01-01/2025-01-01",
    "half a year ago": "2024-09-01/2024-12-01",
    "half an hour ago": "2025-04-16T14:36/2025-04-16T15:18",
    "an hour ago": "2025-04-16T14:00/2025-04-16T15:00",
    "the last 5 days": "2025-04-11/2025-04-16T15:30:00.001",
    "past two weeks": "2025-04-02/2025-04-16T15:30:00.001",
    "the past 24 hours": "2025-04-15T15:30/2025-04-16T15:30:00.001",
    "the other day": "2025-04-09/2025-04-16",
    "just now": "2025-04-16T14:30/2025-04-16T15:30:00.001",
    "last March": "2025-03-01/2025-04-01",
    "last April": "2024-04-01/2024-05-01",
    "this March": "2025-03-01/2025-04-01",
    "December": "2024-12-01/2025-01-01",
    "March 2024": "2024-03-01/2024-04-01",
    "March of last year": "2024-03-01/2024-04-01",
    "early March": "2025-03-01/2025-03-11",
    "May 4": "2024-05-04/2024-05-05",
    "May 4th": "2024-05-04/2024-05-05",
    "Apr. 16": "2025-04-16/2025-04-17",
    "April 17": "2024-04-17/2024-04-18",
    "May 4 2023": "2023-05-04/2023-05-05",
    "May 4, 2023": "2023-05-04/2023-05-05",
    "4 May 2023": "2023-05-04/2023-05-05",
    "the 4th of May": "2024-05-04/2024-05-05",
    "Saturday, May 4th": "2024-05-04/2024-05-05",
    "Feb 29": "2024-02-29/2024-03-01",
    "2024-05-04": "2024-05-04/2024-05-05",
    "2024/5/4": "2024-05-04/2024-05-05",
    "2024-05-04T23:10:00Z": "2024-05-04/2024-05-05",
    "2024-05": "2024-05-01/2024-06-01",
    "13/5/2024": "2024-05-13/2024-05-14",
    "5/13/2024": "2024-05-13/2024-05-14",
    "5/5/2024": "2024-05-05/2024-05-06",
    "Q1": "2025-01-01/2025-04-01",
    "Q4": "2024-10-01/2025-01-01",
    "Q1 2024": "2024-01-01/2024-04-01",
    "2024 Q1": "2024-01-01/2024-04-01",
    "Q3 last year": "2024-07-01/2024-10-01",
    "second quarter of 2024": "2024-04-01/2024-07-01",
    "first half of 2024": "2024-01-01/2024-07-01",
    "end of 2023": "2023-10-01/2024-01-01",
    "since Monday": "2025-04-14/",
    "before May": "/2024-05-01",
    "after March": "2025-04-01/",
    "since 2023": "2023-01-01/",
    "until yesterday": "/2025-04-16",
    "from March on": "2025-03-01/",
    "Wednesday to Monday": "2025-04-09/2025-04-15",
}


@pytest.mark.parametrize(("words", "expected"), (CHINESE | ENGLISH).items(), ids=map(ascii, CHINESE | ENGLISH))
def test_words_mean_these_times(words, expected):
    """Alone, and in a question; the text of the span is what is written there."""
    assert meant(words) == f"{words}: {expected}"
    for question in (f"{words}，张工说了什么？", f"我想知道 {words} 的事", f"What about {words}?", f"({words})"):
        assert meant(question) == f"{words}: {expected}", question


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("the trip in March", "March: 2025-03-01/2025-04-01"),
        ("in May I was ill", "May: 2024-05-01/2024-06-01"),
        ("the deploy on Fri", "Fri: 2025-04-11/2025-04-12"),
        ("what I said in 2023, and in 2024", "2023: 2023-01-01/2024-01-01; 2024: 2024-01-01/2025-01-01"),
        ("from March to May", "March to May: 2024-03-01/2024-06-01"),
        ("between November and January", "November and January: 2024-11-01/2025-02-01"),
        ("in the 1990s", "1990s: 1990-01-01/2000-01-01"),
        ("between November and May", "November and May: 2023-11-01/2024-06-01"),
        ("between 2020 and 2022", "2020 and 2022: 2020-01-01/2023-01-01"),
        ("in the last week of March", "March: 2025-03-01/2025-04-01"),
        ("the day before Friday", "Friday: 2025-04-11/2025-04-12"),
        ("the Friday before May 4, 2024", "Friday before May 4, 2024: 2024-05-03/2024-05-04"),
        ("the Saturday after May 4, 2024", "Saturday after May 4, 2024: 2024-05-11/2024-05-12"),
        ("the weekend before 6 May 2024", "the weekend before 6 May 2024: 2024-05-04/2024-05-06"),
        ("the week before 6 May 2024", "6 May 2024: 2024-05-06/2024-05-07"),
        ("2008–09年的联赛", ""),
        ("1995到2000年", "1995到2000年: 1995-01-01/2001-01-01"),
        ("2001-02年的标识", ""),
        ("475年9月", ""),
        ("2024-05-04 之前", "2024-05-04 之前: /2024-05-04"),
        ("几天前 前两天", "几天前: 2025-04-09/2025-04-15; 前两天: 2025-04-13/2025-04-16"),
        ("2009年中超", "2009年: 2009-01-01/2010-01-01"),
        ("明天至今天", "明天: 2025-04-17/2025-04-18; 今天: 2025-04-16/2025-04-17"),
        ("the Saturday before May 4, 2024", "Saturday before May 4, 2024: 2024-04-27/2024-04-28"),
        ("我这个月花了多少", "这个月: 2025-04-01/2025-05-01"),
        ("上个月大概花了", "上个月: 2025-03-01/2025-04-01"),
        ("他三年前去的日本", "三年前: 2022-01-01/2023-01-01"),
        ("三天前提过的", "三天前: 2025-04-13/2025-04-14"),
        ("2024 年 5 月 4 日的会", "2024 年 5 月 4 日: 2024-05-04/2024-05-05"),
        ("最近 3 天", "最近 3 天: 2025-04-13/2025-04-16T15:30:00.001"),
        ("3 天前，12 月", "3 天前: 2025-04-13/2025-04-14; 12 月: 2024-12-01/2025-01-01"),
        ("去年初中同学", "去年: 2024-01-01/2025-01-01"),
        ("4 may, 4 march and 4 jan", "4 jan: 2025-01-04/2025-01-05"),
        ("今晚上线", "今晚: 2025-04-16T18:00/2025-04-17T06:00"),
        ("Tuesday morning next week", "Tuesday morning next week: 2025-04-22T05:00/2025-04-22T12:00"),
        ("昨天和前天", "昨天: 2025-04-15/2025-04-16; 前天: 2025-04-14/2025-04-15"),
        ("4号下午开会", "4号下午: 2025-04-04T12:00/2025-04-04T18:00"),
        ("20号那天", "20号: 2025-03-20/2025-03-21"),
        ("31号那天", "31号: 2025-03-31/2025-04-01"),
        ("昨天前端出的错", "昨天: 2025-04-15/2025-04-16"),
        ("上周前往北京", "上周: 2025-04-07/2025-04-14"),
        ("上周一起吃饭", "上周: 2025-04-07/2025-04-14"),
        ("上周一下午", "上周一下午: 2025-04-07T12:00/2025-04-07T18:00"),
        ("上周日志", "上周: 2025-04-07/2025-04-14"),
        ("上周期末考试", "上周: 2025-04-07/2025-04-14"),
        ("上周三张总", "上周三: 2025-04-09/2025-04-10"),
        ("上周开始的项目", "上周: 2025-04-07/2025-04-14"),
        ("昨天晚饭吃了什么", "昨天: 2025-04-15/2025-04-16"),
        ("周一天气", "周一: 2025-04-14/2025-04-15"),
        ("5月1日起床", "5月1日: 2024-05-01/2024-05-02"),
        ("today's plan", "today: 2025-04-16/2025-04-17"),
    ],
)
def test_neighbours_decide(question, expected):
    assert meant(question) == expected


def test_documented_examples():
    """Every row of the table in docs/time-words.md, and each example of what is no time."""
    page = (Path(__file__).parents[2] / "docs" / "time-words.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\| `([^`]+)` \| (\S+) \|$", page, re.MULTILINE)
    assert len(rows) > 50
    for words, expected in rows:
        assert meant(words).partition(": ")[2] == expected, words
    for words in re.findall(r"`([^`]+)`", page.partition("## What is no time")[2].partition("Not understood")[0]):
        assert words in {"in", "since", "last"} or meant(words) == "", words


NO_TIME = """
May I ask you something|you may go|it may be|this may fail|march on|the march of progress|a second try|one second
error 2024|port 2024|2024|20240504|in 2024 ms|after 2000 requests|in 2000 lines|version 2024.5.4|v2024.5|in 2024.1
abc3月|x_3月|CVE-2024-05-04|log_2024-05-04|2024-05-04.log|build-2024-05-04.tar|/2024/05/04/index.html|2024-05-045
5/4/2024|2024-13-01|2024-02-30|2023-02-29|99/99/2024|1.2.2024|192.168.2024|1899年|2100年
yesterday.py|today_report|daytoday|Maybe|marching|Monday.com|Fridays|every Friday|Black Friday|Augustus|decide|autumn
April told me|June and Jan|sun and sat|mon ami|at the last minute|the last day of school|nowhere|ago|in the week
周杰伦|周总|周围|周期|上周期|本周期|版本周期|这周围|爱上周杰伦|一周五天|两周一次|每周五|隔周三|五周年|线上周会
日本月饼|样本月报|登上月球|第3月|每月|3个月|十三月|五月天|一月一次|同一月|当前年份|五月花号|1992年代|6月大的孩子|三月龄|4号线|3号楼|坐4号线去|第4号|32号下午|4号
如今年轻人|失去年轻|以前年度|过去年代|证明年限|以后天天|目前天气|以前天天|文明天空|后天性免疫|今日头条
下午|晚上|早上开会|上午|最近|以前|之后|前面|后来|三天|两周|半年|一年级|三年级学生|2024年级|刚刚好|这一天|每三天前
2月30日|4月31号|February 30|30 Feb 2024|99999 days ago|9999 years ago|春节|去哪儿|前后|今后|recently
"""


@pytest.mark.parametrize("text", NO_TIME.strip().replace("\n", "|").split("|"), ids=ascii)
def test_no_time(text):
    assert meant(text) == ""


@pytest.mark.parametrize(
    ("words", "now", "expected"),
    [
        # borders of weeks, months and years
        ("昨天", "2025-01-01T00:00", "2024-12-31/2025-01-01"),
        ("上周", "2025-01-01T00:00", "2024-12-23/2024-12-30"),
        ("这周", "2025-01-05T23:59", "2024-12-30/2025-01-06"),
        ("上个月", "2025-01-31T12:00", "2024-12-01/2025-01-01"),
        ("上上个月", "2025-01-31T12:00", "2024-11-01/2024-12-01"),
        ("last quarter", "2025-02-01T12:00", "2024-10-01/2025-01-01"),
        ("去年三月", "2025-01-01T00:00", "2024-03-01/2024-04-01"),
        ("周末", "2025-04-19T09:00", "2025-04-19/2025-04-21"),
        ("周末", "2025-04-20T23:59", "2025-04-19/2025-04-21"),
        ("last weekend", "2025-04-20T12:00", "2025-04-12/2025-04-14"),
        ("past month", "2025-03-31T12:00", "2025-02-28/2025-03-31T12:00:00.001"),
        ("past month", "2024-03-31T12:00", "2024-02-29/2024-03-31T12:00:00.001"),
        ("过去一年", "2024-02-29T12:00", "2023-02-28/2024-02-29T12:00:00.001"),
        # leap days
        ("昨天", "2024-03-01T08:00", "2024-02-29/2024-03-01"),
        ("2月29日", "2024-02-28T08:00", "2020-02-29/2020-03-01"),
        ("2月29日", "2024-02-29T00:00", "2024-02-29/2024-03-01"),
        ("Feb 29", "1904-02-28T00:00", "1896-02-29/1896-03-01"),
        ("29号那天", "2025-03-01T00:00", "2025-01-29/2025-01-30"),
        # not in the future
        ("in March", "2025-02-28T23:59", "2024-03-01/2024-04-01"),
        ("in March", "2025-03-01T00:00", "2025-03-01/2025-04-01"),
        ("last March", "2025-03-01T00:00", "2024-03-01/2024-04-01"),
        ("next March", "2025-03-01T00:00", "2026-03-01/2026-04-01"),
        ("5月4日", "2025-05-03T23:59", "2024-05-04/2024-05-05"),
        ("5月4日", "2025-05-04T00:00", "2025-05-04/2025-05-05"),
        ("周五", "2025-04-18T00:00", "2025-04-18/2025-04-19"),
        ("last Friday", "2025-04-18T00:00", "2025-04-11/2025-04-12"),
    ],
)
def test_now_decides(words, now, expected):
    when = datetime.fromisoformat(now).replace(tzinfo=SHANGHAI)
    assert meant(words, when).partition(": ")[2] == expected


@pytest.mark.parametrize(
    ("words", "now", "zone", "expected"),
    [
        # the same instant is another day elsewhere
        ("今天", "2025-04-16T15:59+00:00", "Asia/Shanghai", "2025-04-15T16:00/2025-04-16T16:00"),
        ("今天", "2025-04-16T16:00+00:00", "Asia/Shanghai", "2025-04-16T16:00/2025-04-17T16:00"),
        ("today", "2025-04-16T03:59+00:00", "America/New_York", "2025-04-15T04:00/2025-04-16T04:00"),
        ("today", "2025-04-16T04:00+00:00", "America/New_York", "2025-04-16T04:00/2025-04-17T04:00"),
        ("last week", "2025-04-14T03:59+00:00", "America/New_York", "2025-03-31T04:00/2025-04-07T04:00"),
        ("去年", "2024-12-31T16:00+00:00", "Asia/Shanghai", "2023-12-31T16:00/2024-12-31T16:00"),
        ("今天", "2025-04-16T12:00+00:00", "Asia/Kathmandu", "2025-04-15T18:15/2025-04-16T18:15"),
        # days of 23 and 25 hours, and a week and a month with one of them
        ("yesterday", "2025-03-10T16:00+00:00", "America/New_York", "2025-03-09T05:00/2025-03-10T04:00"),
        ("yesterday", "2025-11-03T17:00+00:00", "America/New_York", "2025-11-02T04:00/2025-11-03T05:00"),
        ("last week", "2025-03-12T16:00+00:00", "America/New_York", "2025-03-03T05:00/2025-03-10T04:00"),
        ("in March", "2025-04-12T16:00+00:00", "America/New_York", "2025-03-01T05:00/2025-04-01T04:00"),
        ("last night", "2025-03-09T16:00+00:00", "America/New_York", "2025-03-08T23:00/2025-03-09T10:00"),
        ("3 days ago", "2025-03-11T16:00+00:00", "America/New_York", "2025-03-08T05:00/2025-03-09T05:00"),
        ("the past 24 hours", "2025-03-09T16:00+00:00", "America/New_York", "2025-03-08T16:00/2025-03-09T16:00:00.001"),
        (
            "the Saturday after November 1, 2025",
            "2025-12-01T12:00+00:00",
            "America/New_York",
            "2025-11-08T05:00/2025-11-09T05:00",
        ),
        # a midnight that was jumped over, one that came twice
        ("today", "2024-04-26T12:00+00:00", "Africa/Cairo", "2024-04-25T22:00/2024-04-26T21:00"),
        ("today", "2024-11-03T12:00+00:00", "America/Havana", "2024-11-03T04:00/2024-11-04T05:00"),
    ],
)
def test_days_are_those_of_the_zone(words, now, zone, expected):
    """In UTC: a day lasts from the zone's midnight to its next one, however long that is."""
    (span,) = find_time(words, datetime.fromisoformat(now), ZoneInfo(zone))
    assert f"{shown(span.since_ms, UTC)}/{shown(span.until_ms, UTC)}" == expected


def test_day_that_a_zone_skipped_is_no_time():
    """Samoa went from 29 to 31 December 2011, to the other side of the date line."""
    apia = ZoneInfo("Pacific/Apia")
    now = datetime(2012, 1, 2, 12, tzinfo=apia)
    assert find_time("2011-12-30", now, apia) == []
    assert meant("3 days ago", now, apia) == ""
    assert meant("2011-12-29", now, apia) == "2011-12-29: 2011-12-29/2011-12-31"


def test_traditional_and_full_width_forms_mean_the_same():
    pairs = {
        "週五": "周五",
        "這週": "这周",
        "上個月": "上个月",
        "禮拜三": "礼拜三",
        "４號下午": "4号下午",
        "５月４日": "5月4日",
        "２０２４年": "2024年",
        "剛才": "刚才",
        "兩個月前": "两个月前",
        "過去幾天": "过去几天",
        "五月以來": "五月以来",
        "昨天之後": "昨天之后",
        "後天": "后天",
        "２４小時內": "24小时内",
        "Ｑ１　２０２４": "Q1 2024",
        "ｌａｓｔ　ｗｅｅｋ": "last week",
        "從３月開始": "从3月开始",
    }
    for one, other in pairs.items():
        assert [span[1:] for span in found(one)] == [span[1:] for span in found(other)], one


def test_now_needs_a_zone():
    with pytest.raises(ValueError, match="now has no zone; give an aware datetime"):
        find_time("no time", datetime(2025, 4, 16), SHANGHAI)  # noqa: DTZ001


JOINTS = [
    "从",
    "since ",
    "到",
    " to ",
    "between ",
    " and ",
    "from ",
    " on",
    "前",
    "后",
    " ",
    "，",
    "的",
    "-",
    "2",
    "月",
]
PHRASES = [*CHINESE, *ENGLISH, *NO_TIME.split("|"), *JOINTS]
ZONES = ["Asia/Shanghai", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]
questions = st.one_of(st.text(), st.lists(st.sampled_from(PHRASES), max_size=8).map("".join))
instants = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
zones = st.sampled_from(ZONES).map(ZoneInfo)


@given(questions, instants, zones)
def test_spans_are_in_order_and_within_the_text(text, now, zone):
    """Of any text, at any time: nothing is raised."""
    end = 0
    for span in find_time(text, now, zone):
        assert end <= span.start < span.end <= len(text)
        assert text[span.start : span.end] == span.text
        assert -FOREVER_MS <= span.since_ms < span.until_ms <= FOREVER_MS
        end = span.end


@given(questions, st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)]))
def test_what_lies_outside_the_calendar_is_no_time(text, now):
    """Yesterday on the first day of all, next week in the last: nothing is raised."""
    find_time(text, now, UTC)
    find_time("the Saturday after yesterday" + text, now, UTC)


@given(questions)
def test_full_width_means_the_same(text):
    wide = text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000})
    assert [span[1:] for span in find_time(wide, WEDNESDAY, SHANGHAI)] == [
        span[1:] for span in find_time(text, WEDNESDAY, SHANGHAI)
    ]


@given(st.text())
def test_folding_keeps_every_place(text):
    assert len(fold(text)) == len(text)
    assert fold(fold(text)) == fold(text)


WEEKLY = ["上周", "last week", "上周五下午", "last Monday", "周三", "on Friday", "周末", "昨天", "两周前", "最近三天"]


@given(st.sampled_from(WEEKLY), instants, zones)
def test_a_week_later_means_a_week_later(words, now, zone):
    """On the calendar and the clock of the zone, whatever it does with summer time in between."""
    local = now.astimezone(zone).replace(tzinfo=None)
    spans = [find_time(words, (local + timedelta(days=7 * n)).replace(tzinfo=zone), zone) for n in (0, 1)]
    if all(spans):  # not on a day that Apia skipped
        (one,), (other,) = spans
        for first, second in zip(one[3:], other[3:], strict=True):
            assert _local(second, zone) - _local(first, zone) == timedelta(days=7)


def _local(ms, zone):
    return datetime.fromtimestamp(ms / 1000, zone).replace(tzinfo=None)


@given(instants, zones)
def test_yesterday_ends_where_today_begins(now, zone):
    """And now is today."""
    ((*_, since, until),) = find_time("today", now, zone)
    assert since <= now.timestamp() * 1000 < until
    for yesterday in find_time("昨天", now, zone):
        assert yesterday.until_ms == since


@given(questions)
def test_signs_hide_nothing(text):
    """A rule that is passed over for want of its signs would not have matched."""
    folded = fold(text)
    signs = set(find_signs(folded))
    for rule in finder._RULES:
        assert not rule.pattern.search(folded) or rule.signs & signs, rule.pattern.pattern


def test_patterns_repeat_nothing_without_a_limit():
    """So a match takes a bounded number of steps at each character, and a question time in proportion to its length."""
    without_classes = re.compile(r"\\.|\[[^\]]*\]").sub
    for rule in finder._RULES:
        assert not re.search(r"[*+]|\{[0-9]*,\}", without_classes("x", rule.pattern.pattern)), rule.pattern.pattern
