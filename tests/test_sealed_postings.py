"""Sealed postings: what is sealed comes back, and nothing else is taken for a sealed part."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jiyi.errors import CorruptIndexError
from jiyi.postings import MAX_DOC, MAX_TF
from jiyi.sealed_postings import RECORD, contents_of, open_part, plain, seal, sealed_bytes
from jiyi_api.compiled import NumbaRanker
from jiyi_api.vectorised import NumpyRanker

DECODERS = pytest.mark.parametrize("unseal", [NumpyRanker().unseal, NumbaRanker().unseal], ids=["numpy", "numba"])

NEAR = st.integers(1, 200)
"""Distances of one and of two bytes; others are drawn as documents."""


@st.composite
def lists(draw):
    docs = draw(st.sets(st.integers(0, MAX_DOC), max_size=20))
    docs |= set(np.cumsum(draw(st.lists(NEAR, max_size=60))).tolist())
    docs = sorted(docs or {draw(st.sampled_from([0, MAX_DOC]))})
    tf = st.sampled_from([1, 1, 1, 0, 2, 127, 128, 16_383, 16_384, MAX_TF])
    return records(*[(doc, draw(tf)) for doc in docs])


def records(*pairs):
    return np.array(list(pairs), RECORD)


def packed(*numbers):
    """A sealed part whose body is these numbers, encoded one by one."""
    return headed(b"".join(map(number, numbers)))


def headed(body):
    return struct.pack("<III", 0xFFFF_FFFF, len(body), crc32(body)) + body


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@DECODERS
@given(several=st.lists(lists(), max_size=5))
def test_whatever_is_sealed_comes_back(unseal, several):
    for postings, sealed in zip(several, seal(several), strict=True):
        docs, tfs = unseal(sealed)
        assert (docs.dtype, tfs.dtype) == (np.uint32, np.uint16)
        assert docs.tolist() == postings["doc"].tolist()
        assert tfs.tolist() == postings["tf"].tolist()


@given(lists(), st.binary(max_size=20))
def test_records_follow_a_sealed_part(postings, rest):
    [sealed] = seal([postings])
    assert sealed_bytes(sealed + rest) == len(sealed)
    assert plain(sealed + rest) == postings.tobytes() + rest
    assert open_part(sealed + rest) == rest
    for end in range(4, 12):
        assert sealed_bytes(sealed[:end]) is None
        assert open_part(sealed[:end]) == b""


@given(lists())
def test_the_bytes_are_those_of_a_plain_encoder(postings):
    docs, tfs = postings["doc"].tolist(), postings["tf"].tolist()
    distances = [doc - before for before, doc in zip([-1, *docs], docs, strict=False)]
    firsts = [2 * distance + (tf == 1) for distance, tf in zip(distances, tfs, strict=True)]
    assert seal([postings]) == [packed(len(docs), *firsts, *[tf for tf in tfs if tf != 1])]


@DECODERS
@pytest.mark.parametrize(("pairs", "body"), [
    ([(0, 1)], "01 03"),
    ([(0, 2)], "01 02 02"),
    ([(5, 1), (6, 3), (70, 1)], "03 0d 02 8101 03"),
    ([(63, 1), (64, 300)], "02 8101 02 ac02"),
    ([(MAX_DOC, MAX_TF)], "01 feffffff1f ffff03"),
])  # fmt: skip
def test_what_was_written_once_is_read_for_ever(unseal, pairs, body):
    """An index outlives the version that wrote it."""
    body = bytes.fromhex(body)
    stored = bytes.fromhex("ffffffff") + len(body).to_bytes(4, "little") + crc32(body).to_bytes(4, "little") + body
    assert seal([records(*pairs)]) == [stored]
    docs, tfs = unseal(stored)
    assert list(zip(docs.tolist(), tfs.tolist(), strict=True)) == pairs


@pytest.mark.parametrize("data", [b"", b"\0" * 6, records((7, 1), (3, 2)).tobytes(), b"\xff\xff\xff"], ids=repr)
def test_a_list_that_nobody_has_sealed_is_as_it_was(data):
    assert sealed_bytes(data) == 0
    assert plain(data) == open_part(data) == data


@pytest.mark.parametrize("pairs", [[], [(3, 1), (3, 1)], [(4, 1), (3, 1)], [(MAX_DOC + 1, 1)]], ids=repr)
def test_what_is_not_in_order_cannot_be_sealed(pairs):
    with pytest.raises(ValueError, match="order"):
        seal([records((1, 1)), records(*pairs)])


def test_a_list_is_stored_in_as_few_bytes_as_it_needs():
    few, many = records((7, 1), (MAX_DOC, 9)), records(*[(3 * i, 1) for i in range(100)])
    assert contents_of([few, many]) == [few.tobytes(), seal([many])[0]]
    assert len(seal([many])[0]) == 12 + 1 + 100
    assert contents_of([]) == []


@DECODERS
@given(postings=lists(), data=st.data())
def test_every_damage_is_noticed(unseal, postings, data):
    [sealed] = seal([postings])
    for end in range(len(sealed)):
        with pytest.raises(CorruptIndexError, match="jiyi check"):
            unseal(sealed[:end])
    for more in (b"\0", sealed):
        with pytest.raises(CorruptIndexError, match="jiyi check"):
            unseal(sealed + more)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptIndexError, match="jiyi check"):
        unseal(bytes(changed))


@DECODERS
@pytest.mark.parametrize(
    "damaged",
    [
    packed(), packed(0), packed(1), packed(2, 3), packed(9, 3, 3), packed(2**32, 3),  # too few, or none at all
    packed(1, 3, 3), packed(1, 2), packed(1, 2, 5, 5), packed(2, 3, 2),  # too many frequencies, or too few
    packed(1, 2, 1), packed(1, 2, MAX_TF + 1), packed(1, 2, 2**34),  # impossible ones
    packed(1, 1), packed(2, 3, 1), packed(2, 3, 0, 2),  # a document twice, or before the first
    packed(1, 2 * (MAX_DOC + 2) + 1), packed(3, 2**33 + 1, 2**33 + 1, 2**33 + 1),  # beyond the last
    headed(b"\x01\x83\x00"), headed(b"\x81\x00\x03"), headed(b"\x01\x80"), headed(b"\x01\x03\x80"),  # no numbers
    headed(b"\x01" + b"\x83\x80\x80\x80\x80\x01"), headed(b"\x01" + b"\xff" * 9 + b"\x01"),
], ids=lambda damaged: damaged[12:].hex())  # fmt: skip
def test_a_body_that_nobody_writes_is_refused(unseal, damaged):
    """Though its checksum is right."""
    with pytest.raises(CorruptIndexError, match="jiyi check"):
        unseal(damaged)


@DECODERS
def test_all_numbers_of_all_lengths_come_back(unseal):
    docs = np.unique(np.concatenate([[0], *[[2**bit - 1, 2**bit] for bit in range(33)]]))
    docs = docs[docs <= MAX_DOC]
    assert unseal(seal([records(*[(doc, 1) for doc in docs])])[0]).docs.tolist() == docs.tolist()


@given(body=st.lists(st.sampled_from([0, 1, 2, 3, 4, 127, 128, 129, 255]), max_size=24).map(bytes))
def test_both_decoders_take_the_same_bodies(body):
    """Any bytes, under a right checksum."""
    found = []
    for ranker in (NumpyRanker(), NumbaRanker()):
        try:
            docs, tfs = ranker.unseal(headed(body))
            found.append((docs.tolist(), tfs.tolist(), docs.dtype, tfs.dtype))
        except CorruptIndexError as error:
            found.append(str(error))
    assert found[0] == found[1]
    if not isinstance(found[0], str):
        postings = records(*zip(found[0][0], found[0][1], strict=True))
        assert seal([postings]) == [headed(body)]
