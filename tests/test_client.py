"""The HTTP clients against a small real HTTP server that plays the reader."""

from __future__ import annotations

import copy
import json
import os
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import pytest
from conftest import free_port

from jiyi import http
from jiyi.answers import Snippet
from jiyi.client import Client, SyncClient
from jiyi.errors import ApiError, InvalidEventError, InvalidQueryError, SettingsError, UnavailableError
from jiyi.events import Accepted

pytestmark = pytest.mark.anyio

HIT = {
    "id": "m1", "score": 1.25, "content": "记忆", "author": "Chen", "sourceSystem": "chat", "userId": "u",
    "sessionId": "s", "kind": "note", "tags": ["a"], "timestamp": "2026-05-04T10:30:00.000Z", "importance": 0.5,
    "metadata": {"deep": [1]}, "entry": "1-0", "indexedAt": "2026-05-04T10:30:01.000Z",
    "matchedTerms": [{"term": "记忆", "tf": 1, "df": 2, "idf": 0.5, "score": 1.25, "later": 1}], "fromTheFuture": True,
}  # fmt: skip
RESULT = {"hits": [HIT], "total": 7, "tookMs": 0.25, "index": {"docs": 9, "avgdl": 3.5}, "newer": {}}


class Reader(ThreadingHTTPServer):
    """Answers what `answer(request)` gives: (status, body, headers); notes all requests and connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        self.requests, self.connections, self.open = [], 0, set()
        self.answer = lambda _request: (200, {}, {})
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def drop_connections(self):
        for connection in list(self.open):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.connections += 1
        self.server.open.add(self.connection)

    def finish(self):
        self.server.open.discard(self.connection)
        super().finish()

    def handle_any(self):
        size = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(size)
        self.body = json.loads(raw) if raw else None
        self.query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        self.server.requests.append(copy.copy(self))  # the handler itself serves the next one too
        answer = self.server.answer(self)
        if answer is None:
            return
        status, body, headers = answer
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815

    def log_message(self, *_):
        pass


@contextmanager
def running_reader():
    server = Reader()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.drop_connections()
        server.server_close()
        thread.join()


@pytest.fixture
def reader():
    with running_reader() as server:
        yield server


class Both:
    """Calls a method of `SyncClient` in a thread or of `Client`, so that one test speaks of both."""

    def __init__(self, kind, url, **options):
        self.client = kind(url, **options)

    async def close(self):
        if isinstance(self.client, Client):
            await self.client.aclose()
        else:
            self.client.close()

    def __getattr__(self, name):
        method = getattr(self.client, name)

        async def call(*args, **options):
            if isinstance(self.client, Client):
                return await method(*args, **options)
            return await anyio.to_thread.run_sync(lambda: method(*args, **options))

        return call


@pytest.fixture(params=[SyncClient, Client])
async def make(anyio_backend, request):
    """Make clients that are closed in the end."""
    made = []

    def make(url, **options):
        made.append(Both(request.param, url, **options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(make, reader):
    return make(reader.url)


async def test_a_search_is_sent_and_its_result_typed(client, reader):
    reader.answer = lambda _: (200, RESULT, {})
    result = await client.search(
        "记忆 redis", "team", 5, 1.2, 0.5, True,
        user_id="u", tags=["a", "b"], source_system="chat", min_importance=0.25,
        since=datetime(2026, 1, 1, tzinfo=UTC), until="2027-01-01", session_id=None,
    )  # fmt: skip
    (request,) = reader.requests
    assert (request.command, request.path) == ("POST", "/memory/search")
    assert request.headers["Content-Type"] == "application/json"
    assert request.body == {
        "q": "记忆 redis", "ns": "team", "limit": 5, "k1": 1.2, "b": 0.5, "explain": True, "userId": "u",
        "tags": ["a", "b"], "sourceSystem": "chat", "minImportance": 0.25, "since": "2026-01-01T00:00:00Z",
        "until": "2027-01-01",
    }  # fmt: skip
    assert (result.total, result.took_ms, result.index.docs, result.index.avgdl) == (7, 0.25, 9, 3.5)
    (hit,) = result.hits
    assert (hit.id, hit.score, hit.source_system, hit.tags) == ("m1", 1.25, "chat", ("a",))
    assert hit.timestamp == datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
    assert hit.metadata == {"deep": [1]}
    assert hit.matched_terms[0].term == "记忆"


async def test_defaults_are_left_to_the_reader(client, reader):
    reader.answer = lambda _: (200, RESULT | {"hits": [{"id": "x", "content": "", "score": 0}]}, {})
    result = await client.search("q")
    assert reader.requests[0].body == {"q": "q", "ns": "default", "limit": 10, "explain": False}
    assert result.hits[0].author is None


@pytest.mark.parametrize("wrong", [{"usr_id": "u"}, {"k1": float("nan")}, {"author": "\ud800"}, {"tags": object()}])
async def test_a_wrong_search_is_not_sent(client, reader, wrong):
    with pytest.raises(InvalidQueryError) as caught:
        await client.search("q", **wrong)
    assert caught.value.field in wrong
    assert reader.requests == []


CHOICES = {
    "namespaces": ["一", "two"], "tags_all": ["x", "y"], "tags_none": "z", "match": "auto", "rank": "memory",
    "ranking": {"weights": {"freshness": 1}, "half_life_days": 7, "kinds": {"half_life_days": {"half_life_days": 1.5}}},
    "min_score": 0.25, "collapse": "source_system", "per_session": 2, "time_words": "filter",
    "at": datetime(2026, 5, 20, 12, tzinfo=UTC), "tz": "Asia/Shanghai", "snippet": 80,
}  # fmt: skip


async def test_the_choices_of_a_search_are_sent_by_their_names_in_http(client, reader):
    """A kind is no name: it stays as it is, whatever it is called."""
    reader.answer = lambda _: (200, RESULT, {})
    await client.search("q", **CHOICES)
    assert reader.requests[0].body == {
        "q": "q", "limit": 10, "explain": False, "namespaces": ["一", "two"], "tagsAll": ["x", "y"], "tagsNone": "z",
        "match": "auto", "rank": "memory", "minScore": 0.25, "collapse": "sourceSystem", "perSession": 2,
        "ranking": {"weights": {"freshness": 1}, "halfLifeDays": 7, "kinds": {"half_life_days": {"halfLifeDays": 1.5}}},
        "timeWords": "filter", "at": "2026-05-20T12:00:00Z", "tz": "Asia/Shanghai", "snippet": 80,
    }  # fmt: skip
    await client.search("q", rank="memory", ranking='{"halfLifeDays": 7}', match=None, collapse="near")
    assert reader.requests[1].body == {
        "q": "q", "ns": "default", "limit": 10, "explain": False, "rank": "memory", "ranking": '{"halfLifeDays": 7}',
        "collapse": "near",
    }  # fmt: skip


WRONG = [
    ({"ns": "default", "namespaces": ["a"]}, "namespaces: is given beside ns"),
    ({"namespaces": []}, "namespaces: is empty"),
    ({"match": "some"}, "match: must be any, all or auto"),
    ({"rank": "vector"}, "rank: must be bm25 or memory"),
    ({"time_words": True}, "time_words: must be boost, filter or off"),
    ({"collapse": "content"}, "collapse: must be near, author, source_system, user_id, session_id or kind"),
    ({"timeWords": "off"}, "timeWords: is no choice here; there are namespaces, .*snippet"),
    ({"ranking": {}}, 'ranking: is for rank="memory"'),
    ({"ranking": {"weight": 1}, "rank": "memory"}, "ranking: weight is not known; there are .*kinds"),
    ({"ranking": [], "rank": "memory"}, "ranking: must be a dict"),
    ({"ranking": {"weights": 1}, "rank": "memory"}, "ranking: weights must be a dict"),
    ({"ranking": {"weights": {"age": 1}}, "rank": "memory"}, "ranking: weights.age is not known; there are relevance"),
    ({"ranking": {"kinds": ["a"]}, "rank": "memory"}, "ranking: kinds must be a dict"),
    ({"ranking": {"kinds": {"a": {"kinds": {}}}}, "rank": "memory"}, "ranking: kinds.a.kinds is not known"),
    ({"ranking": {"kinds": {"a": {"weights": {"freshness": float("inf")}}}}, "rank": "memory"}, "ranking: kinds.a.fre"),
    ({"min_score": float("nan")}, "min_score: must be a finite number"),
    ({"tags_all": ["\ud800"]}, "tags_all: must be text"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message.partition(":")[0] for _, message in WRONG])
async def test_a_choice_that_there_is_not_is_named_and_not_sent(client, reader, wrong, message):
    for ask in (lambda: client.search("q", **wrong), lambda: client.why("m", "q", **wrong)):
        with pytest.raises(InvalidQueryError, match=message):
            await ask()
    assert reader.requests == []


async def test_why_is_asked_in_the_query_with_everything_of_the_search(client, reader):
    told = {"id": "a&b", "verdict": "found", "reason": "r", "rank": 1, "total": 2, "hit": HIT, "lostTo": [HIT],
            "questionTerms": ["记忆"], "later": 1}  # fmt: skip
    reader.answer = lambda _: (200, told, {})
    answer = await client.why(
        "a&b", "记忆 ?", "一", 5, 1.2, 0.5, True, **CHOICES | {"namespaces": None}, kind=["a", "b"]
    )
    (request,) = reader.requests
    assert (request.command, urlsplit(request.path).path) == ("GET", "/memory/search/why")
    ranking = json.loads(request.query.pop("ranking")[0])
    assert ranking["kinds"] == {"half_life_days": {"halfLifeDays": 1.5}}
    assert request.query == {
        "id": ["a&b"], "q": ["记忆 ?"], "ns": ["一"], "limit": ["5"], "k1": ["1.2"], "b": ["0.5"], "explain": ["true"],
        "kind": ["a", "b"], "tagsAll": ["x", "y"], "tagsNone": ["z"], "match": ["auto"], "rank": ["memory"],
        "minScore": ["0.25"], "collapse": ["sourceSystem"], "perSession": ["2"], "timeWords": ["filter"],
        "at": ["2026-05-20T12:00:00Z"], "tz": ["Asia/Shanghai"], "snippet": ["80"],
    }  # fmt: skip
    assert (answer.verdict, answer.rank, answer.hit.id, answer.lost_to[0].score) == ("found", 1, "m1", 1.25)
    assert (answer.question_terms, answer.memory_terms, answer.conditions) == (("记忆",), (), ())


async def test_a_wrong_why_is_not_sent(client, reader):
    """A list without values cannot be said in a query: left out, it would find what it must not."""
    with pytest.raises(InvalidQueryError, match="user_id: is an empty list"):
        await client.why("m", "q", user_id=[])
    with pytest.raises(InvalidQueryError, match="namespaces: are several"):
        await client.why("m", "q", namespaces=["a", "b"])
    with pytest.raises(InvalidEventError, match="id"):
        await client.why("", "q")
    assert reader.requests == []
    reader.answer = lambda _: (200, {"id": "m", "verdict": "unknown", "reason": "r"}, {})
    assert (await client.why("m", "q", tags_all=[], tags_none=())).hit is None
    assert reader.requests[0].query == {
        "id": ["m"], "q": ["q"], "ns": ["default"], "limit": ["10"], "explain": ["false"],
    }  # fmt: skip


def listing(request):
    """Answer a listing of seven memories as the reader does."""
    start = int(request.body.get("cursor", "0"))
    end = min(start + request.body["limit"], 7)
    memories = [{"id": f"m{i}", "content": "c", "ns": "x"} for i in range(start, end)]
    return 200, {"memories": memories, "total": 7, "next": None if end == 7 else f"{end}"}, {}


async def test_a_page_of_memories_is_asked_for(client, reader):
    reader.answer = listing
    page = await client.list_memories("team", 5, "1", kind="note", tags_none=["x"])
    assert ([memory.id for memory in page.memories], page.total, page.next) == (["m1", "m2", "m3", "m4", "m5"], 7, "6")
    (request,) = reader.requests
    assert (request.command, request.path) == ("POST", "/memory/list")
    assert request.body == {"ns": "team", "limit": 5, "kind": "note", "tagsNone": ["x"], "cursor": "1"}
    for wrong in ({"match": "all"}, {"ns": "a", "namespaces": ["b"]}, {"cursor": "\ud800"}):
        with pytest.raises(InvalidQueryError):
            await client.list_memories(**wrong)
    assert len(reader.requests) == 1


def test_all_memories_are_asked_for_page_by_page_as_they_are_needed(reader):
    reader.answer = listing
    with SyncClient(reader.url) as client:
        memories = client.all_memories(namespaces=["a", "b"], page_size=3)
        assert reader.requests == []
        assert next(memories).id == "m0"
        assert [request.body.get("cursor") for request in reader.requests] == [None]
        assert [memory.id for memory in memories] == [f"m{i}" for i in range(1, 7)]
        assert [request.body.get("cursor") for request in reader.requests] == [None, "3", "6"]
        assert reader.requests[-1].body == {"namespaces": ["a", "b"], "limit": 3, "cursor": "6"}
        with pytest.raises(InvalidQueryError, match="authr"):
            client.all_memories(authr="x")


async def test_all_memories_are_there_for_async_for_too(reader):
    reader.answer = listing
    async with Client(reader.url) as client:
        assert [memory.id async for memory in client.all_memories(page_size=3)] == [f"m{i}" for i in range(7)]
        assert [request.body.get("cursor") for request in reader.requests] == [None, "3", "6"]
        with pytest.raises(InvalidQueryError, match="authr"):
            client.all_memories(authr="x")


@pytest.mark.parametrize(
    ("text", "highlights", "parts"),
    [
        ("ab 超时 c", [[3, 5]], [("ab ", False), ("超时", True), (" c", False)]),
        ("😀redis😀", [[2, 7]], [("😀", False), ("redis", True), ("😀", False)]),
        ("😀x", [[0, 2]], [("😀", True), ("x", False)]),
        ("𠮷a𠮷", [[0, 2], [3, 5]], [("𠮷", True), ("a", False), ("𠮷", True)]),
        ("none", [], [("none", False)]),
        ("", [], []),
    ],
)
def test_a_snippet_is_cut_where_its_highlights_are(text, highlights, parts):
    """Their offsets count UTF-16 code units."""
    assert Snippet(text, 0, 9, tuple(map(tuple, highlights)), "").parts() == parts


async def test_a_write_is_checked_and_sent_in_camel_case(client, reader):
    reader.answer = lambda _: (202, {"id": "m1", "ns": "team", "entry": "5-0", "status": "accepted"}, {})
    accepted = await client.write(
        id="m1", ns="team", content="c", source_system="s", tags=("a",), metadata={"k": 1}, importance=1,
        timestamp=datetime(2026, 5, 4, 10, 30), expires_at=1_893_456_000_000,  # noqa: DTZ001 - naive: UTC
    )  # fmt: skip
    assert accepted == Accepted("m1", "team", "5-0")
    (request,) = reader.requests
    assert (request.command, request.path) == ("POST", "/memory/write")
    assert request.body == {
        "id": "m1", "ns": "team", "content": "c", "sourceSystem": "s", "tags": ["a"], "metadata": {"k": 1},
        "importance": 1.0, "timestamp": 1_777_890_600_000, "expiresAt": 1_893_456_000_000,
    }  # fmt: skip


async def test_a_wrong_write_is_not_sent(client, reader):
    for wrong, field in (({"importance": 2}, "importance"), ({"id": ""}, "id"), ({"autor": "x"}, "autor")):
        with pytest.raises(InvalidEventError) as caught:
            await client.write(content="c", **wrong)
        assert caught.value.field == field
        with pytest.raises(InvalidEventError):
            await client.write_many([{"content": "c", **wrong}])
    assert reader.requests == []


async def test_many_are_written_in_one_request(client, reader):
    reader.answer = lambda _: (202, {"accepted": [{"id": i, "ns": "default", "entry": f"{i}-0"} for i in "12"]}, {})
    accepted = await client.write_many({"id": i, "content": i} for i in "12")
    assert [one.entry for one in accepted] == ["1-0", "2-0"]
    (request,) = reader.requests
    assert [one["id"] for one in request.body["memories"]] == ["1", "2"]


@pytest.mark.parametrize("name", ["plain", "a/b?c=d&e#f", "../x y", "%2F", "记忆", "{}:;+", "~" * 256])
async def test_ids_are_encoded_in_paths(client, reader, name):
    reader.answer = lambda request: (
        (202, {"id": name, "ns": "a b&c", "entry": "1-0"}, {})
        if request.command == "DELETE"
        else (200, {"id": name, "content": "c", "entry": "1-0", "expiresAt": "2030-01-01T00:00:00.000Z"}, {})
    )
    assert (await client.delete(name, ns="a b&c")).entry == "1-0"
    stored = await client.get(name, "a b&c")
    assert (stored.id, stored.expires_at.year) == (name, 2030)
    for request in reader.requests:
        path = urlsplit(request.path).path
        assert path.count("/") == 2
        assert unquote(path) == f"/memory/{name}"
        assert request.query == {"ns": ["a b&c"]}


def readiness(request, **fields):
    """Answer a readiness request as the reader does: an object for one id, a list for several."""
    answers = [
        {"id": name, "ready": True, "state": "ready", "indexedAt": "2026-05-04T10:30:00.000Z", "entry": "9-0",
         "reason": None, **fields}
        for name in request.query["id"]
    ]  # fmt: skip
    return 200, answers[0] if len(answers) == 1 else {"memories": answers}, {}


async def test_readiness_of_one_and_of_several(client, reader):
    reader.answer = readiness
    (one,) = await client.ready("a&b", "5-0", ns="team", wait="2s")
    assert (one.id, one.ready, one.state, one.entry, one.indexed_at.year) == ("a&b", True, "ready", "9-0", 2026)
    assert reader.requests[0].query == {"ns": ["team"], "id": ["a&b"], "entry": ["5-0"], "wait": ["2s"]}
    several = await client.ready(["a", "b"], ["1-0", "2-0"], wait=0.5)
    assert [one.id for one in several] == ["a", "b"]
    assert reader.requests[1].query == {"ns": ["default"], "id": ["a", "b"], "entry": ["1-0", "2-0"], "wait": ["0.5s"]}
    await client.ready(["a"], wait="250ms")
    assert reader.requests[2].query["wait"] == ["0.25s"]
    await client.ready(["a"])
    assert "wait" not in reader.requests[3].query
    assert await client.ready([]) == []


async def test_many_ids_are_asked_for_in_urls_of_bounded_length(client, reader):
    reader.answer = readiness
    names = [f"{i}" + "记" * 80 for i in range(30)] + [f"s{i}" for i in range(250)]
    assert [one.id for one in await client.ready(names)] == names
    assert max(len(request.path) for request in reader.requests) < 7_000
    assert max(len(request.query["id"]) for request in reader.requests) == 100
    assert reader.connections == 1


@pytest.mark.parametrize("wait", ["2 s", "-1s", -1, float("nan"), float("inf"), "soon"])
async def test_a_wrong_wait_is_refused(client, reader, wait):
    with pytest.raises(InvalidQueryError, match="wait"):
        await client.ready("a", wait=wait)
    assert reader.requests == []


async def test_ids_and_entries_must_fit(client):
    with pytest.raises(InvalidQueryError, match="entries"):
        await client.ready(["a", "b"], ["1-0"])
    with pytest.raises(InvalidEventError, match="entry"):
        await client.ready("a", "one")


async def test_wait_ready_asks_until_all_are_final(client, reader):
    states = {"a": ["pending", "ready"], "b": ["pending", "pending", "failed"], "c": ["unknown", "ready"]}

    def answer(request):
        answers = []
        for name in request.query["id"]:
            state = states[name].pop(0)
            answers.append({"id": name, "ready": state == "ready", "state": state})
        return 200, answers[0] if len(answers) == 1 else {"memories": answers}, {}

    reader.answer = answer
    accepted = [Accepted("a", "x", "1-0"), Accepted("b", "x", "2-0"), Accepted("c", "y", "3-0")]
    assert [one.state for one in await client.wait_ready(accepted, 10)] == ["ready", "failed", "ready"]
    assert states == {"a": [], "b": [], "c": []}, "what is final is not asked for again"
    assert await client.wait_ready([]) == []


async def test_wait_ready_ends_at_its_timeout_and_does_not_hammer(client, reader):
    reader.answer = lambda request: readiness(request, ready=False, state="pending")
    started = time.monotonic()
    (one,) = await client.wait_ready(Accepted("a", "x", "1-0"), 0.4)
    assert 0.3 < time.monotonic() - started < 2
    assert (one.ready, one.state) == (False, "pending")
    assert len(reader.requests) < 15


async def test_wait_ready_waits_for_a_reader_that_is_away(client, reader):
    answers = [lambda _: (503, {}, {"Retry-After": "0"}), lambda _: (429, {}, {"Retry-After": "0"}), readiness]

    def answer(request):
        return answers.pop(0)(request)

    reader.answer = answer
    assert (await client.wait_ready(Accepted("a", "x", "1-0"), 10))[0].ready
    reader.answer = lambda _: (503, {"error": {"code": "unavailable", "message": "loading"}}, {"Retry-After": "30"})
    with pytest.raises(UnavailableError, match="loading"):
        await client.wait_ready(Accepted("a", "x", "1-0"), 5)


async def test_an_error_body_becomes_an_api_error(client, reader):
    reader.answer = lambda _: (404, {"error": {"code": "not_found", "message": "no such memory"}}, {})
    with pytest.raises(ApiError, match="no such memory") as caught:
        await client.get("m")
    assert (caught.value.status, caught.value.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(500, b"<html>oops</html>", "unknown"), (302, b"", "unknown"), (200, b"<html>", "unreadable_answer"),
     (200, b'{"hits": 1}', "unreadable_answer"), (200, b"\xff", "unreadable_answer"), (400, b"[]", "unknown")],
)  # fmt: skip
async def test_a_strange_answer_is_an_api_error_too(client, reader, status, body, code):
    reader.answer = lambda _: (status, body, {})
    with pytest.raises(ApiError) as caught:
        await client.search("q")
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_not_now_carries_the_time_to_wait(client, reader, status):
    reader.answer = lambda _: (
        status,
        {"error": {"code": "unavailable", "message": "Redis is away"}},
        {"Retry-After": "7"},
    )
    with pytest.raises(UnavailableError, match="Redis is away") as caught:
        await client.search("q")
    assert caught.value.retry_after_s == 7.0
    for headers in ({}, {"Retry-After": "nonsense"}, {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}):
        reader.answer = lambda _, headers=headers: (status, b"", headers)
        with pytest.raises(UnavailableError) as caught:
            await client.search("q")
        assert caught.value.retry_after_s == 1.0


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b'{"error": {"code": "not_found", "message": "no such memory"}}'), (404, b"<html>"), (503, b""),
     (503, b'{"error": {"code": "unavailable", "message": "Redis is away"}}'), (200, b"<html>")],
)  # fmt: skip
async def test_every_error_names_the_address(make, reader, status, body):
    """Whoever has two readers, or the wrong port, sees which one has spoken."""
    reader.answer = lambda _: (status, body, {})
    with pytest.raises((ApiError, UnavailableError), match=rf"http://127\.0\.0\.1:{reader.server_port}/prefix\b"):
        await make(f"{reader.url}/prefix").get("m")
    port = free_port()
    with pytest.raises(UnavailableError, match=f"http://127.0.0.1:{port}"):
        await make(f"http://127.0.0.1:{port}").get("m")


LETTER = {
    "letter": "7-0", "ns": "team", "id": None, "entry": "5-0", "code": "missing_field", "reason": "id: is missing",
    "deadAt": "2026-05-04T10:30:00.000Z", "deliveries": 1, "later": True,
}  # fmt: skip


async def test_dead_letters_are_asked_for_page_by_page(client, reader):
    def answer(request):
        start = int(request.query.get("after", ["0-0"])[0].split("-")[0])
        end = min(start + int(request.query["limit"][0]), 250)
        letters = [LETTER | {"letter": f"{i}-0"} for i in range(start + 1, end + 1)]
        return 200, {"letters": letters, "next": None if end == 250 else f"{end}-0"}, {}

    reader.answer = answer
    letters = await client.dead_letters("team")
    assert [one.letter for one in letters] == [f"{i}-0" for i in range(1, 251)]
    assert (letters[0].id, letters[0].code, letters[0].dead_at.year) == (None, "missing_field", 2026)
    assert [request.query for request in reader.requests] == [
        {"ns": ["team"], "limit": ["100"]} | ({} if after is None else {"after": [after]})
        for after in (None, "100-0", "200-0")
    ]
    reader.requests.clear()
    assert [one.letter for one in await client.dead_letters(limit=101, after="9-0")][::100] == ["10-0", "110-0"]
    assert [request.query["limit"] for request in reader.requests] == [["100"], ["1"]]
    assert reader.requests[0].query["ns"] == ["default"]


async def test_one_dead_letter_is_shown_replayed_and_dropped(client, reader):
    fields = [{"name": "content", "value": "c", "exact": True}, {"name": "tags", "value": ["\ufffd"], "exact": False}]
    reader.answer = lambda _: (200, LETTER | {"fields": fields, "status": "accepted"}, {})
    shown = await client.dead_letter("7-0", ns="a b")
    assert [(one.name, one.value, one.exact) for one in shown.fields] == [
        ("content", "c", True), ("tags", ["\ufffd"], False),
    ]  # fmt: skip
    assert (await client.replay("7-0", ns="a b")).entry == "5-0"
    assert await client.drop("7-0", ns="a b") is None
    sent = [(request.command, urlsplit(request.path).path, request.query) for request in reader.requests]
    ns = {"ns": ["a b"]}
    assert sent == [("GET", "/dead/7-0", ns), ("POST", "/dead/7-0/replay", ns), ("DELETE", "/dead/7-0", ns)]


@pytest.mark.parametrize(
    ("name", "command", "path", "query"),
    [("replay_all", "POST", "/dead/replay", {}), ("drop_all", "DELETE", "/dead", {"all": ["true"]})],
)
async def test_all_dead_letters_are_gone_through_in_steps_up_to_the_first_bound(
    client, reader, name, command, path, query
):
    steps = [{"count": 100, "more": True, "until": "9-0"}, {"count": 98, "more": True, "until": "9-0"},
             {"count": 3, "more": False, "until": "9-0"}]  # fmt: skip
    reader.answer = lambda _: (200, steps.pop(0), {})
    assert await getattr(client, name)("team") == 201
    assert {(request.command, urlsplit(request.path).path) for request in reader.requests} == {(command, path)}
    assert [request.query for request in reader.requests] == [
        query | {"ns": ["team"]}, *[query | {"ns": ["team"], "until": ["9-0"]}] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize("letter", ["", "7", "7-0/replay", "-", "../memory/m", "٣-٠"])
async def test_what_is_no_letter_id_is_not_sent(client, reader, letter):
    for call in (client.dead_letter, client.replay, client.drop):
        with pytest.raises(InvalidEventError, match="letter: must be the id of a dead letter"):
            await call(letter)
    with pytest.raises(InvalidEventError, match="after: "):
        await client.dead_letters(after=letter)
    assert reader.requests == []


async def test_a_replay_is_not_repeated_when_its_answer_is_lost(client, reader):
    reader.answer = lambda _: (200, {"letters": []}, {})
    await client.dead_letters()

    def answer(request):
        request.connection.shutdown(socket.SHUT_RDWR)
        request.close_connection = True

    reader.answer = answer
    for call in (client.replay("7-0"), client.drop("7-0"), client.replay_all(), client.drop_all()):
        before = len(reader.requests)
        with pytest.raises(UnavailableError):
            await call
        assert len(reader.requests) == before + 1


async def test_nobody_there_is_unavailable(make):
    with pytest.raises(UnavailableError, match="ConnectionRefusedError"):
        await make(f"http://127.0.0.1:{free_port()}").search("q")


async def test_connections_are_kept_and_used_again(client, reader):
    reader.answer = lambda request: (404, {}, {}) if request.command == "GET" else (200, RESULT, {})
    for _ in range(20):
        await client.search("q")
        with pytest.raises(ApiError):
            await client.get("m")
    assert (reader.connections, len(reader.requests)) == (1, 40)


async def test_a_connection_that_the_reader_closes_is_not_kept(client, reader):
    reader.answer = lambda _: (200, RESULT, {"Connection": "close"})
    for _ in range(3):
        await client.search("q")
    assert reader.connections == 3


async def test_a_kept_connection_that_died_meanwhile_is_replaced(client, reader):
    """Also for a write: the dead connection is seen before anything is sent on it."""
    reader.answer = lambda _: (202, {"id": "m", "ns": "n", "entry": "1-0"}, {})
    for _ in range(3):
        await client.write(content="c")
        reader.drop_connections()
        while reader.open:
            await anyio.sleep(0.001)
    assert (reader.connections, len(reader.requests)) == (3, 3)


async def test_only_questions_are_repeated_when_the_connection_breaks_under_them(client, reader):
    """A write may have been done when its answer is lost, so that is for the caller to decide."""
    reader.answer = lambda _: (200, RESULT, {})
    await client.search("q")
    breaks = [True]

    def answer(request):
        if breaks and breaks.pop():
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return None
        return 200, RESULT, {}

    reader.answer = answer
    await client.search("q")
    assert len(reader.requests) == 3
    breaks.append(True)
    with pytest.raises(UnavailableError):
        await client.write(content="c")
    assert len(reader.requests) == 4


async def test_a_slow_reader_is_unavailable_in_time_and_its_connection_given_up(make, reader):
    client = make(reader.url, timeout_s=0.2)
    release = threading.Event()

    def answer(_):
        release.wait(10)
        return 200, RESULT, {}

    reader.answer = answer
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="in time"):
        await client.search("q")
    assert time.monotonic() - started < 2
    release.set()
    reader.answer = lambda _: (200, RESULT, {})
    assert (await client.search("q")).total == 7
    assert reader.connections == 2


@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_dripping_answer_ends_at_the_deadline(make, reader, part):
    """A byte every 20 ms would reset a socket's timeout for ever."""
    client = make(reader.url, timeout_s=0.3)
    stop = threading.Event()

    def answer(request):
        request.close_connection = True
        if part == "body":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        else:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not stop.wait(0.02):
            request.wfile.write(b" ")

    reader.answer = answer
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="in time"):
        await client.search("q")
    assert time.monotonic() - started < 2
    stop.set()


async def test_the_wait_is_added_to_the_timeout(make, reader):
    def answer(request):
        threading.Event().wait(0.5)
        return readiness(request)

    reader.answer = answer
    assert (await make(reader.url, timeout_s=0.3).ready("a", wait=1))[0].ready


async def test_half_an_answer_is_unavailable(client, reader):
    def answer(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        request.close_connection = True

    reader.answer = answer
    with pytest.raises(UnavailableError):
        await client.search("q")


async def test_a_server_that_speaks_no_http_is_unavailable(make):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"-ERR unknown command\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnavailableError):
            await make(f"http://127.0.0.1:{server.getsockname()[1]}").search("q")
        thread.join()


def echo(request):
    """Answer with the question in it."""
    return 200, RESULT | {"hits": [HIT | {"id": request.body["q"]}]}, {}


def test_threads_share_a_client_and_each_gets_its_own_answer(reader):
    reader.answer = echo
    with SyncClient(reader.url) as client, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: client.search(str(i)).hits[0].id, range(400)))
    assert found == [str(i) for i in range(400)]
    assert reader.connections <= 16


async def test_tasks_share_a_client_and_each_gets_its_own_answer(reader):
    reader.answer = echo
    found = Counter()
    async with Client(reader.url) as client, anyio.create_task_group() as tasks:

        async def ask(i):
            found[(await client.search(str(i))).hits[0].id == str(i)] += 1

        for i in range(300):
            tasks.start_soon(ask, i)
    assert found == {True: 300}
    assert reader.connections <= http.MAX_CONNECTIONS


async def test_no_answer_of_a_cancelled_call_reaches_another(reader):
    """Calls are cancelled at random moments; the others keep getting their own answers."""
    reader.answer = echo
    wrong, cancelled = [], []
    async with Client(reader.url) as client, anyio.create_task_group() as tasks:

        async def ask(i):
            with anyio.move_on_after((i % 7) / 1000 if i % 2 else 30) as scope:
                answer = (await client.search(str(i))).hits[0].id
                if answer != str(i):
                    wrong.append((i, answer))
            if scope.cancelled_caught:
                cancelled.append(i)

        for i in range(400):
            tasks.start_soon(ask, i)
    assert wrong == []
    assert cancelled
    assert all(i % 2 for i in cancelled)


async def test_a_cancelled_call_ends_its_thread_and_connection(reader):
    asked, ended = threading.Event(), threading.Event()

    def answer(request):
        asked.set()
        assert request.rfile.read(1) == b"", "the client closes its side"
        ended.set()

    reader.answer = answer
    async with Client(reader.url, timeout_s=60) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.search, "q")
        assert await anyio.to_thread.run_sync(asked.wait, 10)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(ended.wait, 10)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own(reader):
    reader.answer = echo
    with SyncClient(reader.url) as client:
        client.search("before")
        if (child := os.fork()) == 0:
            try:
                os._exit(0 if client.search("child").hits[0].id == "child" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert client.search("parent").hits[0].id == "parent"
    assert reader.connections == 2


async def test_the_url_comes_from_the_environment_and_may_have_a_path(make, reader, monkeypatch):
    monkeypatch.setenv("JIYI_API_URL", f"{reader.url}/prefix/")
    reader.answer = lambda _: (200, RESULT, {})
    await make(None).search("q")
    assert reader.requests[0].path == "/prefix/memory/search"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8700", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://u:p@x", ""]
)
def test_a_wrong_url_is_a_settings_error(url):
    with pytest.raises(SettingsError, match="JIYI_API_URL"):
        SyncClient(url)


def test_a_closed_client_may_be_used_again(reader):
    reader.answer = lambda _: (200, RESULT, {})
    client = SyncClient(reader.url)
    client.search("q")
    client.close()
    client.search("q")
    client.close()
    assert reader.connections == 2
