"""Listing over HTTP: filters without a question, newest first, page by page."""

import random

import pytest

pytestmark = pytest.mark.anyio


def pages(reader, **asked):
    """All pages from the first to the last."""
    found = []
    while True:
        answer = reader.post("/memory/list", asked)
        assert answer.status == 200, answer.raw
        found.append(answer.body)
        if answer.body.get("next") is None:
            return found
        asked["cursor"] = answer.body["next"]


def ids(*found):
    return [memory["id"] for page in found for memory in page["memories"]]


async def test_pages_hold_each_memory_once_newest_first(index, reader):
    rng, written = random.Random(3), []
    for i in range(60):
        day = rng.randrange(1, 6)  # many ties
        await index.write(f"m{i}", f"redis {i}", timestamp=f"2026-05-0{day}", kind=("a", "b")[i % 2])
        written.append((day, i))
    await index.delete("m7")
    expected = [f"m{i}" for _, i in sorted(written, reverse=True) if i != 7]
    for limit in (1, 7, 59, 100):
        found = pages(reader, limit=limit)
        assert ids(*found) == expected
        assert {page["total"] for page in found} == {59}
        assert all(len(page["memories"]) == limit for page in found[:-1])
    assert ids(*pages(reader, limit=7, kind="b")) == [name for name in expected if int(name[1:]) % 2]
    by_query = reader.get("/memory/list", limit=3, kind="a").body
    assert by_query == reader.post("/memory/list", {"limit": 3, "kind": "a"}).body
    assert reader.get("/memory/list", limit=0).body == {"memories": [], "total": 59, "next": None}
    assert reader.get("/memory/list", since="2026-05-03", until="2026-05-04").body["total"] == sum(
        day == 3 and i != 7 for day, i in written
    )


async def test_a_listed_memory_has_everything_that_is_stored(index, reader):
    await index.write("m", "redis 流", author="陈", tags=["x"], importance=0.7, metadata={"k": 1})
    (memory,) = reader.get("/memory/list").body["memories"]
    assert memory == reader.get("/memory/m").body


async def test_several_namespaces_are_listed_in_one_order(index, reader):
    for i in range(12):
        await index.write(f"m{i}", "redis", ns=f"n{i % 3}", timestamp=f"2026-05-{1 + i // 4:02}")
    found = pages(reader, namespaces=["n0", "n1", "nobody", "n2"], limit=2)
    listed = ids(*found)
    assert sorted(listed) == sorted(f"m{i}" for i in range(12))
    assert [int(name[1:]) // 4 for name in listed] == [2] * 4 + [1] * 4 + [0] * 4
    assert {page["total"] for page in found} == {12}
    assert {memory["ns"] for page in found for memory in page["memories"]} == {"n0", "n1", "n2"}


async def test_what_is_written_while_one_pages_does_not_hide_the_rest(index, reader):
    for i in range(10):
        await index.write(f"m{i}", "redis", timestamp=f"2026-05-{10 + i}")
    first = reader.get("/memory/list", limit=4).body
    await index.write("m9", "redis again", timestamp="2026-05-19")
    await index.write("newer", "redis", timestamp="2026-06-01")
    await index.delete("m5")
    rest = pages(reader, limit=4, cursor=first["next"])
    assert ids(first, *rest) == ["m9", "m8", "m7", "m6", "m4", "m3", "m2", "m1", "m0"]


async def test_expired_memories_take_no_place(index, reader):
    for i in range(10):
        fields = {"expires_at": "2020-01-01"} if i % 2 else {}
        await index.write(f"m{i}", "redis", timestamp=f"2026-05-{10 + i}", **fields)
    assert ids(reader.get("/memory/list", limit=5).body) == ["m8", "m6", "m4", "m2", "m0"]


async def test_a_cursor_that_is_none_is_refused(index, reader, database):
    await index.write_all({"a": "redis", "b": "redis"})
    cursor = reader.get("/memory/list", limit=1).body["next"]
    for wrong in ("x", "", cursor[:-3], cursor + "AAAA", "é"):
        answer = reader.get("/memory/list", cursor=wrong)
        assert answer.error[:2] == (400, "invalid_query"), wrong
        assert "cursor" in answer.error[2]
    assert reader.get("/memory/list", cursor=cursor, ns="elsewhere").error[0] == 400
    await database.flushall()
    await index.write_all({"c": "redis", "d": "redis"})
    answer = reader.get("/memory/list", cursor=cursor)
    assert "made anew" in answer.error[2]
