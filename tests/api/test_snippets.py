"""Snippets: the golden table of passages and highlights, and the properties that hold for every text."""

from __future__ import annotations

import json
import re
from html import unescape
from math import inf, nan
from time import process_time

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jiyi.analysis import Analyzer
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.normal_form import fold, normalise
from jiyi_api.borders import is_character_border, is_word_border
from jiyi_api.snippets import ELLIPSIS, Snippet, snippet

ANALYZER = Analyzer()
FOLD = open_folding()
ZH = "昨天开会讨论预算。张工说，旋轉監控面板的延遲已經恢復。今天 Redis 的超时问题还没有解决，明天再看。结束。"
EN = "We met on Monday. Alice fixed the timeout of Redis, and Bob reviewed it; nobody complained. The end came at noon."
COUPLE = "👩‍❤️‍💋‍👨"


def in_utf16(text, start, end):
    """Cut as JavaScript does."""
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")


def show(content, question, width):
    """The passage, its highlights in square brackets."""
    return snippet(content, ANALYZER.query_terms(question), ANALYZER, width, ("[", "]")).html


GOLDEN = [
    # the whole content, where it fits
    ("张工修了超时", "超时", 100, "张工修了[超时]"),
    (" a\r\nRedis \n", "redis", 100, " a\r\n[Redis] \n"),
    # where a passage begins and ends
    (ZH, "超时", 26, "…今天 Redis 的[超时]问题还没有解决，明天再看。…"),
    (ZH, "旋转延迟", 20, "…张工说，[旋轉]監控面板的[延遲]已經恢復。…"),
    (ZH, "旋转延迟", 12, "…[旋轉]監控面板的[延遲]已經恢…"),
    (ZH, "结束", 20, "…的超时问题还没有解决，明天再看。[结束]。"),
    (ZH, "预算", 12, "昨天开会讨论[预算]。…"),
    (ZH, "nothing", 12, "昨天开会讨论预算。…"),
    (EN, "timeouts", 40, "…Alice fixed the [timeout] of Redis, and…"),
    (EN, "review", 30, "…and Bob [reviewed] it; nobody…"),
    (EN, "noon", 30, "…The end came at [noon]."),
    (EN, "who complained in Redis", 46, "…[Redis], and Bob reviewed it; nobody [complained].…"),
    ("a\r\n" * 30 + "Redis", "redis", 8, "…a\r\n[Redis]"),
    # identifiers: whole, parts, what only looks like one
    ("ERR_CONN_RESET", "conn", 50, "ERR_[CONN]_RESET"),
    ("connx ERR_CONN_RESET", "ERR_CONN_RESET", 50, "connx [ERR_CONN_RESET]"),
    ("x " * 30 + "ERR_CONN_RESET", "conn", 16, "…x ERR_[CONN]_RESET"),
    ("x " * 30 + "ERR_CONN_RESET" + " y" * 30, "conn", 16, "…ERR_[CONN]_RESET y…"),
    ("call getUserById(1)", "user", 50, "call get[User]ById(1)"),
    ("mail user@example.com, please", "user@example.com", 50, "mail [user@example.com], please"),
    ("mail user@example.com, please", "example", 50, "mail user@[example].com, please"),
    ("see https://ab.cd/ef?g=h.", "https://ab.cd/ef?g=h", 50, "see [https://ab.cd/ef?g=h]."),
    ("v1.20 then 1.20", "1.20", 50, "v[1.20] then [1.20]"),
    ("x https://abc.def/ghi", "https://abc.def/ghi", 12, "…[/abc.def/ghi]"),
    # other writings of the same
    ("請修復軟體", "修复", 50, "請[修復]軟體"),
    ("ＲＥＤＩＳ　超时", "redis", 50, "[ＲＥＤＩＳ]　超时"),
    ("cafe\u0301 au lait", "café", 50, "[cafe\u0301] au lait"),
    ("the ﬁle of 10㎞", "file 10km", 50, "the [ﬁle] of [10㎞]"),
    ("soft\u00adware", "software", 50, "[soft\u00adware]"),
    ("who are you", "are", 50, "who [are] you"),  # nothing but stop words
    # nets of pairs are one highlight
    ("缓存延迟了", "缓存延迟", 50, "[缓存延迟]了"),
    ("缓存和延迟", "缓存延迟", 50, "[缓存]和[延迟]"),
    # emoji
    ("👍🏽 Redis 🇨🇳", "redis", 50, "👍🏽 [Redis] 🇨🇳"),
    (f"{COUPLE}{COUPLE} Redis {COUPLE}{COUPLE}", "redis", 15, f"…[Redis] {COUPLE}…"),
    ("🇨🇳" * 20 + "超时" + "🇨🇳" * 20, "超时", 7, "…🇨🇳[超时]🇨🇳…"),
    ("\u200d0:", "0", 1, "…[0]…"),  # no place for a whole character
    ("e\u0301" * 20, "nothing", 7, "e\u0301" * 3 + "…"),
    # HTML in the content
    ("<script>alert('Redis')</script>", "redis", 50, "&lt;script&gt;alert(&#x27;[Redis]&#x27;)&lt;/script&gt;"),
    ('" onload="redis" & <b>', "redis", 50, "&quot; onload=&quot;[redis]&quot; &amp; &lt;b&gt;"),
    ("<mark>redis</mark> &lt;", "redis mark", 50, "&lt;[mark]&gt;[redis]&lt;/[mark]&gt; &amp;lt;"),
    ("", "redis", 5, ""),
    ("   " * 10, "redis", 5, ""),
]  # fmt: skip


@pytest.mark.parametrize(("content", "question", "width", "expected"), GOLDEN, ids=ascii)
def test_this_content_asked_so_is_shown_like_this(content, question, width, expected):
    assert show(content, question, width) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({"redi": 3.0, "timeout": 1.0, "pool": 1.0}, "[Redis] it is; x x…"),
        ({"redi": 1.9, "timeout": 1.0, "pool": 1.0}, "…[timeout] [pool] [pool]…"),  # worth as much, but more often
        ({"redi": 0.5, "timeout": 0.5}, "[Redis] it is; x x…"),
        ({"redi": nan, "timeout": 0.1}, "…[timeout] pool; x x…"),
        ({"redi": -5.0, "timeout": 0.1, "pool": inf}, "…[timeout] [pool] [pool]…"),
    ],
)
def test_contributions_decide_then_occurrences_then_the_earlier(terms, expected):
    """A sum counts each term once; what is no number counts nothing."""
    content = (
        "Redis it is; " + "x " * 20 + "; timeout pool; " + "x " * 20 + "; timeout pool pool; " + "x " * 20 + "; Redis"
    )
    assert snippet(content, terms, ANALYZER, 17, ("[", "]")).html == expected


def test_offsets_count_utf16_units_and_the_struct_is_json():
    """What a front-end does with the answer, on text with characters beyond 16 bits before, in and after it."""
    content = "😀😀. " + "x" * 30 + ". 😀 Redis 𠀀 redis. " + "x" * 30
    made = snippet(content, {"redi": 1.0}, ANALYZER, 18)
    told = json.loads(msgspec.json.encode(made))
    assert set(told) == {"text", "start", "end", "highlights", "html"}
    assert told["text"] == "…😀 Redis 𠀀 redis.…"
    assert [in_utf16(told["text"], *span) for span in told["highlights"]] == ["Redis", "redis"]
    assert in_utf16(content, told["start"], told["end"]) == told["text"].strip(ELLIPSIS)
    assert told["html"] == "…😀 <mark>Redis</mark> 𠀀 <mark>redis</mark>.…"
    assert msgspec.json.decode(msgspec.json.encode(made), type=Snippet) == made


@pytest.mark.parametrize("width", [0, -1])
def test_width_must_be_positive(width):
    with pytest.raises(ValueError, match=f"width is {width}; it must be at least 1"):
        snippet("x", {}, ANALYZER, width)


@pytest.mark.parametrize(
    "whole",
    [
        "e\u0301",
        COUPLE,
        "👍🏽",
        "🇨🇳",
        "❤️",
        "1️⃣",
        "\r\n",
        "한",
        "\u1112\u1161\u11ab",
        "हि",
        "क्ष",
        "🏴\U000e0067\U000e007f",
        "ｶﾞ",
    ],
)
def test_what_is_seen_as_one_character_has_no_border_inside(whole):
    for text in (whole * 3, f"x{whole}x", f"中{whole}中", whole):
        start = text.index(whole)
        places = [place for place in range(len(text) + 1) if is_character_border(text, place)]
        assert not [place for place in places if start < place < start + len(whole)]
        assert {0, start, start + len(whole), len(text)} <= set(places)


# ---- properties ----

PIECES = st.sampled_from(
    [content for content, _, _, _ in GOLDEN if len(content) < 60]
    + [
        ZH,
        EN,
        "x" * 50,
        "有没有人",
        "研究生命起源",
        "\u0301" * 30,
        "🇨🇳🇨",
        "\u200d" * 9,
        "\ud83d",
        "\udc00",
        "<mark>",
        "…",
        "&lt;",
    ]
)
CHARACTERS = st.text(st.characters(), max_size=12)
CONTENTS = st.lists(
    st.one_of(PIECES, CHARACTERS, st.sampled_from(list(" .-_/@:'+#，。\n\u0301\u200d的"))), max_size=9
).map("".join)
WIDTHS = st.one_of(st.integers(1, 40), st.integers(41, 400))


@st.composite
def questions(draw):
    """A content with some of its terms, some of another's, and any contributions."""
    content = draw(CONTENTS)
    known = sorted({*ANALYZER.terms(content), *ANALYZER.terms(draw(CONTENTS)), "no such"})
    chosen = draw(st.lists(st.sampled_from(known), max_size=8))
    values = st.one_of(st.floats(0, 30), st.sampled_from([1.0, nan, inf, -1.0]))
    return content, {term: draw(values) for term in chosen}


@settings(max_examples=800, deadline=None)
@given(questions(), WIDTHS)
def test_every_snippet_is_a_passage_with_its_highlights(question, width):
    content, terms = question
    made = snippet(content, terms, ANALYZER, width)
    passage = in_utf16(content, made.start, made.end)
    assert len(passage) <= width
    cut = in_utf16(content, 0, made.start), in_utf16(content, made.end, 2 * len(content))
    if passage:
        assert made.text in {before_ + passage + after_ for before_ in ("", ELLIPSIS) for after_ in ("", ELLIPSIS)}
        assert made.text.startswith(ELLIPSIS + passage) or not cut[0].strip()
        assert made.text.endswith(passage + ELLIPSIS) or not cut[1].strip()
    assert len(content) > width or passage == content

    done = -1
    for start, end in made.highlights:
        assert done < start < end
        done = end
        piece = in_utf16(made.text, start, end)
        assert piece in passage
        normal = FOLD(fold(normalise(piece)))
        assert (
            not terms.keys().isdisjoint(ANALYZER.terms(piece))
            or any(term in normal for term in terms)
            or len(content) > width  # cut by an end of the passage
        )
    assert done <= len(made.text.encode("utf-16-le", "surrogatepass")) // 2
    assert bool(made.highlights) or not ANALYZER.places(content, terms)

    bare = made.html.replace("<mark>", "").replace("</mark>", "")
    assert not re.search("[<>\"']", bare)
    assert unescape(bare) == made.text or "\0" in made.text or re.search("[\ud800-\udfff]", made.text)
    assert made.html.count("<mark>") == made.html.count("</mark>") == len(made.highlights)


@settings(max_examples=400, deadline=None)
@given(questions(), WIDTHS)
def test_what_is_highlighted_is_what_the_terms_come_from(question, width):
    """Against the plainest way: mark every character that a place covers."""
    content, terms = question
    assume(not re.search("[\U00010000-\U0010ffff]", content))
    made = snippet(content, terms, ANALYZER, width)
    covered = {offset for start, end, _ in ANALYZER.places(content, terms) for offset in range(start, end)}
    shift = made.start - made.text.startswith(ELLIPSIS + content[made.start : made.end]) * (made.start > 0)
    shown = {offset + shift for start, end in made.highlights for offset in range(start, end)}
    assert shown == covered & set(range(made.start, made.end))


WORDS = st.lists(
    st.sampled_from(
        [
            "redis",
            "timeout",
            "pool",
            "ERR_CONN_RESET",
            "getUserById",
            "x，",
            "超时",
            "张工的",
            "旋轉，有",
            "有人",
            "。",
            "b.",
            "\n",
        ]
    ),
    max_size=40,
).map(" ".join)


@settings(max_examples=600, deadline=None)
@given(
    WORDS,
    st.dictionaries(
        st.sampled_from(
            [
                "redi",
                "timeout",
                "pool",
                "err",
                "conn",
                "err_conn_reset",
                "user",
                "超",
                "超时",
                "张工",
                "工",
                "旋转",
                "转",
            ]
        ),
        st.integers(1, 5).map(float),
        min_size=1,
    ),
    st.integers(14, 80),
)
def test_no_window_has_terms_worth_more(content, terms, width):
    """The plainest way: every window that begins with an occurrence."""
    places = ANALYZER.places(content, terms)

    def worth(start, end):
        inside = [place for place in places if start <= place.start and place.end <= end]
        return sum(terms[term] for term in {place.term for place in inside}), len(inside)

    made = snippet(content, terms, ANALYZER, width)
    windows = [(worth(place.start, place.start + width), -place.start) for place in places]
    best = max(windows, default=((0, 0), 0))
    assert worth(made.start, made.end) >= best[0]
    if len(content) > width:
        assert made.start <= -best[1]


@settings(max_examples=400, deadline=None)
@given(questions(), st.integers(40, 200))
def test_no_character_and_no_short_word_is_cut(question, width):
    content, terms = question
    assume(not re.search(r"[\w\u0300-\u036f\u200d]{9}|(?:[^\W]|[^\x00-\u2fff]){9}", content) or len(content) > width)
    made = snippet(content, terms, ANALYZER, width)
    passage = in_utf16(content, made.start, made.end)
    start = len(in_utf16(content, 0, made.start))
    for place in (start, start + len(passage)):
        around = content[max(0, place - 40) : place + 40]
        near = any(one.start - 20 < place < one.end + 20 for one in ANALYZER.places(content, terms))
        if any(is_character_border(content, p) for p in range(max(1, place - 30), place)) and passage:
            assert is_character_border(content, place), ascii(around)
        if re.fullmatch(r"[\x00-\x7f\u4e00-\u9fd5，。]*", around) and not re.search(r"\w{20}", around) and not near:
            assert is_word_border(content, place), ascii(around)


@pytest.mark.parametrize(
    "unit", ["超时", "redis ", "x", "x ", "。", "🇨🇳", "e\u0301", "\u0301", "\u200d", "ERR_CONN_", " ", "超时 redis。"]
)
@pytest.mark.parametrize("width", [1, 200])
def test_time_grows_linearly_with_the_length(unit, width):
    def seconds(size):
        content = (unit * size)[:size]
        best = 9.0
        for _ in range(3):
            started = process_time()
            snippet(content, {"超时": 1.0, "超": 0.2, "redi": 1.0, "conn": 1.0}, ANALYZER, width)
            best = min(best, process_time() - started)
        return best

    seconds(100)
    assert seconds(60_000) <= 30 * seconds(6_000) + 0.02
