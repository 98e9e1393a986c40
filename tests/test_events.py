"""Events on the stream: two forms, one meaning; and what can never be applied."""

from __future__ import annotations

import json

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jiyi.errors import InvalidEventError
from jiyi.events import (
    KINDS,
    decode_event,
    encode_delete,
    encode_write,
    identify,
    parse_entry,
)
from jiyi.memories import FIELDS, Memory

ENTRY = "1764470000000-5"
LIMIT = 1_000
SECRET = "geheim"  # stands for memory content
BASE = {"event": "write", "id": "m1", "content": SECRET}


def flat(fields):
    return [
        (name if isinstance(name, bytes) else name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in (fields.items() if isinstance(fields, dict) else fields)
    ]


def packed(fields):
    return [(b"payload", fields if isinstance(fields, bytes) else msgpack.packb(fields, use_bin_type=False))]


def decode(fields):
    return decode_event(ENTRY, fields, LIMIT)


FULL_FLAT = {
    "event": "write",
    "id": "m1",
    "ns": "team",
    "content": "记忆 works",
    "author": "Chen",
    "source_system": "chat",
    "user_id": "u",
    "session_id": "s",
    "kind": "note",
    "tags": '["a", "b"]',
    "timestamp": "2026-05-04T10:30:00Z",
    "importance": "0.75",
    "expires_at": "1893456000000",
    "metadata": '{"k": [1, null]}',
}
FULL_PAYLOAD = FULL_FLAT | {
    "tags": ["a", "b", "a"],
    "timestamp": 1_777_890_600_000,
    "importance": 0.75,
    "expires_at": "2030-01-01",
    "metadata": {"k": [1, None]},
}


def test_the_flat_form_and_the_payload_are_the_same_event():
    event = decode(flat(FULL_FLAT))
    assert decode(packed(FULL_PAYLOAD)) == event
    assert decode([(b"payload", encode_write("m1", "team", event.memory)["payload"])]) == event
    assert (event.kind, event.ns, event.id, event.entry, event.version) == ("write", "team", "m1", ENTRY, ENTRY)
    assert event.memory == Memory(
        content="记忆 works", author="Chen", source_system="chat", user_id="u", session_id="s", kind="note",
        tags=("a", "b"), timestamp=1_777_890_600_000, importance=0.75, expires_at=1_893_456_000_000,
        metadata='{"k":[1,null]}',
    )  # fmt: skip
    assert decode(packed(FULL_PAYLOAD)).memory.version_hash() == event.memory.version_hash()


@pytest.mark.parametrize("word", KINDS)
def test_every_word_for_an_event_is_known(word):
    event = decode(flat({"event": word, "id": "m1"} | ({} if word == "delete" else {"content": "x"})))
    assert event.kind == ("delete" if word == "delete" else "write")
    assert event.ns == "default"
    assert (event.memory is None) == (word == "delete")


def test_a_delete_has_two_forms_too():
    expected = decode(flat({"event": "delete", "id": "m1", "ns": "x"}))
    assert decode([(b"payload", encode_delete("m1", "x")["payload"])]) == expected


def test_empty_fields_are_not_given_except_content():
    bare = decode(flat({"event": "write", "id": "m1", "content": ""})).memory
    assert bare == Memory(content="")
    empty = {name: "" for name in FIELDS if name != "content"}
    assert decode(flat({"event": "write", "id": "m1", "content": ""} | empty)).memory == bare


MALFORMED = {
    "no fields": ([], "missing_field", "event"),
    "no event": (flat({"id": "m1", "content": SECRET}), "missing_field", "event"),
    "no id": (flat({"event": "write", "content": SECRET}), "missing_field", "id"),
    "no content": (flat({"event": "write", "id": "m1"}), "missing_field", "content"),
    "no content in a payload": (packed({"event": "write", "id": "m1", "content": None}), "missing_field", "content"),
    "unknown event": (flat(BASE | {"event": "patch"}), "unknown_event", "event"),
    "event in capitals": (flat(BASE | {"event": "WRITE"}), "unknown_event", "event"),
    "event is a list": (packed(BASE | {"event": ["write"]}), "unknown_event", "event"),
    "unknown field": (flat(BASE | {"autor": "x"}), "unknown_field", "autor"),
    "unknown field in a payload": (packed(BASE | {"autor": "x"}), "unknown_field", "autor"),
    "empty field name": (flat(BASE | {"": "x"}), "unknown_field", ""),
    "camel case": (flat(BASE | {"sourceSystem": "x"}), "unknown_field", "sourceSystem"),
    "duplicate field": (flat([*BASE.items(), ("content", "x")]), "duplicate_field", "content"),
    "payload beside another field": (packed(BASE) + flat({"id": "m2"}), "unknown_field", "payload"),
    "another field beside payload": (flat({"id": "m2"}) + packed(BASE), "unknown_field", "payload"),
    "two payloads": (packed(BASE) * 2, "unknown_field", "payload"),
    "payload inside a payload": (packed(BASE | {"payload": "x"}), "unknown_field", "payload"),
    "empty payload": (packed(b""), "invalid_payload", "payload"),
    "payload cut off": (packed(msgpack.packb(BASE)[:-1]), "invalid_payload", "payload"),
    "bytes after the payload": (packed(msgpack.packb(BASE) + b"\x00"), "invalid_payload", "payload"),
    "payload is a list": (packed(["write"]), "invalid_payload", "payload"),
    "payload with numbers as keys": (packed({1: 2}), "invalid_payload", "payload"),
    "payload with bytes as keys": (
        packed(msgpack.packb({b"id": "x"}, use_bin_type=True)),
        "invalid_payload",
        "payload",
    ),
    "payload with lists as keys": (packed(b"\x81\x90\x01"), "invalid_payload", "payload"),
    "payload nested 10,000 deep": (packed(b"\x91" * 10_000 + b"\x01"), "invalid_payload", "payload"),
    "payload that announces 4 GiB": (packed(b"\xdb\xff\xff\xff\xff"), "invalid_payload", "payload"),
    "payload with broken UTF-8": (packed(b"\x81\xa2id\xa1\xff"), "invalid_payload", "payload"),
    "payload with a lone surrogate": (packed(b"\x81\xa2id\xa3\xed\xa0\x80"), "invalid_payload", "payload"),
    "flat value is not UTF-8": (flat(BASE | {"content": b"geheim\xff"}), "not_utf8", "content"),
    "flat value is a lone surrogate": (flat(BASE | {"author": b"\xed\xa0\x80"}), "not_utf8", "author"),
    "flat name is not UTF-8": (flat([*BASE.items(), (b"\xff", "x")]), "not_utf8", ""),
    "id is empty": (flat(BASE | {"id": ""}), "invalid_field", "id"),
    "id is a number": (packed(BASE | {"id": 5}), "invalid_field", "id"),
    "id is too long": (flat(BASE | {"id": "记" * 86}), "invalid_field", "id"),
    "id with a control character": (flat(BASE | {"id": "a\x00"}), "invalid_field", "id"),
    "id with a line end": (flat(BASE | {"id": "a\n"}), "invalid_field", "id"),
    "ns is empty": (flat(BASE | {"ns": ""}), "invalid_field", "ns"),
    "ns is too long": (flat(BASE | {"ns": "n" * 129}), "invalid_field", "ns"),
    "ns is a list": (packed(BASE | {"ns": []}), "invalid_field", "ns"),
    "ns with DEL": (flat(BASE | {"ns": "a\x7f"}), "invalid_field", "ns"),
    "content is too long": (flat(BASE | {"content": "记" * 334}), "too_large", "content"),
    "content is a number": (packed(BASE | {"content": 5}), "invalid_field", "content"),
    "content is bytes": (
        packed(msgpack.packb(BASE | {"content": b"x"}, use_bin_type=True)),
        "invalid_field",
        "content",
    ),
    "author is too long": (flat(BASE | {"author": "a" * 257}), "too_large", "author"),
    "author is a list": (packed(BASE | {"author": ["x"]}), "invalid_field", "author"),
    "kind is false": (packed(BASE | {"kind": False}), "invalid_field", "kind"),
    "a tag is too long": (flat(BASE | {"tags": "a" * 257}), "too_large", "tags"),
    "too many tags": (flat(BASE | {"tags": ",".join(map(str, range(65)))}), "too_large", "tags"),
    "tags are broken JSON": (flat(BASE | {"tags": '["a'}), "invalid_json", "tags"),
    "tags are numbers": (flat(BASE | {"tags": "[1]"}), "invalid_json", "tags"),
    "tags are numbers in a payload": (packed(BASE | {"tags": [1]}), "invalid_field", "tags"),
    "tags are a map": (packed(BASE | {"tags": {"a": 1}}), "invalid_field", "tags"),
    "tags nested 10,000 deep": (flat(BASE | {"tags": "[" * 10_000}), "invalid_json", "tags"),
    "tags with a lone surrogate": (flat(BASE | {"tags": '["\\ud800"]'}), "invalid_json", "tags"),
    "importance is NaN": (flat(BASE | {"importance": "NaN"}), "invalid_field", "importance"),
    "importance is NaN in a payload": (packed(BASE | {"importance": float("nan")}), "invalid_field", "importance"),
    "importance is 1e999": (flat(BASE | {"importance": "1e999"}), "invalid_field", "importance"),
    "importance is infinite": (packed(BASE | {"importance": float("-inf")}), "invalid_field", "importance"),
    "importance is above 1": (flat(BASE | {"importance": "1.0000001"}), "invalid_field", "importance"),
    "importance is below 0": (packed(BASE | {"importance": -1}), "invalid_field", "importance"),
    "importance is true": (packed(BASE | {"importance": True}), "invalid_field", "importance"),
    "importance is a word": (flat(BASE | {"importance": "high"}), "invalid_field", "importance"),
    "timestamp is a word": (flat(BASE | {"timestamp": "yesterday"}), "invalid_field", "timestamp"),
    "timestamp has no such month": (flat(BASE | {"timestamp": "2026-13-01"}), "invalid_field", "timestamp"),
    "timestamp is a fraction": (packed(BASE | {"timestamp": 1.5}), "invalid_field", "timestamp"),
    "timestamp is beyond the year 9999": (flat(BASE | {"timestamp": "253402300800000"}), "invalid_field", "timestamp"),
    "timestamp in nanoseconds": (flat(BASE | {"timestamp": "1764470000000000000"}), "invalid_field", "timestamp"),
    "timestamp of 5,000 digits": (flat(BASE | {"timestamp": "9" * 5_000}), "invalid_field", "timestamp"),
    "timestamp with two signs": (flat(BASE | {"timestamp": "--5"}), "invalid_field", "timestamp"),
    "timestamp before the year 1": (
        flat(BASE | {"timestamp": "0001-01-01T00:00:00+10:00"}),
        "invalid_field",
        "timestamp",
    ),
    "expires_at is true": (packed(BASE | {"expires_at": True}), "invalid_field", "expires_at"),
    "metadata is broken JSON": (flat(BASE | {"metadata": '{"a": '}), "invalid_json", "metadata"),
    "metadata is a list": (flat(BASE | {"metadata": "[]"}), "invalid_field", "metadata"),
    "metadata is a number": (packed(BASE | {"metadata": 1}), "invalid_field", "metadata"),
    "metadata with NaN": (flat(BASE | {"metadata": '{"a": NaN}'}), "invalid_json", "metadata"),
    "metadata with NaN in a payload": (packed(BASE | {"metadata": {"a": float("nan")}}), "invalid_json", "metadata"),
    "metadata with 1e999": (flat(BASE | {"metadata": '{"a": 1e999}'}), "invalid_json", "metadata"),
    "metadata nested 10,000 deep": (flat(BASE | {"metadata": '{"a":' * 10_000}), "invalid_json", "metadata"),
    "metadata that is nested 10,000 deep and closed": (
        flat(BASE | {"metadata": '{"a":' * 10_000 + "1" + "}" * 10_000}),
        "invalid_json",
        "metadata",
    ),
    "metadata with a lone surrogate": (flat(BASE | {"metadata": '{"a": "\\udfff"}'}), "invalid_json", "metadata"),
    "metadata with a time of msgpack": (
        packed(msgpack.packb(BASE | {"metadata": {"a": msgpack.Timestamp(1)}})),
        "invalid_json",
        "metadata",
    ),
    "metadata is too large": (flat(BASE | {"metadata": json.dumps({"a": "x" * 16_384})}), "too_large", "metadata"),
    "origin is a word": (flat(BASE | {"origin": "first"}), "invalid_field", "origin"),
    "origin is a number": (packed(BASE | {"origin": 5}), "invalid_field", "origin"),
    "origin is empty": (flat(BASE | {"origin": ""}), "invalid_field", "origin"),
    "origin from the future": (flat(BASE | {"origin": "1764470000000-6"}), "invalid_field", "origin"),
    "origin from the far future": (flat(BASE | {"origin": "18446744073709551615-0"}), "invalid_field", "origin"),
    "origin beyond 64 bits": (flat(BASE | {"origin": "18446744073709551616-0"}), "invalid_field", "origin"),
    "origin in other digits": (flat(BASE | {"origin": "١-٠"}), "invalid_field", "origin"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_entry_is_refused_with_code_and_field(case):
    """The message is short, printable and shows nothing of the memory."""
    fields, code, field = MALFORMED[case]
    with pytest.raises(InvalidEventError) as caught:
        decode(fields)
    assert (caught.value.code, caught.value.field) == (code, field)
    message = str(caught.value)
    assert SECRET not in message
    assert len(message) < 300
    assert message.isprintable()


def test_a_hostile_field_name_makes_no_hostile_message():
    for fields in (BASE | {"\x1b[31m" + "x" * 10_000: "v"}, {"\r\n" * 50: "a"} | BASE):
        with pytest.raises(InvalidEventError) as caught:
            decode(flat(fields))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


def test_limits_are_reached_exactly():
    longest = BASE | {
        "id": "i" * 256, "ns": "n" * 128, "content": "c" * LIMIT, "author": "a" * 256, "importance": "1",
        "tags": ",".join(f"{i:0256}" for i in range(64)), "timestamp": "253402300799999", "origin": ENTRY,
    }  # fmt: skip
    event = decode(flat(longest))
    assert len(event.memory.tags) == 64
    assert decode(flat(BASE | {"timestamp": "-62135596800000", "importance": "0"})).memory.importance == 0.0


def test_a_replayed_dead_letter_has_the_version_of_its_origin():
    event = decode(flat(BASE | {"origin": "1764470000000-4"}))
    assert (event.entry, event.version) == (ENTRY, "1764470000000-4")
    assert decode(flat(BASE | {"origin": ENTRY})).version == ENTRY
    assert decode(flat(BASE | {"origin": "007-00"})).version == "7-0", "one spelling for one version"
    deleted = decode(flat({"event": "delete", "id": "m1", "origin": "5-0"}))
    assert deleted.version == "5-0"


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("9-0", "10-0"),
        ("5-9", "5-10"),
        ("9007199254740992-0", "9007199254740993-0"),  # 2**53: equal as doubles
        ("1-9007199254740992", "1-9007199254740993"),
        ("18446744073709551614-0", "18446744073709551615-0"),
        ("1764470000000-18446744073709551615", "1764470000001-0"),
    ],
)
def test_entry_ids_compare_as_integers(older, newer):
    assert parse_entry(older) < parse_entry(newer)
    assert decode_event(newer, flat(BASE | {"origin": older}), LIMIT).version == older
    with pytest.raises(InvalidEventError, match="origin"):
        decode_event(older, flat(BASE | {"origin": newer}), LIMIT)


@pytest.mark.parametrize(
    "wrong",
    ["", "1", "1-", "-1", "1-2-3", "1-*", "*", "a-b", "1-2\n", " 1-2", "18446744073709551616-0", "1-" + "9" * 21],
)
def test_what_is_no_entry_id_is_refused(wrong):
    with pytest.raises(InvalidEventError, match="entry"):
        parse_entry(wrong)


def test_a_dead_letter_is_filed_under_what_can_be_read():
    assert identify(flat({"id": "m1", "ns": "team"})) == ("team", "m1")
    assert identify(packed({"id": "m1", "ns": "team", "content": 5})) == ("team", "m1")
    assert identify(flat({"id": "m1"})) == ("default", "m1")
    assert identify(flat({"id": "", "ns": "team"})) == ("team", None)
    assert identify(packed(b"\xff")) == ("default", None)
    assert identify([]) == ("default", None)
    assert identify(flat({"ns": "a\nb", "id": "m1"}))[0] == "default"
    assert identify(flat({"id": "m1", "ns": "team", "content": b"\xff"})) == ("team", "m1")


names = st.sampled_from([*FIELDS, "event", "id", "ns", "origin", "payload"]).map(str.encode)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary(), inner, max_size=4),
    max_leaves=8,
)
values = (
    st.binary()
    | st.text().map(str.encode)
    | json_like.map(msgpack.packb)
    | st.sampled_from([b"write", b"delete", b"1-0", b"{}", b"[]"])
)


@settings(max_examples=500)
@given(st.lists(st.tuples(names | st.binary(), values), max_size=8))
def test_nothing_but_invalid_event_error_escapes_for_any_bytes(fields):
    _decode_or_refuse(fields)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from([*FIELDS, "event", "id", "ns", "origin"]), json_like), st.booleans())
def test_nothing_else_escapes_for_any_payload(fields, whole):
    if whole:
        fields = BASE | fields
    _decode_or_refuse([(b"payload", msgpack.packb(fields))])


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "ns", "origin"]), st.text() | st.integers().map(str) | st.floats().map(str)
    )
)
def test_nothing_else_escapes_for_any_texts(fields):
    _decode_or_refuse(flat({name: value.encode(errors="surrogatepass") for name, value in (BASE | fields).items()}))


@given(st.binary(max_size=200))
def test_nothing_else_escapes_for_any_payload_bytes(payload):
    _decode_or_refuse([(b"payload", payload)])


def _decode_or_refuse(fields):
    event, refusal = None, "none"
    try:
        event = decode(fields)
    except InvalidEventError as error:
        refusal = str(error)
    assert refusal.isprintable()
    if event is not None and event.memory is not None:
        again = decode([(b"payload", encode_write(event.id, event.ns, event.memory)["payload"])])
        assert again.memory == event.memory
        assert again.memory.version_hash() == event.memory.version_hash()
    ns, _ = identify(fields)
    assert ns
