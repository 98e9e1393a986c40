"""Why a memory was found, or was not."""

import json

import msgspec
import pytest

from api.conftest import running_reader

pytestmark = pytest.mark.anyio


@pytest.fixture
async def filled(index, reader):
    await index.write("best", "redis 超时", author="张工", timestamp="2026-05-13")
    await index.write("next", "redis 超时 的 讨论 很 长 很 长", tags=["x"], importance=0.2)
    await index.write("other", "今天 的 午饭")
    await index.write("gone", "redis")
    await index.delete("gone")
    await index.write("expired", "redis", expires_at="2020-01-01")
    return reader


def why(reader, memory_id, q="redis 超时", **asked):
    answer = reader.get("/memory/search/why", id=memory_id, q=q, **asked)
    assert answer.status == 200, answer.raw
    assert answer.body["id"] == memory_id
    assert answer.body["reason"]
    return answer.body


async def test_a_hit_has_its_rank_and_what_stands_before_it(filled):
    first, second = why(filled, "best"), why(filled, "next")
    assert (first["verdict"], first["rank"], first["total"], first.get("lostTo")) == ("found", 1, 3, None)
    assert (second["verdict"], second["rank"]) == ("found", 2)
    assert [hit["id"] for hit in second["lostTo"]] == ["best"]
    (hit,) = [hit for hit in filled.search("redis 超时")["hits"] if hit["id"] == "next"]
    assert second["hit"] == hit


async def test_an_outranked_memory_has_what_it_lost_to(filled):
    found = why(filled, "next", limit=1)
    assert (found["verdict"], found["rank"], found["total"]) == ("outranked", 2, 3)
    assert [hit["id"] for hit in found["lostTo"]] == ["best"]
    assert found["hit"]["score"] < found["lostTo"][0]["score"]


async def test_what_shares_no_term_has_both_lists(filled):
    found = why(filled, "other")
    assert found["verdict"] == "no_shared_term"
    assert "redi" in found["questionTerms"]
    assert "午饭" in found["memoryTerms"]
    assert not set(found["questionTerms"]) & set(found["memoryTerms"])


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ({"author": "李"}, "author"),
        ({"tags": "x"}, "tags"),
        ({"tagsAll": ["x", "y"]}, "tagsAll"),
        ({"since": "2026-05-14"}, "since"),
        ({"until": "2026-05-13"}, "until"),
        ({"minImportance": 0.6}, "minImportance"),
        ({"q": "昨天 redis", "timeWords": "filter", "at": "2026-05-20"}, "timeWords"),
        ({"q": "redis absent", "match": "all"}, "match"),
    ],
)
async def test_a_filter_that_is_not_met_is_named(filled, asked, parameter):
    found = why(filled, "best", **asked)
    assert found["verdict"] == "filtered"
    assert {one["parameter"] for one in found["conditions"]} == {parameter}
    assert parameter in found["reason"] or parameter == "match"


async def test_a_time_that_is_not_met_is_told_with_what_would_be(filled):
    """`since` and `until` are the caller's, the words are the question's: each is told by itself."""
    asked = {"q": "昨天 redis 或 5月1日", "at": "2026-05-20", "timeWords": "filter", "since": "2026-05-14T08:00+08:00"}
    conditions = why(filled, "best", **asked)["conditions"]
    has = "2026-05-13T00:00:00.000Z"
    yesterday = "昨天 (from 2026-05-19T00:00:00.000Z, before 2026-05-20T00:00:00.000Z)"
    first = "5月1日 (from 2026-05-01T00:00:00.000Z, before 2026-05-02T00:00:00.000Z)"
    assert conditions == [
        {"parameter": "since", "wanted": "2026-05-14T00:00:00.000Z or later", "has": has},
        {"parameter": "timeWords", "wanted": f"{yesterday} or {first}", "has": has},
    ]
    (condition,) = why(filled, "best", until="2026-05-13")["conditions"]
    assert condition == {"parameter": "until", "wanted": "before 2026-05-13T00:00:00.000Z", "has": has}
    (condition,) = why(filled, "best", q="redis since 2026-05-19", at="2026-05-20", timeWords="filter")["conditions"]
    assert condition["wanted"] == "since 2026-05-19 (from 2026-05-19T00:00:00.000Z)"


async def test_a_reader_with_a_lower_limit_of_terms_explains_what_a_worker_has_indexed(index, settings, tmp_path):
    """What the question has too many of is refused by name; a memory of more is explained all the same."""
    words = " ".join(f"word{i}" for i in range(20))
    await index.write("long", f"redis {words}")
    settings = msgspec.structs.replace(settings, max_terms=5)
    with running_reader(settings, tmp_path / "log") as reader:
        found = why(reader, "long", q="redis")
        assert (found["verdict"], len(found["memoryTerms"])) == ("found", 21)
        assert reader.get("/memory/search/why", id="long", q=words).error[:2] == (400, "invalid_query")


async def test_a_filter_that_forbids_a_tag_is_named(filled):
    found = why(filled, "next", tagsNone="x", author="李")
    assert [one["parameter"] for one in found["conditions"]] == ["author", "tagsNone"]
    assert found["conditions"][1]["has"] == "x"


async def test_a_memory_that_cannot_be_found_says_its_state(filled, index):
    assert why(filled, "gone")["verdict"] == "deleted"
    assert why(filled, "expired")["verdict"] == "deleted"
    assert why(filled, "expired")["reason"] == "expired"
    assert why(filled, "nobody")["verdict"] == "unknown"
    assert why(filled, "best", ns="elsewhere")["verdict"] == "unknown"


async def test_a_score_that_is_too_low_and_a_memory_that_is_folded(filled, index):
    assert why(filled, "next", minScore=1000)["verdict"] == "below_min_score"
    await index.write("twin", "redis 超时。")
    found = {name: why(filled, name, collapse="near") for name in ("best", "twin")}
    assert sorted(one["verdict"] for one in found.values()) == ["folded", "found"]
    (folded,) = [one for one in found.values() if one["verdict"] == "folded"]
    assert folded["lostTo"][0]["folded"]["ids"] == [folded["id"]]


async def test_those_with_every_word_rank_before(filled, index):
    await index.write("many", "redis redis redis")
    assert why(filled, "many", match="auto")["rank"] > why(filled, "next", match="auto")["rank"]


async def test_what_cannot_be_answered_is_refused(filled):
    assert filled.get("/memory/search/why", q="redis").error[0] == 400
    assert filled.get("/memory/search/why", id="best").error[0] == 400
    assert filled.get("/memory/search/why", id="best", q="redis", namespaces=["a", "b"]).error[0] == 400
    assert filled.get("/memory/search/why", id="best", q="redis", nonsense=1).error[0] == 400


async def test_the_rank_is_right_far_behind(index, reader):
    await index.write_all({f"m{i:03}": "redis" + " filler" * i for i in range(250)})
    assert why(reader, "m249", q="redis")["rank"] == 250
    assert why(reader, "m120", q="redis")["rank"] == 121


async def test_a_filter_of_several_values_is_met_by_one(filled):
    assert why(filled, "next", tags=["x", "no such"])["verdict"] == "found"


async def test_a_folded_memory_is_known_however_many_there_are(index, reader):
    for i in range(15):
        await index.write(f"m{i}", "redis" + " filler" * i, session_id="s")
    found = [why(reader, f"m{i}", q="redis", perSession=1) for i in range(15)]
    assert [one["verdict"] for one in found] == ["found"] + ["folded"] * 14
    assert found[14]["lostTo"][0]["folded"]["count"] == 14
    assert len(found[14]["lostTo"][0]["folded"]["ids"]) == 10


async def test_the_hit_is_that_of_the_search(filled, index):
    for i in range(12):
        await index.write(f"m{i}", "redis 超时" + " filler" * i)
    asked = {"q": "redis 超时", "match": "auto", "snippet": 20, "limit": 100}
    for hit in filled.get("/memory/search", **asked).body["hits"]:
        assert why(filled, hit["id"], **asked)["hit"] == hit
        assert why(filled, hit["id"], **asked | {"limit": 1})["hit"] == hit


async def test_the_rank_is_behind_all_that_have_every_word(index, reader):
    await index.write_all({f"m{i:03}": "redis stream" + " filler" * (3 * i + 30) for i in range(130)})
    await index.write("one", "redis redis redis")
    asked = {"q": "redis stream", "match": "auto", "k1": 100, "b": 1}
    assert [why(reader, name, **asked)["rank"] for name in ("m000", "m129", "one")] == [1, 130, 131]
    weights = {"weights": {"relevance": 1, "importance": 0, "freshness": 0}}
    asked |= {"rank": "memory", "ranking": json.dumps(weights)}
    assert [why(reader, name, **asked)["rank"] for name in ("m000", "m129", "one")] == [1, 130, 131]
