"""The short way of searches: nobody can tell it from the long one, but by the time that it takes."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from urllib.parse import quote, quote_plus, urlencode

import anyio
import pytest

from api.conftest import Index
from jiyi_api import direct
from jiyi_api.app import create_app

# The framework wants parameters to be marked in a way that its earlier versions do not know.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

GOOD = [
    {"q": "redis"},
    {"q": "redis 流 a+b&c=d;e#%", "limit": "3"},
    {"q": "redis", "explain": "true"},
    {"q": "redis", "explain": "1", "k1": "0.9", "b": "0"},
    {"q": "redis", "author": ["alice", "bob"], "tags": ["p"], "kind": ["note"]},
    {"q": "redis", "sourceSystem": ["chat"], "userId": ["u"], "sessionId": ["s"]},
    {"q": "redis", "since": "2020-01-01", "until": "4102444800000", "minImportance": "0.2"},
    {"q": "redis", "ns": "other"},
    {"q": "redis", "ns": "nobody"},
    {"q": "nothing like it"},
    {"q": "redis", "limit": "0"},
]
WRONG = [
    {},
    {"q": ""},
    {"q": " "},
    {"q": ["a", "b"]},
    {"q": "redis", "limit": "ten"},
    {"q": "redis", "limit": ""},
    {"q": "redis", "limit": "-1"},
    {"q": "redis", "limit": "1e3"},
    {"q": "redis", "limit": ["1", "2"]},
    {"q": "redis", "k1": "nan"},
    {"q": "redis", "b": "2"},
    {"q": "redis", "explain": "perhaps"},
    {"q": "redis", "userid": "u"},
    {"q": "redis", "user_id": "u"},
    {"q": "redis", "minScore": "null"},
    {"q": "redis", "perSession": "Null"},
    {"q": "redis", "match": "ALL"},
    {"q": "redis", "since": "yesterday"},
    {"q": "redis", "minImportance": "much"},
    {"q": "redis", "ns": ""},
    {"q": "redis", "author": ["x" * 2_000]},
    {"q": "x" * 5_000},
]


@asynccontextmanager
async def running(app):
    """The application after its start, as a coroutine that asks it: (status, headers, body)."""
    inbox, outbox = anyio.create_memory_object_stream(1), anyio.create_memory_object_stream(1)

    async def ask(query, method="GET", path="/memory/search"):
        sent = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(), "headers": [],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {}, "extensions": {},
        }  # fmt: skip

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)
        start, *rest = sent
        return start["status"], sorted(start["headers"]), b"".join(message.get("body", b"") for message in rest)

    async with anyio.create_task_group() as tasks, inbox[0], inbox[1], outbox[0], outbox[1]:
        tasks.start_soon(
            app, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, inbox[1].receive, outbox[0].send
        )
        await inbox[0].send({"type": "lifespan.startup"})
        assert (await outbox[1].receive())["type"] == "lifespan.startup.complete"
        yield ask
        await inbox[0].send({"type": "lifespan.shutdown"})
        await outbox[1].receive()


def same(answer):
    """An answer without the time that it took."""
    status, headers, body = answer
    head, found, tail = body.partition(b'"tookMs":')
    return (
        status,
        [header for header in headers if header[0] != b"content-length"],
        head,
        found,
        tail.partition(b",")[2],
    )


async def ready(ask):
    with anyio.fail_after(90):
        while (await ask("", path="/readyz"))[0] != 200:
            await anyio.sleep(0.05)


@pytest.fixture
async def filled(database, analyzer):
    index = Index(database, analyzer)
    for i in range(30):
        await index.write(
            f"m{i}", f"redis 流 word{i % 5}", author=["alice", "bob", "eve"][i % 3], tags=["p"] * (i % 2), kind="note",
            source_system="chat", user_id="u", session_id="s", importance=i / 30, metadata={"n": i},
        )  # fmt: skip
    await index.write("other", "redis", ns="other")


async def test_both_ways_give_the_same_answers_and_refuse_the_same(filled, settings, monkeypatch):
    queries = [urlencode(one, doseq=True) for one in GOOD + WRONG]
    queries += [
        f"q={quote('流 redis')}&limit=2",
        f"q={quote_plus('a b+c')}",
        "q=redis&",
        "&q=redis",
        "q=redis&&limit=1",
    ]
    queries += [
        "q",
        "q=%",
        "q=%FF",
        "q=redis&limit=1;b=2",
        "Q=redis",
        "q=redis&q=redis",
        "q=redis&ns=%EF%BC%9A",
        "q=redis&ns=%ff",
    ]
    queries += ["q=redis&author=null", "q=null", "q=redis&%ff=1"]
    async with running(create_app(settings)) as ask:
        await ready(ask)
        short = {query: await ask(query) for query in queries}
        read = direct._request
        taken = sum(read({"type": "http", "path": "/memory/search", "method": "GET", "query_string": query.encode()})
                    is not None for query in queries)  # fmt: skip
        assert taken > len(GOOD), "the short way is taken"
        monkeypatch.setattr(direct, "_request", lambda _scope: None)
        for query in queries:
            assert same(short[query]) == same(await ask(query)), query
    statuses = [short[query][0] for query in queries]
    assert statuses[: len(GOOD)] == [200] * len(GOOD)
    assert statuses[len(GOOD) : len(GOOD) + len(WRONG)] == [400] * len(WRONG)


async def test_a_failed_search_is_not_made_twice(filled, settings, database):
    """The long way says what went wrong on the short one."""
    async with running(create_app(settings)) as ask:
        await ready(ask)
        assert (await ask("q=redis"))[0] == 200
        await database.hset("stats:{default}", mapping={"docs": "many", "changes": "7"})
        await database.config_resetstat()
        status, headers, body = await ask("q=redis")
        assert (status, b'"corrupt_index"' in body) == (503, True)
        assert (b"retry-after", b"10") in headers
        calls = (await database.info("commandstats"))["cmdstat_evalsha"]["calls"]
        assert calls == 1


async def test_what_nobody_has_foreseen_has_the_shape_of_all_failures(filled, settings, database, monkeypatch):
    """An error that is none of ours, on either way: JSON, and no text of the server's own."""
    await database.set("stats:{damaged}", "x")
    async with running(create_app(settings)) as ask:
        await ready(ask)
        short = await ask("q=redis&ns=damaged")
        assert short[0] in {500, 503}
        assert set(json.loads(short[2])["error"]) == {"code", "message"}
        monkeypatch.setattr(direct, "_request", lambda _scope: None)
        assert short == await ask("q=redis&ns=damaged")
