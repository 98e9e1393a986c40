"""A memory's fields: how they are read, hashed and stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jiyi.errors import InvalidEventError
from jiyi.memories import (
    FIELDS,
    LABELS,
    MAX_METADATA_BYTES,
    Memory,
    format_time,
    from_camel,
    parse_tags,
    parse_time,
    to_camel,
)

FULL = {
    "content": "c",
    "author": "a",
    "source_system": "s",
    "user_id": "u",
    "session_id": "x",
    "kind": "k",
    "tags": ["t"],
    "timestamp": "1970-01-01T00:00:00.001Z",
    "importance": 0.25,
    "expires_at": "1970-01-01T00:00:00.002Z",
    "metadata": {"m": 1},
}
OTHER = {
    "content": "C",
    "author": "A",
    "source_system": "S",
    "user_id": "U",
    "session_id": "X",
    "kind": "K",
    "tags": ["t", "T"],
    "timestamp": "1970-01-01T00:00:00.003Z",
    "importance": 0.5,
    "expires_at": "1970-01-01T00:00:00.004Z",
    "metadata": {"m": 2},
}


def build(fields):
    return Memory.from_fields(fields, 10_000)


def test_the_samples_name_every_field():
    assert set(FULL) == set(OTHER) == set(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_the_version_hash_differs_when_one_field_differs(field):
    whole = build(FULL).version_hash()
    assert build(FULL | {field: OTHER[field]}).version_hash() != whole
    if field != "content":
        assert build({name: value for name, value in FULL.items() if name != field}).version_hash() != whole


def test_the_version_hash_does_not_differ_for_another_spelling():
    spelt = FULL | {
        "tags": "t, t,", "timestamp": " 1970-01-01 00:00:00.001 ", "importance": " 0.250", "metadata": '{ "m" : 1 }',
        "expires_at": "1970-01-01T01:00:00.002+01:00",
    }  # fmt: skip
    assert build(spelt) == build(FULL)
    assert build(spelt).version_hash() == build(FULL).version_hash()
    assert (
        build({"content": "c", "author": "", "tags": [], "kind": None}).version_hash()
        == build({"content": "c"}).version_hash()
    )


def test_values_do_not_run_into_each_other_in_the_version_hash():
    """The same text in another field, or cut elsewhere, is another version."""
    hashes = {build({"content": "c", label: "v"}).version_hash() for label in LABELS}
    assert len(hashes) == len(LABELS)
    assert (
        build({"content": "c", "tags": ["a,b"]}).version_hash()
        != build({"content": "c", "tags": ["a", "b"]}).version_hash()
    )


def test_version_hashes_stay_the_same_between_releases():
    """They are stored: another value would apply every memory anew."""
    assert build({"content": "记忆"}).version_hash() == VERSION_HASHES[0]
    assert build(FULL).version_hash() == VERSION_HASHES[1]


VERSION_HASHES = ("NYRJBtoCyaWT4zPM", "dehw56GadoYMB5cU")

text = st.text(max_size=40)
label = st.none() | st.text(min_size=1, max_size=60)
epoch_ms = st.integers(-62_135_596_800_000, 253_402_300_799_999) | st.integers(-2 * 10**11, 2 * 10**11)
moment = st.none() | epoch_ms.map(lambda ms: ms if abs(ms) >= 10**11 else format_time(ms))
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
memories = st.builds(
    dict,
    content=text,
    **dict.fromkeys(LABELS, label),
    tags=st.lists(text, max_size=5),
    timestamp=moment,
    importance=st.none() | st.floats(0, 1),
    expires_at=moment,
    metadata=st.none() | st.dictionaries(text, json_value, max_size=4),
)


@given(memories)
def test_what_is_stored_comes_back(fields):
    memory = build(fields)
    flat = memory.stored()
    names, values = flat[::2], flat[1::2]
    assert len(set(names)) == len(names)
    assert all(isinstance(value, str) for value in flat)
    stored = dict(zip(names, values, strict=True)) | {"entry": "1-0", "doc": "7"}
    again = Memory.from_stored(stored)
    assert again == memory
    assert again.version_hash() == memory.version_hash()


@given(memories)
def test_reading_a_memory_again_changes_nothing(fields):
    """A producer reads it once and the worker again: both must see the same version."""
    memory = build(fields)
    again = build(memory.to_fields())
    assert again == memory
    assert again.version_hash() == memory.version_hash()


@given(memories, st.sampled_from(FIELDS), memories)
def test_version_hashes_are_equal_exactly_for_equal_memories(fields, name, others):
    one, other = build(fields), build(fields | {name: others[name]})
    assert (one.version_hash() == other.version_hash()) == (one == other)


any_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.just("\ud800")
    | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers() | st.binary(), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text() | st.integers(), any_value, max_size=6))
def test_any_python_value_is_taken_or_refused(fields):
    memory, refusal = build_or_refuse({"content": "c"} | fields)
    assert refusal.isprintable()
    if memory is not None:
        assert Memory.from_stored(dict(zip(memory.stored()[::2], memory.stored()[1::2], strict=True))) == memory


def build_or_refuse(fields):
    try:
        return build(fields), ""
    except InvalidEventError as error:
        return None, str(error)


@pytest.mark.parametrize("number", [10**30, 10**5_000, -(10**400)], ids=["30", "5000", "-400"])
def test_huge_numbers_in_metadata_are_kept_or_refused(number):
    memory, refusal = build_or_refuse({"content": "c", "metadata": {"n": number}})
    if memory is None:
        assert refusal.startswith("metadata: ")
    else:
        assert build(memory.to_fields()) == memory


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_know_are_refused_however_deep(number):
    for metadata in ({"a": number}, {"a": [{"b": (number,)}]}):
        with pytest.raises(InvalidEventError) as caught:
            build({"content": "c", "metadata": metadata})
        assert (caught.value.code, caught.value.field) == ("invalid_json", "metadata")


def test_metadata_that_contains_itself_is_refused():
    circle = {}
    circle["a"] = circle
    with pytest.raises(InvalidEventError, match="metadata"):
        build({"content": "c", "metadata": circle})


def test_the_limit_of_metadata_counts_bytes():
    fits = {"a": "记" * ((MAX_METADATA_BYTES - 8) // 3)}
    build({"content": "c", "metadata": fits})
    with pytest.raises(InvalidEventError) as caught:
        build({"content": "c", "metadata": {"a": fits["a"] + "记"}})
    assert (caught.value.code, caught.value.field) == ("too_large", "metadata")


@pytest.mark.parametrize(
    ("given_tags", "tags"),
    [
        ("a,b", ("a", "b")),
        (" a , ,b,a", ("a", "b")),
        ('["a,b", " c "]', ("a,b", "c")),
        (" [] ", ()),
        (["b", "a", "b"], ("b", "a")),
        (("x",), ("x",)),
        ("", ()),
    ],
)
def test_tags_are_read_from_a_list_json_or_commas(given_tags, tags):
    assert parse_tags(given_tags) == tags


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("2026-05-04T10:30:00Z", 1_777_890_600_000),
        ("2026-05-04T10:30:00", 1_777_890_600_000),
        ("2026-05-04 18:30:00+08:00", 1_777_890_600_000),
        ("2026-05-04T10:30:00.1239Z", 1_777_890_600_123),
        ("1969-12-31T23:59:59.9991Z", -1),
        ("2026-05-04", 1_777_852_800_000),
        ("20260504T103000Z", 1_777_890_600_000),
        (" 1777890600000 ", 1_777_890_600_000),
        (10**11, 10**11),
        ("-100000000000", -(10**11)),
        ("1970-01-01", 0),
        ("0001-01-01", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        (datetime(2026, 5, 4, 10, 30), 1_777_890_600_000),  # noqa: DTZ001 - naive: UTC
        (datetime(2026, 5, 4, 18, 30, tzinfo=timezone(timedelta(hours=8))), 1_777_890_600_000),
    ],
)
def test_times_are_read_to_the_millisecond(value, ms):
    assert parse_time("timestamp", value) == ms


@pytest.mark.parametrize(
    "value", [0, "0", 1_777_890_600, " 1777890600 ", -1, "-86400", 99_999_999_999, "2026", "20260504"]
)
def test_epoch_seconds_are_refused_as_what_they_are(value):
    """As milliseconds they would be a day of about 1970, and the memory would come last or be expired."""
    for field in ("timestamp", "expires_at"):
        with pytest.raises(
            InvalidEventError, match=f"{field}: is too small for epoch milliseconds; are these seconds"
        ) as caught:
            build({"content": "c", field: value})
        assert (caught.value.code, caught.value.field) == ("invalid_field", field)


def test_camel_case_names_are_known():
    given = {"id": 1, "sourceSystem": "s", "userId": "u", "sessionId": "x", "expiresAt": 5, "content": "c", "other": 0}
    assert from_camel(given) == {
        "id": 1, "source_system": "s", "user_id": "u", "session_id": "x", "expires_at": 5, "content": "c", "other": 0,
    }  # fmt: skip
    with pytest.raises(InvalidEventError) as caught:
        from_camel({"source_system": "a", "sourceSystem": "a"})
    assert caught.value.field == "source_system"


@pytest.mark.parametrize("name", FIELDS)
def test_a_name_in_camel_case_is_read_as_the_same_field(name):
    assert from_camel({to_camel(name): 1}) == {name: 1}


@given(epoch_ms)
def test_a_formatted_time_is_read_as_the_same_instant(ms):
    shown = format_time(ms)
    assert len(shown) == len("2026-05-04T10:30:00.000Z")
    assert parse_time("timestamp", shown) == ms
    assert msgspec.json.decode(f'"{shown}"', type=datetime).astimezone(UTC).microsecond == ms % 1000 * 1000
