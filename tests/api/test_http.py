"""The HTTP surface: writing, ids, the shape of every answer and every failure, OpenAPI, metrics."""

import gzip
import json
import math
import re
import socket
from functools import cache
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.conftest import JSON, resident_bytes

pytestmark = pytest.mark.anyio

MEMORY = {
    "id": "m", "ns": "team 一", "content": "redis 流", "author": "陈", "sourceSystem": "chat", "userId": "u",
    "sessionId": "s", "kind": "note", "tags": ["x", "y"], "timestamp": "2026-05-04T10:30:00+08:00", "importance": 0.25,
    "expiresAt": "2999-01-01T00:00:00Z",
}  # fmt: skip
METADATA = {
    "snake_case": 1, "camelCase": [1, 1.5, -0.25, 1e300, True, None], "中文": {"": "空", "deep": [[[{}]]]},
    "big": 2**63, "text": '\u2028"\\/\u0000\U0001f600', "entry": "not ours", "z": 1, "a": 2,
}  # fmt: skip


async def test_a_memory_comes_back_as_it_was_written(reader, work):
    answer = reader.post("/memory/write", MEMORY | {"metadata": METADATA})
    assert answer.status == 202
    accepted = answer.body
    assert re.fullmatch(r"\d+-\d+", accepted["entry"])
    assert accepted == {"id": "m", "ns": "team 一", "entry": accepted["entry"], "status": "accepted"}
    await work()
    expected = {name: value for name, value in MEMORY.items() if name != "ns"} | {
        "timestamp": "2026-05-04T02:30:00.000Z", "expiresAt": "2999-01-01T00:00:00.000Z", "entry": accepted["entry"],
    }  # fmt: skip
    got = reader.get("/memory/m", ns="team 一").body
    indexed_at = got.pop("indexedAt")
    assert got.pop("metadata") == METADATA
    assert list(json.loads(reader.get("/memory/m", ns="team 一").raw)["metadata"]) == list(METADATA)
    assert got == expected
    (hit,) = reader.search("redis", ns="team 一")["hits"]
    assert {name: hit[name] for name in (*expected, "metadata", "indexedAt")} == expected | {
        "metadata": METADATA, "indexedAt": indexed_at,
    }  # fmt: skip
    assert set(hit) - set(expected) == {"score", "matchedTerms", "metadata", "indexedAt"}


async def test_what_was_not_given_is_not_given_back(reader, work):
    entry = reader.post("/memory/write", {"content": ""}).body
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", entry["id"])
    await work()
    got = reader.get(f"/memory/{entry['id']}").body
    assert set(got) == {"id", "content", "entry", "indexedAt", "timestamp", "importance"}
    assert (got["content"], got["importance"]) == ("", 0.5)


async def test_several_memories_are_accepted_in_their_order(reader, work):
    memories = [{"id": f"m{i}", "ns": f"n{i % 2}", "content": "redis"} for i in range(1000)]
    body = reader.post("/memory/write", {"memories": memories}).body
    assert set(body) == {"accepted"}
    assert [(one["id"], one["ns"]) for one in body["accepted"]] == [(one["id"], one["ns"]) for one in memories]
    entries = [tuple(map(int, one["entry"].split("-"))) for one in body["accepted"]]
    assert entries == sorted(set(entries))
    assert await work() == 1000
    assert reader.search("redis", ns="n1", limit=0)["total"] == 500


REFUSED = [
    ({}, 400, "missing_field", "content: "),
    ({"content": None}, 400, "missing_field", "content: "),
    ({"memories": []}, 400, "invalid_field", "memories: is empty"),
    ({"memories": None}, 400, "missing_field", "content: "),
    ({"memories": [{"content": "x"}], "content": "x"}, 400, "invalid_field", "memories: "),
    ({"memories": [{"content": "x"}], "ns": "x"}, 400, "invalid_field", "memories: "),
    ({"memories": [{"content": "x"}, {"id": "y"}]}, 400, "missing_field", "memories[1].content: "),
    ({"memories": [{"content": "x"}, {"content": "x", "sourceSystem": "y" * 257}]}, 413, "too_large",
     "memories[1].sourceSystem: "),
    ({"memories": [{"content": "x"}] * 1001}, 413, "too_large", "memories: has 1001"),
    ({"memories": [{"content": "x", "memories": []}]}, 400, "bad_request", "unknown field `memories`"),
    ({"content": "x" * 65_537}, 413, "too_large", "content: has 65537 bytes"),
    ({"content": 5}, 400, "bad_request", "content: "),
    ({"content": "x", "id": ""}, 400, "invalid_field", "id: "),
    ({"content": "x", "id": "i" * 257}, 400, "invalid_field", "id: "),
    ({"content": "x", "id": "a\tb"}, 400, "invalid_field", "id: "),
    ({"content": "x", "id": 7}, 400, "bad_request", "id: "),
    ({"content": "x", "importance": 1.01}, 400, "invalid_field", "importance: "),
    ({"content": "x", "importance": True}, 400, "bad_request", "importance: "),
    ({"content": "x", "expiresAt": "never"}, 400, "invalid_field", "expiresAt: "),
    ({"content": "x", "timestamp": 1.5}, 400, "bad_request", "timestamp: "),
    ({"content": "x", "timestamp": 1_777_890_600}, 400, "invalid_field", "timestamp: is too small for epoch"),
    ({"content": "x", "tags": [1]}, 400, "bad_request", "tags[0]: "),
    ({"content": "x", "tags": [str(i) for i in range(65)]}, 413, "too_large", "tags: "),
    ({"content": "x", "metadata": []}, 400, "bad_request", "metadata: "),
    ({"content": "x", "metadata": {"x": "y" * 20_000}}, 413, "too_large", "metadata: "),
    ({"content": "x", "source_system": "y"}, 400, "bad_request", "camelCase: sourceSystem"),
    ({"memories": [{"content": "x", "user_id": "u"}]}, 400, "bad_request", "camelCase: userId"),
    ({"content": "x", "entry": "1-0"}, 400, "bad_request", "entry"),
    ([{"content": "x"}], 400, "bad_request", "body: "),
    ("text", 400, "bad_request", "body: "),
    (None, 400, "bad_request", "body: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code", "message"), REFUSED)
async def test_what_cannot_be_written_is_refused_and_nothing_is_accepted(reader, database, body, status, code, message):
    got = reader.post("/memory/write", body).error
    assert got[:2] == (status, code)
    assert message in got[2]
    assert not await database.exists("stream:memory:write")


@pytest.mark.parametrize("path", ["/memory/write", "/memory/search"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"q": }', b"\xff\xfe", b'{"q": "\\ud800", "content": "\\ud800"}', b"\x81\xa1q\xa1x", b"[" * 100_000],
)
async def test_a_body_that_is_no_json_is_refused(reader, path, body):
    assert reader.post(path, body).error[:2] == (400, "bad_request")


async def test_a_body_that_is_too_large_is_refused(reader, database):
    large = b'{"content": "' + b"x" * 8_388_608 + b'"}'
    assert reader.post("/memory/write", large).error == (
        413, "too_large", "body: is too large; at most 8388608 bytes are read",
    )  # fmt: skip
    pieces = (large[at : at + 65_536] for at in range(0, len(large), 65_536))
    try:
        answer = reader.request("POST", "/memory/write", pieces, {"Transfer-Encoding": "chunked"})
    except (BrokenPipeError, ConnectionResetError):
        pass  # answered and closed while we were still sending
    else:
        assert answer.error[:2] == (413, "too_large")
    assert not await database.exists("stream:memory:write")
    assert reader.post("/memory/write", {"content": "small"}).status == 202


@cache
def bomb():
    """Fifty megabytes of JSON in fifty kilobytes."""
    return gzip.compress(b'{"content": "' + b" " * 50_000_000 + b'"}')


@pytest.mark.parametrize("path", ["/memory/write", "/memory/search"])
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "gzip, gzip", "identity, gzip"])
async def test_a_compressed_body_is_refused_and_not_unpacked(reader, database, path, coding):
    """Whether it is a bomb or what it seems: nobody finds out."""
    for body in (bomb(), gzip.compress(b'{"q": "redis", "content": "x"}'), b'{"content": "not packed at all"}'):
        before = resident_bytes(reader.process)
        answer = reader.request("POST", path, body, JSON | {"Content-Encoding": coding})
        assert answer.error[:2] == (415, "unsupported_media")
        assert answer.error[2].startswith("Content-Encoding: ")
        assert answer.headers["Accept-Encoding"] == "identity"
        assert resident_bytes(reader.process) - before < 20_000_000
    assert not await database.exists("stream:memory:write")


async def test_a_body_that_says_that_it_is_not_compressed_is_read(reader):
    for coding in ("identity", "Identity", ""):
        assert reader.request("POST", "/memory/search", b'{"q": "x"}', {"Content-Encoding": coding}).status == 200


async def test_compressed_pieces_without_an_end_are_refused_at_once(reader):
    """They are not even waited for."""
    with socket.create_connection(("127.0.0.1", reader.port), timeout=20) as connection:
        head = b"POST /memory/write HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/memory/write"), ("POST", "/memory/search"), ("POST", "/memory/list"), ("POST", "/analyze"),
     ("DELETE", "/memory/m"), ("POST", "/dead/replay"), ("DELETE", "/dead")],
)  # fmt: skip
async def test_a_page_of_another_site_is_refused(reader, database, method, path):
    """Browsers send what it posts as a form or as plain text, and say where it comes from."""
    page = {"Content-Type": "text/plain", "Origin": "https://evil.example", "Sec-Fetch-Mode": "no-cors"}
    answer = reader.request(method, path, b'{"content": "x"}', page | {"Sec-Fetch-Site": "cross-site"})
    assert answer.error[:2] == (403, "forbidden")
    assert answer.error[2].startswith("Sec-Fetch-Site: ")
    assert not await database.exists("stream:memory:write")


@pytest.mark.parametrize("site", ["same-origin", "same-site", "none"])
async def test_a_page_of_the_same_site_may_write(reader, site):
    answer = reader.request("POST", "/memory/write", b'{"content": "x"}', JSON | {"Sec-Fetch-Site": site})
    assert answer.status == 202


async def test_a_link_of_another_site_may_be_followed(reader):
    for path in ("/memory/search?q=redis", "/memory/list", "/healthz"):
        assert reader.request("GET", path, headers={"Sec-Fetch-Site": "cross-site"}).status == 200


async def test_a_body_of_another_media_type_is_read_as_json(reader):
    """`curl -d` sends a form's type; whatever it says, the body must be JSON."""
    for media in ("application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        answer = reader.request("POST", "/memory/search", '{"q": "redis"}', {"Content-Type": media})
        assert answer.status == 200
        assert reader.request("POST", "/memory/search", "q=redis", {"Content-Type": media}).error[0] == 400


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/memory", 404, "not_found"),
        ("GET", "/memory/", 404, "not_found"),
        ("GET", "/memory/none", 404, "not_found"),
        ("GET", "//memory/none", 404, "not_found"),
        ("POST", "/memory", 404, "not_found"),
        ("GET", "/memory/write", 405, "method_not_allowed"),
        ("PUT", "/memory/search", 405, "method_not_allowed"),
        ("PATCH", "/memory/m", 405, "method_not_allowed"),
        ("POST", "/memory/m", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_said_in_the_same_shape(reader, method, target, status, code):
    answer = reader.request(method, target)
    assert answer.error[:2] == (status, code)
    if status == 405:
        assert answer.headers["Allow"]


async def test_a_defect_is_told_without_its_details(reader, database, index):
    """500: the log has the traceback, the answer nothing of it."""
    reader.may_fail = True
    await index.write("m", "redis secret")
    await database.delete("memory:{default}:m")
    await database.set("memory:{default}:m", "of the wrong type")
    for answer in (
        reader.get("/memory/m"),
        reader.post("/memory/search", {"q": "redis"}),
        reader.get("/memory/ready", id="m"),
    ):
        assert answer.error[:2] == (500, "internal_error")
        assert "WRONGTYPE" not in answer.error[2]
    assert reader.found("redis", ns="other") == []


async def test_a_damaged_index_is_refused_and_harms_no_other_namespace(reader, database, index):
    """The kernel trusts the numbers that it is given: one beyond the namespace must not reach it."""
    for ns in ("broken", "whole"):
        await index.write_all({f"m{i}": "redis" for i in range(20)}, ns=ns)
    assert await database.exists("index:{broken}:redi")
    await database.append("index:{broken}:redi", (10**9).to_bytes(4, "little") + b"\x01\x00")
    answer = reader.post("/memory/search", {"q": "redis", "ns": "broken"})
    assert answer.error[:2] == (503, "corrupt_index")
    assert "jiyi check" in answer.error[2]
    assert reader.search("redis", ns="whole")["total"] == 20
    await database.append("index:{broken}:redi", b"\x01")
    assert reader.post("/memory/search", {"q": "redis", "ns": "broken"}).error[:2] == (503, "corrupt_index")


IDS = [
    "m", "a/b", "a//b", "a/", "/a", "//", "a%b", "a%2Fb", "%", "记忆/一", "a b", " a", "a ", "a+b", "a?b=c", "a#b",
    "a;b", "a&ns=x", "..", ".", "../m", "a/../b", "a/./b", "{x}", "a}:b", "search/1", "ready/1", "write/1", "searching",
    "é", "e\u0301", "\ufffd", "x" * 256, "字" * 85, '"', "\\", "a|b", "~", "\u200b", "\U0001f600",
]  # fmt: skip


async def test_every_id_names_exactly_its_own_memory(reader, work):
    """Slashes at the ends and doubled ones, dots and percent signs are part of the id, byte for byte."""
    targets = {memory_id: f"/memory/{quote(memory_id, safe='')}" for memory_id in IDS if memory_id.strip("/")}
    reader.post("/memory/write", {"memories": [{"id": name, "content": f"redis {i}"} for i, name in enumerate(IDS)]})
    await work()
    for i, (memory_id, target) in enumerate(targets.items()):
        body = reader.request("GET", target).body
        assert (body["id"], body["content"]) == (memory_id, f"redis {IDS.index(memory_id)}")
        assert reader.state(memory_id) == "ready"
        assert reader.request("DELETE", target).body["id"] == memory_id
        if i % 10 == 0:
            await work()
            assert reader.request("GET", target).status == 404
            left = {name for name in IDS if name not in list(targets)[: i + 1]}
            assert set(reader.found("redis", limit=100)) == left, "one delete takes one memory"


async def test_a_plain_slash_in_an_id_needs_no_encoding(reader, work):
    reader.post("/memory/write", {"id": "dir/one two", "content": "x"})
    await work()
    assert reader.request("GET", "/memory/dir/one%20two").body["id"] == "dir/one two"
    assert reader.request("GET", "/memory/dir/one+two").status == 404


@pytest.mark.parametrize("name", ["search", "ready", "write", "search/", "ready/"])
async def test_a_memory_named_like_a_route_is_found_and_deleted(reader, work, name):
    """Only `GET /memory/{id}` cannot reach it: that path is the route."""
    reader.post("/memory/write", {"id": name, "content": "redis"})
    await work()
    assert reader.found("redis") == [name]
    assert reader.state(name) == "ready"
    answer = reader.request("DELETE", f"/memory/{quote(name, safe='')}")
    assert (answer.status, answer.body["id"]) == (202, name)
    await work()
    assert reader.state(name) == "deleted"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("target", "code"),
    [("%ff", "not_utf8"), ("%ED%A0%80", "not_utf8"), ("a%00b", "invalid_field"), ("a%0Ab", "invalid_field"),
     ("x" * 257, "invalid_field")],
)  # fmt: skip
async def test_an_id_that_is_none_is_refused(reader, database, method, target, code):
    assert reader.request(method, f"/memory/{target}").error[:2] == (400, code)
    assert not await database.exists("stream:memory:write")


async def test_openapi_names_every_route_and_resolves(reader):
    answer = reader.get("/schema/openapi.json")
    assert answer.status == 200
    schema = answer.body
    assert schema["openapi"].startswith("3.1")
    routes = {(path, method) for path, methods in schema["paths"].items() for method in methods}
    assert routes == {
        ("/memory/write", "post"), ("/memory/search", "get"), ("/memory/search", "post"), ("/memory/ready", "get"),
            ("/memory/search/why", "get"), ("/memory/list", "get"), ("/memory/list", "post"),
        ("/memory/{memory_id}", "get"), ("/memory/{memory_id}", "delete"),
        ("/analyze", "get"), ("/analyze", "post"),
        ("/dead", "get"), ("/dead", "delete"), ("/dead/{letter}", "get"), ("/dead/{letter}", "delete"),
        ("/dead/{letter}/replay", "post"), ("/dead/replay", "post"),
        ("/metrics", "get"), ("/healthz", "get"), ("/readyz", "get"),
    }  # fmt: skip
    operations = [operation for methods in schema["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema)):
        resolved(schema, reference)
    for path, method in routes:
        operation = schema["paths"][path][method]
        assert operation["summary"]
        named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
        for status, response in operation["responses"].items():
            assert response["description"]
            if status >= "400":
                reference = response["content"]["application/json"]["schema"]["$ref"]
                assert set(resolved(schema, reference)["properties"]) == {"error"}
    assert {"400", "413", "503"} <= set(schema["paths"]["/memory/write"]["post"]["responses"])


def resolved(schema, reference):
    found = schema
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


async def test_answers_are_those_that_openapi_promises(reader, index):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    await index.write("m", "redis", author="chen", tags=["t"], expires_at=10**13, metadata={"a": 1})
    await index.write("n", "redis queue")
    schema = reader.get("/schema/openapi.json").body
    for path, method, answer in (
        ("/memory/search", "post", reader.post("/memory/search", {"q": "redis", "explain": True})),
        ("/memory/search", "get", reader.get("/memory/search", q="x", limit="x")),
        ("/memory/write", "post", reader.post("/memory/write", {"content": "x"})),
        ("/memory/write", "post", reader.post("/memory/write", {"memories": [{"content": "x"}] * 2})),
        ("/memory/write", "post", reader.post("/memory/write", {"content": "x" * 70_000})),
        ("/memory/{memory_id}", "get", reader.get("/memory/m")),
        ("/memory/{memory_id}", "get", reader.get("/memory/none")),
        ("/memory/{memory_id}", "delete", reader.request("DELETE", "/memory/none")),
        ("/memory/ready", "get", reader.get("/memory/ready", id="m")),
        ("/memory/ready", "get", reader.get("/memory/ready", id=["m", "none"])),
        ("/memory/ready", "get", reader.get("/memory/ready", id="m", wait="x")),
        ("/readyz", "get", reader.get("/readyz")),
        ("/healthz", "get", reader.get("/healthz")),
    ):
        content = schema["paths"][path][method]["responses"][str(answer.status)]["content"]
        root = {**content["application/json"]["schema"], "components": schema["components"]}
        validator.check_schema(root)
        errors = [error.message for error in validator(root).iter_errors(answer.body)]
        assert not errors, (path, errors)


def samples(reader):
    answer = reader.get("/metrics")
    assert answer.status == 200
    # Twice the charset would make Prometheus 3 refuse the scrape.
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.raw.decode())
        for sample in family.samples
    }


async def test_metrics_move_and_name_nobody(reader, index):
    names = ["secret-ns", "secret-id", "secret-author", "secret-q"]
    await index.write(names[1], "redis", ns=names[0], author=names[2])
    before = samples(reader)
    reader.search("redis", ns=names[0], author=names[2])
    reader.search(names[3], ns=names[0])
    reader.get("/memory/search", q="")
    reader.get(f"/memory/{names[1]}", ns=names[0])
    reader.get("/memory/ready", id=names[1], ns=names[0])
    reader.request("DELETE", f"/memory/{names[1]}/x?ns={names[0]}")
    reader.get(f"/{names[1]}")
    after = samples(reader)

    def moved(name, **labels):
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0) - before.get(key, 0)

    assert moved("jiyi_searches_total", result="hits") == 1
    assert moved("jiyi_searches_total", result="empty") == 1
    assert moved("jiyi_searches_total", result="refused") == 1
    assert moved("jiyi_search_seconds_count") == 2
    assert moved("jiyi_search_hits_sum") == 1
    assert moved("jiyi_http_requests_total", route="/memory/search", status="200") == 2
    assert moved("jiyi_http_requests_total", route="/memory/search", status="400") == 1
    assert moved("jiyi_http_requests_total", route="/memory/{memory_id}", status="200") == 1
    assert moved("jiyi_http_requests_total", route="/memory/{memory_id}", status="202") == 1
    assert not [key for key in after if "secret" in str(key)]
    assert not [key for key, value in after.items() if math.isnan(value) and "lag" not in key[0]]


async def test_a_connection_serves_many_requests(reader):
    """Keep-alive, also after a failure and after a refused body."""
    with socket.create_connection(("127.0.0.1", reader.port), timeout=10) as connection:
        stream = connection.makefile("rb")
        for target, expected in [("/healthz", 200), ("/nowhere", 404), ("/memory/search?q=", 400), ("/healthz", 200)]:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert int(stream.readline().split()[1]) == expected
            size = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            stream.read(size)
