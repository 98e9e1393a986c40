"""The wall between namespaces (B50): nothing of one can be seen, counted or felt in another."""

import unicodedata
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.anyio

E_ACUTE = "caf\u00e9"
PAIRS = [
    ("u", "u1"), ("u1", "u"), ("a", "A"), ("default", "Default"), ("a", "a "), (" a", "a"), ("a", "a\u00a0"),
    (E_ACUTE, unicodedata.normalize("NFD", E_ACUTE)), ("a:b", "a"), ("a", "a:b"), ("a}:x", "a"), ("{a}", "a"),
    ("a}", "a"), ("a%20", "a "), ("%61", "a"), ("%3A", ":"), ("a%", "a"), ("*", "a"), ("a*", "ab"), ("?", "a"),
    ("[a]", "a"), ("..", "."), ("a/b", "a"), ("null", "None"), ("０", "0"), ("ß", "ss"), ("K", "\u212a"), ("a,b", "a"),
    ("a\u200b", "a"),
]  # fmt: skip


def view(reader, ns):
    """Everything that a user of this namespace can see, but for the time that it took."""
    seen = {}
    for question in ("redis", "secret", "mine", "redis secret mine"):
        for filters in ({}, {"author": "chen"}, {"tags": ["t"]}):
            body = reader.search(question, ns=ns, explain=True, **filters)
            del body["tookMs"]
            seen[f"{question} {filters}"] = body
    for memory_id in ("same", "b:c", "c", "other"):
        seen[f"get {memory_id}"] = reader.get(f"/memory/{quote(memory_id, safe='')}", ns=ns).raw
        seen[f"ready {memory_id}"] = reader.ready(memory_id, ns=ns)
        seen[f"ready {memory_id} 1-0"] = reader.ready(memory_id, ns=ns, entry="1-0")
    return seen


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
async def test_nothing_of_another_namespace_shows(index, reader, ours, theirs):
    await index.write("same", "redis is mine", ns=ours, author="chen", tags=["t"])
    await index.write("c" if ours == "a:b" else "b:c", "mine too", ns=ours)
    before = view(reader, ours)
    empty_before = view(reader, "nobody")
    for memory_id in ("same", "b:c", "c", "other"):
        await index.write(memory_id, "redis secret secret", ns=theirs, author="chen", tags=["t"])
    assert view(reader, ours) == before, "no document, count, score or state may move"
    assert view(reader, "nobody") == empty_before
    await index.delete("same", ns=theirs)
    await index.delete("never there", ns=theirs)
    assert view(reader, ours) == before
    assert reader.found("secret", ns=theirs) == ["other", "c", "b:c"]


async def test_dead_letters_and_pending_events_of_another_namespace_do_not_show(database, index, reader, work):
    await index.write("same", "redis", ns="ours")
    before = view(reader, "ours")
    entry = (await database.xadd("stream:memory:write", {"event": "write", "id": "same", "ns": "theirs"})).decode()
    accepted = reader.post("/memory/write", {"id": "other", "ns": "theirs", "content": "secret"}).body
    assert reader.state("other", ns="theirs", entry=accepted["entry"]) == "pending"
    assert reader.state("other", ns="ours", entry=accepted["entry"]) == "unknown"
    assert reader.state("same", ns="theirs", entry=entry) == "pending"
    assert reader.state("same", ns="ours", entry=entry) == "unknown", "also while nobody could decode it yet"
    assert await work() == 2
    assert reader.state("same", ns="theirs", entry=entry) == "failed"
    assert reader.state("same", ns="ours", entry=entry) == "unknown"
    assert view(reader, "ours") == before


async def test_a_write_and_a_delete_reach_their_namespace_only(reader, work, database):
    for ns in ("ours", "theirs"):
        assert reader.post("/memory/write", {"id": "m", "ns": ns, "content": f"redis of {ns}"}).status == 202
    assert reader.request("DELETE", "/memory/m?ns=theirs").body["ns"] == "theirs"
    await work()
    assert reader.get("/memory/m", ns="ours").body["content"] == "redis of ours"
    assert reader.get("/memory/m", ns="theirs").status == 404
    assert reader.get("/memory/m").status == 404


@pytest.mark.parametrize("ns", ["", "n" * 129, "a\x00", "a\n"])
async def test_a_name_that_is_none_is_refused_everywhere(reader, ns):
    for answer in (
        reader.post("/memory/search", {"q": "x", "ns": ns}),
        reader.get("/memory/search", q="x", ns=ns),
        reader.get("/memory/ready", id="m", ns=ns),
        reader.get("/memory/m", ns=ns),
        reader.request("DELETE", f"/memory/m?ns={quote(ns)}"),
        reader.post("/memory/write", {"id": "m", "ns": ns, "content": "x"}),
    ):
        assert answer.error[0] == 400
        assert answer.error[2].startswith("ns: ")
