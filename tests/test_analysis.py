"""What a text becomes: the golden table of terms, and the properties that hold for every text."""

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pickle import dumps, loads
from time import process_time
from unicodedata import category, normalize

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jiyi.analysis import Analyzer, TooManyTerms
from jiyi.analysis.characters import find_han
from jiyi.analysis.han_runs import MAX_RUN_LENGTH, HanRuns
from jiyi.analysis.identifiers import split_identifiers
from jiyi.analysis.stop_words import COMMON_HAN
from jiyi.analysis.tokens import MAX_TERM_LENGTH

ANALYZER = Analyzer(han_bigrams=False)
BIGRAMS = Analyzer(han_bigrams=True)

GOLDEN = {
    "ERR_CONN_RESET": "err_conn_reset err conn reset",
    "v1.2.3": "v1.2.3 1.2.3",
    "v10.2-rc1": "v10.2-rc1 10.2-rc1 10 rc1",
    "V2": "v2 2",
    "api/v2/users": "api/v2/users api v2 user",
    "user@example.com": "user@example.com user example.com exampl com",
    "192.168.0.1:8080": "192.168.0.1:8080 192.168.0.1 192 168 8080",
    "CVE-2024-1234": "cve-2024-1234 cve 2024 1234",
    "getUserById": "getuserbyid get user id",
    "HTTPServer": "httpserver http server",
    "SHA256Sum": "sha256sum sha256 sum",
    "iPhone eBay iOS AB12CD34": "iphon ebay io ab12cd34",
    "snake_case": "snake_case snake case",
    "kebab-case": "kebabcas kebab case",
    "re-indexing reindex": "reindex re index",
    "utf-8 Order-Service": "utf8 utf orderservic order servic",
    "v2-beta": "v2-beta 2-beta beta",
    "138-1234": "138-1234 138 1234",
    "__init__": "init",
    "src/app/main.py": "src/app/main.py src app main.py main py",
    "foo/.git/config": "foo/.git/config foo git config",
    r"C:\Windows\System32": r"c:\windows\system32 window system32",
    "C++ c# F#": "c++ c# f#",
    "C/C++": "c/c++ c++",
    "C++11, C": "c++ 11 c",
    "libC++ a+b": "libc b",  # a is a stop word; ++ belongs to C alone
    "J\u030cC++": "\u01f0c",
    "utf8 s3 ipv6 500ms": "utf8 s3 ipv6 500ms 500 ms",
    "ＡＢＣ１２３": "abc123",
    "👍🏽 ❤️ 🇨🇳 👩‍💻": "",
    "軟體旋轉": "软体 旋转",
    "乾燥 乾隆": "干燥 干隆",
    "什麼時候開會": "时候 开会",
    "软件旋转": "软件 旋转",
    "张工昨天修了 Redis 7.2 的超时问题": "张工 昨天 修 redi 7.2 超时 问题",
    "a\u3000b\t\r\n c": "b c",
    "。。。": "",
    "": "",
    " \t\u3000": "",
    "_.-": "",
    "@@@ @me": "me",  # nothing but a stop word
    "T恤": "t 恤",
    "t恤": "t 恤",
    "İstanbul": "istanbul",
    "Straße": "strass",
    "ﬁle": "file",
    "\u212a": "k",
    "Caroline's": "carolin",
    "Caroline’s": "carolin",
    "don't": "don",
    "I don't know": "know",
    "who are you": "who are you",
    "who are you, Redis?": "redi",
    "的 了": "的 了",
    "的 了 Redis": "redi",
    "state-of-the-art": "state-of-the-art state art",
    "café naïve": "café naïve",
    "हिन्दी": "हिन्दी",
    "二〇二四": "二 〇 二四",
    "软\u00ad件": "软件",
    "㈱ ⼈": "株 人",
    "the end.": "end",
    "end of a line. Next": "end line next",
    "10GB/s": "10gb/s 10 gb/s",
    "10GB/second 10 GB/second": "10gb/second 10gb second 10 gb/second gb",
    "5 mg/kg": "5mg/kg 5 mg/kg",
    "10GB,20 GB": "10gb 10 gb 20gb 20",
    "1,000-2,000 km": "1000 2000km 2000 km",
    "12,345": "12345 12 345",  # or two ports
    "80,443,8080": "80 443 8080",
    "1,2,000": "1 2 000",
    "1,000.5 and 1,000 apples": "1000.5 1000 appl",
    "50-60%": "50-60 50 60",
    "10 m 5 s 10 us": "10 m 5 s",
    "2024-05": "2024-05 2024",
    "2024-02-31": "2024-02-31 2024 02 31",
    "2024-13-01": "2024-13-01 2024 13 01",
    "2024.5.4": "2024.5.4 2024",
    "20240504 13812345678 12:30": "20240504 13812345678 12:30 12 30",
    "138-1234-5678": "138-1234-5678 138 1234 5678",
    "192.168.0.1 MB": "192.168.0.1 192 168 mb",
    "app-2024-05-04.log": "app-2024-05-04.log app 2024 05 04 log 2024-05-04 2024-05",
    "2024-05-04T10:30Z": "2024-05-04t10:30z 2024-05-04t10 2024 05 04t10 30z 2024-05-04 2024-05",
    "2024/5/4-2024/5/6": "2024/5/4-2024/5/6 2024 4-2024 2024-05-04 2024-05 2024-05-06",
    "may be 4 in 2024": "4 2024",
    "use 2024 MB": "use 2024mb 2024 mb",
    "2024年5月4日": "2024-05-04 2024-05 2024 年 5 月 4 日",
    "2024年5月": "2024-05 2024 年 5 月",
    "5年，1985年11月1日": "1985-11-01 1985-11 5 年 1985 11 月 1 日",
    "2024年5月2025年6月底": "2024-05 2025-06 2024 年 5 月 2025 6 月底",
    "2024年": "2024 年",
    "2024年5": "2024 年 5",
    "2024年5月40日": "2024-05 2024 年 5 月 40 日",
}


@pytest.mark.parametrize(("text", "terms"), GOLDEN.items(), ids=map(ascii, GOLDEN))
def test_text_becomes_these_terms(text, terms):
    """Whole identifiers come with their parts; what says nothing is left out."""
    assert list(ANALYZER.query_terms(text)) == terms.split()
    for analyzer in (ANALYZER, BIGRAMS):
        explained = Counter(token.term for token in analyzer.explain(text))
        assert list(analyzer.terms(text).items()) == list(explained.items()), "the two ways through agree"


def test_url_is_one_term_and_its_parts():
    """A URL ends before white space, brackets, Han and final punctuation; its scheme alone is no term."""
    parts = "example.com/a/b example.com exampl com lang zh"
    for text in (
        "https://Example.com/a/b?lang=zh",
        "(https://example.com/a/b?lang=zh).",
        "https://example.com/a/b?lang=zh。",
    ):
        assert list(ANALYZER.query_terms(text)) == ["https://example.com/a/b?lang=zh", *parts.split()]
    assert list(ANALYZER.query_terms("见https://x.com/ab，谢谢"))[:3] == ["见", "https://x.com/ab", "x.com/ab"]
    assert list(ANALYZER.query_terms("link:https://x.com/ab")) == [
        "link",
        "https://x.com/ab",
        "x.com/ab",
        "x.com",
        "com",
        "ab",
    ]


def test_url_takes_no_control_character_or_lone_surrogate():
    """Every term can be encoded; a URL is the only rule that takes more than letters, digits and connectors."""
    for broken in "\x1b\x00\x85\ud800\u200b":
        assert next(iter(ANALYZER.query_terms(f"https://ab.cd/ef{broken}gh"))) == "https://ab.cd/ef"
        assert list(ANALYZER.query_terms(f"ab{broken}cd")) == ["ab", "cd"]


SAME = {
    "10GB": ["10 GB", "10 gb", "10-Gb", "１０ＧＢ", "10\u00a0GB"],
    "64-bit": ["64 bits", "64bit"],
    "1.5 TB": ["1.5TB", "1.5 tb"],
    "1000 MB": ["1,000MB", "1000mb", "1,000 MB"],
    "3.5%": ["3.5 %", "３．５％"],
    "5 μs": ["5µs", "5 μS"],
    "2024-05-04": ["2024/5/4", "2024/05/04", "2024-5-4", "２０２４－０５－０４"],
    "May 4, 2024": ["MAY 4 2024", "May. 4, 2024", "may 04, 2024"],
}


@pytest.mark.parametrize(("text", "others"), SAME.items(), ids=SAME)
def test_a_numeral_is_the_same_however_it_is_written(text, others):
    same = [ANALYZER.terms(other) for other in others]
    if text.startswith("May"):
        same = [{term: tf for term, tf in terms.items() if term not in ("4", "04")} for terms in same]
        assert same == [{"2024-05-04": 1, "2024-05": 1, "2024": 1}] * len(same)
    else:
        assert same == [ANALYZER.terms(text)] * len(same)


DATES = [
    "2024-05-04",
    "2024/5/4",
    "2024年5月4日",
    "2024 年 05 月 04 号",
    "二零二四年也就是2024年5月4號",
    "May 4, 2024",
    "4 May 2024",
    "4th of May, 2024",
    "Saturday, May 4th 2024",
    "built 2024-05-04T10:00:00Z",
    "https://x.com/2024/05/04/post",
    "app-2024-05-04.log",
]


def test_dates_share_the_day_and_the_month():
    for text in DATES:
        assert {"2024-05-04", "2024-05"} <= ANALYZER.terms(text).keys(), text
    for text in ["2024-05", "2024/05", "2024年5月", "May 2024", "in may, 2024"]:
        assert "2024-05" in ANALYZER.terms(text), text
        assert "2024-05-04" not in ANALYZER.terms(text), text


def test_a_number_behind_a_mark_is_no_numeral():
    """The upper case of some letters is a letter and a mark that do not compose."""
    for text in ("ΐ10 GB", "ΐ1,000", "ΐ-10 GB", "ΐmay 2024"):
        assert ANALYZER.terms(text.upper()) == ANALYZER.terms(text), text


def test_a_number_with_commas_finds_the_one_without():
    for text in ("1,000", "12,345,678", "1,000.50"):
        whole = text.replace(",", "")
        assert ANALYZER.query_terms(whole).keys() & ANALYZER.terms(text).keys(), text
        assert ANALYZER.query_terms(text).keys() & ANALYZER.terms(whole).keys(), text


@pytest.mark.parametrize(
    "around", ["{}", "{}, and so on", "It was said long ago ({}).", "很久以前：{}，等等", "a-b {}; c_d"]
)
def test_numerals_are_found_wherever_they_stand(around):
    for text in [*SAME, *DATES, "1,000", "12,345.5", "10GB/s"]:
        assert ANALYZER.terms(text).keys() <= ANALYZER.terms(around.format(text)).keys(), text


def test_with_and_without_a_hyphen():
    for one, other in [
        ("re-index", "reindexing"),
        ("utf-8", "UTF8"),
        ("order-service", "OrderService"),
        ("IL-6", "IL6"),
    ]:
        assert ANALYZER.query_terms(one).keys() & ANALYZER.terms(other).keys(), one
        assert ANALYZER.query_terms(other).keys() & ANALYZER.terms(one).keys(), one
    assert not ANALYZER.query_terms("10-20").keys() & ANALYZER.terms("1020").keys()


def test_frequencies_count_every_occurrence_in_order_of_first_appearance():
    assert list(ANALYZER.terms("超时 redis 超时 err_conn conn").items()) == [
        ("超时", 2), ("redi", 1), ("err_conn", 1), ("err", 1), ("conn", 2)]  # fmt: skip


def test_contractions_leave_nothing_but_a_letter_alone_stays():
    assert list(ANALYZER.query_terms("we're they've it'll she'd Tom's cup")) == ["tom", "cup"]
    assert list(ANALYZER.query_terms("S 码 D 盘")) == ["s", "码", "d", "盘"]


def test_case_insensitive_unless_camel():
    """A lower-case query finds a camelCase word as a whole."""
    assert next(iter(ANALYZER.query_terms("getuserbyid"))) in ANALYZER.terms("getUserById")
    assert next(iter(ANALYZER.query_terms("err_conn_reset"))) in ANALYZER.terms("ERR_CONN_RESET!")


def test_explain_names_the_rule_of_each_token():
    assert [(t.term, t.rule, t.source) for t in BIGRAMS.explain("修复getUserById v1.20 a/bc s3 的")] == [
        ("修复", "han", "修复"), ("getuserbyid", "word", "getUserById"), ("get", "camel", "get"),
        ("user", "camel", "User"), ("id", "camel", "Id"), ("v1.20", "compound", "v1.20"),
        ("1.20", "version", "1.20"), ("20", "literal", "20"),
        ("a/bc", "compound", "a/bc"), ("bc", "word", "bc"), ("s3", "literal", "s3")]  # fmt: skip
    assert [(t.term, t.rule, t.source) for t in ANALYZER.explain("1,000 GB re-run 5 May 2024")] == [
        ("1000gb", "quantity", "1,000 GB"), ("1000", "number", "1,000"), ("gb", "unit", "GB"),
        ("rerun", "compound", "re-run"), ("re", "word", "re"), ("run", "word", "run"),
        ("2024-05-05", "date", "5 May 2024"), ("2024-05", "month", "5 May 2024"),
        ("5", "literal", "5"), ("2024", "literal", "2024")]  # fmt: skip
    assert [t.rule for t in ANALYZER.explain("who are 的")] == ["stop"] * 3
    assert [t.rule for t in ANALYZER.explain("https://ab.cd")] == ["url", "compound", "word", "word"]
    assert ("存延", "bigram") in [(t.term, t.rule) for t in BIGRAMS.explain("缓存延迟")]
    assert ("缓", "character") in [(t.term, t.rule) for t in BIGRAMS.explain("缓存延迟")]


def test_the_net_has_characters_and_pairs_as_often_as_they_occur():
    """Common ones are in it only together; words of two characters always; longer ones are left to their pairs."""
    assert BIGRAMS.terms("张工提的超时，张工程") == {
        "张": 2, "工": 2, "张工": 2, "提的": 1, "超": 1, "超时": 1, "程": 1, "工程": 1,
    }  # fmt: skip
    assert BIGRAMS.terms("我们的目的地") == {"目": 1, "我们": 1, "们的": 1, "的地": 1, "目的": 1}
    assert "计算机" not in BIGRAMS.terms("计算机")
    assert BIGRAMS.terms("人") == BIGRAMS.query_terms("人") == {"人": 1}  # nothing else is in it
    assert BIGRAMS.terms("人 redis") == {"redi": 1}


def test_the_net_reaches_over_the_pieces_of_a_long_run():
    run = "".join(map(chr, range(0x4E00, 0x4E00 + 3 * MAX_RUN_LENGTH)))
    folded = BIGRAMS._han_runs._fold(run)
    found = set(BIGRAMS.terms(run))
    for first, second in pairwise(folded):
        assert (first in COMMON_HAN) is not (second in COMMON_HAN) or first + second in found


def test_a_question_weighs_what_is_no_word_less_and_does_not_ask_for_words_that_ask():
    weights = BIGRAMS.query_terms("张工上周怎么修 Redis 的")
    assert weights["redi"] == weights["上周"] == 1.0
    assert (weights["张工"], weights["张"]) == (1.0, 0.3)
    assert BIGRAMS.query_terms("缓存延迟")["存延"] == 0.4
    assert "怎么" not in weights
    assert BIGRAMS.query_terms("怎么") == dict.fromkeys(["怎", "么", "怎么"], 1.0)
    assert ANALYZER.query_terms("张工怎么修 Redis") == dict.fromkeys(["张工", "修", "redi"], 1.0)
    assert set(ANALYZER.query_terms("哪里 怎么")) == {"哪里", "怎么"}


def test_an_identifier_counts_less_for_its_parts_count_as_well():
    assert ANALYZER.query_terms("ERR_CONN_RESET reset") == {
        "err_conn_reset": 0.3,
        "err": 1.0,
        "conn": 1.0,
        "reset": 1.0,
    }
    assert ANALYZER.query_terms("https://ab.cd")["https://ab.cd"] == 0.5
    assert ANALYZER.query_terms("v1.2.3") == {"v1.2.3": 0.3, "1.2.3": 1.0}
    assert ANALYZER.query_terms("10 GB") == {"10gb": 0.3, "10": 1.0, "gb": 0.3}
    assert ANALYZER.query_terms("4 May 2024") == {"2024-05-04": 1.0, "2024-05": 0.5, "4": 1.0, "2024": 1.0}


# ---- limits ----


class Recorder:
    """A segmenter that calls every character a word and notes what it was given."""

    identity = "recorder"

    def __init__(self):
        self.runs = []

    def search(self, run):
        self.runs.append(run)
        return list(run)


def test_segmenter_gets_long_runs_in_pieces_and_only_common_characters():
    """Time stays linear in the run, whatever the segmenter does with long ones."""
    recorder = Recorder()
    run = "龘" * 100_000 + "㐀𠀀〇" + "龘" * 3
    assert [t.term for t in HanRuns(recorder, bigrams=False).tokens(run)] == list(run)
    assert max(map(len, recorder.runs)) == MAX_RUN_LENGTH
    assert list(HanRuns(other := Recorder(), bigrams=False).terms("龘" * 100_000)) == ["龘"] * 100_000
    assert max(map(len, other.runs)) == MAX_RUN_LENGTH
    assert "".join(recorder.runs) == "龘" * 100_003


def test_term_longer_than_the_limit_is_dropped_and_its_parts_stay():
    longest, parts = "x1" * (MAX_TERM_LENGTH // 2), ["ab" * 20, "cd" * 20]
    assert list(ANALYZER.query_terms(longest)) == [longest]
    assert list(ANALYZER.query_terms(longest + "y " + "z" * 65 + " ok")) == ["ok"]
    assert list(ANALYZER.query_terms("_".join(parts))) == parts
    assert list(ANALYZER.query_terms("https://host/" + "q" * 60)) == ["q" * 60, "host"][::-1]


def test_too_many_distinct_terms_are_refused_with_both_numbers():
    analyzer = Analyzer(max_terms=10)
    assert len(analyzer.terms(" ".join(f"x{n}" for n in range(10)) + " x1 x1")) == 10
    with pytest.raises(TooManyTerms) as caught:
        analyzer.terms(" ".join(f"x{n}" for n in range(12)))
    for error in (caught.value, loads(dumps(caught.value))):
        assert (error.terms, error.limit) == (12, 10)


@pytest.mark.parametrize(
    "unit",
    [
        "龘靐",
        "aB",
        "a.",
        "a+",
        "a://",
        "x-y/",
        "Ab1",
        "é\u0301",
        "'s",
        "://-",
        "c++",
        "a\u0301",
        "12,",
        "123,",
        "1 mb ",
        "1 may 2024 ",
        "may 2024,",
        "2024年5月",
        "1-2-",
        "@._-",
        "́",
        "\u200d中",
    ],
)
def test_time_grows_linearly_with_the_length(unit):
    """Ten times the text takes about ten times as long; a quadratic rule would take a hundred times."""

    def seconds(size):
        text = (unit * size)[:size] + " ://x"
        best = 9.0
        for _ in range(3):
            start = process_time()
            Analyzer(max_terms=10**9).explain(text)
            best = min(best, process_time() - start)
        return best

    seconds(100)
    assert seconds(60_000) <= 30 * seconds(6_000) + 0.02


# ---- properties ----

SNIPPETS = st.sampled_from(
    [
        *GOLDEN,
        *(form for text, others in SAME.items() for form in (text, *others)),
        *DATES,
        "https://a.b/c?d=e#f",
        "冯·诺伊曼",
        "ΐ Σίσυφος ς",
        "ﬀ ŉ ǰ",
        "ǰC++ 'ẗ ǰab://c",
        "한국어 テスト ｶﾞ",
        "ŁÓDŹ",
    ]
)
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MIXED = st.lists(st.one_of(SNIPPETS, CHARACTERS, st.sampled_from(list(" .-_/@:'+#，。的"))), max_size=8).map("".join)


def widen(text):
    """Write ASCII in full-width characters."""
    return "".join("\u3000" if c == " " else chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


@example("Straßehttps://a.b/c?d=e#f", ANALYZER)
@settings(max_examples=400, deadline=None)
@given(MIXED, st.sampled_from([ANALYZER, BIGRAMS]))
def test_same_text_written_differently_has_the_same_terms(text, analyzer):
    """Composition and width never matter, nor does case once there is no camelCase to see."""
    terms = analyzer.terms(text)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert analyzer.terms(normalize(form, text)) == terms
    assert analyzer.terms(widen(text)) == terms
    # Case mappings are defined on normal forms.
    lower = normalize("NFC", normalize("NFKC", text).lower())
    assert analyzer.terms(lower.upper()) == analyzer.terms(lower)


@pytest.mark.parametrize("text", ["https://a.b/c#fΐ x", "https://a.b/c?d=e#fΐ Σίσυφος ς", "https://a.b/ñ́ y"])
def test_a_mark_at_the_end_of_a_url_belongs_to_it(text):
    """The upper case of some letters is a letter and a mark that do not compose."""
    assert BIGRAMS.terms(text.upper().lower()) == BIGRAMS.terms(text.upper())
    assert BIGRAMS.terms(text.upper()) == BIGRAMS.terms(text)


def test_case_of_every_letter():
    """No character of Unicode has a case variant with other terms."""
    variants = ((c, {c.lower(), c.upper(), c.title(), c.casefold(), c.swapcase()}) for c in map(chr, range(0xD800)))
    wrong = [
        (c, v)
        for c, others in variants
        for v in others
        if v != c
        for around in ("{}", "x{}", "{}y")
        if ANALYZER.terms(around.format(c).lower()) != ANALYZER.terms(around.format(v).lower())
        or ANALYZER.terms(around.format(v).upper()) != ANALYZER.terms(around.format(v).lower())
    ]
    assert wrong == []


@settings(max_examples=400, deadline=None)
@given(MIXED, st.sampled_from([ANALYZER, BIGRAMS]))
def test_terms_are_words_and_explain_gives_the_same(text, analyzer):
    """No term is blank, punctuation or a mark alone; none begins with a connector; the two ways through agree."""
    terms = analyzer.terms(text)
    for term in terms:
        assert term[0].isalnum() or find_han(term[0])
        assert 0 < len(term) <= MAX_TERM_LENGTH
        assert not any(c.isspace() or category(c) in ("Cc", "Cs") for c in term)
    counted = Counter(token.term for token in analyzer.explain(text))
    assert list(counted.items()) == list(terms.items())
    assert set(analyzer.query_terms(text)) <= set(terms)
    assert bool(analyzer.query_terms(text)) is bool(terms)
    assert Analyzer(han_bigrams=analyzer is BIGRAMS).terms(text) == terms


@settings(max_examples=200, deadline=None)
@given(MIXED, st.sampled_from([ANALYZER, BIGRAMS]))
def test_a_text_is_found_by_whatever_a_term_of_it_stands_for(text, analyzer):
    terms = analyzer.terms(text)
    for token in analyzer.explain(text):
        assert not terms.keys().isdisjoint(analyzer.query_terms(token.source)), token
        assert not terms.keys().isdisjoint(analyzer.query_terms(f"{token.source} and")), token


@settings(max_examples=200, deadline=None)
@given(MIXED)
def test_no_letter_or_digit_is_lost_between_identifiers(text):
    """Identifiers hold every letter and digit of a text, so that a caller may trust that each was looked at."""
    if find_han(text):
        return
    letters = [c for c in text if c.isalnum()]
    found = [c for word in split_identifiers(text) for c in word if c.isalnum()]
    assert found == letters


@settings(max_examples=200, deadline=None)
@given(st.text("软件工程的研究生命起源我们〇㐀旋轉", min_size=2, max_size=9), st.text("软件的ab ，", max_size=4))
def test_every_two_han_characters_of_a_text_find_it(run, around):
    found = BIGRAMS.terms(around + run + around)
    for first, second in pairwise(run):
        assert not found.keys().isdisjoint(BIGRAMS.query_terms(first + second)), first + second


# ---- the analyzer as a whole ----


def test_fingerprint_names_what_decides_about_terms():
    """Another segmenter or net is another fingerprint; another limit is not."""
    assert BIGRAMS.fingerprint == Analyzer(max_terms=5).fingerprint
    assert len({ANALYZER.fingerprint, BIGRAMS.fingerprint, Analyzer("jieba").fingerprint}) == 3
    assert ANALYZER.describe()["han_bigrams"] is False
    assert BIGRAMS.describe()["han_bigrams"] is True


def test_unknown_segmenter_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown segmenter 'lac': use one of jieba, rjieba"):
        Analyzer("lac")


def test_threads_get_the_same_terms():
    texts = [f"{text} getUser{n}ById 软件工程{n}" for n in range(40) for text in GOLDEN]
    expected = [ANALYZER.terms(text) for text in texts]
    fresh = Analyzer(han_bigrams=False)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fresh.terms, texts)) == expected


def test_import_needs_no_optional_package():
    """A producer imports this package without segmenter or stemmer installed."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['jieba', 'rjieba', 'Stemmer', 'numpy']));"
        "import jiyi.analysis as a; print(a.Analyzer.__name__)"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["Analyzer"]
