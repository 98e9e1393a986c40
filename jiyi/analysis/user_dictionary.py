"""The user dictionary: the words of a deployment that no general dictionary has.

Lines as jieba reads them: a word, then perhaps its frequency, then perhaps a tag, which means nothing here. A word may
have spaces in it. What a segmenter never sees (Latin letters, symbols, white space) is not given to it: such an entry
can cut nothing in pieces, and is found whole only where another rule finds it.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from jiyi.analysis.characters import is_common_han
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.normal_form import normalise
from jiyi.analysis.tokens import Rule
from jiyi.analysis.word_files import Line, read_lines

SETTING = "JIYI_USER_DICTIONARY"
MOST_FREQUENT = 1_000_000_000
"""Highest frequency of a word; all words of jieba's dictionary together have 60 million."""

_MOST_LISTED = 20
_RIGHT = f"a line is a word, then perhaps its frequency, a whole number from 1 to {MOST_FREQUENT}, then perhaps a tag"
_is_tag = re.compile("[a-z]+").fullmatch
_is_number = re.compile("[+-]?[0-9][^ ]*").fullmatch


class UserDictionary(NamedTuple):
    """The `words` for the segmenter, in simplified characters, with their frequencies.

    Without a frequency (None) a word gets one with which it comes out whole. `entries` are all words of the file, in
    normal form.
    """

    words: dict[str, int | None] = {}  # noqa: RUF012 - nobody changes it
    entries: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str) -> "UserDictionary":
        """Read a file. Raises `SettingsError`, which names file and line, for a line that is not as it must be."""
        frequencies: dict[str, tuple[int | None, Line]] = {}
        entries: dict[str, str] = {}
        fold_han = open_folding()
        for line in read_lines(SETTING, path):
            written, frequency = _entry(line)
            word = fold_han(written)
            if not word:
                raise line.wrong("has no word")
            known, first = frequencies.get(word, (None, line))
            if frequency and known and frequency != known:
                raise line.wrong(f"has another frequency than in line {first.number}; keep one of the two")
            frequencies[word] = (frequency or known, first)
            entries.setdefault(word, written)
        words = {word: frequency for word, (frequency, _) in sorted(frequencies.items()) if is_common_han(word)}
        return cls(words, tuple(sorted(entries.values())))

    def digest(self) -> str:
        """Name what decides about terms: the words for the segmenter, whatever their order in the file."""
        return blake2b(repr(sorted(self.words.items())).encode(), digest_size=8).hexdigest() if self.words else ""


class DictionaryReport(NamedTuple):
    """What became of the words of a user dictionary: how many there are, and which are not words of the segmenter.

    `by_other_rules` are found whole by the rule beside them; `not_whole` by their parts only. As text it is for people.
    """

    entries: int
    by_other_rules: dict[str, Rule]
    not_whole: list[str]

    def __str__(self) -> str:
        told = []
        if self.not_whole:
            told.append(
                f"{len(self.not_whole)} of {self.entries} words of {SETTING} are found by their parts only: "
                f"{_listed(self.not_whole)}. Only words of Han characters alone can be added, "
                "and a given frequency may be too low"
            )
        if self.by_other_rules:
            others = [f"{word} ({rule})" for word, rule in self.by_other_rules.items()]
            told.append(f"{len(others)} of {self.entries} words of {SETTING} need no entry: {_listed(others)}")
        return "; ".join(told)


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_LISTED} more" if len(words) > _MOST_LISTED else ""
    return ", ".join(words[:_MOST_LISTED]) + more


def _entry(line: Line) -> tuple[str, int | None]:
    fields = normalise(line.text).split()
    if len(fields) > 1 and _is_tag(fields[-1]):
        fields.pop()
    elif len(fields) > 2 and _is_number(fields[-2]):  # noqa: PLR2004 - word, frequency, and something that is no tag
        raise line.wrong(f"ends with {fields[-1]!r}, which is no tag of lower-case letters: {_RIGHT}")
    if len(fields) < 2 or not _is_number(fields[-1]):  # noqa: PLR2004 - word and frequency
        return " ".join(fields), None
    raw = fields.pop()
    if not (raw.isascii() and raw.isdecimal()) or not 1 <= int(raw) <= MOST_FREQUENT:
        raise line.wrong(f"has the frequency {raw!r}: {_RIGHT}")
    return " ".join(fields), int(raw)
