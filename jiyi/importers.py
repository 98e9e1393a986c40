"""Sources of `jiyi ingest`: JSON lines and the commit log of a git repository, read as a stream."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
import tempfile
import zlib
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from jiyi.errors import InvalidEventError, SourceError
from jiyi.memories import MAX_LABEL_BYTES, from_camel, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

MAX_LINE_BYTES = 1_048_576
"""Longest line that is read: a memory of 64 KiB has at most 400 kB as JSON, everything escaped."""

_CHUNK_BYTES = 65_536
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_ELLIPSIS = "…"
_REPOSITORY_BYTES = 160
"""Longest name of a repository inside an id, so that `git:<name>:<12 hex>` is a valid one."""
_MISLEADING = {"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE"}
"""Variables (of a hook, say) that would point git at another repository than the one that is named."""
_TRAILER = re.compile(r"[A-Za-z][A-Za-z0-9-]*\s*:\s|\(cherry picked from commit ")
_BOOKKEEPING = re.compile(r"(?:[a-z]+(?:-[a-z]+)*-by|cc|change-id|git-svn-id)\s*:|\(cherry picked", re.IGNORECASE)
"""Trailers that say who was involved, and ids of other systems.

`Fixes: #12` and the like stay: people search for them.
"""


class Line(NamedTuple):
    """A memory of a source, not checked yet. `number` counts lines or commits from 1."""

    number: int
    fields: dict[str, Any]


class BadLine(NamedTuple):
    """A line that holds no memory. `reason` is for people and holds nothing of the line."""

    number: int
    reason: str


def read_jsonl(source: str | Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> JsonLines:
    """Open a file of JSON lines, `-` for standard input, gzipped or not. Raises `SourceError`."""
    if source == "-":
        return JsonLines(sys.stdin.buffer, max_line_bytes=max_line_bytes)
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - JsonLines closes it
    except OSError as error:
        raise SourceError(f"{source} cannot be read: {error.strerror}") from None
    return JsonLines(file, bytes_total=_size(file), max_line_bytes=max_line_bytes)


class JsonLines:
    """Iterates over JSON lines: a `Line` per object, a `BadLine` for what is none; blank lines are skipped.

    Memory stays bounded whatever comes. `bytes_read` of `bytes_total` is the progress, as the bytes lie in the file
    (compressed where it is); `bytes_total` is None where nobody knows. Damaged gzip data end the iteration with a
    `BadLine`. Close it, or use it with `with`.
    """

    def __init__(
        self, source: IO[bytes], *, bytes_total: int | None = None, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self.bytes_total = bytes_total
        self._counted = _Counted(source)
        self._max_line_bytes = max_line_bytes
        self._lines = self._read()

    @property
    def bytes_read(self) -> int:
        """How many bytes were taken from the source so far."""
        return self._counted.bytes_read

    def __iter__(self) -> Iterator[Line | BadLine]:
        return self._lines

    def __next__(self) -> Line | BadLine:
        return next(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the source (standard input stays open)."""
        self._counted.release()

    def _read(self) -> Iterator[Line | BadLine]:
        raw = io.BufferedReader(self._counted, _CHUNK_BYTES)
        number = 0
        try:
            is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
            stream: io.BufferedReader[Any] | GzipFile = GzipFile(fileobj=raw, mode="rb") if is_gzip else raw
            while line := stream.readline(self._max_line_bytes + 1):
                number += 1
                whole = line.endswith(b"\n") or len(line) <= self._max_line_bytes
                if not whole:
                    _skip_line(stream)
                    yield BadLine(number, f"is longer than {self._max_line_bytes} bytes")
                elif text := line.removeprefix(_BOM if number == 1 else b"").strip():
                    yield _parsed(number, text)
        except EOFError:
            yield BadLine(number + 1, "the gzip data end too early: the file is cut off")
        except (BadGzipFile, zlib.error):
            yield BadLine(number + 1, "the gzip data are damaged")


class _Counted(io.RawIOBase):
    """Counts what is taken from a source."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._source: Any = source
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # readinto1 gives what a pipe has by now, where readinto would wait for the buffer to be full.
        count: int = self._source.readinto1(buffer)
        if count == 1 and self.bytes_read == 0:  # the magic number of gzip has two bytes
            count += self._source.readinto1(memoryview(buffer)[1:])
        self.bytes_read += count
        return count

    def release(self) -> None:
        if self._source is not sys.stdin.buffer:
            self._source.close()


def _size(file: IO[bytes]) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _skip_line(stream: io.BufferedReader[Any] | GzipFile) -> None:
    while (piece := stream.readline(_CHUNK_BYTES)) and not piece.endswith(b"\n"):
        pass


def _parsed(number: int, text: bytes) -> Line | BadLine:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return BadLine(number, f"is not UTF-8 at byte {error.start + 1}")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return BadLine(number, "is not valid JSON")
    if not isinstance(value, dict):
        return BadLine(number, "is no JSON object")
    try:
        return Line(number, from_camel(value))
    except InvalidEventError as error:
        return BadLine(number, str(error))


def read_git(path: str | Path, *, max_count: int | None = None, max_content_bytes: int = 65_536) -> Iterator[Line]:
    """Read the commits that lead to HEAD as memories, newest first, at most `max_count`.

    A commit is `git:<repository>:<12 hex>`; its content is the message without the trailers that only say who was
    involved, cut to `max_content_bytes`; commits without a message are passed over. Raises `SourceError` when git is
    missing, when `path` is no repository, and (while reading) when git fails.
    """
    folder, complaint = _ask_git(path, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if folder is None:
        raise SourceError(f"{path} is no git repository: {complaint}")
    name = _repository_name(Path(folder))
    branch, _ = _ask_git(path, "symbolic-ref", "--quiet", "--short", "HEAD")  # none where HEAD is detached
    command = ["log", "-z", "--no-color", "--no-show-signature", "--no-notes", "--encoding=UTF-8",
               "--format=%H%n%an%n%aI%n%cI%n%B"]  # fmt: skip
    if max_count is not None:
        command.append(f"--max-count={max_count}")
    return _commits(path, command, name, branch, max_content_bytes)


def _commits(
    path: str | Path, command: list[str], name: str, branch: str | None, max_content_bytes: int
) -> Iterator[Line]:
    with tempfile.TemporaryFile() as messages, _start_git(path, command, messages) as process:
        try:
            assert process.stdout is not None
            for number, record in enumerate(_records(process.stdout, max_content_bytes * 2 + _CHUNK_BYTES), 1):
                if (fields := _commit_fields(record, name, branch, max_content_bytes)) is not None:
                    yield Line(number, fields)
            if process.wait() != 0:
                raise SourceError(f"git cannot read {path}: {_complaint(messages)}")
        finally:
            process.kill()  # nothing happens where it has ended


def _commit_fields(record: str, name: str, branch: str | None, max_content_bytes: int) -> dict[str, Any] | None:
    sha, author, authored, committed, message = record.split("\n", 4)
    content = _without_trailers(message)
    if not content:
        return None
    fields: dict[str, Any] = {
        "id": f"git:{name}:{sha[:12]}",
        "content": _cut(content, max_content_bytes),
        "author": _cut(author, MAX_LABEL_BYTES),
        "source_system": "git",
        "kind": "commit",
        "tags": [name],
        "metadata": {"commit": sha, **({"branch": branch} if branch is not None else {})},
    }
    # Clocks of authors may be set to anything; a commit's own time is the next best.
    if (moment := next(filter(_is_time, (authored, committed)), None)) is not None:
        fields["timestamp"] = moment
        fields["session_id"] = f"{name}:{moment[:7]}"
    return fields


def _records(stream: IO[bytes], limit: int) -> Iterator[str]:
    """Split at NUL; of a record larger than `limit` bytes only the beginning is kept."""
    record = bytearray()
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        *ends, rest = chunk.split(b"\0")
        for end in ends:
            record += end
            yield record[:limit].decode(errors="replace")
            record.clear()
        record += rest[: max(limit - len(record), 0)]
    if record:
        yield record.decode(errors="replace")


def _without_trailers(message: str) -> str:
    """Drop bookkeeping from the last paragraphs that consist of trailers alone; the subject always stays."""
    lines = message.strip().split("\n")
    kept: list[str] = []
    while not kept:
        start = max((i for i, line in enumerate(lines) if not line.strip()), default=-1) + 1
        if start in (0, len(lines)) or not all(_TRAILER.match(line) or line[:1].isspace() for line in lines[start:]):
            break
        dropping = False
        for line in lines[start:]:
            dropping = dropping if line[:1].isspace() else _BOOKKEEPING.match(line) is not None
            if not dropping:
                kept.append(line)
        lines = "\n".join(lines[:start]).rstrip().split("\n")
    return "\n".join([*lines, "", *kept]).strip()


def _cut(text: str, max_bytes: int) -> str:
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    return raw[: max(max_bytes - len(_ELLIPSIS.encode()), 0)].decode(errors="ignore") + _ELLIPSIS


def _is_time(text: str) -> bool:
    try:
        parse_time("timestamp", text)
    except InvalidEventError:
        return False
    return True


def _repository_name(git_folder: Path) -> str:
    """Name of the folder with the `.git`, or of a bare repository."""
    name = git_folder.parent.name if git_folder.name == ".git" else git_folder.name.removesuffix(".git")
    printable = "".join(character if character.isprintable() else "_" for character in name)
    return _cut(printable, _REPOSITORY_BYTES)


def _ask_git(path: str | Path, *command: str) -> tuple[str | None, str]:
    """Give the line that git answers, None when it refuses, and its first complaint."""
    with tempfile.TemporaryFile() as messages, _start_git(path, command, messages) as process:
        output = process.communicate()[0].decode(errors="surrogateescape").removesuffix("\n")
        return (output if process.returncode == 0 else None), _complaint(messages)


def _start_git(path: str | Path, command: Sequence[str], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING} | {"LC_ALL": "C"}
    try:
        return subprocess.Popen(  # noqa: S603 - no shell
            ["git", "-C", os.fspath(path), *command],  # noqa: S607 - the user's git
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, env=environment,
        )  # fmt: skip
    except OSError as error:
        raise SourceError(f"git cannot be started ({error.strerror}); install it or put it on PATH") from None


def _complaint(messages: IO[bytes]) -> str:
    messages.seek(0)
    text = messages.read(4096).decode(errors="replace").strip()
    return text.partition("\n")[0].removeprefix("fatal: ") or "git gives no reason"
