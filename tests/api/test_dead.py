"""Dead letters over HTTP: listed, shown, replayed and dropped, each within its namespace."""

import json
import re
import time
from contextlib import aclosing
from urllib.parse import quote

import anyio
import msgpack
import msgspec
import pytest
from conftest import free_port, start_server, stop_server
from test_words import REFERENCE, section

from api.conftest import running_reader
from jiyi import dead_letters
from jiyi.cli import dead as cli
from jiyi.client import Client, SyncClient
from jiyi.errors import ApiError, InvalidEventError, InvalidQueryError
from jiyi.memories import parse_time
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio

STREAM = "stream:memory:write"
SECRET = "秘密-hunter2"
FACTS = {"letter", "ns", "id", "entry", "code", "reason", "deadAt", "deliveries"}


@pytest.fixture
def bury(database, work):
    """A coroutine that makes events fail, each by a wrong importance; gives their entry ids."""

    async def bury(*ids, ns="default"):
        wrong = {"event": "write", "ns": ns, "content": SECRET, "importance": "9"}
        entries = [(await database.xadd(STREAM, wrong | {"id": one})).decode() for one in ids]
        assert await work() == len(ids)
        return entries

    return bury


@pytest.fixture
async def work_strictly(database, analyzer, settings):
    """As `work`, by a worker that takes at most 20 bytes of content: what it refuses, others can apply."""
    stream = EventStream(database, settings.stream, settings.group)
    pipeline = Pipeline(database, stream, analyzer, msgspec.structs.replace(settings, max_content_bytes=20))

    async def work():
        await stream.ensure_group()
        await pipeline.process(await stream.read_new("strict", 1000, 1))

    return work


def listed(reader, **parameters):
    answer = reader.get("/dead", **parameters)
    assert answer.status == 200, answer.raw
    return answer.body["letters"]


def ids(reader, **parameters):
    return [one["id"] for one in listed(reader, **parameters)]


async def test_letters_are_listed_oldest_first_without_contents(reader, bury):
    entries = await bury("a", "b", "c")
    answer = reader.get("/dead")
    assert SECRET not in answer.raw.decode()
    assert answer.body["next"] is None
    first, *_ = letters = answer.body["letters"]
    assert [one["entry"] for one in letters] == entries
    assert set(first) == FACTS
    assert (first["ns"], first["id"], first["code"], first["deliveries"]) == ("default", "a", "invalid_field", 1)
    assert first["reason"] == "importance: must be a number from 0 to 1"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["deadAt"])


async def test_a_cursor_leads_through_all_letters_whatever_comes_and_goes_meanwhile(reader, bury):
    await bury(*(f"m{i:02}" for i in range(25)))
    page = reader.get("/dead", limit=10).body
    seen = [one["id"] for one in page["letters"]]
    assert page["next"] == page["letters"][-1]["letter"]
    assert reader.request("DELETE", f"/dead/{page['next']}").status == 200
    await bury("late")
    while page["next"] is not None and len(seen) < 50:
        page = reader.get("/dead", limit=10, after=page["next"]).body
        assert 1 <= len(page["letters"]) <= 10
        seen += [one["id"] for one in page["letters"]]
    assert seen == [*(f"m{i:02}" for i in range(25)), "late"]
    assert len(listed(reader)) == 20, "the default"
    assert reader.get("/dead", limit=25).body["next"] is None, "a page that is just full is the last"
    assert listed(reader, after=f"{2**64 - 1}-{2**64 - 1}") == []


async def test_a_letter_is_shown_with_the_fields_of_its_event(reader, bury):
    await bury("a")
    (facts,) = listed(reader)
    shown = reader.get(f"/dead/{facts['letter']}").body
    assert {name: shown[name] for name in FACTS} == facts
    assert set(shown) == FACTS | {"fields"}
    assert shown["fields"] == [
        {"name": name, "value": value, "exact": True}
        for name, value in {"event": "write", "ns": "default", "content": SECRET, "importance": "9", "id": "a"}.items()
    ]


async def test_a_payload_is_shown_as_the_fields_that_are_packed_in_it(reader, database, work):
    nested = [1, 2.5, True, None, {"k": "v"}]
    fields = {"event": "write", "id": "m", "content": SECRET, "importance": 9, "metadata": nested}
    await database.xadd(STREAM, {"payload": msgpack.packb(fields)})
    await work()
    (facts,) = listed(reader)
    shown = reader.get(f"/dead/{facts['letter']}").body["fields"]
    assert shown == [{"name": name, "value": value, "exact": True} for name, value in fields.items()]


DEEP = b"\x91" * 200 + b"\x01"
UNSHOWABLE = [
    ({b"event": b"write", b"id": b"m", b"content": b"a\xffb"}, "content", "a\ufffdb"),
    ({b"event": b"write", b"id": b"m", b"na\xffme": b"x"}, "na\ufffdme", "x"),
    ({b"payload": b"\xc1"}, "payload", "\ufffd"),
    ({b"payload": b"\x81\xa2id\xa2\xffb"}, "id", "\ufffdb"),
    ({b"payload": b"\x81\xa2id\xc4\x01b"}, "id", "b"),  # binary, not text
    ({b"payload": msgpack.packb({"id": float("nan")})}, "id", "nan"),
    ({b"payload": msgpack.packb({"id": {"k": [float("inf"), "x"]}})}, "id", {"k": ["inf", "x"]}),
    ({b"payload": b"\x81\xa2id" + msgpack.packb(msgpack.Timestamp(1))}, "id", "Timestamp(seconds=1, nanoseconds=0)"),
    ({b"payload": b"\x81\xa2id" + DEEP}, "id", json.loads("[" * 16 + '"…"' + "]" * 16)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name", "value"), UNSHOWABLE)
async def test_what_json_cannot_say_is_shown_as_near_as_can_be_and_flagged(reader, database, work, fields, name, value):
    await database.xadd(STREAM, fields)
    await work()
    (facts,) = listed(reader)
    shown = reader.get(f"/dead/{facts['letter']}").body["fields"]
    assert [one for one in shown if not one["exact"]] == [{"name": name, "value": value, "exact": False}]


async def test_a_field_that_is_given_twice_is_shown_twice(reader, database, work):
    await database.execute_command("XADD", STREAM, "*", "event", "write", "id", "m", "content", "a", "content", "b")
    await work()
    (facts,) = listed(reader)
    assert facts["code"] == "duplicate_field"
    shown = reader.get(f"/dead/{facts['letter']}").body["fields"]
    assert [one["value"] for one in shown if one["name"] == "content"] == ["a", "b"]


async def test_a_replayed_event_is_applied_when_its_cause_is_mended(reader, work, work_strictly):
    accepted = reader.post("/memory/write", {"id": "m", "content": "redis is longer than 20 bytes"}).body
    await work_strictly()
    assert reader.state("m") == "failed"
    (facts,) = listed(reader)
    assert facts["code"] == "too_large"
    answer = reader.request("POST", f"/dead/{facts['letter']}/replay")
    assert answer.status == 202
    assert answer.body == {
        "letter": facts["letter"], "ns": "default", "id": "m", "entry": answer.body["entry"], "status": "accepted",
    }  # fmt: skip
    assert answer.body["entry"] != accepted["entry"]
    assert listed(reader) == []
    assert reader.request("POST", f"/dead/{facts['letter']}/replay").error[:2] == (404, "not_found")
    await work()
    assert reader.found("redis") == ["m"]
    ready = reader.ready("m", entry=accepted["entry"])
    assert (ready["state"], ready["entry"]) == ("ready", accepted["entry"]), "it keeps its version"


async def test_a_replayed_event_cannot_undo_a_newer_write_or_delete(reader, work, work_strictly):
    for name in ("written", "deleted"):
        reader.post("/memory/write", {"id": name, "content": "redis is longer than 20 bytes"})
    await work_strictly()
    reader.post("/memory/write", {"id": "written", "content": "newer"})
    reader.request("DELETE", "/memory/deleted")
    await work()
    for facts in listed(reader):
        assert reader.request("POST", f"/dead/{facts['letter']}/replay").status == 202
    assert await work() == 2
    assert reader.get("/memory/written").body["content"] == "newer"
    assert reader.get("/memory/deleted").status == 404
    assert listed(reader) == []


async def test_an_event_that_is_replayed_twice_is_no_longer_failed(reader, work, work_strictly):
    accepted = reader.post("/memory/write", {"id": "m", "content": "redis is longer than 20 bytes"}).body
    await work_strictly()
    for run in (work_strictly, work):
        (facts,) = listed(reader)
        assert reader.request("POST", f"/dead/{facts['letter']}/replay").status == 202
        await run()
    for entry in ({}, {"entry": accepted["entry"]}):
        assert reader.state("m", **entry) == "ready"


async def test_a_replayed_event_that_fails_again_comes_back(reader, work, bury):
    (entry,) = await bury("m")
    (before,) = listed(reader)
    replayed = reader.request("POST", f"/dead/{before['letter']}/replay").body
    await work()
    (after,) = listed(reader)
    assert (after["id"], after["code"]) == ("m", "invalid_field")
    assert after["letter"] != before["letter"]
    assert after["entry"] == entry, "it is the same version still"
    assert replayed["entry"] > entry


REFUSED_FOR_GOOD = [
    {b"payload": msgpack.packb({"event": "write", "id": "m", "ns": "theirs", "content": "redis"}), b"ns": b"ours"},
    {b"payload": msgpack.packb({"event": "write", "id": "m", "ns": "ours", "content": b"redis"})},  # bytes, not text
    {b"event": b"write", b"id": b"m", b"ns": b"ours", b"content": b"\xff"},
    {b"event": b"write", b"ns": b"ours", b"content": b"redis"},
]


@pytest.mark.parametrize("fields", REFUSED_FOR_GOOD)
async def test_a_replay_makes_no_valid_event_of_one_that_is_none(reader, database, work, fields):
    """Least of all one of another namespace than that of the letter."""
    await database.xadd(STREAM, fields)
    await work()
    (before,) = listed(reader, ns="ours")
    assert reader.request("POST", "/dead/replay?ns=ours").body["count"] == 1
    await work()
    (after,) = listed(reader, ns="ours")
    assert (after["code"], after["reason"]) == (before["code"], before["reason"])
    assert after["letter"] != before["letter"]
    assert reader.found("redis", ns="theirs") == reader.found("redis", ns="ours") == []


async def test_a_namespace_that_has_nothing_but_dead_letters_is_known(database, bury):
    """`jiyi dead list` and the gauge of dead letters go through the namespaces that are known."""
    await bury("m", ns="only dead")
    assert await dead_letters.namespaces(database) == ["default", "only dead"]


async def test_a_dropped_letter_is_gone_and_its_memory_no_longer_failed(reader, bury):
    await bury("m", "n")
    letter = listed(reader)[0]["letter"]
    answer = reader.request("DELETE", f"/dead/{letter}")
    assert (answer.status, answer.body) == (200, {"letter": letter, "ns": "default", "id": "m", "status": "dropped"})
    assert ids(reader) == ["n"]
    assert (reader.state("m"), reader.state("n")) == ("unknown", "failed")
    for method in ("GET", "DELETE"):
        assert reader.request(method, f"/dead/{letter}").error[:2] == (404, "not_found")


async def test_all_letters_are_dropped_in_steps_and_later_ones_stay(reader, bury):
    await bury(*(f"m{i}" for i in range(5)))
    first = reader.request("DELETE", "/dead?all=true&limit=2").body
    newest = listed(reader)[-1]["letter"]
    assert first == {"count": 2, "more": True, "until": newest}
    await bury("late")
    second = reader.request("DELETE", f"/dead?all=true&limit=2&until={newest}").body
    third = reader.request("DELETE", f"/dead?all=true&limit=2&until={newest}").body
    assert (second["count"], second["more"]) == (2, True)
    assert third == {"count": 1, "more": False, "until": newest}
    assert ids(reader) == ["late"]
    assert reader.request("DELETE", "/dead?all=true").body["count"] == 1
    assert reader.request("DELETE", "/dead?all=true").body == {"count": 0, "more": False, "until": None}


async def test_replaying_all_takes_none_twice_that_fails_again(reader, bury, work):
    """They come back while the steps go on; without a bound the steps would never end."""
    await bury(*(f"m{i}" for i in range(5)))
    step = {"more": True, "until": listed(reader)[-1]["letter"]}
    counts = []
    while step["more"] and len(counts) < 5:
        step = reader.request("POST", f"/dead/replay?limit=2&until={step['until']}").body
        counts.append(step["count"])
        assert await work() == counts[-1]
    assert counts == [2, 2, 1]
    assert ids(reader) == [f"m{i}" for i in range(5)]
    answer = reader.request("POST", "/dead/replay")
    assert (answer.status, answer.body["count"], answer.body["more"]) == (202, 5, False)


async def test_the_command_line_replays_all_letters_once(database, bury, work, settings, monkeypatch):
    """Page by page, while those that fail again come back behind the last."""
    monkeypatch.setattr(cli, "_PAGE", 2)
    await bury(*(f"m{i}" for i in range(5)))
    replayed = []
    async with aclosing(cli._all(database, "default")) as letters:
        async for letter in letters:
            assert await dead_letters.replay(database, settings.stream, letter)
            await work()
            replayed.append(letter.id)
            assert len(replayed) <= 5
    assert replayed == [f"m{i}" for i in range(5)]


@pytest.mark.parametrize(("ours", "theirs"), [("a", "b"), ("a:b", "a"), ("default", "Default"), ("é", "e\u0301")])
async def test_letters_of_another_namespace_are_like_those_that_never_were(reader, bury, ours, theirs):
    await bury("mine", ns=ours)
    await bury("x", "y", ns=theirs)
    (mine,) = listed(reader, ns=ours)
    letter, absent = listed(reader, ns=theirs)[0]["letter"], "1-1"
    for method, target in (("GET", "/dead/{}"), ("DELETE", "/dead/{}"), ("POST", "/dead/{}/replay")):
        answers = [reader.request(method, target.format(one) + f"?ns={quote(ours)}").error for one in (letter, absent)]
        assert answers[0] == answers[1]
        assert answers[0][:2] == (404, "not_found")
    assert listed(reader, ns=ours, after=letter) in ([], [mine])
    assert reader.request("POST", f"/dead/replay?ns={quote(ours)}").body["count"] == 1
    assert reader.request("DELETE", f"/dead?all=true&ns={quote(ours)}").body["count"] == 0
    assert ids(reader, ns=theirs) == ["x", "y"]
    assert reader.state("x", ns=theirs) == "failed"
    assert reader.state("x", ns=ours) == "unknown"


OURS = {b"entry": b"5-0", b"code": b"bad", b"reason": b"r", b"dead_at": b"5", b"deliveries": b"1", b"fields": b"\x90"}
FOREIGN = [
    {b"event": b"write", b"id": b"m", b"content": SECRET.encode()},
    {b"entry": b"5-0", b"code": b"bad"},
    {b"\xff": b"\xff"},
    OURS | {b"fields": b"\xc1"},
    OURS | {b"fields": b"\x91\xc4\x01x"},  # a name without value
    OURS | {b"fields": b"\x92\x01\x02"},  # numbers
    OURS | {b"fields": b"\x80"},  # a map
    OURS | {b"fields": DEEP * 20},
    OURS | {b"entry": b"soon"},
    OURS | {b"entry": b"\xff"},
    OURS | {b"dead_at": b"soon"},
    OURS | {b"dead_at": b"9" * 30},
    OURS | {b"dead_at": b"-1"},
    OURS | {b"deliveries": b"9" * 30},
    OURS | {b"code": b"\xff"},
]  # fmt: skip


@pytest.mark.parametrize("fields", FOREIGN)
async def test_what_no_worker_has_filed_is_shown_as_it_is_and_can_only_be_dropped(reader, database, bury, fields):
    await bury("a")
    foreign = (await database.xadd("dead:{default}", fields)).decode()
    await bury("b")
    answer = reader.get("/dead")
    assert answer.status == 200
    assert SECRET not in answer.raw.decode()
    facts = answer.body["letters"][1]
    assert facts | {"deadAt": None} == {
        "letter": foreign, "ns": "default", "id": None, "entry": "", "code": "foreign", "deliveries": 0, "deadAt": None,
        "reason": "was not filed by jiyi, or has been changed since",
    }  # fmt: skip
    assert abs(parse_time("deadAt", facts["deadAt"]) - time.time() * 1000) < 3_600_000
    shown = reader.get(f"/dead/{foreign}").body
    assert [(one["name"], one["value"]) for one in shown["fields"]] == [
        (name.decode(errors="replace"), value.decode(errors="replace")) for name, value in fields.items()
    ]
    refused = reader.request("POST", f"/dead/{foreign}/replay")
    assert refused.error[:2] == (400, "foreign")
    assert reader.request("POST", "/dead/replay").body["count"] == 2, "the others"
    assert [one["letter"] for one in listed(reader)] == [foreign]
    assert reader.request("DELETE", f"/dead/{foreign}").status == 200
    assert listed(reader) == []


async def test_the_latest_letter_id_there_can_be_is_shown(reader, database):
    await database.xadd("dead:{default}", {"x": "y"}, id=f"{2**64 - 1}-1")
    (facts,) = listed(reader)
    assert facts["deadAt"] == "9999-12-31T23:59:59.999Z"
    await database.delete("dead:{default}")


async def test_foreign_entries_do_not_keep_a_replay_of_all_from_its_end(reader, database, bury, work):
    for i in range(7):
        await database.xadd("dead:{default}", {"x": i})
    await bury("a", "b", "c")
    first = reader.request("POST", "/dead/replay?limit=2").body
    assert (first["count"], first["more"]) == (2, True)
    last = reader.request("POST", f"/dead/replay?limit=2&until={first['until']}").body
    assert (last["count"], last["more"]) == (1, False)
    assert await work() == 3
    assert {one["code"] for one in listed(reader)} == {"foreign", "invalid_field"}


REFUSED = [
    ("GET", "/dead?namespace=x", "namespace: is no parameter here; known are after, limit, ns"),
    ("GET", "/dead?ns=a&ns=b", "ns: is given 2 times"),
    ("GET", "/dead?ns=", "ns: "),
    ("GET", "/dead?limit=0", "limit: is 0; it must be 1 to 100"),
    ("GET", "/dead?limit=101", "limit: is 101"),
    ("GET", "/dead?limit=x", "limit: "),
    ("GET", "/dead?after=x", "after: must be the id of a dead letter"),
    ("GET", "/dead?all=true", "all: is no parameter here"),
    ("GET", "/dead/x", "letter: must be the id of a dead letter"),
    ("GET", "/dead/1", "letter: "),
    ("GET", "/dead/-", "letter: "),
    ("GET", "/dead/1-0%00", "letter: "),
    ("GET", "/dead/%D9%A1-0", "letter: "),  # an Arabic digit
    ("GET", f"/dead/{2**64}-0", "letter: "),
    ("GET", "/dead/1-0?n=x", "n: is no parameter here"),
    ("GET", "/dead/1-0?letter=2-0", "letter: is no parameter here"),
    ("DELETE", "/dead/x", "letter: "),
    ("DELETE", "/dead", "all: must be true"),
    ("DELETE", "/dead?all=false", "all: must be true"),
    ("DELETE", "/dead?all=perhaps", "all: "),
    ("DELETE", "/dead?all=true&id=m", "id: is no parameter here"),
    ("DELETE", "/dead?all=true&ns=", "ns: "),
    ("DELETE", "/dead?all=true&limit=0", "limit: "),
    ("POST", "/dead/x/replay", "letter: "),
    ("POST", "/dead/1-0/replay?force=1", "force: is no parameter here"),
    ("POST", "/dead/replay?letter=1-0", "letter: is no parameter here"),
    ("POST", "/dead/replay?limit=1000", "limit: "),
    ("POST", "/dead/replay?until=now", "until: must be the id of a dead letter"),
    ("POST", "/dead/replay?ns=%0A", "ns: "),
]


@pytest.mark.parametrize(("method", "target", "message"), REFUSED)
async def test_what_is_wrong_is_refused_and_nothing_happens(reader, bury, database, method, target, message):
    await bury("m")
    before = await database.xlen(STREAM)
    status, _, told = reader.request(method, target).error
    assert status == 400
    assert told.startswith(message)
    assert ids(reader) == ["m"]
    assert await database.xlen(STREAM) == before


@pytest.mark.parametrize("method", ["DELETE", "POST"])
async def test_a_namespace_that_is_sent_in_a_body_is_refused(reader, bury, method):
    """Unread, it would mean the default namespace."""
    await bury("m")
    letter = listed(reader)[0]["letter"]
    single, every = ("/dead/{}/replay", "/dead/replay") if method == "POST" else ("/dead/{}", "/dead?all=true")
    for target in (single.format(letter), every):
        assert reader.request(method, target, '{"ns": "other"}').error[:2] == (400, "invalid_query")
    assert ids(reader) == ["m"]


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/dead/replay"), ("POST", "/dead"), ("POST", "/dead/1-0"), ("PUT", "/dead/1-0")]
)
async def test_other_methods_are_refused(reader, method, target):
    assert reader.request(method, target).error[:2] == (405, "method_not_allowed")


async def test_letters_whose_memory_cannot_be_named_are_replayed_and_dropped_too(reader, database, work):
    for fields in ({"event": "write", "content": "x"}, {b"payload": b"\xc1"}, {"event": "delete", "id": ""}):
        await database.xadd(STREAM, fields)
    await work()
    assert [one["id"] for one in listed(reader)] == [None] * 3
    assert reader.request("POST", f"/dead/{listed(reader)[0]['letter']}/replay").body["id"] is None
    await work()
    assert len(listed(reader)) == 3
    assert reader.request("DELETE", "/dead?all=true").body["count"] == 3
    assert not await database.exists("failed:{default}")


S, LONG = SECRET, SECRET * 20
WRITE = {"event": "write", "id": "m", "content": S}
CONTENTS = {
    "missing_field": [
        {"event": "write", "id": "m", "author": S}, {"id": "m", "content": S}, {"event": "write", "content": S},
    ],
    "unknown_field": [WRITE | {"colour": S}, {b"payload": msgpack.packb(WRITE), b"author": S}],
    "duplicate_field": [["event", "write", "id", "m", "content", S, "content", S + "2"]],
    "invalid_field": [
        WRITE | {"importance": S}, WRITE | {"timestamp": S}, WRITE | {"expires_at": S}, WRITE | {"ns": LONG},
        WRITE | {"ns": S + "\n"}, WRITE | {"id": LONG}, WRITE | {"id": S + "\x00"}, WRITE | {"origin": S},
        WRITE | {"metadata": json.dumps([S])}, {b"payload": msgpack.packb(WRITE | {"author": [S]})},
        {b"payload": msgpack.packb(WRITE | {"tags": {S: S}})}, {b"payload": msgpack.packb(WRITE | {"content": {S: S}})},
    ],
    "unknown_event": [WRITE | {"event": S}],
    "not_utf8": [WRITE | {"author": S.encode() + b"\xff"}, {**WRITE, S.encode() + b"\xff": "x"}],
    "invalid_json": [WRITE | {"metadata": "{" + S}, WRITE | {"tags": f'["{S}"'}],
    "invalid_payload": [{b"payload": b"\xc1" + S.encode()}, {b"payload": msgpack.packb([S])}],
    "too_large": [
        WRITE | {"content": S * 10_000}, WRITE | {"author": LONG}, WRITE | {"tags": LONG},
        WRITE | {"tags": ",".join(f"{S}{i}" for i in range(65))}, WRITE | {"metadata": json.dumps({S: S * 2_000})},
    ],
    "too_many_terms": [WRITE | {"content": S + " ".join(f"{i:x}" for i in range(11_000))}],
    "max_deliveries": [WRITE],
}  # fmt: skip


def test_the_codes_that_are_tried_are_all_codes():
    rows = re.findall(r"^\| (`.*?) \|", section(REFERENCE, "Reasons of dead letters"), re.MULTILINE)
    assert set(CONTENTS) == set(re.findall(r"`(\w+)`", " ".join(rows)))


@pytest.mark.parametrize("code", CONTENTS)
async def test_no_reason_repeats_content(reader, database, settings, analyzer, work, code):
    """Reasons are listed, logged and given by /memory/ready: they name fields and say sizes."""
    for fields in CONTENTS[code]:
        flat = fields if isinstance(fields, list) else [part for pair in fields.items() for part in pair]
        await database.execute_command("XADD", STREAM, "*", *flat)
    if code == "max_deliveries":
        stream = EventStream(database, settings.stream, settings.group)
        await stream.ensure_group()
        (entry,) = await stream.read_new("w", 1, 1)
        reason = f"was delivered {settings.max_deliveries + 1} times without success"
        await Pipeline(database, stream, analyzer, settings).bury(entry, code, reason, 6)
    else:
        await work()
    answer = reader.get("/dead", limit=100, ns="default")
    assert [one["code"] for one in answer.body["letters"]] == [code] * len(CONTENTS[code])
    for letter in answer.body["letters"]:
        assert "hunter2" not in letter["reason"], letter
        assert "秘密" not in letter["reason"], letter
        assert len(letter["reason"]) < 200


@pytest.fixture
async def letters_client(reader):
    async with Client(f"http://127.0.0.1:{reader.port}") as client:
        yield client


async def test_our_client_lists_shows_replays_and_drops(reader, bury, work, letters_client):
    entries = await bury(*(f"m{i:03}" for i in range(230)), ns="team 一")
    client, ns = letters_client, "team 一"
    with anyio.fail_after(60):
        letters = await client.dead_letters(ns=ns)
    assert [one.entry for one in letters] == entries
    assert (letters[0].id, letters[0].code, letters[0].deliveries) == ("m000", "invalid_field", 1)
    assert [one.id for one in await client.dead_letters(ns, 3, letters[100].letter)] == ["m101", "m102", "m103"]
    assert len(await client.dead_letters(ns, limit=150)) == 150
    assert await client.dead_letters(ns, limit=0) == await client.dead_letters() == []
    shown = await client.dead_letter(letters[0].letter, ns=ns)
    assert shown.dead_at == letters[0].dead_at
    assert {field.name: field.value for field in shown.fields}["content"] == SECRET
    replayed = await client.replay(letters[0].letter, ns=ns)
    assert (replayed.id, replayed.ns, replayed.letter) == ("m000", ns, letters[0].letter)
    assert replayed.entry > entries[-1]
    await client.drop(letters[1].letter, ns)
    for call in (client.dead_letter, client.replay, client.drop):
        with pytest.raises(ApiError, match="no such dead letter") as missing:
            await call(letters[1].letter, ns)
        assert missing.value.status == 404
    assert await client.replay_all(ns) == 228
    assert await work() == 229
    assert await client.drop_all(ns) == 229
    assert await client.drop_all(ns) == await client.replay_all(ns) == 0


async def test_the_client_without_asyncio_does_the_same(reader, bury, work):
    await bury("a", "b", "c")
    with SyncClient(f"http://127.0.0.1:{reader.port}") as client:
        first, second, _ = letters = client.dead_letters()
        assert [one.id for one in letters] == ["a", "b", "c"]
        assert client.dead_letter(first.letter).fields[2].value == SECRET
        assert client.replay(first.letter).id == "a"
        assert client.drop(second.letter) is None
        assert client.replay_all() == 1
        assert await work() == 2
        assert client.drop_all() == 2
        with pytest.raises(InvalidEventError, match="letter: must be the id"):
            client.dead_letter("../memory/x")
        with pytest.raises(InvalidQueryError, match="limit"):
            client.dead_letters(limit=-1)


async def test_while_redis_is_away_every_answer_is_503(anyio_backend, tmp_path):
    port = free_port()
    process = start_server(tmp_path, port)
    try:
        settings = Settings(redis_url=f"redis://127.0.0.1:{port}", data_dir=tmp_path, redis_timeout_ms=400)
        with running_reader(settings, tmp_path / "log") as reader:
            assert reader.get("/dead").body == {"letters": [], "next": None}
            stop_server(process)
            for method, target in (
                ("GET", "/dead"), ("GET", "/dead/1-0"), ("POST", "/dead/1-0/replay"), ("POST", "/dead/replay"),
                ("DELETE", "/dead/1-0"), ("DELETE", "/dead?all=true"),
            ):  # fmt: skip
                answer = reader.request(method, target)
                assert answer.error[:2] == (503, "unavailable")
                assert int(answer.headers["Retry-After"]) >= 1
            assert reader.get("/dead", limit=0).error[0] == 400, "what is wrong stays wrong"
    finally:
        stop_server(process)


async def test_answers_are_those_that_openapi_promises(reader, bury):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    await bury("m", "n", "o")
    letters = [one["letter"] for one in listed(reader)]
    schema = reader.get("/schema/openapi.json").body
    for path, method, target in (
        ("/dead", "get", "/dead"),
        ("/dead", "get", "/dead?limit=1"),
        ("/dead", "get", "/dead?limit=0"),
        ("/dead/{letter}", "get", f"/dead/{letters[0]}"),
        ("/dead/{letter}", "get", "/dead/1-1"),
        ("/dead/{letter}/replay", "post", f"/dead/{letters[0]}/replay"),
        ("/dead/{letter}", "delete", f"/dead/{letters[1]}"),
        ("/dead/replay", "post", "/dead/replay"),
        ("/dead", "delete", "/dead"),
        ("/dead", "delete", "/dead?all=true"),
    ):
        answer = reader.request(method.upper(), target)
        content = schema["paths"][path][method]["responses"][str(answer.status)]["content"]
        root = {**content["application/json"]["schema"], "components": schema["components"]}
        validator.check_schema(root)
        assert [error.message for error in validator(root).iter_errors(answer.body)] == [], (path, method)


async def test_openapi_describes_every_parameter(reader):
    paths = reader.get("/schema/openapi.json").body["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), (path, method, parameter["name"])
