"""The configuration of Redis, wherever it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from jiyi import keys
from jiyi.postings import DF, INLINE_BYTES
from jiyi.server import find_binary

from .files import COMPOSE, CONFIG, STATEFUL_SET

PASSWORD = "a-password"


def directives():
    lines = (line for line in CONFIG.read_text().splitlines() if line and line[0] != "#")
    return {name: " ".join(shlex.split(value)) for name, value in (line.split(maxsplit=1) for line in lines)}


def valkey_arguments(words):
    """What follows the configuration file on the command line of a container."""
    assert words[:2] == ["valkey-server", "/etc/valkey/redis.conf"]
    return [word.replace("$(VALKEY_PASSWORD)", PASSWORD) for word in words[2:]]


COMMAND_LINES = {
    "file": [],
    "compose": valkey_arguments(COMPOSE["services"]["valkey"]["command"]),
    "kubernetes": valkey_arguments(STATEFUL_SET["spec"]["template"]["spec"]["containers"][0]["args"]),
}


@contextmanager
def running(arguments):
    """A real server with our file, on a unix socket in a short path."""
    with tempfile.TemporaryDirectory(prefix="jiyi-") as folder:
        log = Path(folder, "log")
        place = ["--dir", folder, "--port", "0", "--unixsocket", f"{folder}/socket", "--logfile", log]
        process = subprocess.Popen([find_binary(), CONFIG, *arguments, *place], stdout=subprocess.PIPE)
        password = PASSWORD if PASSWORD in arguments else None
        client = redis.Redis(unix_socket_path=f"{folder}/socket", password=password, decode_responses=True, protocol=2)
        try:
            _wait_for(client, process)
            yield client
        finally:
            client.close()
            process.terminate()
            process.communicate(timeout=10)


def _wait_for(client, process):
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert process.poll() is None, process.stdout.read().decode()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        else:
            return


@pytest.mark.parametrize("arguments", COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_redis_takes_every_setting(arguments):
    """A real server starts with the file and reports each value; command lines change only what they should."""
    overridden = {word.removeprefix("--") for word in arguments if word.startswith("--")}
    assert overridden <= {"bind", "protected-mode", "maxmemory", "requirepass"}
    expected = {name: value for name, value in directives().items() if name not in overridden | {"port"}}
    with running(arguments) as client:
        assert {name: client.config_get(name).get(name) for name in expected} == expected
        if arguments:
            assert client.config_get("bind")["bind"] == "* -::*"
            assert int(client.config_get("maxmemory")["maxmemory"]) > 0
            assert client.config_get("protected-mode")["protected-mode"] == "no" or PASSWORD in arguments


def test_redis_keeps_what_the_design_needs():
    found = directives()
    assert found["appendonly"] == "yes"
    assert found["appendfsync"] in {"everysec", "always"}
    assert found["maxmemory-policy"] == "noeviction"
    assert found["timeout"] == "0"
    assert found["protected-mode"] == "yes"
    assert found["bind"] == "127.0.0.1 -::1"


def test_redis_explains_every_setting():
    previous = ""
    for line in CONFIG.read_text().splitlines():
        if line and line[0] != "#":
            name = re.match(r"[a-z]+", line)[0]
            assert previous.startswith(("#", name)) or name == "port", f"no reason given for: {line}"
        previous = line


def test_redis_keeps_the_layout_compact():
    """A full block of ids, a bucket's longest value and a memory of many words stay in a listpack."""
    with running([]) as client:
        client.hset("ids", mapping={str(doc): "x" * 36 for doc in range(keys.IDS_PER_BLOCK)})
        client.hset("terms", "word", "p" * max(INLINE_BYTES, DF.size))
        assert client.object("encoding", "ids") == "listpack"
        assert client.object("encoding", "terms") == "listpack"
        client.hset("memory", mapping={f"field{i}": "x" for i in range(12)} | {"content": "x" * 2_000})
        assert client.object("encoding", "memory") == "listpack"


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_redis_memory_leaves_room_for_a_rewrite(where):
    """Rewriting the append-only file forks: at most two thirds of the container's memory may be data."""
    if where == "compose":
        limit = COMPOSE["services"]["valkey"]["deploy"]["resources"]["limits"]["memory"]
    else:
        limit = STATEFUL_SET["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    units = {"mb": 2**20, "g": 2**30, "Gi": 2**30}
    size = {}
    for name, text in (("limit", limit), ("data", COMMAND_LINES[where][COMMAND_LINES[where].index("--maxmemory") + 1])):
        number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
        size[name] = int(number) * units[unit]
    assert size["data"] <= size["limit"] * 2 / 3
