"""The benchmark's own bookkeeping: what it reports is what was measured, and what is absent is said."""

from __future__ import annotations

import json
import string

import pytest

from benchmarks.aims import AIMS, judge
from benchmarks.engines.sqlite_fts5 import SqliteFts5
from benchmarks.load import one_word, plain_words, question_of, spread, tokens_of
from benchmarks.report import write_report
from benchmarks.results import Results
from jiyi.analysis import Analyzer

TEXTS = ["Redis 的记忆索引", "a worker of the queue", "记忆服务 career-wise node.js", "the queue is full"]


@pytest.fixture
def results():
    return Results()


def verdict_of(results, text):
    return next(verdict for verdict in judge(results, [10, 20]) if verdict.text == text)


@pytest.mark.parametrize("term", ["career-wise", "node.js", "c++", "a_b", "记忆", "@author:x", "naïve"])
def test_a_term_becomes_a_word_that_no_tokenizer_splits(term):
    word = one_word(term)
    assert not set(word) & (set(string.punctuation) - {"_"})
    assert not any(char.isspace() for char in word)


def test_different_terms_stay_different_words():
    terms = ["a-b", "a_b", "a.b", "a2db", "ab", "a_2db"]
    assert len({one_word(term) for term in terms}) == len(terms)


def test_plain_words_are_cut_and_not_stemmed():
    assert plain_words("Running tests, 记忆服务!") == ["running", "tests", "记忆", "服务"]


def test_an_engine_finds_the_document_that_was_indexed():
    analyzer = Analyzer()
    engine = SqliteFts5([tokens_of(analyzer, {"content": text}) for text in TEXTS])
    question = question_of(analyzer, "career-wise")

    async def found():
        return await engine.places(question, await engine.search(question))

    coroutine = found()
    with pytest.raises(StopIteration) as stopped:  # nothing in it waits
        coroutine.send(None)
    assert stopped.value.value == [2]


def test_memories_are_spread_evenly():
    spaces = [memory["ns"] for memory in spread([{"id": str(i)} for i in range(6)], 3)]
    assert sorted(spaces) == sorted(["load-0", "load-1", "load-2"] * 2)


def test_an_aim_is_held_against_the_ratio_of_two_rows(results):
    results.about("query", "jiyi", 10).record("mean_ms", 0.2, "ms")
    results.about("query", "redisearch", 10).record("mean_ms", 4.0, "ms")
    verdict = verdict_of(results, "query mean / redisearch")
    assert verdict.measured == pytest.approx(0.05)
    assert verdict.met


def test_an_aim_of_at_least_is_not_met_by_less(results):
    results.about("http", "jiyi", 10).record("16_connections_per_s", 2_000, "1/s")
    assert verdict_of(results, "HTTP requests per second").met is False


def test_what_was_not_measured_is_neither_met_nor_missed(results):
    results.about("query", "jiyi", 10).record("mean_ms", 0.2, "ms")
    verdict = verdict_of(results, "query mean / redisearch")
    assert (verdict.measured, verdict.met) == (None, None)


def test_the_largest_index_is_compared_with_the_smallest(results):
    for docs, rate in ((10, 1000), (20, 900)):
        results.about("ingest", "jiyi", docs).record("1_worker_docs_per_s", rate, "1/s")
    verdict = verdict_of(results, "ingest, 1 worker, 20 / 10 documents")
    assert verdict.measured == pytest.approx(0.9)
    assert verdict.met


def test_what_is_absent_is_in_the_json_and_in_the_report(results, tmp_path):
    results.about("query", "jiyi", 10).record("mean_ms", 0.2, "ms")
    results.about("query", "tantivy", 10).absent("all", "cannot be installed here")
    results.write(tmp_path / "bench.json")
    rows = json.loads((tmp_path / "bench.json").read_text())
    assert rows[1] == {
        "bench": "query", "engine": "tantivy", "docs": 10, "metric": "all", "value": None, "unit": "",
        "note": "cannot be installed here",
    }  # fmt: skip
    report = write_report(results, tmp_path, {"load average": "0.1"}).read_text()
    assert "- tantivy, all: cannot be installed here" in report
    assert "| jiyi | 0.2 |" in report


def test_the_report_judges_every_aim(results, tmp_path):
    results.about("query", "jiyi", 10).record("mean_ms", 0.2, "ms")
    report = write_report(results, tmp_path, {}).read_text()
    assert [aim.text for aim in AIMS if f"| {aim.text} |" not in report] == []
