"""Folding of traditional Chinese characters into simplified ones, so that a question finds both scripts.

Character by character, as both sides must fold alike whatever stands around: 乾 of 乾燥 becomes 干, and so does that of
乾隆. The pairs are those of OpenCC (t2s). Characters that simplify to one outside the common range stay as they are.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version

_FIRST, _LAST = 0x4E00, 0x9FD5


def identity() -> str:
    """What decides about the pairs."""
    return f"opencc {version('OpenCC')} t2s"


@cache
def _pairs() -> dict[int, int]:
    characters = [chr(code) for code in range(_FIRST, _LAST + 1)]
    simplified = import_module("opencc").OpenCC("t2s").convert("\n".join(characters)).split("\n")
    return {
        ord(character): ord(other)
        for character, other in zip(characters, simplified, strict=True)
        if character != other and len(other) == 1 and _FIRST <= ord(other) <= _LAST
    }


def open_folding() -> Callable[[str], str]:
    """Give the function that folds a run of Han characters; it keeps the number of characters."""
    pairs = _pairs()
    is_mixed = re.compile(f"[{''.join(map(chr, pairs))}]").search

    def fold_han(run: str) -> str:
        return run.translate(pairs) if is_mixed(run) else run

    return fold_han
