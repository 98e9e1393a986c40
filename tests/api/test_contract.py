"""Our own clients against the real reader: what one side sends and gives, the other takes."""

import typing
from datetime import UTC, datetime

import anyio
import msgspec
import pytest

from jiyi import answers, questions
from jiyi.client import Client, SyncClient
from jiyi.errors import ApiError, InvalidEventError
from jiyi.memories import LABELS
from jiyi.producer import Producer
from jiyi_api import hits, listing, orders, queries, readiness, why

pytestmark = pytest.mark.anyio


async def test_a_memory_goes_round_through_the_client(reader, work):
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write(
            id="dir/ü //x", ns="team 一", content="redis 流", tags=["t"], importance=0.7, metadata={"snake_case": [1]},
            timestamp=datetime(2026, 5, 4, tzinfo=UTC), source_system="chat",
        )  # fmt: skip
        (pending,) = await client.ready(accepted.id, accepted.entry, ns=accepted.ns)
        assert pending.state == "pending"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            (ready,) = await client.wait_ready(accepted, 10)
        assert (ready.ready, ready.entry) == (True, accepted.entry)
        result = await client.search("redis", ns="team 一", explain=True, source_system="chat", min_importance=0.7)
        (hit,) = result.hits
        assert (hit.id, hit.content, hit.source_system) == ("dir/ü //x", "redis 流", "chat")
        assert (hit.metadata, list(hit.tags)) == ({"snake_case": [1]}, ["t"])
        assert hit.score == sum(part.score for part in hit.matched_terms)
        assert hit.explanation.docs == result.index.docs == 1
        assert (await client.get(accepted.id, ns="team 一")).entry == accepted.entry
        deletion = await client.delete(accepted.id, ns="team 一")
        await work()
        assert [one.state for one in await client.wait_ready([deletion, accepted], 10)] == ["deleted", "deleted"]
        with pytest.raises(ApiError) as missing:
            await client.get(accepted.id, ns="team 一")
        assert (missing.value.status, missing.value.code) == (404, "not_found")
        with pytest.raises(ApiError, match="limit: is 101") as refused:
            await client.search("redis", limit=101)
        assert (refused.value.status, refused.value.code) == (400, "invalid_query")


async def test_many_long_ids_are_asked_for_in_requests_of_a_size_that_is_read(reader, work):
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write_many([{"id": "记" * 84 + f"{i:03}", "content": "redis"} for i in range(150)])
        await work()
        assert {one.state for one in await client.wait_ready(accepted, 10)} == {"ready"}


async def test_the_producer_and_the_client_write_the_same(reader, work, settings, database):
    """The same memory by Redis and by HTTP is the same version: the second write changes nothing."""
    fields = {"id": "m", "content": "redis", "author": "chen", "tags": ["a"], "importance": 0.25, "expires_at": 10**13}
    async with Producer(settings=settings) as producer:
        await producer.write(**fields, metadata={"k": 1.5})
    await work()
    first = reader.get("/memory/m").body
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        accepted = await client.write(**fields, metadata={"k": 1.5})
    await work()
    second = reader.get("/memory/m").body
    assert second.pop("entry") == accepted.entry
    assert first.pop("entry") != accepted.entry
    assert first == second
    assert int(await database.hget("stats:{default}", "next_doc")) == 1


async def test_the_client_without_asyncio_speaks_to_it_too(reader, work):
    with SyncClient(f"http://127.0.0.1:{reader.port}") as client:
        accepted = client.write_many([{"content": f"redis {i}"} for i in range(3)])
        await work()
        found = await anyio.to_thread.run_sync(lambda: client.wait_ready(accepted, 10))
        assert {one.state for one in found} == {"ready"}
        assert client.search("redis").total == 3
        with pytest.raises((InvalidEventError, ApiError), match="importance"):
            client.write(content="x", importance=2)


def structs_in(annotation):
    """The struct in a type, behind unions, lists and tuples."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((found for one in typing.get_args(annotation) if (found := structs_in(one))), None)


def differences(told, known, where=""):
    """Fields that the reader gives and the client does not know, or the other way round, all the way down."""
    theirs, ours = ({field.encode_name: field.type for field in msgspec.structs.fields(one)} for one in (told, known))
    found = [f"{where}{name}" for name in theirs.keys() ^ ours.keys()]
    for name in theirs.keys() & ours.keys():
        inner = structs_in(theirs[name]), structs_in(ours[name])
        if None not in inner:
            found += differences(*inner, where=f"{where}{name}.")
        elif inner != (None, None) and theirs[name] is not msgspec.Raw:
            found.append(f"{where}{name} (its fields)")
    return sorted(found)


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (hits.SearchResult, answers.SearchResult),
        (why.Why, answers.Why),
        (listing.MemoryPage, answers.MemoryPage),
        (readiness.Readiness, answers.Readiness),
    ],
)
def test_the_client_knows_every_field_that_the_reader_gives(told, known):
    assert differences(told, known) == []


def test_the_client_knows_every_choice_that_the_reader_has():
    plain = {"ns", "q", "limit", "k1", "b", "explain"}
    assert set(queries.SearchRequest.__struct_fields__) == plain | set(questions.Choices.__annotations__)
    listed = {"ns", "limit", "cursor"} | set(questions.Filters.__annotations__)
    assert set(listing.ListRequest.__struct_fields__) == listed
    for name in ("Match", "Rank", "TimeWords"):
        assert typing.get_args(getattr(questions, name)) == typing.get_args(getattr(queries, name))
    for theirs, ours in (("MemoryRanking", "Ranking"), ("KindRanking", "KindRanking"), ("Weights", "Weights")):
        assert set(getattr(orders, theirs).__struct_fields__) == set(getattr(questions, ours).__annotations__)
    assert typing.get_args(questions.Collapse) == (queries.NEAR, *LABELS)


NOW = datetime(2026, 5, 20, 12, tzinfo=UTC)
KINDS = {"注": {"half_life_days": 7, "weights": {"relevance": 0.5, "freshness": 0.5}}}


@pytest.fixture
async def filled(index):
    """Memories of two namespaces, an emoji before what is found in them."""
    await index.write("最好", "😀 redis 超时 是 连接池 太小。" + "后话 很 长。" * 20, timestamp="2026-05-13", kind="注",
                      tags=["一", "b&c"], session_id="s", author="张工", importance=0.9)  # fmt: skip
    await index.write(
        "同样", "😀 redis 超时 是 连接池 太小" + "后话 很 长。" * 20, timestamp="2026-05-12", session_id="s"
    )
    await index.write("只有 redis", "redis 的 流", timestamp="2026-05-19")
    await index.write("elsewhere", "redis 超时 stream", ns="团 队", timestamp="2026-05-13")


def client_of(reader):
    return SyncClient(f"http://127.0.0.1:{reader.port}")


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"match": "auto", "collapse": "near", "snippet": 20},
        {"match": "auto", "time_words": "filter", "at": NOW, "tz": "Asia/Shanghai"},
        {"rank": "memory", "ranking": {"half_life_days": 3.5, "kinds": KINDS}, "at": NOW, "per_session": 1},
        {"rank": "memory", "ranking": '{"weights": {"relevance": 1}}', "min_score": 0.5, "at": "2026-05-20T12:00"},
        {
            "tags_all": ["一", "b&c"],
            "tags_none": ["x"],
            "since": NOW.replace(day=13, hour=0),
            "until": 1_800_000_000_000,
        },
        {"author": ["张工", "李"], "session_id": "s", "min_importance": 0.5, "kind": {"注"}, "collapse": "session_id"},
        {"namespaces": ["团 队", "default"], "collapse": "source_system", "time_words": "off"},
    ],
    ids=lambda choices: "-".join(choices) or "none",
)
async def test_both_ways_of_asking_and_why_say_the_same(filled, reader, choices):
    """What the client sends as JSON (search) finds what it finds as a query (why), in the order of their ranks."""
    question, parameters = "上周 redis 超时?", {"limit": 5, "explain": True}
    with client_of(reader) as client:
        result = client.search(question, **parameters, **choices)
        assert result.hits
        asked = questions.why("x", question, parameters, choices if "namespaces" not in choices else {})
        if "namespaces" not in choices:
            by_query = reader.request("GET", asked.target.replace("/why?id=x&", "?"))
            assert by_query.status == 200, by_query.raw
            assert msgspec.json.decode(by_query.raw, type=answers.SearchResult).hits == result.hits
            for rank, hit in enumerate(result.hits, 1):
                found = client.why(hit.id, question, **parameters, **choices)
                assert found.verdict == "found"
                assert found.lost_to == result.hits[: rank - 1]
                assert found.hit.score == hit.score
        for hit in result.hits:
            bm25 = sum(term.score for term in hit.matched_terms) + (hit.boost.score if hit.boost else 0.0)
            factors = hit.factors
            parts = factors and (factors.relevance.score, factors.importance.score, factors.freshness.score)
            assert hit.score == (sum(parts) if parts else bm25)
            if hit.snippet:
                assert "".join(part for part, _ in hit.snippet.parts()) == hit.snippet.text
                assert {part for part, lit in hit.snippet.parts() if lit} <= {"redis", "超时"}
                assert any(lit for _, lit in hit.snippet.parts())


async def test_times_are_told_as_times(filled, reader):
    with client_of(reader) as client:
        (found,) = client.search("上周 redis", at=NOW, tz="Asia/Shanghai").time_words
        assert (found.text, found.since) == ("上周", datetime(2026, 5, 10, 16, tzinfo=UTC))
        (open_ended,) = client.search("redis since Monday", at=NOW).time_words
        assert open_ended.until is None
        assert client.search("redis").time_words == ()


async def test_everything_is_listed_once_whatever_the_page(index, reader):
    for i in range(9):
        await index.write(f"记 {i}", "redis", ns=("一", "二")[i % 2], kind=("a", "b")[i % 3 == 0])
    with client_of(reader) as client:
        for size in (1, 4, 100):
            names = [memory.id for memory in client.all_memories(namespaces=["一", "二"], page_size=size)]
            assert sorted(names) == [f"记 {i}" for i in range(9)]
        page = client.list_memories("一", 1, kind=["a", "b"])
        assert (page.total, len(page.memories)) == (5, 1)
        by_query = reader.get("/memory/list", ns="一", kind=["a", "b"], limit=1, cursor=page.next)
        second = client.list_memories("一", 1, page.next, kind=["a", "b"])
        assert msgspec.json.decode(by_query.raw, type=answers.MemoryPage) == second
        with pytest.raises(ApiError, match="cursor"):
            client.list_memories("elsewhere", cursor=page.next)
        with pytest.raises(ApiError, match="limit: is 101"):
            next(client.all_memories(page_size=101))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"tz": "Mars/Olympus"}, "tz"),
        ({"snippet": -1}, "snippet"),
        ({"per_session": 0}, "perSession"),
        ({"rank": "memory", "ranking": "{"}, "ranking"),
        ({"at": "soon"}, "at"),
    ],
)
async def test_a_choice_that_the_reader_refuses_is_an_api_error_that_names_it(reader, wrong, name):
    with client_of(reader) as client, pytest.raises(ApiError, match=f"^{name}: ") as refused:
        client.search("redis", **wrong)
    assert refused.value.code == "invalid_query"
