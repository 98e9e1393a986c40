"""The two segmenters: equal words, nothing read from shared places, nothing printed."""

import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jiyi.analysis.characters import split_common_han
from jiyi.analysis.segmenters import open_segmenter

DATA = Path(__file__).parents[2] / "shared" / "data"
SETS = ("evermemos_chat", "cmrc2018_zh", "xquad_zh", "docs_zh", "chat_zh", "techblog_zh_en", "commits_zh")
DOCUMENTS_OF_A_SET = 1_500
NEAR_TIE_EVERY = 20_000

_TEXT = """
昨天晚上服务器突然宕机，值班的同事重启了三次才恢复正常。
她把旧笔记本里的照片全部备份到了移动硬盘上。
请在下周三之前提交季度预算，不要忘记附上供应商的报价单。
这条河发源于高原，流经五个省份，最后注入大海。
小明的爷爷年轻时是火车司机，喜欢讲沿途见过的风景。
我们决定用消息队列削峰，避免数据库连接数被打满。
研究生命起源的科学家提出了一个新的假说。
乒乓球拍卖完了，明天再来看看吧。
南京市长江大桥的夜景非常漂亮。
欧阳锋与诸葛亮并不生活在同一个时代。
龘靐齉爨饕餮貔貅魑魅魍魉。
哈哈哈哈哈哈哈哈哈哈哈哈
一二三四五六七八九十百千万亿
軟體工程師正在偵錯記憶體洩漏的問題。
"""
SENTENCES = _TEXT.split()


@pytest.fixture(scope="module")
def rjieba():
    return open_segmenter("rjieba")


@pytest.fixture(scope="module")
def jieba():
    return open_segmenter("jieba")


def han_runs(text):
    return split_common_han(text)[1::2]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_both_give_the_same_words(rjieba, jieba, sentence):
    """Same words in the same order, so that the slow one can stand in for the fast one."""
    for run in han_runs(sentence):
        assert rjieba.search(run) == jieba.search(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_both_give_the_same_words_on_real_text(rjieba, jieba, name):
    path = DATA / name / "docs.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["content"] for line, _ in zip(lines, range(DOCUMENTS_OF_A_SET), strict=False)]
    runs = {run for text in texts for run in han_runs(text)}
    differing = [run for run in runs if rjieba.search(run) != jieba.search(run)]
    # Near ties only, as described in the module; one in 46,000 runs of cmrc2018_zh, none elsewhere.
    assert len(differing) <= len(runs) // NEAR_TIE_EVERY, differing


def test_near_tie_is_the_known_difference(rjieba, jieba):
    """If this fails the two have become equal here: the docstring of the module may be relaxed."""
    assert (rjieba.search("常在较"), jieba.search("常在较")) == (["常在", "较"], ["常", "在", "较"])


def test_both_agree_on_every_common_character(rjieba, jieba):
    """The alphabet that they are given is the one that both call Han."""
    everything = [chr(c) for c in range(0x4E00, 0x9FD6)]
    runs = everything + ["".join(everything[i : i + 7]) for i in range(0, len(everything), 7)]
    assert [r for r in runs if rjieba.search(r) != jieba.search(r)] == []
    assert all(rjieba.search(c) == [c] for c in everything)


def test_search_mode_gives_the_short_words_inside_a_long_one(rjieba):
    assert rjieba.search("软件工程") == ["软件", "工程", "软件工程"]


@pytest.mark.parametrize("name", ["rjieba", "jieba"])
def test_identity_names_package_and_version(name):
    segmenter = open_segmenter(name)
    assert segmenter.identity.startswith(f"{name} ")
    assert open_segmenter(name).identity == segmenter.identity


@pytest.mark.parametrize("name", ["rjieba", "jieba"])
def test_first_use_by_many_threads(name):
    """The dictionary is loaded once and every thread gets the same words."""
    segmenter = open_segmenter(name)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(segmenter.search, ["研究生命起源"] * 32))
    assert results == [results[0]] * 32


def test_jieba_is_quiet_and_uses_no_cache_file(tmp_path):
    """A cache in a shared folder is unmarshalled by jieba: whoever can write there could crash or mislead us."""
    # Without byte code, so that the warnings of compiling it are seen, too.
    poisoned = tmp_path / "jieba.cache"
    poisoned.write_bytes(b"not a dictionary")
    code = "from jiyi.analysis.segmenters import open_segmenter;print(open_segmenter('jieba').search('软件工程'))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": str(tmp_path / "none"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "['软件', '工程', '软件工程']"
    assert run.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]
    assert poisoned.read_bytes() == b"not a dictionary"


def test_own_words_of_other_users_of_the_process_do_not_reach_us(rjieba):
    """Each segmenter holds a dictionary of its own."""
    import rjieba as package

    before = rjieba.search("永和服装饰品有限公司")
    package.add_word("永和服装饰品有限公司", 1_000_000, "n")
    assert rjieba.search("永和服装饰品有限公司") == before


OWN_WORDS = {
    "南京市长": None, "江大桥": None, "云计算平台": None, "云计算": 5, "张三丰": None, "生命起": 900, "哈哈哈": None,
    "服务": None, "务器": 20_000, "常在": None, "在较": None, "龘靐": None, "软件": 1, "京": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def enlarged():
    return [open_segmenter(name, OWN_WORDS) for name in ("rjieba", "jieba")]


@pytest.mark.parametrize("sentence", [*SENTENCES, "云计算平台上的云计算，张三丰常在较高的服务器", "".join(OWN_WORDS)])
def test_both_give_the_same_words_with_words_of_a_deployment(enlarged, sentence):
    for run in han_runs(sentence):
        one, other = (segmenter.search(run) for segmenter in enlarged)
        assert one == other


def test_a_word_without_a_frequency_comes_out_whole(enlarged):
    for word in (word for word, frequency in OWN_WORDS.items() if frequency is None):
        for segmenter in enlarged:
            assert segmenter.search(word)[-1] == word


@pytest.mark.parametrize(
    "words",
    [
        {"云计算平台江大桥": None, "云计算平": 1_000_000, "台江大桥": 1_000_000},
        {"的是了在": None, "了在": None, "的是": None},
    ],
)
def test_a_word_comes_out_whole_whatever_else_was_added(quick_jieba, words):
    for name in ("rjieba", "jieba"):
        segmenter = open_segmenter(name, words)
        assert [segmenter.search(word)[-1] for word in words] == list(words)


PIECES = ["云", "计算", "平台", "南京", "市长", "江", "大桥", "研究", "生命", "起源", "服务", "器", "龘", "软件", "的"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_frequencies_are_the_same_in_both(quick_jieba, data):
    """Words of pieces of the dictionary, of any length, with and without frequencies: cut alike, and whole alone."""
    word = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
    words = data.draw(st.dictionaries(word, st.none() | st.integers(1, 50_000), min_size=1, max_size=6))
    one, other = (open_segmenter(name, words) for name in ("rjieba", "jieba"))
    for text in [*words, data.draw(st.lists(word, max_size=4).map("".join))]:
        assert one.search(text) == other.search(text)
    for text in (text for text, frequency in words.items() if frequency is None):
        assert one.search(text)[-1] == text


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_both_give_the_same_words_on_real_text_with_words_of_a_deployment(enlarged, name):
    path = DATA / name / "docs.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["content"] for line, _ in zip(lines, range(DOCUMENTS_OF_A_SET), strict=False)]
    runs = {run for text in texts for run in han_runs(text)}
    differing = [run for run in runs if enlarged[0].search(run) != enlarged[1].search(run)]
    assert len(differing) <= len(runs) // NEAR_TIE_EVERY, differing
