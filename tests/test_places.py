"""Where in a text its terms come from: the golden table, and the properties that hold for every text."""

from collections import Counter
from time import process_time
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jiyi.analysis import Analyzer, StopWords, UserDictionary
from jiyi.analysis.alignment import Alignment
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.normal_form import fold, normalise
from jiyi.analysis.segmenters import open_segmenter

OWN = UserDictionary({"增量索引": None, "研究生命": None})
PHRASES = StopWords(han_phrases=frozenset(["没有", "的和"]))
ANALYZERS = [
    Analyzer(),
    Analyzer(han_bigrams=False),
    Analyzer(dictionary=OWN, stop_words=PHRASES),
    Analyzer(han_bigrams=False, dictionary=OWN, stop_words=PHRASES),
]
FOLD = open_folding()
STOP = ["of", "the", "are", "人", "有", "的", "我"]

GOLDEN = [
    ("ERR_CONN_RESET conn", "conn", ["CONN", "conn"]),
    ("timeouts_timeout timed", "timeout", ["timeouts", "timeout"]),
    ("connect_conn xconn", "conn", ["conn"]),
    ("a.bb.cc/bb.cc", "bb.cc", ["bb.cc"]),  # the first is only in a.bb.cc
    (f"{'x1' * 40}_x1", "x1", ["x1"]),  # the chunk before is too long to be a term
    ("v1.20 1.20", "1.20", ["1.20", "1.20"]),
    ("V2 v2/2a", "v2", ["V2", "v2"]),
    ("getUserById Id", "id", ["Id", "Id"]),
    ("GetXId Get", "get", ["Get"]),  # X has no two letters, so the first is one word
    ("https://a.bc/bc a.bc", "bc", ["bc", "bc", "bc"]),
    ("https://a.bc/bc", "https://a.bc/bc", ["https://a.bc/bc"]),
    ("Caroline's cups", "carolin", ["Caroline"]),
    ("修復修复", "修复", ["修復", "修复"]),
    ("ＡＢＣ１２３", "abc123", ["ＡＢＣ１２３"]),
    ("1 ﬁle", "file", ["ﬁle"]),
    ("跑了10㎞，", "10km", ["10㎞"]),
    ("cafe\u0301s café", "café", ["café"]),
    ("cafe\u0301 x", "café", ["cafe\u0301"]),
    ("soft\u00adware 软\u200d件", "软件", ["软\u200d件"]),
    ("soft\u00adware 软\u200d件", "softwar", ["soft\u00adware"]),
    ("\ufeffRedis\ufe0f", "redi", ["Redis\ufe0f"]),
    ("½", "2", ["½"]),
    ("超½时", "超", ["超"]),
    ("ｶﾞｽ ガス", "ガス", ["ｶﾞｽ", "ガス"]),
    ("who are 的", "are", ["are"]),  # nothing but stop words
    ("who are 的 x", "are", []),
    ("人", "人", ["人"]),
    ("没了什么", "什么", ["什么"]),
    ("没有淹没有机物", "没有", ["没有"]),  # the second is in 淹没 and 有机物
    ("a\u0345", "aι", ["a\u0345"]),  # as many characters, but not one by one
    ("人 redis", "人", []),
    ("我们的目的地", "我们", ["我们"]),
    ("哈哈哈哈", "哈哈", ["哈哈", "哈哈", "哈哈"]),
    ("", "x", []),
]


@pytest.mark.parametrize(("text", "term", "expected"), GOLDEN, ids=ascii)
def test_a_term_comes_from_these_places(text, term, expected):
    places = ANALYZERS[0].places(text, [term])
    assert [text[start:end] for start, end, _ in places] == expected


def test_a_word_that_only_the_segmenter_sees_is_where_it_cuts_it():
    for analyzer in ANALYZERS:
        for text in ("结婚的和尚未结婚的", "研究生命起源和研究生", "没有淹没有机物"):
            terms = analyzer.terms(text)
            places = analyzer.places(text, terms)
            assert Counter(place.term for place in places) == terms
    assert ANALYZERS[1].places("结婚的和尚未结婚的和尚", ["和尚"]) == [(9, 11, "和尚")]


@pytest.mark.parametrize("name", ["rjieba", "jieba"])
def test_segmenters_locate_the_words_that_they_find(name):
    segmenter = open_segmenter(name)
    for run in ("软件工程师在中国人民银行研究生命起源", "人民人民币哈哈哈哈哈", "龘靐" * 9):
        located = list(segmenter.locate(run))
        assert [word for word, _, _ in located] == segmenter.search(run)
        assert all(run[start:end] == word for word, start, end in located)


SNIPPETS = st.sampled_from(
    [text for text, _, _ in GOLDEN]
    + [
        "https://a.b/c?d=e#f",
        "冯·诺伊曼",
        "2024 年 5 月 4 日，2024年5月",
        "May 4th, 2024 4 of may 2024",
        "2024-05-04/2024-5-6 2024/5",
        "10 GB 10gb/s 1,000.5 3.5% 8080,443,1,000",
        "re-run utf-8 re-run-run",
        "URLs mRNA getUserById DNSCache",
        "增量索引没有增量索引",
        "ΐ Σίσυφος ς \u0345",
        "ﬀ ŉ ǰ",
        "ǰC++ 'ẗ ǰab://c",
        "한국어 テスト",
        "\u1112\u1161\u11ab",
    ]
    + [
        "研究生命起源",
        "什麼時候開會",
        "有没有人来修一下软件",
        "don't C/C++",
        "state-of-the-art",
        "㍿ﷺ",
        "हिन्दी",
        "👩‍💻👍🏽",
        "\ud800",
        "¨",
        "ﾡￂ",
    ]
)
CHARACTERS = st.text(st.characters(), max_size=12)
MIXED = st.lists(
    st.one_of(SNIPPETS, CHARACTERS, st.sampled_from(list(" .-_/@:'+#，。的\u0301\u200d"))), max_size=8
).map("".join)


@settings(max_examples=600, deadline=None)
@given(MIXED, st.sampled_from(ANALYZERS), st.sampled_from(["NFC", "NFD", None]))
def test_every_occurrence_of_every_term_has_its_place(text, analyzer, form):
    """As many places as occurrences, in order, and each is made of what it says."""
    text = normalize(form, text) if form else text
    terms = analyzer.terms(text)
    places = analyzer.places(text, terms)
    assert Counter(place.term for place in places) == terms
    assert places == sorted(places)
    for start, end, term in places:
        assert 0 <= start < end <= len(text)
        piece = text[start:end]
        assert term in analyzer.terms(piece) or term in FOLD(fold(normalise(piece)))
    assert analyzer.places(text, {*terms, *STOP}) == places  # stop words are no terms beside others
    for term in terms:
        assert analyzer.places(text, [term, "no such term"]) == [place for place in places if place.term == term]


@settings(max_examples=400, deadline=None)
@given(MIXED)
def test_alignment_is_that_of_the_normal_form(text):
    """The normal form is the analyzer's; its characters come from the text in order, and from somewhere."""
    aligned = Alignment(text)
    assert aligned.normal == normalise(text)
    starts = [aligned.start(offset) for offset in range(len(aligned.normal))]
    ends = [aligned.end(offset + 1) for offset in range(len(aligned.normal))]
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends, strict=True))


@pytest.mark.slow
def test_alignment_of_every_character():
    """Between letters, after a letter, and before a mark; the neighbours keep their own places."""
    for character in map(chr, range(0x30000)):
        text = f"中a{character}\u0301b，{character}x"
        aligned = Alignment(text)
        assert aligned.normal == normalise(text), ascii(character)
        assert text[aligned.start(0)] == "中"
        assert text[aligned.end(len(aligned.normal)) - 1] == "x"
        assert text[aligned.start(aligned.normal.rindex(","))] in "，" + character


@pytest.mark.parametrize(
    "unit", ["龘靐", "有张", "aB", "a.", "éé", "e\u0301", "\u0301", "\u200d", "\u1161", "，", "½", "🇨🇳"]
)
def test_time_grows_linearly_with_the_length(unit):
    def seconds(size):
        text = (unit * size)[:size]
        best = 9.0
        for _ in range(3):
            started = process_time()
            ANALYZERS[0].places(text, ["有张", "a", "2"])
            best = min(best, process_time() - started)
        return best

    seconds(100)
    assert seconds(60_000) <= 30 * seconds(6_000) + 0.02
