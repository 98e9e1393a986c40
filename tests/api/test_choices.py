"""What a search may be asked for besides words: filters on tags, several namespaces, orders, matching and folding."""

import json
from urllib.parse import urlencode

import pytest

from api.test_search import naive_scores
from jiyi_api.orders import TIME_BOOST

pytestmark = pytest.mark.anyio

NOW = "2026-05-20T12:00:00Z"


def ids(body):
    return [hit["id"] for hit in body["hits"]]


TAGGED = {"none": [], "x": ["x"], "y": ["y"], "xy": ["x", "y"], "xyz": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"tags": ["x", "z"]}, {"x", "xy", "xyz"}),
        ({"tagsAll": ["x", "y"]}, {"xy", "xyz"}),
        ({"tagsAll": "z"}, {"xyz"}),
        ({"tagsNone": ["x"]}, {"none", "y"}),
        ({"tagsNone": ["y", "z"]}, {"none", "x"}),
        ({"tagsNone": ["no such"]}, set(TAGGED)),
        ({"tagsAll": ["x", "no such"]}, set()),
        ({"tags": ["x"], "tagsAll": ["y"], "tagsNone": ["z"]}, {"xy"}),
        ({"tagsAll": []}, set(TAGGED)),
        ({"tagsNone": []}, set(TAGGED)),
    ],
)
async def test_tags_of_which_any_all_or_none_are_wanted(index, reader, filters, expected):
    for name, tags in TAGGED.items():
        await index.write(name, "redis", tags=tags)
    body = reader.search("redis", **filters)
    assert (set(ids(body)), body["total"]) == (expected, len(expected))
    assert set(ids(reader.get("/memory/search", q="redis", **filters).body)) == expected
    listed = reader.post("/memory/list", filters).body
    assert ({memory["id"] for memory in listed["memories"]}, listed["total"]) == (expected, len(expected))


async def test_several_namespaces_score_as_one_index_of_all(index, reader, analyzer):
    one = {"a": "redis stream", "b": "redis redis memory of agents"}
    two = {"c": "stream", "d": "redis stream stream 超时"}
    await index.write_all(one, ns="one")
    await index.write_all(two, ns="two")
    await index.write_all({"secret": "redis stream"}, ns="three")
    body = reader.search("redis stream", namespaces=["one", "two"])
    expected = naive_scores(analyzer, one | two, "redis stream")
    assert {hit["id"]: hit["score"] for hit in body["hits"]} == pytest.approx(expected, abs=1e-9)
    assert ids(body) == sorted(expected, key=expected.get, reverse=True)
    assert {hit["id"]: hit["ns"] for hit in body["hits"]} == {"a": "one", "b": "one", "c": "two", "d": "two"}
    assert (body["total"], body["index"]["docs"]) == (4, 4)
    assert ids(reader.search("redis stream", namespaces=["one", "two"], limit=2)) == ids(body)[:2]
    assert ids(reader.search("redis stream", namespaces=["nobody", "two", "two"])) == ["d", "c"]
    assert "ns" not in reader.search("redis", ns="one")["hits"][0]
    assert reader.get("/memory/search", q="redis stream", namespaces=["two", "one"]).body["total"] == 4


async def test_namespaces_beside_ns_are_refused(reader):
    """A gateway that sets ns relies on it."""
    for target in ("/memory/search?q=redis&", "/memory/list?"):
        answer = reader.request("GET", f"{target}ns=mine&namespaces=theirs")
        assert answer.error == (400, "invalid_query", "namespaces: is given beside ns; give one of them")
    many = [f"n{i}" for i in range(17)]
    assert reader.post("/memory/search", {"q": "redis", "namespaces": many}).error[0] == 400
    assert reader.post("/memory/search", {"q": "redis", "namespaces": []}).error[0] == 400


async def test_all_words_or_those_with_all_first(index, reader):
    await index.write("long", "redis 超时 " + "filler words of a long memory " * 20)
    await index.write("redis", "redis redis redis")
    await index.write("timeout", "超时 超时")
    await index.write("neither", "stream")
    assert ids(reader.search("redis 超时"))[-1] == "long"
    assert ids(reader.search("redis 超时", match="all")) == ["long"]
    auto = reader.search("redis 超时", match="auto")
    assert ids(auto)[0] == "long"
    assert set(ids(auto)) == {"long", "redis", "timeout"}
    assert [hit["matchedAll"] for hit in auto["hits"]] == [True, False, False]
    assert auto["total"] == 3
    assert len(ids(reader.search("redis 超时", match="auto", limit=2))) == 2
    assert ids(reader.search("redis absent", match="all")) == []
    assert "matchedAll" not in reader.search("redis", match="all")["hits"][0]


async def test_all_words_does_not_ask_for_what_the_net_has_besides(index, reader):
    """鉴权的方案 holds both words of 鉴权方案, though not the pair 权方 that stands across their border."""
    await index.write_all({"both": "鉴权的方案", "one": "鉴权的日志", "name": "张工说的", "other": "张三和工人"})
    assert ids(reader.search("鉴权方案", match="all")) == ["both"]
    assert ids(reader.search("张工", match="all")) == ["name"]


async def test_a_minimum_score_leaves_out_what_is_below_and_counts_the_rest(index, reader):
    await index.write_all({f"m{i}": "redis" + " filler" * i for i in range(10)})
    scores = [hit["score"] for hit in reader.search("redis")["hits"]]
    for at in (0, 4, 9):
        body = reader.search("redis", minScore=scores[at])
        assert ([hit["score"] for hit in body["hits"]], body["total"]) == (scores[: at + 1], at + 1)
    assert reader.search("redis", minScore=scores[0] * 1.01)["total"] == 0
    assert reader.search("redis", minScore=scores[3], limit=0)["total"] == 4


async def test_memory_ranking_weighs_what_it_says(index, reader):
    await index.write("old", "redis", timestamp="2026-03-21T12:00:00Z", importance=1.0, kind="fact")
    await index.write("new", "redis", timestamp=NOW, importance=0.0)
    await index.write("long", "redis and more words", timestamp=NOW, importance=0.5)

    def ranked(**ranking):
        body = reader.search("redis", rank="memory", at=NOW, **({"ranking": ranking} if ranking else {}))
        for hit in body["hits"]:
            factors = hit["factors"]
            assert hit["score"] == sum(factors[name]["score"] for name in ("relevance", "importance", "freshness"))
            for factor in factors.values():
                assert factor["score"] == factor["value"] * factor["weight"]
        assert [hit["score"] for hit in body["hits"]] == sorted((hit["score"] for hit in body["hits"]), reverse=True)
        return {hit["id"]: hit for hit in body["hits"]}

    found = ranked()
    assert found["old"]["score"] == pytest.approx(0.6 + 0.25 + 0.15 / 4)  # sixty days are two half-lives
    assert found["new"]["score"] == pytest.approx(0.6 + 0.15)
    assert found["old"]["factors"]["freshness"] | {"score": 0} == {
        "value": 0.25, "weight": 0.15, "score": 0, "ageDays": 60.0, "halfLifeDays": 30.0,
    }  # fmt: skip
    assert list(ranked(weights={"relevance": 0, "importance": 0, "freshness": 1}))[-1] == "old"
    kinds = {"fact": {"halfLifeDays": 60, "weights": {"relevance": 0, "importance": 0, "freshness": 1}}}
    own = ranked(kinds=kinds)
    assert own["old"]["score"] == pytest.approx(0.5)
    assert own["new"]["score"] == pytest.approx(0.75)
    by_query = reader.get("/memory/search", q="redis", rank="memory", at=NOW, ranking=json.dumps({"kinds": kinds}))
    assert {hit["id"]: hit["score"] for hit in by_query.body["hits"]} == {n: hit["score"] for n, hit in own.items()}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rank", "vector", ""),
        ("match", "some", ""),
        ("timeWords", "yes", ""),
        ("ranking", {"halfLifeDays": 30}, "rank=memory"),
        ("collapse", "content", "near, or one of author"),
        ("perSession", 0, "1 or more"),
        ("minScore", "nan", "number"),
        ("snippet", -1, "characters"),
        ("tz", "Mars/Olympus", "Asia/Shanghai"),
        ("tz", "../../etc/passwd", "Asia/Shanghai"),
        ("at", "yesterday", ""),
        ("at", "0001-01-01", "1000 to 8999"),
        ("at", "9999-12-31T23:59:59Z", "1000 to 8999"),
    ],
)
async def test_a_choice_that_there_is_not_is_refused_by_name(reader, field, value, message):
    answer = reader.post("/memory/search", {"q": "redis", field: value})
    assert answer.error[0] == 400
    assert field in answer.error[2]
    assert message in answer.error[2]
    if not isinstance(value, dict):
        assert reader.get("/memory/search", q="redis", **{field: value}).error[0] == 400


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ({"halfLifeDays": 0}, "halfLifeDays"),
        ({"weights": {"relevance": -1}}, "weights.relevance"),
        ({"weights": {"importance": 1e308}}, "weights.importance must be a number from 0 to 1,000,000"),
        ({"kinds": {"fact": {"halfLifeDays": -1}}}, "kinds.fact.halfLifeDays"),
        ({"weight": {}}, "weight"),
        ("{", "JSON"),
        ("", "JSON"),
    ],
)
async def test_a_ranking_that_gives_no_order_is_refused(reader, ranking, message):
    answer = reader.post("/memory/search", {"q": "redis", "rank": "memory", "ranking": ranking})
    assert answer.error[0] == 400
    assert message in answer.error[2]


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ('{"weight": {}}', "ranking: Object contains unknown field `weight`; it may have weights"),
        ('{"weights": {"relevance": "high"}}', "ranking: Expected `float`, got `str`"),
        ("recent", "ranking: must be JSON"),
    ],
)
async def test_a_query_says_whether_its_ranking_is_no_json_or_not_a_ranking(reader, ranking, message):
    answer = reader.get("/memory/search", q="redis", rank="memory", ranking=ranking)
    assert answer.error[:2] == (400, "invalid_query")
    assert answer.error[2].startswith(message)
    assert "halfLifeDays" in answer.error[2]


async def test_near_duplicates_are_folded_into_the_best_and_counted(index, reader):
    text = "张工 说 redis 的 超时 是 连接池 太小 引起 的 已经 改成 两百"
    await index.write_all(
        {"a": text, "b": text + "。", "c": text + " 了解", "d": "redis 超时 的 另 一件 事 与 此 无关"}
    )
    plain = reader.search("redis 超时")
    assert "folded" not in plain["hits"][0]
    body = reader.search("redis 超时", collapse="near")
    assert len(ids(body)) == 2
    (folding,) = [hit for hit in body["hits"] if "folded" in hit]
    assert folding["folded"]["count"] == 2
    assert set(folding["folded"]["ids"]) | {folding["id"]} == {"a", "b", "c"}
    assert body["total"] == 4
    assert len(ids(reader.search("redis 超时", collapse="near", limit=1))) == 1


async def test_hits_of_one_source_or_session_are_folded(index, reader):
    for i in range(30):
        await index.write(f"m{i}", "redis" + " filler" * i, session_id=f"s{i % 3}", source_system="chat")
    await index.write("alone", "redis" + " filler" * 40)
    assert ids(reader.search("redis", collapse="sourceSystem")) == ["m0", "alone"]
    assert reader.search("redis", collapse="sourceSystem")["hits"][0]["folded"]["count"] == 29
    body = reader.search("redis", perSession=2, limit=20)
    assert ids(body) == ["m0", "m1", "m2", "m3", "m4", "m5", "alone"]
    assert [hit.get("folded", {}).get("count") for hit in body["hits"]] == [8, 8, 8, None, None, None, None]
    assert ids(reader.search("redis", perSession=1, limit=4)) == ["m0", "m1", "m2", "alone"]


async def test_what_is_counted_as_folded_ends_with_the_last_hit_that_is_given(index, reader):
    """However many were fetched: m0 m1 | m2 | m3 … are of two sessions, and only m1 stands between the hits."""
    for i in range(12):
        await index.write(f"m{i}", "redis" + " filler" * i, session_id="b" if i == 2 else "a")
    for choice in ({"perSession": 1}, {"collapse": "sessionId"}):
        found = {limit: reader.search("redis", limit=limit, **choice)["hits"] for limit in (1, 2, 3)}
        assert [(hit["id"], "folded" in hit) for hit in found[1]] == [("m0", False)]
        assert [(hit["id"], hit.get("folded")) for hit in found[2]] == [
            ("m0", {"count": 1, "ids": ["m1"]}), ("m2", None),
        ]  # fmt: skip
        assert [hit.get("folded", {}).get("count") for hit in found[3]] == [10, None]


async def test_near_duplicates_are_told_by_all_occurrences_of_their_terms(index, reader):
    """Two distinct terms and three, but 101 of 102 occurrences are shared."""
    await index.write_all({"a": "redis " * 100 + "alpha", "b": "redis " * 100 + "alpha beta", "c": "redis alpha beta"})
    hits = reader.search("redis", collapse="near")["hits"]
    assert [hit.get("folded", {}).get("count") for hit in hits] == [1, None]


async def test_a_session_is_one_of_its_namespace(index, reader):
    """Folding by session is the same however it is asked for; an author is the same everywhere."""
    for ns in ("one", "two"):
        await index.write("m", f"redis {ns}", ns=ns, session_id="s", author="张工")
    for choice, count in (({"perSession": 1}, 2), ({"collapse": "sessionId"}, 2), ({"collapse": "author"}, 1)):
        assert len(ids(reader.search("redis", namespaces=["one", "two"], **choice))) == count


async def test_a_minimum_score_counts_what_reaches_it_by_the_measure_of_either_tier(index, reader):
    """With auto, `both` is the best of those with every word, but far from the best of all."""
    await index.write("both", "alpha beta " + "filler words of a long memory " * 40)
    await index.write("a", "alpha alpha alpha")
    await index.write("b", "beta beta")
    weights = {"weights": {"relevance": 1, "importance": 0, "freshness": 0}}
    asked = {"match": "auto", "rank": "memory", "minScore": 0.9}
    body = reader.search("alpha beta", ranking=weights, **asked)
    assert (ids(body), body["total"]) == (["both", "a", "b"], 3)
    asked |= {"q": "alpha beta", "ranking": json.dumps(weights)}
    why = {name: reader.get("/memory/search/why", id=name, **asked).body for name in ("both", "a", "b")}
    assert [(one["verdict"], one["rank"], one["total"]) for one in why.values()] == [
        ("found", 1, 3), ("found", 2, 3), ("found", 3, 3),
    ]  # fmt: skip


async def test_a_score_is_a_number_whatever_the_weights(index, reader):
    await index.write("m", "redis", importance=1.0, timestamp=NOW)
    most = {"weights": dict.fromkeys(("relevance", "importance", "freshness"), 1e6), "halfLifeDays": 5e-324}
    body = reader.search("redis", rank="memory", ranking=most, at=NOW)
    assert [hit["score"] for hit in body["hits"]] == [3e6]
    later = reader.search("redis", rank="memory", ranking=most, at="2026-06-20")
    assert [hit["score"] for hit in later["hits"]] == [2e6]


async def test_time_words_favour_filter_or_do_nothing(index, reader):
    await index.write("then", "redis 超时", timestamp="2026-05-13T10:00:00+08:00")
    await index.write("now", "redis 超时", timestamp="2026-05-20T10:00:00+08:00")
    asked = {"q": "上周 redis 超时", "at": "2026-05-20T12:00:00+08:00", "tz": "Asia/Shanghai"}

    def found(**choice):
        return reader.post("/memory/search", asked | choice).body

    off, boost, only = found(timeWords="off"), found(), found(timeWords="filter")
    assert (ids(off), ids(boost), ids(only)) == (["now", "then"], ["then", "now"], ["then"])
    assert "timeWords" not in off
    told = [{"text": "上周", "since": "2026-05-10T16:00:00.000Z", "until": "2026-05-17T16:00:00.000Z"}]
    assert boost["timeWords"] == only["timeWords"] == told
    bm25 = {hit["id"]: hit["score"] for hit in off["hits"]}
    then, now = boost["hits"]
    assert then["boost"] == {"factor": TIME_BOOST, "score": bm25["then"] * TIME_BOOST}
    assert then["score"] == sum(term["score"] for term in then["matchedTerms"]) + then["boost"]["score"]
    assert (now["score"], "boost" in now) == (bm25["now"], False)
    assert only["total"] == 1
    since = {"since": "2026-05-14", "timeWords": "filter"}
    assert found(**since)["total"] == 0
    by_query = reader.request("GET", f"/memory/search?{urlencode(asked)}").body
    assert by_query["hits"] == boost["hits"]


async def test_a_question_of_nothing_but_time_words_finds_what_says_them(index, reader):
    await index.write("m", "上周 的 讨论", timestamp="2026-05-13")
    body = reader.post("/memory/search", {"q": "上周", "at": NOW}).body
    assert ids(body) == ["m"]


async def test_a_snippet_shows_where_the_question_was_met(index, reader):
    await index.write("m", "开场白。" * 40 + "张工 说 <redis> 的 超时 是 连接池 太小。" + "后话。" * 40)
    (hit,) = reader.search("redis 超时", snippet=40)["hits"]
    shown = hit["snippet"]
    assert [shown["text"][begin:end] for begin, end in shown["highlights"]] == ["redis", "超时"]
    assert "&lt;<mark>redis</mark>&gt;" in shown["html"]
    assert len(shown["text"]) < 50
    assert "snippet" not in reader.search("redis 超时")["hits"][0]
    assert reader.get("/memory/search", q="redis 超时", snippet=40).body["hits"] == [hit]


async def test_time_words_that_filter_need_not_be_said_by_the_memory(index, reader):
    await index.write("then", "redis 超时", timestamp="2026-05-13")
    asked = {"q": "上周 redis 超时", "at": NOW, "timeWords": "filter"}
    assert ids(reader.post("/memory/search", asked | {"match": "all"}).body) == ["then"]
    (hit,) = reader.post("/memory/search", asked | {"match": "auto"}).body["hits"]
    assert hit["matchedAll"] is True
    assert ids(reader.post("/memory/search", asked | {"match": "all", "timeWords": "off"}).body) == []


async def test_folding_keeps_the_order_of_all_namespaces_and_tiers(index, reader):
    """Folding looks beyond the limit, where one namespace or tier ends earlier than the others."""
    for i in range(40):
        await index.write(f"a{i:02}", "redis stream" + " filler" * i, ns="a", author="bot")
        await index.write(f"b{i:02}", "redis" + " filler" * (i + 60), ns="b", author="bot")
    await index.write("late", "redis stream" + " filler" * 50, ns="a", author="张工")
    await index.write("near", "redis redis stream redis" + " filler" * 120, ns="b", author="李")
    await index.write("one", "redis redis redis redis", ns="b", author="one")
    both = {"q": "redis stream", "namespaces": ["a", "b"], "match": "auto"}
    for match in ("any", "auto"):
        whole = reader.post("/memory/search", both | {"match": match, "limit": 100}).body
        assert len(ids(whole)) == whole["total"] == 83
        best = {}
        for hit in whole["hits"]:
            best.setdefault(hit["author"], hit["id"])
        for limit in (1, 2, 3, 4, 10):
            asked = {"match": match, "limit": limit, "collapse": "author"}
            hits = reader.post("/memory/search", both | asked).body["hits"]
            assert [hit["id"] for hit in hits] == list(best.values())[:limit]
            if match == "auto":
                assert [hit["matchedAll"] for hit in hits] == [True, True, True, False][:limit]


async def test_what_has_expired_lets_nothing_overtake(index, reader):
    """Of each namespace and tier so many are ranked as are asked for, and some of these are not there any more."""
    for i in range(12):
        await index.write(f"old{i:02}", "redis stream", ns="a", expires_at="2020-01-01")
        await index.write(f"a{i:02}", "redis stream" + " filler" * (i + 1), ns="a")
        await index.write(f"b{i:02}", "redis redis" + " filler" * (i + 20), ns="b")
    for asked in (
        {"namespaces": ["a", "b"]},
        {"namespaces": ["a", "b"], "match": "auto"},
        {"ns": "a", "match": "auto"},
    ):
        for limit in (3, 8, 12):
            found = reader.search("redis stream", limit=limit, **asked)
            assert ids(found) == [f"a{i:02}" for i in range(limit)]


async def test_several_namespaces_fill_a_list_in_whatever_order(index, reader):
    """With an order of its own, only those that may be among the best of all are ranked of each namespace."""
    for i in range(30):
        await index.write(f"m{i:02}", "redis" + " filler" * i, ns="ab"[i % 2], importance=i / 30, timestamp=NOW)
    both = {"namespaces": ["a", "b"], "at": NOW}
    importance = {"weights": {"relevance": 0, "importance": 1, "freshness": 0}}
    for asked in ({"minScore": 0}, {"rank": "memory", "ranking": importance}, {"match": "auto", "minScore": 0}):
        order = [f"m{i:02}" for i in range(30)]
        for limit in (1, 5, 20, 40):
            found = ids(reader.search("redis", limit=limit, **both, **asked))
            assert found == (order[::-1] if "rank" in asked else order)[:limit]
