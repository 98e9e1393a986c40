"""Evaluation: the measures have the right values, judged sets are read or refused, trials score as the reader does."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys

import msgspec
import pytest

from jiyi.analysis import Analyzer
from jiyi.errors import SourceError
from jiyi.evaluation import JudgedQuery, JudgedSet, measure, read_judged
from jiyi.evaluation.evaluate import ask_all, scores_of, write_all
from jiyi.evaluation.measures import mrr, ndcg, recall
from jiyi.evaluation.service import private_service
from jiyi.evaluation.trials import is_held_out, try_all
from jiyi.settings import Settings

FOUND = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("relevant", "expected"),
    [
        ({"a"}, 1.0),
        ({"b"}, 1 / math.log2(3)),
        ({"d"}, 1 / math.log2(5)),
        ({"a", "c"}, (1 + 1 / 2) / (1 + 1 / math.log2(3))),
        ({"x"}, 0.0),
        ({"a", "x"}, 1 / (1 + 1 / math.log2(3))),
    ],
)
def test_ndcg(relevant, expected):
    assert ndcg(FOUND, relevant) == pytest.approx(expected, abs=1e-12)


def test_only_the_first_k_count_and_more_than_k_cannot_be_asked_for():
    assert ndcg(FOUND, {"c"}, 2) == 0.0
    assert ndcg(FOUND, set("abcdefgh"), 2) == 1.0
    assert recall(FOUND, {"b", "d", "x"}, 2) == pytest.approx(1 / 3)
    assert recall(FOUND, {"b", "d", "x"}, 4) == pytest.approx(2 / 3)
    assert [mrr(FOUND, {name}, 3) for name in "acdx"] == [1.0, pytest.approx(1 / 3), 0.0, 0.0]


def test_measures_are_means_over_the_questions():
    scores = measure([(FOUND, {"a"}), (FOUND, {"x"}), ([], {"x"}), (FOUND, {"b"})])
    assert scores.questions == 4
    assert scores.ndcg_10 == pytest.approx((1 + 1 / math.log2(3)) / 4)
    assert (scores.recall_10, scores.recall_100, scores.mrr_10) == (0.5, 0.5, 0.375)
    assert measure([]).ndcg_10 == 0.0


def written(path, *rows):
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


DOCUMENTS = [
    {"id": "1", "content": "redis 超时", "user_id": "u", "tags": ["a"]},
    {"id": "1", "content": "redis 索引", "user_id": "v"},
]


def test_questions_with_a_user_make_each_user_a_namespace(tmp_path):
    documents = written(tmp_path / "d.jsonl.gz", *DOCUMENTS)
    queries = written(
        tmp_path / "q.jsonl", {"id": "q1", "query": "redis", "relevant": ["1"], "user_id": "v", "answer": "?"},
        {"id": "q2", "query": "none", "relevant": []},
    )  # fmt: skip
    judged = read_judged(documents, queries)
    assert [(row["ns"], row["content"]) for row in judged.documents] == [("u", "redis 超时"), ("v", "redis 索引")]
    assert judged.queries == [JudgedQuery("q1", "redis", frozenset({"1"}), "v")]


def test_questions_without_a_user_ask_all(tmp_path):
    documents = written(tmp_path / "d.jsonl", *DOCUMENTS[:1])
    queries = written(tmp_path / "q.jsonl", {"id": "q1", "query": "redis", "relevant": ["1"]})
    assert {row["ns"] for row in read_judged(documents, queries).documents} == {"default"}


@pytest.mark.parametrize(
    ("document", "query", "message"),
    [
        (DOCUMENTS[0], {"id": "q", "query": "x", "relevant": ["2"]}, "question 'q' asks for '2', which is no document"),
        (DOCUMENTS[0], {"id": "q", "query": "x", "relevant": "1"}, r"q.jsonl, line 1: .*relevant"),
        (DOCUMENTS[0], {"id": "q", "relevant": ["1"]}, r"q.jsonl, line 1: .*query"),
        (DOCUMENTS[0], {"id": "q", "query": "x", "relevant": []}, "no question with relevant documents"),
        ({"content": "x"}, {"id": "q", "query": "x", "relevant": ["1"]}, r"d.jsonl, line 1: id: is missing"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path, document, query, message):
    documents, queries = written(tmp_path / "d.jsonl", document), written(tmp_path / "q.jsonl", query)
    with pytest.raises(SourceError, match=message):
        read_judged(documents, queries)


def test_a_line_that_is_no_json_is_refused_by_its_number(tmp_path):
    documents = written(tmp_path / "d.jsonl", DOCUMENTS[0])
    queries = tmp_path / "q.jsonl"
    queries.write_text('{"id": "q", "query": "x", "relevant": ["1"]}\n{"id"\n')
    with pytest.raises(SourceError, match=r"q.jsonl, line 2: "):
        read_judged(documents, queries)


@pytest.fixture(scope="module")
def judged():
    """Texts that share words, of different lengths and times, for two users; every third is asked for."""
    words = [
        "redis",
        "超时",
        "索引",
        "记忆",
        "会议",
        "张伟",
        "deploy",
        "v1.2.3",
        "ERR_CONN_RESET",
        "上周",
        "缓存",
        "延迟",
    ]
    documents, queries = [], []
    for ns in ("u", "v"):
        for i in range(40):
            text = " ".join(words[(i * j + j) % len(words)] for j in range(1, 3 + i % 9))
            documents.append({"id": f"{ns}{i}", "content": text, "ns": ns, "timestamp": 1_700_000_000_000 + i})
            if i % 3 == 0:
                queries.append(JudgedQuery(f"q{ns}{i}", text[:12], frozenset({f"{ns}{i}", f"{ns}{(i + 7) % 40}"}), ns))
    return JudgedSet(documents, queries)


def test_trials_score_as_the_whole_product_does(judged):
    """Over the stream, through workers and the index, and over HTTP: for the same k1 and b the same measures."""
    grid = [(0.9, 0.4), (1.5, 0.75)]
    trials = {(one.k1, one.b): one for one in try_all(judged, Analyzer(), [0.9, 1.5], [0.4, 0.75])}
    assert set(grid) < set(trials)
    steps = []
    with private_service(Settings()) as service:
        write_all(service, judged, lambda *step: steps.append(step))
        for k1, b in grid:
            found = ask_all(service, judged.queries, k1=k1, b=b)
            for held_out in (False, True):
                pairs = [
                    (query, ids)
                    for query, ids in zip(judged.queries, found, strict=True)
                    if is_held_out(query) is held_out
                ]
                scores = scores_of([query for query, _ in pairs], [ids for _, ids in pairs])
                tried = trials[k1, b].held_out if held_out else trials[k1, b].tuned
                assert msgspec.structs.astuple(tried) == pytest.approx(msgspec.structs.astuple(scores), abs=1e-9)
    assert steps[-1] == ("indexing", 80, 80)


def jiyi(*arguments):
    command = [sys.executable, "-m", "jiyi", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_commands_measure_and_tune_a_users_own_files(tmp_path):
    documents = written(tmp_path / "d.jsonl", *({"id": f"m{i}", "content": f"redis 记忆 number{i}"} for i in range(30)))
    queries = written(
        tmp_path / "q.jsonl", *({"id": f"q{i}", "query": f"number{i}", "relevant": [f"m{i}"]} for i in range(8)),
        {"id": "hopeless", "query": "nothing of that", "relevant": ["m1"]},
    )  # fmt: skip
    answer = jiyi("eval", documents, queries, "--json")
    assert answer.returncode == 0, answer.stderr
    measured = json.loads(answer.stdout)
    assert measured["questions"] == 9
    assert measured["ndcg10"] == measured["recall100"] == pytest.approx(8 / 9)
    assert [one["id"] for one in measured["missed"]] == ["hopeless"]
    told = jiyi("eval", documents, queries).stdout
    assert "30 documents, 9 questions" in told
    assert "hopeless: nothing of that" in told
    tuned = jiyi("tune", documents, queries)
    assert tuned.returncode == 0, tuned.stderr
    assert "held out" in tuned.stdout
    assert len(json.loads(jiyi("tune", documents, queries, "--json").stdout)) == 60


def test_a_file_that_is_not_there_is_named(tmp_path):
    answer = jiyi("eval", tmp_path / "none.jsonl", tmp_path / "q.jsonl")
    assert answer.returncode == 1
    assert "q.jsonl cannot be read" in answer.stderr.replace("\n", " ")
