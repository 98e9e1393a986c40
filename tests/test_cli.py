"""The command line against a running service: what people see, what programs read, what they exit with."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
import redis
import typer
from conftest import FAST, free_port, start_server, stop_server
from typer.main import get_command

from jiyi.cli.app import app
from jiyi.cli.context import friendly_errors
from jiyi.cli.services import _report
from jiyi.data_directory import find_running
from jiyi.errors import UnavailableError


class Jiyi:
    """Runs commands in one environment."""

    def __init__(self, folder, port):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
        self.environment |= {
            "JIYI_DATA_DIR": str(folder / "data"),
            "JIYI_API_URL": f"http://127.0.0.1:{port}",
        }
        self.environment |= {f"JIYI_{name.upper()}": str(value) for name, value in FAST.items()}
        self.port = port

    def __call__(self, *arguments, status=0, stdin=None, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "jiyi", *arguments], cwd=self.folder, env=self.environment | environment,
            capture_output=True, text=True, input=stdin, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if status in (0, None) or done.stdout else done.stderr

    @contextmanager
    def up(self, *options):
        command = [sys.executable, "-m", "jiyi", "up", "--port", str(self.port), *options]
        with subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert "jiyi is ready" in process.stdout.readline()
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                _, messages = process.communicate(timeout=30)
                assert process.returncode == 0, messages


@pytest.fixture(scope="module")
def jiyi(tmp_path_factory):
    command = Jiyi(tmp_path_factory.mktemp("cli"), free_port())
    with command.up():
        yield command


def wait_for_port(port):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            assert time.monotonic() < deadline, "the reader did not become ready"
            time.sleep(0.05)


def wait_for_consumers(jiyi, count):
    """One worker may have done all of the work before the other has started; or, on Redis 7.0, has swept."""
    deadline = time.monotonic() + 20
    while (found := json.loads(jiyi("stats", "--json"))["stream"]["consumers"]) != count:
        assert time.monotonic() < deadline, f"{found} consumers"
        time.sleep(0.05)


def jsonl(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    )
    return str(path)


def test_ingest_goes_on_past_bad_lines_and_names_them(jiyi, tmp_path):
    rows = [{"id": f"a{i}", "content": f"记忆 alpha {i}", "ns": "bad"} for i in range(5)]
    source = jsonl(
        tmp_path / "x.jsonl",
        rows[0],
        "{no json",
        rows[1],
        {"id": "b", "content": ""},
        {"id": "c"},
        *rows[2:],
        {"id": "many", "content": " ".join(f"{i:x}" for i in range(11_000)), "ns": "bad"},
    )
    done = subprocess.run(
        [sys.executable, "-m", "jiyi", "ingest", source, "--wait", "--json"], env=jiyi.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    tally = json.loads(done.stdout)
    assert (tally["accepted"], tally["refused"], tally["dead"]) == (7, 2, 1)
    assert "line 2:" in done.stderr
    assert "line 5: content: is missing" in done.stderr
    found = json.loads(jiyi("search", "alpha", "--ns", "bad", "--json"))
    assert found["total"] == 5


def test_ingest_reads_gzip_standard_input_and_git(jiyi, tmp_path):
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps({"id": "g1", "content": "gzipped 压缩"}).encode()))
    jiyi("ingest", str(packed), "--ns", "ways", "--wait")
    jiyi("ingest", "-", "--ns", "ways", "--wait", stdin=json.dumps({"id": "g2", "content": "piped 管道"}))
    repository = tmp_path / "repo"
    git = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-C", str(repository)]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    subprocess.run(
        [*git, "commit", "--quiet", "--allow-empty", "-m", "修复 ERR_TIMEOUT\n\nraise the limit"], check=True
    )
    jiyi("ingest", "--git", str(repository), "--ns", "ways", "--wait")
    for word, name in (("压缩", "g1"), ("管道", "g2"), ("err_timeout", "git:repo:")):
        (hit,) = json.loads(jiyi("search", word, "--ns", "ways", "--json"))["hits"]
        assert hit["id"].startswith(name)


def test_what_is_listed_for_programs_can_be_ingested_into_another_namespace(jiyi, tmp_path):
    """A line whose `ns` is null names none: it must not overwrite what the default namespace has under that id."""
    row = {"id": "l1", "content": "搬家 moving", "tags": ["a"], "importance": 0.75, "metadata": {"n": 1}}
    jiyi("ingest", jsonl(tmp_path / "x.jsonl", row), "--ns", "from", "--wait")
    (listed,) = map(json.loads, jiyi("list", "--ns", "from", "--all", "--json").splitlines())
    assert listed["ns"] is None
    moved = json.dumps({name: value for name, value in listed.items() if name not in {"entry", "indexedAt"}})
    jiyi("ingest", "-", "--ns", "to", "--wait", stdin=moved)
    (again,) = map(json.loads, jiyi("list", "--ns", "to", "--all", "--json").splitlines())
    assert {**listed, "entry": "", "indexedAt": ""} == {**again, "entry": "", "indexedAt": ""}
    jiyi("ready", "l1", status=1)


def test_search_shows_people_why(jiyi, tmp_path):
    row = {"id": "s1", "content": "Redis 超时 [ERR_1]", "ns": "why", "timestamp": "2026-05-04T10:30:00+08:00"}
    jiyi("ingest", jsonl(tmp_path / "x.jsonl", row), "--wait")
    shown = jiyi("search", "redis 超时", "--ns", "why", "--explain")
    for expected in ("s1", "[ERR_1]", "超时", "idf", "average", "1 of 1 memories match", "2026-05-04 02:30 UTC"):
        assert expected in shown
    assert "nothing found" in jiyi("search", "没有的词", "--ns", "why")


def test_what_people_wrote_is_shown_as_they_wrote_it(jiyi, tmp_path):
    row = {"id": "a:b:c", "content": "colons :smile: [bold] x", "author": ":fire:", "ns": "raw"}
    jiyi("ingest", jsonl(tmp_path / "x.jsonl", row), "--wait")
    shown = jiyi("search", "colons", "--ns", "raw") + jiyi("ready", "a:b:c", "--ns", "raw", "--wait", "5")
    assert shown.count("a:b:c") == 2
    assert ":smile: [bold] x" in shown
    assert ":fire:" in shown


CHOSEN = [
    {"id": "m1", "content": "开场白。\n\n张工 说 <redis> 😀 的 超时 [bold] 是 连接池 太小。", "author": "张伟",
     "tags": ["a", "b"], "timestamp": "2026-05-13", "kind": "fact", "importance": 0.9},
    {"id": "m2", "content": "张工 说 <redis> 的 超时 是 连接池 太小", "timestamp": "2026-05-19", "sessionId": "s"},
    {"id": "m3", "content": "redis 的 流 \x1b[31m 很 快 \x07", "timestamp": "2026-05-20", "sessionId": "s",
     "tags": ["a"]},
    {"id": "m4", "content": "今天 的 午饭", "timestamp": "2026-05-11"},
]  # fmt: skip
AT = ("--at", "2026-05-20T12:00")


@pytest.fixture(scope="module")
def chosen(jiyi):
    """The command line where these memories can be found, and one more in another namespace."""
    rows = [row | {"ns": "选"} for row in CHOSEN] + [{"id": "n1", "content": "redis 超时 elsewhere", "ns": "other 1"}]
    jiyi("ingest", jsonl(jiyi.folder / "chosen.jsonl", *rows), "--wait")
    return jiyi


def found(jiyi, question, *options, ns=("选",)):
    spaces = [option for one in ns for option in ("--ns", one)]
    return json.loads(jiyi("search", question, *spaces, *options, "--json"))


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ((), ["m2", "m1", "m3"]),
        (("--tag", "a", "--tag", "b"), ["m1", "m3"]),
        (("--tag-all", "a", "--tag-all", "b"), ["m1"]),
        (("--tag-none", "b", "--tag-none", "c"), ["m2", "m3"]),
        (("--min-importance", "0.6"), ["m1"]),
        (("--match", "all"), ["m2", "m1"]),
        (("--collapse", "session-id"), ["m2", "m1"]),
        (("--per-session", "1"), ["m2", "m1"]),
        (("--rank", "memory", "--ranking", '{"weights": {"relevance": 0}}', *AT), ["m1", "m3", "m2"]),
        (("--k1", "0", "--b", "0", "--min-score", "1"), ["m2", "m1"]),
        (("--since", "2026-05-13", "--until", "2026-05-20", "--author", "张伟", "--author", "x"), ["m1"]),
    ],
)
def test_search_has_an_option_for_every_choice(chosen, options, ids):
    assert [hit["id"] for hit in found(chosen, "redis 超时", *options)["hits"]] == ids


def test_several_namespaces_are_searched_and_listed_together(chosen):
    assert {hit["id"]: hit["ns"] for hit in found(chosen, "redis 超时", ns=("选", "other 1"))["hits"]} == {
        "m1": "选", "m2": "选", "m3": "选", "n1": "other 1",
    }  # fmt: skip
    assert "other 1" in chosen("search", "redis 超时", "--ns", "选", "--ns", "other 1")
    assert "5 of 5 memories" in chosen("list", "--ns", "选", "--ns", "other 1")


def test_search_shows_the_passage_the_time_and_what_is_folded(chosen):
    shown = chosen("search", "上周 redis 超时", "--ns", "选", "--per-session", "1", *AT, "--match", "auto")
    assert "张工 说 <redis> 😀 的 超时 [bold] 是 连接池 太小。" in shown
    assert "1 folded into it: m3" in shown
    assert "+time 0." in shown
    assert "has not every word" in shown
    assert "“上周” is 2026-05-11 00:00 UTC to 2026-05-18 00:00 UTC" in shown
    narrow = chosen("search", "redis 超时", "--ns", "选", "--snippet", "12", FORCE_COLOR="1", COLUMNS="200")
    assert re.search(r"\x1b\[1;33mredis\x1b\[0m", narrow)
    assert "连接池" not in narrow
    whole = chosen("search", "redis 超时", "--ns", "选")
    assert "redis 的 流 [31m 很 快" in whole
    assert "\x1b" not in whole, "what somebody wrote does not reach the terminal as a command"
    assert "since 2026-05-18 00:00 UTC" in chosen("search", "redis since Monday", "--ns", "选", *AT)


def added_up(lines):
    """The scores of a table down to its sum: (sum of the parts, the sum)."""
    told = [re.split(r"  the sum above|  \d+\.\d days", line)[0] for line in lines]
    *parts, total = [float(re.findall(r"\d+\.\d{4}", line)[-1]) for line in told]
    return sum(parts), total


@pytest.mark.parametrize("ranking", [(), ("--rank", "memory")])
def test_an_explained_score_adds_up(chosen, ranking):
    shown = chosen("search", "上周 redis 超时", "--ns", "选", "--explain", *AT, *ranking, COLUMNS="120")
    hits = re.split(r"^ \d\. ", shown, flags=re.MULTILINE)[1:]
    assert len(hits) == 3
    for hit in hits:
        score = float(hit.split()[0])
        tables = re.findall(r"^    (?:term|factor) .*?\n(.*?^    sum .*?)\n", hit, re.DOTALL | re.MULTILINE)
        assert len(tables) == (2 if ranking else 1)
        for table in tables:
            parts, total = added_up(table.splitlines())
            assert parts == pytest.approx(total, abs=3e-4)
        assert total == pytest.approx(score, abs=6e-4)
    assert ["of that time" in hit for hit in hits] == [True, False, False]
    assert ("half-life 30 days" in hits[0]) == bool(ranking)


@pytest.mark.parametrize(
    ("command", "options", "told"),
    [
        ("search", ("--match", "some"), "match: must be any, all or auto"),
        ("search", ("--time-words", "on"), "time_words: must be boost, filter or off"),
        ("search", ("--ranking", "{}"), 'ranking: is for rank="memory"'),
        ("search", ("--rank", "memory", "--ranking", "{"), "the reader refused: ranking: must be JSON"),
        ("search", ("--tz", "Mars"), "the reader refused: tz: must be the name of a time zone"),
        ("search", ("--collapse", "content"), "collapse: must be near, author, source_system"),
        ("why", ("--collapse", "content"), "collapse: must be near, author, source_system"),
        ("list", ("--since", "soon"), "the reader refused: since: must be ISO 8601"),
    ],
)
def test_a_wrong_choice_gives_one_clear_line(jiyi, command, options, told):
    arguments = {"search": ["x"], "why": ["m", "x"], "list": []}[command]
    (line,) = jiyi(command, *arguments, *options, status=1).splitlines()
    assert line.startswith(f"jiyi: {told}")


def test_list_gives_pages_or_everything(chosen, tmp_path):
    shown = chosen("list", "--ns", "选", "--limit", "2")
    assert re.findall(r"^m\d", shown, re.MULTILINE) == ["m3", "m2"]
    assert shown.endswith("2 of 4 memories\n")
    assert "\x1b" not in shown
    lines = chosen("list", "--ns", "选", "--kind", "fact", "--json").splitlines()
    assert [json.loads(line)["content"] for line in lines] == [CHOSEN[0]["content"]]
    assert chosen("list", "--ns", "选", "--limit", "0") == "0 of 4 memories\n"
    assert "0 of 0" in chosen("list", "--ns", "nobody")
    chosen("list", "--all", "--limit", "3", status=2)
    rows = [{"id": f"p{i:03}", "content": "x", "ns": "pages", "timestamp": 10**12 + i} for i in range(230)]
    chosen("ingest", jsonl(tmp_path / "x.jsonl", *rows), "--wait")
    for options, count in ((("--all",), 230), (("--limit", "150"), 150), ((), 20)):
        listed = [json.loads(line)["id"] for line in chosen("list", "--ns", "pages", *options, "--json").splitlines()]
        assert listed == [f"p{i:03}" for i in reversed(range(230))][:count]


@pytest.mark.parametrize(
    ("memory", "options", "expected"),
    [
        ("m2", (), ["found  m2: it is among the hits (number 1 of 3)", "redi", "k1 1.2", "terms of the memory:"]),
        ("m3", ("--limit", "1"), ["outranked  m3: it is number 3 of 3; the limit is 1", "before it", " 1. ", "m2"]),
        ("m3", ("--per-session", "1"), ["folded  m3", "folded into\n", "1 folded into it: m3"]),
        ("m4", (), ["no shared term  m4", "terms of the question: redi", "terms of the memory: 今"]),
        ("m1", ("--author", "李", "--tag-all", "c"), ["filtered  m1: it does not meet author, tagsAll",
                                                   "author: 李 is asked for, it has 张伟"]),
        ("m1", ("--min-score", "99"), ["below min score  m1: its score is below minScore 99"]),
        ("nobody", (), ["unknown  nobody: no version of it has been applied"]),
    ],
)  # fmt: skip
def test_why_says_what_decided(chosen, memory, options, expected):
    shown = chosen("why", memory, "redis 超时", "--ns", "选", *options)
    for one in expected:
        assert one in shown
    answer = json.loads(chosen("why", memory, "redis 超时", "--ns", "选", *options, "--json"))
    assert answer["id"] == memory
    assert answer["verdict"].replace("_", " ") == expected[0].split("  ")[0]


def test_ingest_claims_of_what_it_waited_for_only_that_it_is_applied(jiyi, tmp_path):
    """An empty memory cannot be found, and one that has expired is deleted."""
    expired = {"id": "e2", "content": "x", "expiresAt": "2001-01-01", "ns": "empty"}
    rows = [{"id": "e1", "content": "", "ns": "empty"}, expired]
    told = jiyi("ingest", jsonl(tmp_path / "x.jsonl", *rows), "--wait")
    assert "2 accepted" in told
    assert re.search(r"applied after \d+\.\d s more: none failed", told)
    assert "found" not in told


@contextmanager
def ingesting(jiyi, client, *options):
    """`jiyi ingest -` whose first 1,000 lines are on the stream; it waits for more.

    Of the first 500 it knows that they are accepted, or it would not have sent the others.
    """
    command = [sys.executable, "-m", "jiyi", "ingest", "-", *options]
    with subprocess.Popen(
        command, env=jiyi.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(lines(1000))
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while client.xlen("stream:cut") < 1000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process.kill()


def lines(count):
    return "".join(f'{{"id": "c{i}", "content": "x"}}\n' for i in range(count))


def test_ingest_says_after_ctrl_c_how_many_were_accepted(redis_url, tmp_path):
    """Also while it waits for standard input, which stays open here."""
    alone = Jiyi(tmp_path, free_port())
    alone.environment |= {"JIYI_REDIS_URL": redis_url, "JIYI_STREAM": "stream:cut"}
    with redis.Redis.from_url(redis_url, protocol=2) as client, ingesting(alone, client, "--json") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        tally = json.loads(process.stdout.read())
        told = " ".join(process.stderr.read().split())
        assert tally["accepted"] in (500, 1000)
        assert tally["accepted"] + tally["unsure"] == 1000
        perhaps = "" if tally["accepted"] == 1000 else ", 500 more perhaps"
        again = "(to ingest them again is harmless where they have ids)"
        assert told == f"jiyi: {tally['accepted']} accepted{perhaps} {again}, then: stopped"
        client.flushdb()


def test_ingest_says_how_many_were_accepted_when_redis_goes_away(tmp_path):
    port = free_port()
    server = start_server(tmp_path, port)
    alone = Jiyi(tmp_path, free_port())
    alone.environment |= {"JIYI_REDIS_URL": f"redis://127.0.0.1:{port}", "JIYI_STREAM": "stream:cut"}
    with redis.Redis(port=port, protocol=2) as client, ingesting(alone, client) as process:
        stop_server(server)
        _, told = process.communicate(lines(500), timeout=20)
        assert process.returncode == 1
        assert "jiyi: 1000 accepted, 500 more perhaps" in told
        assert "Redis does not answer" in told


def test_ready_has_an_exit_status(jiyi, tmp_path):
    jiyi("ingest", jsonl(tmp_path / "x.jsonl", {"id": "r1", "content": "x", "ns": "r"}), "--wait")
    assert "ready" in jiyi("ready", "r1", "--ns", "r")
    (answer,) = json.loads(jiyi("ready", "nobody", "--ns", "r", "--json", status=1))
    assert answer["state"] == "unknown"


def test_stats_and_check_tell_the_same_numbers(jiyi, tmp_path):
    jiyi(
        "ingest",
        jsonl(tmp_path / "x.jsonl", *({"id": f"n{i}", "content": "甲 乙", "ns": "n"} for i in range(3))),
        "--wait",
    )
    (row,) = json.loads(jiyi("stats", "--ns", "n", "--json"))["namespaces"]
    (report,) = [one for one in json.loads(jiyi("check", "--ns", "n", "--json")) if one["namespace"] == "n"]
    assert (row["docs"], row["tokens"]) == (report["documents"], report["tokens"]) == (3, 6)
    assert report["ok"] is True
    told = jiyi("stats")
    assert "unread" in told
    assert re.search(r"^server: \d+\.\d MB of memory in use$", told, re.MULTILINE)
    assert f"reader: ready, kernel numba (http://127.0.0.1:{jiyi.port})" in told
    assert json.loads(jiyi("stats", "--json"))["reader"]["kernel"] == "numba"
    assert "nobody answers" in jiyi("stats", JIYI_API_URL=f"http://127.0.0.1:{free_port()}")
    assert "ok" in jiyi("check", "--ns", "n")


def test_dead_letters_are_listed_shown_replayed_and_dropped(jiyi):
    client = redis.Redis.from_url(find_running(jiyi.folder / "data"))
    for i in range(2):
        client.xadd(
            "stream:memory:write", {"event": "write", "id": f"d{i}", "ns": "dead", "importance": "9", "content": "x"}
        )
    jiyi("ready", "d0", "d1", "--ns", "dead", "--wait", "5s", status=1)
    letters = json.loads(jiyi("dead", "list", "--ns", "dead", "--json"))
    letters.sort(key=lambda letter: letter["id"])  # two workers may file them in either order
    assert letters[0]["letter"] in jiyi("dead", "list", "--ns", "dead"), "an id is shown whole, to be copied"
    assert [(one["id"], one["code"]) for one in letters] == [("d0", "invalid_field"), ("d1", "invalid_field")]
    shown = json.loads(jiyi("dead", "show", letters[0]["letter"], "--ns", "dead", "--json"))
    assert {"name": "content", "value": "x", "exact": True} in shown["fields"]
    told = jiyi("dead", "show", letters[0]["letter"], "--ns", "dead")
    lines = [line.split() for line in told.splitlines()]
    assert ["letter", letters[0]["letter"]] in lines
    assert ["content", "x"] in lines
    assert "importance" in jiyi("dead", "list", "--ns", "dead")
    (dropped,) = json.loads(jiyi("dead", "drop", letters[0]["letter"], "--ns", "dead", "--json"))
    assert dropped == {"letter": letters[0]["letter"], "ns": "dead", "id": "d0"}
    assert "1 replayed" in jiyi("dead", "replay", "--all", "--ns", "dead")
    jiyi("dead", "drop", "--ns", "dead", status=2)


def wait_for_letters(client, ns, count, *but):
    """Give the letters of a namespace when there are so many, `but` those not among them."""
    deadline = time.monotonic() + 20
    while True:
        letters = [letter.decode() for letter, _ in client.xrange(f"dead:{{{ns}}}")]
        if len(letters) == count and not set(letters) & set(but):
            return letters
        assert time.monotonic() < deadline, letters
        time.sleep(0.01)


def test_dead_letters_are_shown_up_to_a_limit_and_dealt_with_for_programs(jiyi):
    client = redis.Redis.from_url(find_running(jiyi.folder / "data"))
    for i in range(3):
        client.xadd("stream:memory:write", {"event": "write", "id": f"p{i}", "ns": "programs"})
    letters = wait_for_letters(client, "programs", 3)
    assert [
        one["letter"] for one in json.loads(jiyi("dead", "list", "--ns", "programs", "--limit", "2", "--json"))
    ] == (letters[:2])
    replayed = json.loads(jiyi("dead", "replay", letters[1], letters[0], letters[1], "--ns", "programs", "--json"))
    assert [one["letter"] for one in replayed] == [letters[1], letters[0]], "each once, in the order of the call"
    assert {*map(str, replayed[0])} == {"letter", "ns", "id", "entry"}
    wait_for_letters(client, "programs", 3, *letters[:2])
    assert len(json.loads(jiyi("dead", "drop", "--all", "--ns", "programs", "--json"))) == 3
    assert json.loads(jiyi("dead", "replay", "--all", "--ns", "programs", "--json")) == []


def test_what_no_worker_has_filed_is_listed_shown_and_dropped(jiyi):
    client = redis.Redis.from_url(find_running(jiyi.folder / "data"))
    client.xadd("stream:memory:write", {"event": "write", "id": "m", "ns": "foreign"})
    wait_for_letters(client, "foreign", 1)
    letter = client.xadd("dead:{foreign}", {"x": "secret"}).decode()
    assert letter in jiyi("dead", "list", "--ns", "foreign")
    assert json.loads(jiyi("dead", "list", "--ns", "foreign", "--json"))[1]["code"] == "foreign"
    assert json.loads(jiyi("dead", "show", letter, "--ns", "foreign", "--json"))["fields"][0]["value"] == "secret"
    assert "was not filed by jiyi" in jiyi("dead", "replay", letter, "--ns", "foreign", status=1)
    assert f"dead:{{foreign}} {letter}" in jiyi("check", "--ns", "foreign", status=1)
    assert "1 replayed" in jiyi("dead", "replay", "--all", "--ns", "foreign")
    wait_for_letters(client, "foreign", 2)
    assert json.loads(jiyi("dead", "drop", letter, "--ns", "foreign", "--json"))[0]["id"] is None
    jiyi("check", "--ns", "foreign")
    jiyi("dead", "drop", "--all", "--ns", "foreign")


def test_a_wrong_letter_id_gives_one_clear_line(jiyi):
    wrong = "letter: must be the id of a dead letter, like 1764470000000-0"
    absent = "there is no dead letter 1-1 in namespace default; see: jiyi dead list"
    for command, given, told in (("show", "garbage", wrong), ("replay", "1", wrong), ("drop", "1-1", absent)):
        assert jiyi("dead", command, given, status=1).splitlines() == [f"jiyi: {told}"]


def test_a_second_start_on_the_same_data_refuses(jiyi):
    told = jiyi("up", "--port", str(free_port()), status=1)
    assert str(jiyi.folder / "data") in told.replace("\n", "")


def test_the_same_start_again_says_who_holds_the_folder(jiyi):
    """`make up` twice: folder and port are both taken, and the folder is what matters."""
    told = jiyi("up", "--port", str(jiyi.port), status=1).replace("\n", "")
    assert str(jiyi.folder / "data") in told
    assert "in use by process" in told


def test_a_port_of_a_server_that_is_not_started_is_refused(jiyi):
    told = jiyi("up", "--redis-port", str(free_port()), status=1, JIYI_REDIS_URL="redis://127.0.0.1:1")
    assert "JIYI_REDIS_PORT" in told


def test_worker_and_reader_run_by_themselves(redis_url, tmp_path):
    """`jiyi worker --processes 2` and `jiyi api` on a server of one's own; SIGTERM ends both with 0."""
    port, metrics_port = free_port(), free_port()
    alone = Jiyi(tmp_path, port)
    alone.environment |= {"JIYI_REDIS_URL": redis_url, "JIYI_STREAM": "stream:cli", "JIYI_LOG_LEVEL": "warning"}
    commands = [("worker", "--processes", "2", "--metrics-port", str(metrics_port)), ("api", "--port", str(port))]
    started = [
        subprocess.Popen([sys.executable, "-m", "jiyi", *one], env=alone.environment, cwd=tmp_path) for one in commands
    ]
    try:
        alone("ingest", jsonl(tmp_path / "x.jsonl", {"id": "w1", "content": "独立 process"}), "--wait")
        wait_for_port(port)
        assert "w1" in alone("search", "独立")
        with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as page:
            assert 'jiyi_events_total{kind="write",result="applied"} 1.0' in page.read().decode()
        wait_for_consumers(alone, 2)
    finally:
        for one in started:
            one.terminate()
        statuses = [one.wait(20) for one in started]
        redis.Redis.from_url(redis_url, protocol=2).flushdb()
    assert statuses == [0, 0]


def test_workers_of_up_do_not_fight_for_a_metrics_port(tmp_path):
    jiyi = Jiyi(tmp_path, free_port())
    jiyi.environment["JIYI_METRICS_PORT"] = str(free_port())
    with jiyi.up("--workers", "2"):
        jiyi("ingest", jsonl(tmp_path / "x.jsonl", {"id": "m1", "content": "x"}), "--wait")
        wait_for_consumers(jiyi, 2)


def test_a_taken_port_is_said_at_once(jiyi, tmp_path):
    told = jiyi("up", "--port", str(jiyi.port), status=1, JIYI_DATA_DIR=str(tmp_path / "other"))
    assert "--port" in told


def test_commands_without_a_server_say_how_to_start_one(tmp_path):
    alone = Jiyi(tmp_path, free_port())
    assert "jiyi up" in alone("stats", status=1)
    assert "jiyi up" in alone("search", "x", status=1)
    assert "JIYI_BATCH" in alone("stats", status=1, JIYI_BATCH="none")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("connection", "Start everything with: jiyi up"),
        ("timeout", "Start everything with: jiyi up"),
        ("loading", "Try again in a moment"),
        ("unavailable", "Try again in a moment"),
        ("oom", "told"),
        ("analyzer_mismatch", "told"),
    ],
)
def test_the_advice_fits_what_is_wrong(capsys, code, advice):
    with pytest.raises(typer.Exit), friendly_errors():
        raise UnavailableError("told", code=code)
    assert capsys.readouterr().err.endswith(f"{advice}\n")


@pytest.mark.parametrize(
    ("event", "fields", "told"),
    [
        ("child_exited", {"name": "worker-1", "code": -9, "restart_in_s": 0.5},
         "worker-1 was killed by SIGKILL, starting it again in 0.5 s"),
        ("child_exited", {"name": "api-1", "code": 1, "restart_in_s": 30.0},
         "api-1 ended with status 1, starting it again in 30 s"),
        ("child_exited", {"name": "api-1", "code": 78, "restart_in_s": None},
         "api-1 ended with status 78, not started again"),
        ("child_exited", {"name": "api-1", "code": -40, "restart_in_s": 1.0},
         "api-1 was killed by signal 40, starting it again in 1 s"),
        ("child_killed", {"name": "worker-2", "pid": 7}, "worker-2 (process 7) did not stop in time and was killed"),
        ("server_exited", {"code": -11, "restart_in_s": 1.0},
         "the server was killed by SIGSEGV, starting it again in 1 s"),
        ("server_restarted", {"pid": 8}, "the server runs again (process 8)"),
        ("child_started", {"name": "api-1", "pid": 9}, ""),
    ],
)  # fmt: skip
def test_people_are_told_what_ends_and_what_follows(capsys, event, fields, told):
    _report(event, **fields)
    assert capsys.readouterr().err.strip() == told


def test_a_log_of_json_has_no_sentences_in_it():
    """Whoever collects the lines of `jiyi worker --processes` can read those of the supervisor, too."""
    program = """
from jiyi.cli.services import _reporter
from jiyi.settings import Settings
report = _reporter(Settings(log_format="json"))
report("child_started", name="worker-1", pid=7)
report("child_exited", name="worker-1", code=-9, restart_in_s=0.5)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    told = json.loads(line)
    assert told.pop("timestamp")
    assert told == {
        "event": "child_exited", "level": "warning", "name": "worker-1", "code": -9, "restart_in_s": 0.5
    }  # fmt: skip


@pytest.mark.parametrize("command", ["up", "worker", "ingest", "check", "reindex", "eval", "tune"])
def test_help_is_broken_into_lines_by_the_terminal_alone(command):
    """A line that ends early, as the source does, leaves the next one ragged where the terminal is narrower."""
    text = get_command(app).commands[command].help
    assert "\n" not in text.replace("\n\n", "")


def test_everything_is_still_there_after_a_restart_and_reindex_changes_the_analyzer(tmp_path):
    """Stop, start, search; then other settings: refused until `jiyi reindex`, and exact after it."""
    jiyi = Jiyi(tmp_path, free_port())
    jiyi.environment["JIYI_HAN_BIGRAMS"] = "0"
    with jiyi.up("--workers", "1"):
        jiyi("ingest", jsonl(tmp_path / "x.jsonl", {"id": "m1", "content": "张工修好了消息队列"}), "--wait")
    with jiyi.up("--workers", "1"):
        assert json.loads(jiyi("search", "消息", "--json"))["total"] == 1
        before = json.loads(jiyi("stats", "--json"))["namespaces"][0]["tokens"]
        assert "1 memories analysed again" in jiyi("reindex", JIYI_HAN_BIGRAMS="1")
        assert json.loads(jiyi("stats", "--json"))["namespaces"][0]["tokens"] > before
        refused = jiyi("search", "消息", status=1)
        assert "reindex" in refused
        assert "Is it running" not in refused, "it is, and waiting does not help"
        assert "default: analysed with these settings already" in jiyi("reindex", JIYI_HAN_BIGRAMS="1")
        assert "1 memories analysed again" in jiyi("reindex", "--force", JIYI_HAN_BIGRAMS="1")
    jiyi.environment["JIYI_HAN_BIGRAMS"] = "1"
    with jiyi.up("--workers", "1"):
        assert json.loads(jiyi("search", "息队", "--json"))["total"] == 1
        assert "ok" in jiyi("check")
