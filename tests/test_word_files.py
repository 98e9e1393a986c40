"""Files of words: what a deployment says about its words, and what is wrong with a line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jiyi.analysis import Analyzer, StopWords, UserDictionary, read_synonyms
from jiyi.errors import SettingsError
from jiyi.settings import Settings

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("quick_jieba")


@pytest.fixture
def write(tmp_path):
    """Write a file and give its path."""

    def write(content, name="words.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def with_dictionary(path, segmenter="rjieba", **options):
    return Analyzer(segmenter, dictionary=UserDictionary.read(path), **options)


# ---- every file ----


READERS = {
    "JIYI_USER_DICTIONARY": UserDictionary.read,
    "JIYI_STOP_WORDS": StopWords.read,
    "JIYI_SYNONYMS": lambda path: Analyzer(synonyms=read_synonyms(path)),
}


@pytest.mark.parametrize("setting", READERS)
def test_a_file_that_cannot_be_read_names_setting_and_file(setting, tmp_path):
    missing = tmp_path / "none.txt"
    with pytest.raises(SettingsError, match=f"{setting}: {missing} cannot be read: No such file"):
        READERS[setting](str(missing))


@pytest.mark.parametrize("setting", READERS)
def test_a_line_that_is_not_utf8_is_named(setting, write):
    path = write("# 说明\r\n".encode() + "云计算, x\n".encode("gb18030"))
    with pytest.raises(SettingsError, match=f"{setting}: .*words.txt, line 2 is not UTF-8; save the file as UTF-8"):
        READERS[setting](path)


@pytest.mark.parametrize(
    ("setting", "line", "told"),
    [
        ("JIYI_USER_DICTIONARY", "云计算 1.5 n", r"'云计算 1.5 n' has the frequency '1.5': .* from 1 to 1000000000"),
        ("JIYI_USER_DICTIONARY", "云计算 12x", "has the frequency '12x'"),
        ("JIYI_USER_DICTIONARY", "云计算 0", "has the frequency '0'"),
        ("JIYI_USER_DICTIONARY", "云计算 -3 n", "has the frequency '-3'"),
        ("JIYI_USER_DICTIONARY", "云计算 1000000001", "has the frequency"),
        ("JIYI_USER_DICTIONARY", "云计算 5 N", "ends with 'N', which is no tag of lower-case letters"),
        ("JIYI_USER_DICTIONARY", "\u200d", "has no word"),
        ("JIYI_USER_DICTIONARY", "云计算 5\n雲計算 6", "line 4: '雲計算 6' has another frequency than in line 3"),
        ("JIYI_STOP_WORDS", "very good", "'very good' is not one word"),
        ("JIYI_STOP_WORDS", "state-of-the-art", "is not one word"),
        ("JIYI_STOP_WORDS", "好的ok", "is not one word"),
        ("JIYI_STOP_WORDS", "-", "is not one word"),
        ("JIYI_STOP_WORDS", "-redis", "'-redis' is no stop word of ours, so it cannot be taken out"),
        ("JIYI_SYNONYMS", "redis", "must be `word => other, …` for one way, or `word, other, …` for both"),
        ("JIYI_SYNONYMS", "a1 => b1 => c1", "must be `word => other"),
        ("JIYI_SYNONYMS", "redis => ", "has nothing between two commas, or at one end"),
        ("JIYI_SYNONYMS", "redis, , cache", "has nothing between two commas"),
        (
            "JIYI_SYNONYMS",
            "the => redis",
            "has nothing but stop words, punctuation, or words too long to be terms in 'the'",
        ),
        ("JIYI_SYNONYMS", "redis => !?", r"nothing but .* in '!\?'"),
        ("JIYI_SYNONYMS", "redis => " + "x" * 70_000, "words too long to be terms in 'x{59}…'$"),
    ],
)
def test_a_wrong_line_names_setting_file_line_and_what_is_right(setting, line, told, write):
    path = write(f"# a comment\n\n{line}\n")
    with pytest.raises(SettingsError, match=rf"{setting}: .*words.txt, line \d: .*{told.removeprefix('line 4: ')}"):
        READERS[setting](path)
    with pytest.raises(SettingsError, match=rf"line {3 + line.count(chr(10))}: "):
        READERS[setting](path)


def test_a_long_line_is_not_repeated_whole(write):
    with pytest.raises(SettingsError) as caught:
        UserDictionary.read(write("词" * 5_000 + " 1.5"))
    assert len(str(caught.value)) < 500


def test_all_ways_to_an_analyzer_are_one():
    """Nobody forgets a setting: what runs with settings builds its analyzer from all of them."""
    for folder in ("jiyi", "workers", "api"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "analyzer.py":
                assert not re.search(r"\bAnalyzer\(", path.read_text(encoding="utf-8")), path


# ---- the user dictionary ----


def test_lines_are_those_of_jieba(write):
    """With a byte order mark, any line ends, comments, traditional characters, and words with spaces in them."""
    path = write(
        "\ufeff# ours\r\n\r\n云计算平台\r\n張三豐 １００ nr\r\n记忆宫殿 n\n中文 空格 100 n\nApple Macbook\n# 云\n"
    )
    found = UserDictionary.read(path)
    assert found.words == {"云计算平台": None, "张三丰": 100, "记忆宫殿": None}
    assert found.entries == ("Apple Macbook", "中文 空格", "云计算平台", "張三豐", "记忆宫殿")


WORDS = ["薴草塘", "云计算平台", "江大桥", "记忆宫殿", "張三豐", "龘靐", "永和服装饰品", "上周提", "常在较", "软件"]
TEXT = "张三丰在云计算平台上说，南京市长江大桥边的记忆宫殿卖永和服装饰品；張三豐上周提了龘靐软件"


@pytest.mark.parametrize("segmenter", ["rjieba", "jieba"])
@pytest.mark.parametrize("han_bigrams", [False, True])
def test_words_come_out_whole(segmenter, han_bigrams, write):
    analyzer = with_dictionary(write("\n".join(WORDS)), segmenter, han_bigrams=han_bigrams)
    assert analyzer.check_dictionary() == (len(WORDS), {}, [])
    found = {token.term for token in analyzer.explain(TEXT) if token.rule == "dictionary"}
    assert {"云计算平台", "记忆宫殿", "永和服装饰品", "张三丰", "上周提", "软件", "龘靐"} <= found
    assert analyzer.query_terms("云计算平台")["云计算平台"] == 1.0
    if han_bigrams:
        assert {token.rule for token in analyzer.explain(f"计算机网络和{TEXT}") if len(token.term) > 2} == {
            "dictionary"
        }
    assert "云计算平台" not in Analyzer(segmenter, han_bigrams).terms(TEXT)


ENTRIES = """
ERR_CONN_RESET
SK-II
Apple Macbook
[捂脸]
冯·诺伊曼
中文 空格 100 n
㐀㐁
南京市长 1
云计算平台
the
10 GB
"""


@pytest.mark.parametrize("segmenter", ["rjieba", "jieba"])
def test_what_does_not_come_out_whole_is_told(segmenter, write):
    report = with_dictionary(write(ENTRIES), segmenter).check_dictionary()
    # The last of them is a number and a tag: a word of its own needs no entry.
    assert report.entries == 11
    assert report.by_other_rules == {"ERR_CONN_RESET": "compound", "SK-II": "compound", "10 GB": "quantity"}
    assert report.not_whole == sorted(["Apple Macbook", "[捂脸]", "冯·诺伊曼", "中文 空格", "㐀㐁", "南京市长", "the"])
    told = str(report)
    assert "7 of 11 words of JIYI_USER_DICTIONARY are found by their parts only: Apple Macbook, " in told
    assert "3 of 11 words of JIYI_USER_DICTIONARY need no entry: 10 GB (quantity), ERR_CONN_RESET (compound)" in told


def test_a_report_lists_some_and_counts_all(write):
    words = "\n".join(f"a{n} b{n}" for n in range(25))
    assert str(with_dictionary(write(words)).check_dictionary()).startswith("25 of 25 words")
    assert " and 5 more. " in str(with_dictionary(write(words)).check_dictionary())
    assert str(Analyzer().check_dictionary()) == ""


def test_a_word_that_is_a_stop_word_is_none(write):
    assert with_dictionary(write("人\n什么\n云")).check_dictionary().not_whole == ["人"]
    both = Analyzer(dictionary=UserDictionary({"人": None}, ("人",)), stop_words=StopWords.read(write("-人")))
    assert both.check_dictionary().not_whole == []


@pytest.mark.parametrize("segmenter", ["rjieba", "jieba"])
def test_a_word_never_cuts_an_english_word(segmenter, write):
    text = "learning license script IPv6 云ip计算"
    analyzer = with_dictionary(write("arni\nces\nip 100000 n\nscr\n云ip计算"), segmenter)
    assert analyzer.terms(text) == Analyzer(segmenter).terms(text)
    assert {"learn", "licens", "script", "ipv6"} <= analyzer.terms(text).keys()


@pytest.mark.parametrize("segmenter", ["rjieba", "jieba"])
def test_order_comments_and_repetition_change_nothing(segmenter, write):
    words = [*WORDS, "云计算 50", "长江大桥 3"]
    one = with_dictionary(write("\n".join(words), "one"), segmenter, han_bigrams=False)
    random.Random(1).shuffle(words)
    shuffled = "# ours\r\n" + "\r\n".join([*words, *words, "張三豐 n"])
    other = with_dictionary(write(shuffled, "other"), segmenter, han_bigrams=False)
    assert one.fingerprint == other.fingerprint
    assert one.terms(TEXT) == other.terms(TEXT)


def test_the_words_are_part_of_the_fingerprint(write):
    contents = [
        "",
        "云计算平台",
        "云计算平台 5",
        "云计算平台 6",
        "云计算平台\n记忆宫殿",
        "Apple Macbook\nSK-II",
        "云计算平台 n",
    ]
    prints = [with_dictionary(write(content, f"{n}")).fingerprint for n, content in enumerate(contents)]
    assert len(set(prints)) == 5
    assert prints[0] == prints[5] == Analyzer().fingerprint  # what cannot be added changes nothing
    assert prints[1] == prints[6]


@pytest.mark.parametrize("segmenter", ["rjieba", "jieba"])
def test_two_dictionaries_in_one_process(segmenter, write):
    run = "云计算平台和记忆宫殿"
    plain = Analyzer(segmenter, han_bigrams=False)
    before = plain.terms(run)
    one = with_dictionary(write("云计算平台", "1"), segmenter, han_bigrams=False)
    other = with_dictionary(write("记忆宫殿", "2"), segmenter, han_bigrams=False)
    for _ in range(2):
        assert "云计算平台" in one.terms(run)
        assert "记忆宫殿" not in one.terms(run)
        assert "记忆宫殿" in other.terms(run)
        assert "云计算平台" not in other.terms(run)
        assert plain.terms(run) == before == Analyzer(segmenter, han_bigrams=False).terms(run)


# ---- stop words ----


def test_stop_words_are_added_and_taken_out(write):
    analyzer = Analyzer(stop_words=StopWords.read(write("# ours\nPlease\n請問\n亨\n-very\n-人\n")))
    assert analyzer.terms("please 请问 亨 very 人 redis") == {"veri": 1, "人": 1, "redi": 1}
    assert [token.rule for token in analyzer.explain("please，请问")] == ["stop", "stop"]
    assert analyzer.terms("please") == {"please": 1}  # nothing else is in it
    assert analyzer.query_terms("请问") == {"请问": 1.0}
    assert analyzer.query_terms("请问 redis") == {"redi": 1.0}
    assert "人" not in Analyzer().terms("very 人 redis")


def test_a_stop_phrase_stands_between_what_is_around_it(write):
    analyzer = Analyzer(stop_words=StopWords.read(write("麻烦你\n麻烦\n")))
    assert analyzer.terms("缓存麻烦你清理") == Analyzer().terms("缓存 清理")
    words = Analyzer(han_bigrams=False, stop_words=StopWords.read(write("麻烦你\n麻烦\n")))
    assert words.terms("缓存麻烦你清理") == {"缓存": 1, "清理": 1}


def test_what_asks_can_be_asked_for_again(write):
    text = "哪里 redis"
    assert "哪里" not in Analyzer().query_terms(text)
    assert "哪里" in Analyzer(stop_words=StopWords.read(write("-哪里"))).query_terms(text)


def test_stop_words_are_part_of_the_fingerprint(write):
    contents = ["# none", "please", "请问", "-very", "请", "please\n\nPLEASE"]
    prints = [Analyzer(stop_words=StopWords.read(write(c, f"{n}"))).fingerprint for n, c in enumerate(contents)]
    assert prints[0] == Analyzer().fingerprint
    assert prints[1] == prints[5]
    assert len(set(prints)) == 5


CHOSEN = StopWords(
    han_phrases=frozenset(("软件", "的研究")), common_han=frozenset("的生"), han=frozenset(("的", "起源", "生")),
    others=frozenset(("redis", "s3", "a")),
)  # fmt: skip
STOPPING = [Analyzer(han_bigrams=bigrams, stop_words=CHOSEN) for bigrams in (False, True)]
PIECES = [
    "软件",
    "工程",
    "的研究",
    "起源",
    "的",
    "〇",
    "㐀",
    " ",
    "，",
    "Redis",
    "S3",
    "a",
    "x/s3",
    "2024年5月",
    "旋轉",
    "軟體",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.sampled_from(STOPPING))
def test_both_ways_through_agree_with_any_stop_words(text, analyzer):
    counted: dict[str, int] = {}
    for token in analyzer.explain(text):
        counted[token.term] = counted.get(token.term, 0) + 1
    assert counted == analyzer.terms(text)
    assert bool(analyzer.query_terms(text)) is bool(counted)


# ---- synonyms ----


@pytest.fixture
def synonymous(write):
    lines = """
# the same things
redis => redis-server, valkey
住房公积金, 公积金
k8s, kubernetes
connection reset => ERR_CONN_RESET
和服 => kimono
10 GB => big disk
"""
    return Analyzer(synonyms=read_synonyms(write(lines)))


def added(analyzer, text):
    found = analyzer.question(text)
    return {term: (found.weights[term], origin) for term, origin in found.synonym_of.items()}


def test_a_question_gets_the_terms_of_synonyms_at_a_lower_weight(synonymous):
    assert added(synonymous, "Redis restarts") == {
        "redisserv": (0.12, "redis"), "server": (0.4, "redis"), "valkey": (0.4, "redis"),
    }  # fmt: skip
    assert synonymous.query_terms("Redis restarts")["redi"] == 1.0
    assert added(synonymous, "valkey restarts") == {}  # one way
    assert added(synonymous, "K8s") == {"kubernet": (0.4, "k8s")}
    assert added(synonymous, "Kubernetes") == {"k8s": (0.4, "kubernetes")}
    assert added(synonymous, "a disk of 10GB")["big"] == (0.4, "10 GB")


def test_what_is_asked_for_keeps_its_weight(synonymous):
    plain = Analyzer().query_terms("redis valkey server 住房公积金")
    found = synonymous.query_terms("redis valkey server 住房公积金")
    assert {term: found[term] for term in plain} == plain
    assert list(found)[: len(plain)] == list(plain)
    assert added(synonymous, "redis valkey server") == {"redisserv": (0.12, "redis")}


def test_a_phrase_is_found_in_any_form_and_only_whole(synonymous):
    for text in ("connection reset", "Connections resetting!", "the connection was reset", "Connection-Reset"):
        assert "err_conn_reset" in added(synonymous, text), text
    for text in ("reset connection", "connection", "connection pool reset", "reconnection reset"):
        assert "err_conn_reset" not in added(synonymous, text), text


def test_a_han_phrase_is_found_where_the_segmenter_sees_its_words(synonymous):
    assert {"住房", "住", "房"} <= added(synonymous, "怎么提取公积金").keys()
    assert {"住", "房"} <= added(synonymous, "怎麼提取公積金").keys()
    assert added(synonymous, "她穿和服") == {"kimono": (0.4, "和服")}
    assert added(synonymous, "产品和服务") == {}


def test_synonyms_change_no_document_and_no_fingerprint(synonymous):
    assert synonymous.fingerprint == Analyzer().fingerprint
    assert synonymous.terms("redis k8s 公积金") == Analyzer().terms("redis k8s 公积金")


def test_synonyms_of_synonyms_are_not_asked_for(write):
    chain = Analyzer(synonyms=read_synonyms(write("alpha => beta\nbeta => gamma\n")))
    assert added(chain, "alpha") == {"beta": (0.4, "alpha")}


def test_explained_questions_name_the_rule_and_the_origin(synonymous):
    told = {one.term: one for one in synonymous.explain_question("redis 住房公积金 10GB")}
    assert (told["redi"].rule, told["redi"].weight, told["redi"].synonym_of) == ("word", 1.0, None)
    assert (told["redisserv"].rule, told["redisserv"].weight, told["redisserv"].synonym_of) == (
        "compound",
        0.12,
        "redis",
    )
    assert {term: one.weight for term, one in told.items()} == synonymous.query_terms("redis 住房公积金 10GB")


def test_everything_comes_from_the_settings(write):
    settings = Settings.from_environment(
        {
            "JIYI_USER_DICTIONARY": write("云计算平台", "1"),
            "JIYI_STOP_WORDS": write("please", "2"),
            "JIYI_SYNONYMS": write("k8s, kubernetes", "3"),
            "JIYI_HAN_BIGRAMS": "0",
        }
    )
    analyzer = Analyzer.from_settings(settings)
    assert analyzer.query_terms("please K8s 云计算平台").keys() >= {"k8s", "kubernet", "云计算平台"}
    assert "pleas" not in analyzer.query_terms("please K8s")
    assert analyzer.describe()["han_bigrams"] is False
    assert Analyzer.from_settings(Settings()).fingerprint == Analyzer().fingerprint
