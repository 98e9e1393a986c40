"""Word files: what a deployment says about its words, a line each.

UTF-8, with or without a byte order mark, any line ends. Empty lines say nothing, nor do lines that begin with #.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jiyi.errors import SettingsError

_MOST_SHOWN = 60


class Line(NamedTuple):
    """A line that says something, without white space around it, and where it stands; numbers begin with 1."""

    setting: str
    path: str
    number: int
    text: str

    def wrong(self, why: str) -> SettingsError:
        """Give the error that names setting, file and line; `why` goes on after the line."""
        return SettingsError(f"{self.setting}: {self.path}, line {self.number}: {cut(self.text)!r} {why}")


def cut(text: str) -> str:
    """Make a text of a file short enough for an error."""
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def read_lines(setting: str, path: str) -> Iterator[Line]:
    """Yield the lines of a file that say something.

    Raises `SettingsError`, which names the setting and the file, where it cannot be read or is not UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise SettingsError(f"{setting}: {path}, line {number} is not UTF-8; save the file as UTF-8") from None
        if text and not text.startswith("#"):
            yield Line(setting, path, number, text)
