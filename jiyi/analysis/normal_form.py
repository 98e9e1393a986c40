"""Normal form: the same characters, however a text was typed or encoded."""

import re
from unicodedata import is_normalized, normalize

# Invisible characters that UAX #29 (rule WB4) does not let end a word: soft hyphen, joiners, direction marks, byte
# order mark, variation selectors, tags. The zero width space U+200B is not among them: it does end a word.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]+"
)
# The one combining mark whose upper case and case folding is a letter.
_YPOGEGRAMMENI = "\u0345"
_IOTA = "\u03b9"


def normalise(text: str) -> str:
    """Return `text` in NFKC without invisible characters; letter case is kept."""
    if text.isascii():
        return text
    # Before NFKC: what was kept apart by an invisible character may compose.
    if _INVISIBLE.search(text):
        text = _INVISIBLE.sub("", text)
    if not is_normalized("NFKC", text):
        text = normalize("NFKC", text)
    return text.replace(_YPOGEGRAMMENI, _IOTA)


def fold(text: str) -> str:
    """Return normalised `text` with case folded, in NFKC again.

    The dotted and the dotless i of Turkish both become i: without knowing the language, upper case tells nothing.
    """
    folded = text.casefold()
    if folded.isascii():
        return folded
    return normalize("NFKC", folded.replace("i\u0307", "i").replace("\u0131", "i"))
