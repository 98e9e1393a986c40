"""Characters: which are Han, which are letters, digits and marks, as parts of regular expressions."""

import re
from unicodedata import category

ALNUM = r"[^\W_]"
"""A letter or digit of any script."""

# Where Unicode keeps its combining marks; looking only there saves most of the start-up time.
_MARK_BLOCKS = ((0x300, 0x3100), (0xA66F, 0xAC00), (0xFB1E, 0xFE30), (0x10000, 0x12000), (0x16000, 0x17000),
                (0x1BC00, 0x1BD00), (0x1D000, 0x1DB00), (0x1E000, 0x1EA00))  # fmt: skip
MARKS = "".join(chr(c) for start, stop in _MARK_BLOCKS for c in range(start, stop) if category(chr(c))[0] == "M")
"""All combining marks, for a class."""

COMMON = "\u4e00-\u9fd5"
"""What both segmenters call Han and cut alike; other Han characters are terms by themselves."""
# With the unified ideographs of all planes, the iteration mark 々 and the zero 〇. Of the compatibility block, NFKC
# leaves the dozen that are unified in truth.
_HAN = (
    f"{COMMON}\u9fd6-\u9fff\u3400-\u4dbf々〇\U00020000-\U0002ee5f\U00030000-\U0003347f"
    "\ufa0e\ufa0f\ufa11\ufa13\ufa14\ufa1f\ufa21\ufa23\ufa24\ufa27-\ufa29"
)

split_han = re.compile(f"([{_HAN}]+)").split
"""Split a text into non-Han and Han in turn, beginning and ending with a possibly empty non-Han piece."""
split_common_han = re.compile(f"([{COMMON}]+)").split
"""Like `split_han`, but uncommon Han characters stay in the non-Han pieces."""
find_han_runs = re.compile(f"[{_HAN}]+").finditer
find_han = re.compile(f"[{_HAN}]").search
is_common_han = re.compile(f"[{COMMON}]+").fullmatch
"""Tell whether a word consists of common Han characters alone."""
