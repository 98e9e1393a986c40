"""Search over HTTP: what is found, in which order, with which scores, and what is refused."""

import json
import math
import time
from urllib.parse import urlencode

import pytest

from jiyi.scoring import DEFAULT_B, DEFAULT_K1

pytestmark = pytest.mark.anyio

CONTENTS = {
    "a": "redis stream 记忆 索引",
    "b": "redis redis timeout error",
    "c": "记忆 系统 的 设计",
    "d": "",
    "e": "ERR_CONN_RESET 错误 redis",
}


@pytest.fixture
async def filled(index, reader):
    await index.write_all(CONTENTS)
    return reader


def naive_scores(analyzer, contents, question, k1=DEFAULT_K1, b=DEFAULT_B):
    """BM25 of the survivors, written down a second time."""
    terms = {name: analyzer.terms(content) for name, content in contents.items()}
    lengths = {name: sum(found.values()) for name, found in terms.items()}
    avgdl = sum(lengths.values()) / len(lengths)
    scores = {}
    for term, weight in analyzer.query_terms(question).items():
        df = sum(term in found for found in terms.values())
        idf = math.log(1 + (len(terms) - df + 0.5) / (df + 0.5))
        for name, found in terms.items():
            if tf := found.get(term):
                part = weight * idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * lengths[name] / avgdl))
                scores[name] = scores.get(name, 0.0) + part
    return scores


@pytest.mark.parametrize("question", ["redis", "redis 记忆", "err_conn_reset redis 索引", "conn", "没有 redis"])
@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.0, 0.75), (1.2, 0.0), (2.0, 1.0)])
async def test_scores_are_bm25_of_the_living(filled, analyzer, question, k1, b):
    body = filled.search(question, k1=k1, b=b)
    expected = naive_scores(analyzer, CONTENTS, question, k1, b)
    assert {hit["id"]: hit["score"] for hit in body["hits"]} == pytest.approx(expected, abs=1e-9)
    assert [hit["score"] for hit in body["hits"]] == sorted((hit["score"] for hit in body["hits"]), reverse=True)
    assert body["total"] == len(expected)
    assert body["index"]["docs"] == 5
    assert body["index"]["avgdl"] == pytest.approx(sum(sum(analyzer.terms(c).values()) for c in CONTENTS.values()) / 5)
    assert body["tookMs"] > 0


async def test_get_and_post_give_the_same_answer(index, reader):
    await index.write("m", "redis 流", author="陈", source_system="chat", user_id="u 1", session_id="s", kind="note",
                      tags=["x", "y"], timestamp="2026-05-04", importance=0.7,
                      metadata={"k": [1, {"z": None}]})  # fmt: skip
    asked = {
        "q": "redis 流", "ns": "default", "limit": 5, "k1": 1.2, "b": 0.5, "explain": True, "author": ["陈", "x"],
        "sourceSystem": "chat", "userId": "u 1", "sessionId": "s", "kind": "note", "tags": ["y"],
        "since": "2026-05-04T08:00:00+08:00", "until": "1777852800001", "minImportance": 0.7,
    }  # fmt: skip
    by_body = reader.post("/memory/search", asked)
    by_query = reader.request("GET", f"/memory/search?{urlencode(asked | {'explain': 'true'}, doseq=True)}", headers={})
    first, second = by_body.body, by_query.body
    assert first.pop("tookMs") > 0
    assert second.pop("tookMs") > 0
    assert first == second
    (hit,) = first["hits"]
    assert hit["id"] == "m"
    assert {name: hit[name] for name in ("author", "sourceSystem", "userId", "sessionId", "kind", "tags")} == {
        "author": "陈", "sourceSystem": "chat", "userId": "u 1", "sessionId": "s", "kind": "note", "tags": ["x", "y"],
    }  # fmt: skip
    assert (hit["timestamp"], hit["importance"]) == ("2026-05-04T00:00:00.000Z", 0.7)
    assert hit["metadata"] == {"k": [1, {"z": None}]}


async def test_matched_terms_add_up_to_the_score_exactly_and_explain_it(filled):
    for hit in filled.search("redis 记忆 conn stream", explain=True)["hits"]:
        parts, why = hit["matchedTerms"], hit["explanation"]
        assert parts
        assert sum(part["score"] for part in parts) == hit["score"]
        for part in parts:
            assert part["idf"] == math.log(1 + (why["docs"] - part["df"] + 0.5) / (part["df"] + 0.5))
            norm = why["k1"] * (1 - why["b"] + why["b"] * why["length"] / why["avgdl"])
            expected = part["weight"] * part["idf"] * part["tf"] * (why["k1"] + 1) / (part["tf"] + norm)
            assert part["score"] == pytest.approx(expected, rel=1e-12)
    assert "explanation" not in filled.search("redis")["hits"][0]


async def test_a_term_given_twice_counts_once(filled):
    once, twice = filled.search("redis"), filled.search("redis Redis REDIS")
    assert [hit["score"] for hit in once["hits"]] == [hit["score"] for hit in twice["hits"]]


async def test_limit_cuts_the_same_ranking_and_total_counts_all(filled):
    everything = filled.found("redis 记忆")
    assert len(everything) == 4
    for limit in range(6):
        body = filled.search("redis 记忆", limit=limit)
        assert ([hit["id"] for hit in body["hits"]], body["total"]) == (everything[:limit], 4)


async def test_equal_scores_put_the_newer_memory_first(index, reader):
    for name, timestamp in {"old": 2001, "new": 2003, "middle": 2002, "late twin": 2003}.items():
        await index.write(name, "redis", timestamp=f"{timestamp}-01-01")
    assert reader.found("redis") == ["late twin", "new", "middle", "old"]


@pytest.mark.parametrize("question", ["the", "的", "😀🎉", "。。。", "_.-", "\u0000", "nowhere"])
@pytest.mark.parametrize("ns", ["default", "never seen"])
async def test_a_question_without_findable_terms_has_no_hits(filled, question, ns):
    """B26, B38: nothing to find is an answer, not an error; and no number in it is NaN."""
    body = filled.search(question, ns=ns)
    assert (body["hits"], body["total"]) == ([], 0)
    assert body["index"]["docs"] == (5 if ns == "default" else 0)


async def test_an_emptied_namespace_and_one_of_empty_memories(index, reader):
    await index.write("x", "redis", ns="emptied")
    await index.delete("x", ns="emptied")
    await index.write_all({"p": "", "q": "。"}, ns="blank")
    for ns, docs in (("emptied", 0), ("blank", 2)):
        body = reader.search("redis", ns=ns)
        assert (body["hits"], body["total"], body["index"]) == ([], 0, {"docs": docs, "avgdl": 0.0})


REFUSED = [
    ({"q": ""}, "invalid_query", "q: "),
    ({}, "invalid_query", "q: "),
    ({"q": " \t\u3000\n"}, "invalid_query", "q: "),
    ({"q": "字" * 1366}, "invalid_query", "q: has 4098 bytes"),
    ({"q": "x", "limit": -1}, "invalid_query", "limit: "),
    ({"q": "x", "limit": 101}, "invalid_query", "limit: is 101"),
    ({"q": "x", "k1": -0.1}, "invalid_query", "k1: "),
    ({"q": "x", "k1": 1001}, "invalid_query", "k1: "),
    ({"q": "x", "b": 1.01}, "invalid_query", "b: "),
    ({"q": "x", "ns": ""}, "invalid_query", "ns: "),
    ({"q": "x", "ns": "n" * 129}, "invalid_query", "ns: "),
    ({"q": "x", "ns": "a\nb"}, "invalid_query", "ns: "),
    ({"q": "x", "since": "yesterday"}, "invalid_query", "since: "),
    ({"q": "x", "until": "9" * 30}, "invalid_query", "until: "),
    ({"q": "x", "since": 1_777_890_600}, "invalid_query", "since: is too small for epoch milliseconds"),
    ({"q": "x", "sourceSystem": [str(i) for i in range(65)]}, "invalid_query", "sourceSystem: has 65 values"),
    ({"q": "x", "tags": ["t" * 257]}, "invalid_query", "tags: has a value"),
]
WRONG_TYPES = [
    ({"q": 1}, "q: "),
    ({"q": "x", "limit": "ten"}, "limit: "),
    ({"q": "x", "limit": 1.5}, "limit: "),
    ({"q": "x", "k1": "high"}, "k1: "),
    ({"q": "x", "explain": "perhaps"}, "explain: "),
    ({"q": "x", "minImportance": "high"}, "minImportance: "),
]
WRONG_JSON_TYPES = [
    ({"q": None}, "q: "),
    ({"q": "x", "limit": True}, "limit: "),
    ({"q": "x", "author": 3}, "author: "),
    ({"q": "x", "author": ["a", 3]}, "author[1]: "),
    ({"q": "x", "since": 1.5}, "since: "),
    ({"q": "x", "limits": 1}, "limits"),
    ({"q": "x", "source_system": "chat"}, "source_system"),
]


@pytest.mark.parametrize(("asked", "code", "message"), REFUSED)
async def test_what_cannot_be_asked_is_refused_by_name(reader, asked, code, message):
    for answer in (reader.get("/memory/search", **asked), reader.post("/memory/search", asked)):
        assert answer.error[:2] == (400, code)
        assert answer.error[2].startswith(message)


@pytest.mark.parametrize(("asked", "message"), WRONG_TYPES[1:])
async def test_wrong_types_in_the_query_are_refused_by_name(reader, asked, message):
    assert reader.get("/memory/search", **asked).error[:2] == (400, "bad_request")
    assert reader.get("/memory/search", **asked).error[2].startswith(message)


@pytest.mark.parametrize(("asked", "message"), WRONG_TYPES + WRONG_JSON_TYPES)
async def test_wrong_types_in_the_body_are_refused_by_name(reader, asked, message):
    status, code, said = reader.post("/memory/search", asked).error
    assert (status, code) == (400, "bad_request")
    assert message in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize("name", ["k1", "b"])
async def test_numbers_that_are_none_are_refused(reader, name, value):
    status, _, message = reader.get("/memory/search", q="x", **{name: value}).error
    assert status == 400
    assert message.startswith(f"{name}: ")


async def test_a_number_written_as_text_is_read_as_that_number(filled):
    assert filled.search("redis", limit="2", k1="1.2", explain="true") | {"tookMs": 0} == filled.search(
        "redis", limit=2, k1=1.2, explain=True
    ) | {"tookMs": 0}


async def test_a_parameter_that_does_not_exist_is_refused(filled):
    """A misspelt filter that is ignored would show the memories of everybody."""
    for answer in (
        filled.get("/memory/search", q="redis", userid="u1"),
        filled.get("/memory/search", q="redis", user_id="u1"),
        filled.request("POST", "/memory/search?ns=other", json.dumps({"q": "redis"})),
        filled.get("/memory/a", namespace="other"),
        filled.request("DELETE", "/memory/a?namespace=other"),
        filled.get("/memory/ready", id="a", entries="1-0"),
    ):
        assert answer.error[:2] == (400, "invalid_query")
        assert "is no parameter here" in answer.error[2]


async def test_an_unknown_parameter_is_named_as_it_was_sent(filled):
    for sent, named in (("user_id", "user_id"), ("", "''"), ("a\nb", "a\\nb")):
        message = filled.get("/memory/search", **{"q": "redis", sent: "u1"}).error[2]
        assert message.startswith(f"{named}: is no parameter here; known are at, author,")


@pytest.mark.parametrize("path", ["/memory/search?q=redis", "/memory/search/why?q=redis&id=a", "/memory/list?limit=5"])
async def test_null_for_a_number_is_refused_in_a_query(filled, path):
    """It would count as not given: a filter that is none."""
    for name in ("minImportance",) if "list" in path else ("minImportance", "minScore", "perSession"):
        for null in ("null", "NULL"):
            status, code, message = filled.request("GET", f"{path}&{name}={null}").error
            assert (status, code, message) == (400, "invalid_query", f"{name}: must be a number; leave it out for none")
    assert filled.request("GET", f"{path}&author=null").status == 200, "text may be that"


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("GET", "/memory/search?q=%ff", "q"),
        ("GET", "/memory/search?q=redis&ns=%ff", "ns"),
        ("GET", "/memory/list?author=a&author=%ED%A0%80", "author"),
        ("GET", "/memory/search/why?q=redis&id=%80", "id"),
        ("GET", "/memory/ready?id=a%C3", "id"),
        ("DELETE", "/memory/a?ns=%ff", "ns"),
        ("GET", "/analyze?text=%e8%b6", "text"),
    ],
)
async def test_bytes_that_are_no_text_are_refused_in_a_query(filled, method, target, name):
    """They would be taken for U+FFFD, which is another name than the one that was sent."""
    status, code, message = filled.request(method, target).error
    assert (status, code, message) == (400, "invalid_query", f"{name}: is not UTF-8; percent-encode the bytes of UTF-8")
    assert filled.request("GET", "/memory/search?q=redis&author=%EF%BF%BD").status == 200


@pytest.mark.parametrize(
    ("name", "words"), [("match", "any, all, auto"), ("rank", "bm25, memory"), ("timeWords", "boost, filter, off")]
)
async def test_a_word_that_is_no_choice_is_answered_with_those_that_are(filled, name, words):
    for answer in (
        filled.get("/memory/search", q="x", **{name: "ALL"}),
        filled.post("/memory/search", {"q": "x", name: ""}),
    ):
        assert answer.error == (400, "bad_request", f"{name}: must be one of {words}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"q": "redis"', "body: is no whole JSON: it ends too early, or an escape like \\ud83d has no second half"),
        (
            b'{"q": "\\ud800"}',
            "body: is no whole JSON: it ends too early, or an escape like \\ud83d has no second half",
        ),
        (b'{"q": "\\udc00"}', "body: JSON is malformed: invalid utf-16 surrogate pair"),
        (b'{"q": "\xff"}', "body: Invalid UTF-8 encoded string"),
        (b'{"q": "redis", "k1": NaN}', "body: JSON is malformed: invalid character"),
        (b'{"q": "redis", "k1": 1e400}', "body: Number out of range"),
    ],
)
async def test_a_body_that_is_no_json_is_said_to_be_wrong(filled, body, message):
    for path in ("/memory/search", "/memory/list", "/analyze"):
        status, code, said = filled.post(path, body).error
        assert (status, code) == (400, "bad_request")
        assert said.startswith(message)


async def test_a_parameter_that_is_given_twice_is_refused(filled):
    """Which of the two would count? Filters may be repeated: they mean any of their values."""
    for target in ("/memory/search?q=redis&ns=a&ns=b", "/memory/a?ns=a&ns=b", "/memory/ready?id=a&wait=1s&wait=2s"):
        assert filled.request("GET", target).error[:2] == (400, "invalid_query")
        assert "is given 2 times" in filled.request("GET", target).error[2]
    assert filled.request("GET", "/memory/search?q=redis&author=a&author=b").status == 200


FILTERS = {
    "author": ("author", "Chen"),
    "sourceSystem": ("source_system", "chat"),
    "userId": ("user_id", "u1"),
    "sessionId": ("session_id", "s1"),
    "kind": ("kind", "note"),
    "tags": ("tags", "urgent"),
}
SYNTAX = ["*", "a*", "?", ":", "@", "{x}", "}", "|", "a|b", "(", "-", '"', "\\", "a b", " ", "Ü", "%", "@author:x"]


@pytest.mark.parametrize("name", FILTERS)
async def test_each_filter_alone_is_an_exact_match(index, reader, name):
    field, value = FILTERS[name]
    for other in (value, value.upper() + "2", f"{value} ", value[:-1], None):
        fields = {} if other is None else {field: [other] if name == "tags" else other}
        await index.write(f"m {other}", "redis", **fields)
    same = {f"m {value}", f"m {value} "} if name == "tags" else {f"m {value}"}  # tags are stripped when written
    assert set(reader.found("redis", **{name: value})) == same
    assert set(reader.found("redis", **{name: [value]})) == same
    body = reader.search("redis", **{name: ["no such", value]})
    assert ({hit["id"] for hit in body["hits"]}, body["total"]) == (same, len(same))
    assert reader.found("redis", **{name: "no such"}) == []
    assert reader.found("redis", **{name: []}) == []
    assert reader.found("redis", **{name: ""}) == []
    assert len(reader.found("redis")) == 5


@pytest.mark.parametrize("value", SYNTAX)
async def test_a_filter_value_has_no_syntax(index, reader, value):
    await index.write("it", "redis", author=value, kind="other")
    await index.write("bait", "redis", author="ab", kind=value)
    assert reader.found("redis", author=value) == ["it"]
    assert [hit["id"] for hit in reader.get("/memory/search", q="redis", author=value).body["hits"]] == ["it"]
    assert reader.found("redis", kind=value) == ["bait"]


async def test_filters_combined_must_all_hold(index, reader):
    for i in range(64):
        fields = {field: value for bit, (field, value) in enumerate(FILTERS.values()) if i >> bit & 1}
        await index.write(f"m{i}", "redis", **(fields | {"tags": ["urgent"]} if "tags" in fields else fields))
    for i in range(64):
        chosen = {name: value for bit, (name, (_, value)) in enumerate(FILTERS.items()) if i >> bit & 1}
        expected = {f"m{j}" for j in range(64) if i & j == i}
        body = reader.search("redis", limit=100, **chosen)
        assert ({hit["id"] for hit in body["hits"]}, body["total"]) == (expected, len(expected))
    scores = {hit["score"] for i in (0, 63) for hit in reader.search("redis", userId=["u1", "u2"])["hits"]}
    assert len(scores) == 1, "filters choose, they do not score"


async def test_a_filter_needs_a_term_and_is_none_itself(index, reader):
    """The filter's own term cannot be reached by the text of a question."""
    await index.write("m", "redis", author="chen")
    for question in ("@author:chen", "author:chen", "chen", "@author"):
        assert reader.found(question) == []


async def test_since_is_inclusive_and_until_exclusive(index, reader):
    base = 1_777_890_600_000  # 2026-05-04T10:30:00Z
    for ms in (1000, 2000, 3000):
        await index.write(f"t{ms}", "redis", timestamp=base + ms)
    await index.write("unborn", "redis", timestamp="1960-01-01")
    for since, until, expected in [
        (base + 2000, None, {"t2000", "t3000"}),
        (None, base + 2000, {"t1000", "unborn"}),
        (base + 1000, base + 3000, {"t1000", "t2000"}),
        ("2026-05-04T10:30:02Z", "2026-05-04T19:30:03+09:00", {"t2000"}),
        ("2026-05-04T10:30:02", str(base + 3001), {"t2000", "t3000"}),
        (base + 3000, base + 2000, set()),
        (-(10**12), "1970-01-01", {"unborn"}),
    ]:
        bounds = {name: value for name, value in (("since", since), ("until", until)) if value is not None}
        body = reader.search("redis", **bounds)
        assert ({hit["id"] for hit in body["hits"]}, body["total"]) == (expected, len(expected))
        assert {hit["id"] for hit in reader.get("/memory/search", q="redis", **bounds).body["hits"]} == expected


async def test_min_importance_is_inclusive_for_every_number(index, reader):
    """The index holds 32-bit floats, in which 0.7 is a little less than 0.7."""
    steps = [i / 20 for i in range(21)]
    for step in steps:
        await index.write(f"{step}", "redis", importance=step)
    for step in steps:
        expected = {f"{other}" for other in steps if other >= step}
        assert set(reader.found("redis", limit=100, minImportance=step)) == expected
    assert reader.found("redis", minImportance=1.5) == []


async def test_an_expired_memory_is_returned_nowhere(index, reader):
    now = time.time_ns() // 10**6
    await index.write("gone", "redis", expires_at=now - 1)
    await index.write("staying", "redis", expires_at=now + 60_000)
    await index.write("soon", "redis", expires_at=now + 700)
    assert set(reader.found("redis")) == {"staying", "soon"}
    assert reader.get("/memory/gone").error[:2] == (404, "not_found")
    assert (reader.ready("gone")["state"], reader.ready("gone")["reason"]) == ("deleted", "expired")
    assert not reader.ready("gone")["ready"]
    assert reader.get("/memory/staying").body["expiresAt"].endswith("Z")
    deadline = time.monotonic() + 10
    while reader.found("redis") != ["staying"]:
        assert time.monotonic() < deadline
    assert reader.get("/memory/soon").status == 404


async def test_expired_memories_do_not_hide_living_ones(index, reader):
    """They outrank the living until workers sweep them, which may be long after."""
    await index.write_all({f"living{i}": "redis and more words than those" for i in range(3)})
    changes = [index.change(f"expired{i}", "redis", expires_at=10**11) for i in range(400)]
    await index.writer.apply("default", changes)
    assert set(reader.found("redis", limit=3)) == {"living0", "living1", "living2"}
    assert len(reader.found("redis", limit=2)) == 2
    assert set(reader.found("redis", limit=100)) == {"living0", "living1", "living2"}


async def test_after_a_delete_nothing_finds_the_memory(index, reader):
    """B46, B48: the very next request sees the change, whatever was cached."""
    await index.write_all({"a": "redis 流", "b": "redis 超时"})
    assert set(reader.found("redis")) == {"a", "b"}
    await index.delete("a")
    assert reader.found("redis") == ["b"]
    assert reader.found("流") == []
    assert reader.get("/memory/a").error[:2] == (404, "not_found")
    assert reader.state("a") == "deleted"
    await index.write("b", "queue")
    assert reader.found("redis") == []
    assert reader.found("queue") == ["b"]
    await index.write("a", "redis back")
    assert reader.found("redis") == ["a"]
