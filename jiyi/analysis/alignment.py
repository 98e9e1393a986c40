"""Alignment: where in a text, as it was written, each character of its normal form comes from."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from unicodedata import category

from jiyi.analysis.normal_form import normalise

# ASCII, full-width ASCII, quotation marks and dashes, CJK punctuation without its marks, Han: each becomes exactly one
# character and composes with nothing before it. Almost all text is this, and stays aligned by itself.
_SIMPLE = "\\0-\x7f\u2012-\u2016\u2018-\u201f\u3000-\u3029\u4e00-\u9fd5\uff01-\uff5e"
# With the character before, with which what follows may compose.
_chunks = re.compile(f"[{_SIMPLE}]?[^{_SIMPLE}]+").finditer
# Letters that compose with what stands before them: medial and final jamo, half-width ones, half-width kana marks.
_composes = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb\uff9e-\uffdc]").match


# The simple ones that are not their own normal form. Much faster than to ask for the normal form of all.
_WIDE = re.compile("[\u3000\uff01-\uff5e]")


class Alignment:
    """A text in its normal form, `normal`, and the way back to offsets in the text as given; all in code points."""

    def __init__(self, text: str) -> None:
        self.normal = text
        # Stretches in ascending order: where each begins in the normal form and in the text. A straight one has as many
        # characters in both, each from its own; the characters of any other belong together.
        self._normal_starts = [0]
        self._starts = [0]
        self._are_straight = [True]
        self._size = len(text)
        if not text.isascii():
            self._align(text)

    def start(self, offset: int) -> int:
        """Return where in the text the character of the normal form at `offset` begins."""
        stretch = bisect_right(self._normal_starts, offset) - 1
        begin = self._starts[stretch]
        return begin + offset - self._normal_starts[stretch] if self._are_straight[stretch] else begin

    def end(self, offset: int) -> int:
        """Return where in the text the character of the normal form before `offset` ends, for `offset` above 0."""
        stretch = bisect_right(self._normal_starts, offset - 1) - 1
        if self._are_straight[stretch]:
            return self._starts[stretch] + offset - self._normal_starts[stretch]
        return self._starts[stretch + 1] if stretch + 1 < len(self._starts) else self._size

    def _align(self, text: str) -> None:
        normal: list[str] = []
        size = end = 0
        for chunk in _chunks(text):
            if (written := chunk[0]) == normalise(written):
                continue
            straight = text[end : chunk.start()]
            normal.append(_narrow(straight))
            size += len(straight)
            end = chunk.start()
            for piece in _pieces(written):
                became = normalise(piece)
                self._add(size, end, is_straight=len(piece) == len(became) == 1)
                normal.append(became)
                size += len(became)
                end += len(piece)
            self._add(size, end, is_straight=True)
        normal.append(_narrow(text[end:]))
        self.normal = "".join(normal)

    def _add(self, normal_start: int, start: int, *, is_straight: bool) -> None:
        if is_straight and self._are_straight[-1]:
            return
        self._normal_starts.append(normal_start)
        self._starts.append(start)
        self._are_straight.append(is_straight)


def _narrow(straight: str) -> str:
    return _WIDE.sub(lambda wide: normalise(wide[0]), straight)


def _pieces(chunk: str) -> Iterator[str]:
    """Cut a chunk as finely as its normal form is that of its pieces."""
    cuts = [0, *(place for place in range(1, len(chunk)) if not _follows(chunk[place])), len(chunk)]
    pieces = [chunk[start:end] for start, end in pairwise(cuts)]
    yield from pieces if "".join(map(normalise, pieces)) == normalise(chunk) else [chunk]


@lru_cache(1 << 12)
def _follows(character: str) -> bool:
    """Tell whether a character belongs to the one before it: marks, what is invisible, and what composes."""
    return category(character)[0] == "M" or not normalise(character) or bool(_composes(character))
