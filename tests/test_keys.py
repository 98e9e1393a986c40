"""Key names: no two things share a key, and no user data can move one to another slot."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot

from jiyi import keys
from jiyi.errors import SettingsError
from jiyi.events import KINDS
from jiyi.memories import MAX_NAMESPACE_BYTES, parse_namespace
from jiyi.settings import Settings

tricky = st.text(alphabet=st.sampled_from("{}%:7BD a*?[]^-记\x00\n"), min_size=1, max_size=8)
words = tricky | st.text(min_size=1, max_size=20)
pairs = st.tuples(words, words)

OF_NAMESPACE = {
    name: function
    for name, function in vars(keys).items()
    if inspect.isfunction(inspect.unwrap(function)) and (name.endswith("_key") or name == "index_prefix")
    if name != "processed_key"
}
SECOND = {"memory_key": "m1", "bucket_key": 5, "index_key": "词", "ids_key": 300, "rebuild_key": "0a1b"}

DATA = ("memory_key", "index_key", "rebuild_key")


def made(name, ns, second=None):
    second = SECOND.get(name) if second is None else second
    return OF_NAMESPACE[name](ns) if second is None else OF_NAMESPACE[name](ns, second)


def hash_tag(key):
    """As in the cluster specification: between the first `{` and the first `}` after it, if not empty."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else key


@given(words)
def test_all_keys_of_a_namespace_lie_in_the_slot_of_its_tag(ns):
    tag = keys.encode_namespace(ns).encode()
    for name in OF_NAMESPACE:
        key = made(name, ns).encode()
        assert hash_tag(key) == tag
        assert key_slot(key) == key_slot(b"{" + tag + b"}")


@given(words, words)
def test_user_data_after_the_tag_cannot_move_a_key(ns, data):
    for name in DATA:
        key = made(name, ns, data).encode()
        assert hash_tag(key) == keys.encode_namespace(ns).encode()
        assert key_slot(key) == key_slot(made("stats_key", ns).encode())


@pytest.mark.parametrize(
    "name", ["s", "{s}", "a{s}b", "a{s", "a}{s}", "{a{s}c}", "{a}{s}", "{}", "{}{s}", "a{}s{b}", "}"]
)
def test_the_account_of_a_stream_is_in_its_slot_whatever_its_braces(name):
    lies_in_the_slot_of_its_stream(name)


@given(st.text(alphabet=st.sampled_from("{}ab:"), min_size=1, max_size=8) | words)
def test_the_account_of_any_stream_is_in_its_slot(name):
    lies_in_the_slot_of_its_stream(name)


def lies_in_the_slot_of_its_stream(name):
    """One script uses both. A name that no hash tag can follow is refused by the settings."""
    key = keys.processed_key(name).encode()
    try:
        Settings(stream=name).validate()
    except SettingsError:
        assert "}" in name
    else:
        assert key_slot(key) == key_slot(name.encode())
        assert key.startswith(b"processed:")


@given(words, words)
def test_the_accounts_of_two_streams_are_two(name, other):
    assert (keys.processed_key(name) == keys.processed_key(other)) == (name == other) or "{" in name + other


@pytest.mark.parametrize("data", ["{other}", "}{other}", "}:x", "{", "}", "%7D", "a:b", "{}", "}}{{"])
def test_braces_colons_and_percent_stay_inside_their_part(data):
    slot = key_slot(keys.stats_key("team").encode())
    assert key_slot(keys.memory_key("team", data).encode()) == slot
    encoded = keys.encode_namespace(data)
    assert not set(encoded) & set("{}: \x00")
    assert hash_tag(keys.memory_key(data, "m1").encode()) == encoded.encode()


@given(pairs, pairs)
def test_no_two_pairs_share_a_key(one, other):
    assume(one != other)
    assert keys.memory_key(*one) != keys.memory_key(*other)
    assert keys.index_key(*one) != keys.index_key(*other)


@given(words, words, words, words)
def test_no_two_kinds_of_keys_are_the_same(ns, data, other_ns, other_data):
    first = [made(name, ns, data if name in DATA else None) for name in OF_NAMESPACE]
    second = [made(name, other_ns, other_data if name in DATA else None) for name in OF_NAMESPACE]
    for i, key in enumerate(first):
        for j, other in enumerate(second):
            names = {list(OF_NAMESPACE)[i], list(OF_NAMESPACE)[j]}
            if i != j and names != {"index_key", "index_prefix"}:
                assert key != other


@given(words, words)
def test_encoding_a_namespace_is_injective(one, other):
    assert (keys.encode_namespace(one) == keys.encode_namespace(other)) == (one == other)


@given(words)
def test_an_encoded_namespace_can_be_read_back(ns):
    encoded = keys.encode_namespace(ns).encode()
    decoded = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), encoded)
    assert decoded.decode() == ns


@given(st.text(min_size=1, max_size=MAX_NAMESPACE_BYTES // 4))
def test_ordinary_names_are_readable_as_they_are(ns):
    assume(not re.search(r"[\x00-\x20%:{}\x7f]", ns))
    assert keys.encode_namespace(parse_namespace(ns)) == ns


@given(words)
def test_buckets_and_blocks_are_in_range(term):
    assert 0 <= keys.bucket_of(term) < keys.BUCKETS


def test_a_block_of_ids_has_its_size():
    assert keys.ids_key("n", 127) == keys.ids_key("n", 0) != keys.ids_key("n", 128)


@given(
    st.sampled_from(["author", "kind", "tags", "user_id"]),
    words,
    st.sampled_from(["author", "kind", "tags", "user_id"]),
    words,
)
def test_filter_terms_are_distinct(field, value, other_field, other_value):
    same = (field, value) == (other_field, other_value)
    assert (keys.filter_term(field, value) == keys.filter_term(other_field, other_value)) == same


def test_every_key_is_documented():
    kinds = {made(name, "ns").split(":")[0] for name in OF_NAMESPACE} | {keys.NAMESPACES, "processed"}
    for kind in kinds:
        assert f"`{kind}" in keys.__doc__, kind
    assert not kinds & set(KINDS)
