"""Forward lists: what is packed comes back, whatever the characters, and nothing else is taken for one."""

from __future__ import annotations

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jiyi.analysis import Analyzer
from jiyi.forward_lists import pack_forward_list, unpack_forward_list

TERMS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n"), min_size=1, max_size=64)


@given(terms=st.dictionaries(TERMS, st.integers(1, 2**31), max_size=60))
def test_terms_come_back_in_their_order(terms):
    assert list(unpack_forward_list(pack_forward_list(terms)).items()) == list(terms.items())


def test_every_character_comes_back():
    terms = {chr(c): 1 for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and chr(c) not in "\t\n"}
    assert unpack_forward_list(pack_forward_list(terms)) == terms


def test_no_terms_are_a_list_as_well():
    assert unpack_forward_list(pack_forward_list({})) == {}


def test_what_was_written_once_is_read_for_ever():
    """An index outlives the version that wrote it."""
    terms = {"redi": 2, "超时": 1, "err_conn_reset": 1}
    assert unpack_forward_list(zlib_of("redi\t2\n超时\nerr_conn_reset".encode("gb18030"))) == terms


def zlib_of(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("text", ["a\n", "\na", "a\n\nb", "a\na", "a\t0", "a\t-1", "a\tx", "\t2", "a\t1\t2"], ids=repr)
def test_lines_that_nobody_writes_are_refused(text):
    with pytest.raises(ValueError, match=r"\S"):
        unpack_forward_list(zlib_of(text.encode()))


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x81\xa1a\x01", zlib_of(b"\x81"), zlib_of(b"a") + b"x"], ids=repr)
def test_bytes_that_are_no_list_are_refused(packed):
    with pytest.raises(ValueError, match=r"\S"):
        unpack_forward_list(packed)


def test_a_list_that_was_cut_off_is_refused():
    packed = pack_forward_list(Analyzer().terms("张工上周提的 Redis 超时：ERR_CONN_RESET，v1.2.3"))
    for end in range(len(packed)):
        with pytest.raises(ValueError, match=r"\S"):
            unpack_forward_list(packed[:end])


def test_a_list_without_end_is_refused():
    with pytest.raises(ValueError, match="goes on"):
        unpack_forward_list(zlib_of(bytes(100 << 20)))
