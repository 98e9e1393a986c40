"""Binary records of the index: postings and the journal, little-endian and append-only.

A posting is 6 bytes (u32 document number, u16 term frequency); a journal record is 20 bytes. Both kinds of
string begin with a 4-byte generation: bytes once read stay valid for as long as the generation stands. In a list of
postings, compaction packs what it finds more densely (see `jiyi.sealed_postings`); new records follow that.
"""

from __future__ import annotations

import struct

POSTING = struct.Struct("<IH")
DF = struct.Struct("<I")
GENERATION_BYTES = 4
JOURNAL = struct.Struct("<IIqf")
"""Document number, length in tokens (`DEATH` marks the end of a document), epoch ms, importance."""
DEATH = 0xFFFF_FFFF
MAX_TF = 0xFFFF
"""Term frequencies above this are stored as this; BM25 has long saturated there."""
INLINE_BYTES = 60
"""Longest value of a term in its bucket: above 64 bytes a hash would leave its compact encoding."""
MAX_DOC = 0xFFFF_FFFE


def generation_number(generation: bytes) -> int:
    """Give the number that a generation is: a document number or one that no document gets, so below `next_doc`."""
    return int.from_bytes(generation, "little")


def split_term_value(value: bytes) -> tuple[int, bytes | None]:
    """Split a value of the term dictionary into df and its inline postings (None: they are in `index:`)."""
    (df,) = DF.unpack_from(value)
    return df, None if len(value) == DF.size else value[DF.size :]
