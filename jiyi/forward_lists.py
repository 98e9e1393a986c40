"""The forward list of a document: its terms and their frequencies, kept beside the memory to take it out again.

One line a term: the term, and where it occurs more than once a tab and its frequency. As GB18030, in which a Han
character takes two bytes instead of three and ASCII one, and then raw deflate: 95 bytes for what MessagePack needs 155
for.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHARSET = "gb18030"  # knows every character of Unicode
_RAW = -zlib.MAX_WBITS
_MOST_BYTES = 64 << 20
"""No worker writes one that is longer when unpacked; somebody else's could be without end."""


def pack_forward_list(terms: Mapping[str, int]) -> bytes:
    """Pack terms, which hold neither tab nor line feed, with their frequencies."""
    lines = "\n".join([term if tf == 1 else f"{term}\t{tf}" for term, tf in terms.items()])
    packer = zlib.compressobj(wbits=-12, memLevel=4)  # of 4 KB: a larger window only takes longer to set up
    return packer.compress(lines.encode(_CHARSET)) + packer.flush()


def unpack_forward_list(packed: bytes) -> dict[str, int]:
    """Unpack what `pack_forward_list` has packed; raises `ValueError` for everything else."""
    unpacker = zlib.decompressobj(_RAW)
    try:
        lines = unpacker.decompress(packed, _MOST_BYTES).decode(_CHARSET)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is cut off, or goes on behind its end")
    terms: dict[str, int] = {}
    rows = lines.split("\n") if lines else []
    for row in rows:
        term, _, tf = row.partition("\t")
        terms[term] = int(tf or "1")
    if len(terms) != len(rows) or "" in terms or min(terms.values(), default=1) < 1:
        raise ValueError("a term is empty or there twice, or its frequency is not positive")
    return terms
