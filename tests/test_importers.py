"""Sources of `jiyi ingest`: JSON lines and commit logs, with the real git."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import pytest
from conftest import DATA

from jiyi.appending import encode
from jiyi.errors import JiyiError, SourceError
from jiyi.importers import BadLine, Line, read_git, read_jsonl

SETS = sorted(path.parent.name for path in DATA.glob("*/docs.jsonl.gz"))


def read(path, **options):
    with read_jsonl(path, **options) as lines:
        return list(lines)


@pytest.fixture
def file(tmp_path):
    def write(content, name="memories.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def test_a_line_is_a_memory_and_blank_lines_are_skipped(file):
    path = file('{"id": "a", "content": "记忆"}\n\n  \r\n{"content": "b", "ns": "x"}\r\n{"content":"no end"}'.encode())
    assert read(path) == [
        Line(1, {"id": "a", "content": "记忆"}),
        Line(4, {"content": "b", "ns": "x"}),
        Line(5, {"content": "no end"}),
    ]


def test_gzip_is_known_by_its_first_bytes_whatever_the_name(file):
    content = gzip.compress(b'{"content": "a"}\n') + gzip.compress(b'{"content": "b"}\n')
    for name in ("x.jsonl", "x.gz", "x"):
        assert [line.fields["content"] for line in read(file(content, name))] == ["a", "b"]
    assert read(file(b'{"content": "plain"}', "plain.gz")) == [Line(1, {"content": "plain"})]


@pytest.mark.parametrize("content", [b"", b"\n", gzip.compress(b"", mtime=0), b"\xef\xbb\xbf"])
def test_an_empty_file_holds_nothing(file, content):
    assert read(file(content)) == []


def test_a_byte_order_mark_is_dropped_at_the_start_only(file):
    lines = read(file(b'\xef\xbb\xbf{"content": "a"}\n\xef\xbb\xbf{"content": "b"}\n'))
    assert lines == [Line(1, {"content": "a"}), BadLine(2, "is not valid JSON")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff", "is not UTF-8 at byte 1"),
        (b'{"content": "secret \xe8\xae"}', "is not UTF-8 at byte 21"),
        (b'{"content": "secret"', "is not valid JSON"),
        (b"secret", "is not valid JSON"),
        (b'{"importance": NaN}', "is not valid JSON"),
        (b'{"content": "\\ud800"}', "is not valid JSON"),
        (b'{"importance": 1e999}', "is not valid JSON"),
        (b'["secret"]', "is no JSON object"),
        (b"7", "is no JSON object"),
        (b"null", "is no JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a":' * 100_000, "is not valid JSON"),
        (b"1" * 10_000, None),
        (b'{"userId": "a", "user_id": "b"}', "user_id: is given under two names"),
    ],
)
def test_a_bad_line_is_reported_and_reading_goes_on(file, line, reason):
    bad, good = read(file(line + b'\n{"content": "good"}\n'))
    assert (bad.number, good) == (1, Line(2, {"content": "good"}))
    assert isinstance(bad, BadLine)
    assert reason is None or bad.reason == reason
    assert "secret" not in bad.reason


def test_a_huge_line_is_skipped_in_bounded_memory(file):
    huge = b'{"content": "' + b"x" * 30_000_000 + b'"}\n'
    path = file(gzip.compress(b'{"content":"a"}\n' + huge + b'{"content":"b"}\n' + huge.rstrip()))
    tracemalloc.start()
    lines = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lines == [
        Line(1, {"content": "a"}),
        BadLine(2, "is longer than 1048576 bytes"),
        Line(3, {"content": "b"}),
        BadLine(4, "is longer than 1048576 bytes"),
    ]
    assert peak < 6_000_000


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_limit_of_a_line_is_exact(file, end):
    line = b'{"content":"' + b"x" * 86 + b'"}'
    path = file(line + end)
    assert len(line) == 100
    limit = len(line + end.rstrip(b"\n"))
    assert isinstance(read(path, max_line_bytes=limit)[0], Line)
    assert isinstance(read(path, max_line_bytes=limit - 1)[0], BadLine)


def test_damaged_gzip_ends_the_reading_with_a_report(file):
    whole = gzip.compress(b"".join(b'{"content": "%d"}\n' % i for i in range(100_000)), 1)
    for content, reason in (
        (whole[: len(whole) // 2], "cut off"),
        (whole[:-1], "cut off"),
        (whole[:-8] + b"12345678", "damaged"),
        (whole[:50_000] + b"\xff" * 5_000 + whole[55_000:], "damaged"),
    ):
        *lines, last = read(file(content))
        assert isinstance(last, BadLine)
        assert reason in last.reason
        assert last.number > len(lines)
        assert len(lines) > 1_000


def test_progress_counts_the_bytes_of_the_file(file):
    content = gzip.compress(b"".join(b'{"content": "%d"}\n' % (i * 7919) for i in range(100_000)))
    with read_jsonl(file(content)) as lines:
        assert (lines.bytes_read, lines.bytes_total) == (0, len(content))
        next(lines)
        assert 0 < lines.bytes_read < len(content)
        assert sum(1 for _ in lines) == 99_999
        assert lines.bytes_read == len(content)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read_gzipped_or_not(monkeypatch, pack):
    stdin = io.BytesIO(pack(b'{"content": "a"}\n'))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    with read_jsonl("-") as lines:
        assert lines.bytes_total is None
        assert list(lines) == [Line(1, {"content": "a"})]
        assert lines.bytes_read == len(pack(b'{"content": "a"}\n'))
    assert not stdin.closed


def test_a_pipe_is_read_as_it_fills():
    """A line is there as soon as it is complete, even when the first byte comes alone (is it gzip?)."""
    program = (
        "from jiyi.importers import read_jsonl\nfor line in read_jsonl('-'): print(line.fields['content'], flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        process.stdin.write(b"{")
        for i in range(3):
            process.stdin.write(b'"content": "%d"}\n{' % i)
            assert process.stdout.readline() == b"%d\n" % i
        process.stdin.close()
        process.stdout.read()


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path):
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(SourceError, match=reason) as caught:
            read_jsonl(path)
        assert str(path) in str(caught.value)
    assert issubclass(SourceError, JiyiError)


@pytest.mark.slow
@pytest.mark.skipif(not SETS, reason="the data sets are not here")
@pytest.mark.parametrize("name", SETS)
def test_every_line_of_the_data_sets_is_a_valid_memory(name):
    """As they are, with the default limits."""
    path = DATA / name / "docs.jsonl.gz"
    ids = Counter()
    with read_jsonl(path) as lines:
        for line in lines:
            assert isinstance(line, Line), line
            event = encode(line.fields, 65_536)
            ids[event.ns, event.id] += 1
        assert lines.bytes_read == lines.bytes_total
    with gzip.open(path) as raw:
        assert sum(ids.values()) == sum(1 for _ in raw)
    assert ids.most_common(1)[0][1] == 1, "ids are distinct"


def git(folder, *command, **environment):
    subprocess.run(
        [
            "git",
            "-C",
            folder,
            "-c",
            "user.name=Ada 李",
            "-c",
            "user.email=a@x",
            "-c",
            "init.defaultBranch=main",
            *command,
        ],
        check=True,
        capture_output=True,
        env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull} | environment,
    )


def commit(folder, message, date="2026-05-04T10:30:00+08:00", **environment):
    git(folder, "commit", "--allow-empty", "--allow-empty-message", "--cleanup=verbatim", "-m", message,
        GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE="2026-06-01T00:00:00Z", **environment)  # fmt: skip


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "my-app"
    folder.mkdir()
    git(folder, "init")
    return folder


def test_a_commit_is_a_memory(repository):
    commit(
        repository, "修复 redis timeout\n\nERR_CONN_RESET in getUserById.\n\nFixes: #12\nCo-authored-by: Bob <b@x>\n"
    )
    (line,) = read_git(repository)
    sha = line.fields["metadata"]["commit"]
    assert line == Line(
        1,
        {
            "id": f"git:my-app:{sha[:12]}",
            "content": "修复 redis timeout\n\nERR_CONN_RESET in getUserById.\n\nFixes: #12",
            "author": "Ada 李",
            "source_system": "git",
            "kind": "commit",
            "tags": ["my-app"],
            "metadata": {"commit": sha, "branch": "main"},
            "timestamp": "2026-05-04T10:30:00+08:00",
            "session_id": "my-app:2026-05",
        },
    )
    assert len(sha) == 40
    encode(line.fields, 65_536)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ("one line", "one line"),
        ("a\n\nSigned-off-by: X <x@y>", "a"),
        ("a\n\nbody\n\nSigned-off-by: X <x@y>\n\nCo-Authored-By: Y <y@z>\n", "a\n\nbody"),
        ("a\n\nbody\n\nFixes: #1\nReviewed-by: X <x@y>\n continued\nLink: http://x\n", "a\n\nbody\n\nFixes: #1\nLink: http://x"),
        ("a\n\nbody\n\n(cherry picked from commit 0123456789)\n", "a\n\nbody"),
        ("a\n\nNote: this stays\n", "a\n\nNote: this stays"),
        ("a\n\nthis was found\nReported-by: X in the text\n", "a\n\nthis was found\nReported-by: X in the text"),
        ("Signed-off-by: only", "Signed-off-by: only"),
        ("a\nSigned-off-by: X", "a\nSigned-off-by: X"),
        ("\n\n  a  \n\n\n", "a"),
    ],
)  # fmt: skip
def test_trailers_that_name_people_are_dropped(repository, message, content):
    commit(repository, message)
    (line,) = read_git(repository)
    assert line.fields["content"] == content


def test_commits_come_newest_first_and_at_most_so_many(repository):
    for i in range(5):
        commit(repository, f"c{i}")
    commit(repository, "")
    contents = [line.fields["content"] for line in read_git(repository)]
    assert contents == ["c4", "c3", "c2", "c1", "c0"], "the one without message is passed over"
    assert [line.number for line in read_git(repository, max_count=3)] == [2, 3]


def test_a_long_message_is_cut_at_a_character(repository):
    (repository / "message").write_text("记" * 300_000, encoding="utf-8")
    git(repository, "commit", "--allow-empty", "-F", "message")
    commit(repository, "after")
    after, long = read_git(repository, max_content_bytes=100)
    assert after.fields["content"] == "after"
    assert long.fields["content"] == "记" * 32 + "…"
    (_, long) = read_git(repository)
    assert 65_530 < len(long.fields["content"].encode()) <= 65_536
    encode(long.fields, 65_536)


def test_odd_commits_are_valid_memories_too(tmp_path):
    folder = tmp_path / ("x" * 200 + "\n,é")
    folder.mkdir()
    git(folder, "init")
    commit(folder, "far future", date="@99999999999 +0000", GIT_AUTHOR_NAME="A" * 400)
    commit(folder, "before the epoch of git", date="1970-01-01T00:00:01Z")
    git(folder, "checkout", "--detach")
    lines = list(read_git(folder))
    assert len(lines) == 2
    for line in lines:
        encode(line.fields, 65_536)
        assert "branch" not in line.fields["metadata"]


def test_the_users_git_configuration_changes_nothing(repository, monkeypatch, tmp_path):
    commit(repository, "plain")
    expected = list(read_git(repository))
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        "[log]\nshowSignature = true\ndecorate = full\ndate = relative\n[format]\npretty = oneline\n"
        "[color]\nui = always\n[i18n]\nlogOutputEncoding = latin1\n[core]\npager = false\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert list(read_git(repository)) == expected


def test_a_folder_inside_and_a_bare_clone_have_the_same_ids(repository, tmp_path):
    commit(repository, "a")
    (repository / "inner").mkdir()
    git(tmp_path, "clone", "--bare", repository, tmp_path / "bare" / "my-app.git")
    git(repository, "worktree", "add", tmp_path / "tree")
    ids = [
        [line.fields["id"] for line in read_git(path)]
        for path in (repository, repository / "inner", tmp_path / "bare" / "my-app.git", tmp_path / "tree")
    ]
    assert ids == [ids[0]] * 4


def test_what_git_refuses_is_a_clear_error(repository, tmp_path, monkeypatch):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SourceError, match="no git repository") as caught:
            read_git(path)
        assert str(path) in str(caught.value)
    with pytest.raises(SourceError, match="does not have any commits"):
        list(read_git(repository))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="install it"):
        read_git(repository)


def test_leaving_early_ends_git(repository):
    for i in range(3):
        commit(repository, f"c{i}" + "x" * 100_000)
    log = read_git(repository)
    assert next(log).number == 1
    log.close()


def test_lines_are_json_like():
    """What `--json` output and tests may rely on: named tuples of plain values."""
    assert json.dumps(Line(1, {"content": "a"})) == '[1, {"content": "a"}]'
