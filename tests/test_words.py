"""The words: what README and reference say is what the code does, and both languages say the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import redis
from conftest import free_port
from prometheus_client.metrics import MetricWrapperBase
from typer.main import get_command

from jiyi import SyncClient, keys, metrics
from jiyi.cli.app import app
from jiyi.settings import Settings
from jiyi_api import hits, listing, orders, queries, why

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
SEARCH = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def section(text, title):
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """`jiyi up` with an embedded server on a port, as the README starts it; gives both ports."""
    folder = tmp_path_factory.mktemp("up")
    redis_port, api_port = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment |= {"JIYI_DATA_DIR": str(folder / "data"), "JIYI_API_URL": f"http://127.0.0.1:{api_port}"}
    command = [sys.executable, "-m", "jiyi", "up", "--redis-port", str(redis_port), "--port", str(api_port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert "jiyi is ready" in process.stdout.readline()
        yield environment, redis_port, api_port
        process.terminate()
        assert process.wait(20) == 0


def test_the_ten_lines_print_what_the_readme_says(service):
    environment, redis_port, _ = service
    (program,), expected = blocks(README, "python"), blocks(README, "text")[0]
    program = program.replace("6399", str(redis_port))
    redis.Redis(port=redis_port, protocol=2).flushall()  # scores depend on what the other commands have written
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_the_readmes_requests_work(service):
    """Every curl line, against the running service."""
    environment, _, api_port = service
    lines = [
        line[2:] for block in blocks(README, "console") for line in block.splitlines() if line.startswith("$ curl")
    ]
    assert len(lines) >= 3
    for line in lines:
        command = line.replace("8700", str(api_port)).replace("curl ", "curl --silent --show-error --fail ")
        subprocess.run(command, shell=True, env=environment, check=True, capture_output=True)


def test_the_readmes_commands_work(service):
    """The lines for the shell: `jiyi` as it stands there, `redis-cli` by sending its very arguments."""
    environment, redis_port, _ = service
    lines = [line[2:] for block in blocks(README, "console") for line in block.splitlines() if line.startswith("$ ")]
    ours = [line for line in lines if line.startswith("jiyi ")]
    theirs = [line for line in lines if line.startswith("redis-cli ")]
    assert ours
    assert theirs
    for line in ours:
        subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=ROOT, env=environment, check=True)
    for line in theirs:
        program, option, _port, *command = shlex.split(line)
        assert (program, option) == ("redis-cli", "-p")
        assert redis.Redis(port=redis_port, protocol=2).execute_command(*command)


def test_the_examples_of_how_to_ask_work(service):
    """All Python of the page as one program, on memories that its questions find."""
    environment, _, api_port = service
    with SyncClient(f"http://127.0.0.1:{api_port}") as client:
        rows = [
            {"id": f"s{i}", "content": f"李女士的过敏：redis 超时 {'很 长' * i}", "kind": "decision"} for i in range(3)
        ]
        client.wait_ready(client.write_many([*rows, {"id": "m1", "content": "连接池 改成 200", "tags": ["ops"]}]))
    program = "\n".join(blocks(SEARCH, "python"))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "filtered it does not meet tags [('tags', 'redis', 'ops')]" in done.stdout
    assert "**redis** **超时**" in done.stdout


def parameters_of(*requests):
    """Parameters by their names in HTTP, with their defaults."""
    return {field.encode_name: field.default for one in requests for field in msgspec.structs.fields(one)}


def test_the_javascript_of_how_to_ask_names_what_exists():
    known = set(parameters_of(queries.SearchRequest, listing.ListRequest))
    known |= {"weights", "halfLifeDays", "kinds", "relevance", "importance", "freshness", "fact", "chat"}
    program = "\n".join(blocks(SEARCH, "javascript"))
    asked = re.findall(r"await ask\(\"/memory/\w+\", (\{.*?\})\);", program, re.DOTALL)
    assert len(asked) == 4
    for one in asked:
        names = set(re.findall(r"([a-z]\w*)[:,} ]", re.sub(r'"[^"]*"|//.*', "", one), re.IGNORECASE))
        assert names <= known, names - known


def test_every_command_and_target_that_is_named_exists():
    commands = set(get_command(app).commands)
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text in (README, CHINESE):
        named = set(
            re.findall(r"\bjiyi (up|worker|api|[a-z]+) ?", " ".join(re.findall(r"`jiyi [^`]*`|\$ jiyi .*", text)))
        )
        assert named <= commands
        assert commands <= named | {"stats"}
        for target in re.findall(r"make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", make, re.MULTILINE), target


def test_options_that_are_named_exist():
    table = get_command(app).commands
    for name, option in re.findall(r"jiyi (\w+)[^`\n]*? (--[a-z-]+)", README + CHINESE + REFERENCE + SEARCH):
        assert option in {opt for parameter in table[name].params for opt in parameter.opts}, (name, option)


def test_both_languages_have_the_same_structure():
    """Same code, same commands, same tables; only the words differ."""
    for language in ("python", "text"):
        assert blocks(README, language) == blocks(CHINESE, language)
    commands = [
        [line for block in blocks(text, "console") for line in re.findall(r"^\$ [^#\n]*\S", block, re.MULTILINE)]
        for text in (README, CHINESE)
    ]
    assert commands[0] == commands[1]
    assert README.count("\n## ") == CHINESE.count("\n## ")
    assert README.count("\n| ") == CHINESE.count("\n| ")
    assert README.count("\n- ") == CHINESE.count("\n- ")


def test_the_reference_lists_every_setting_with_its_default():
    rows = dict(re.findall(r"^\| `JIYI_(\w+)` \| (.*?) \|", section(REFERENCE, "Settings"), re.MULTILINE))
    defaults = Settings()
    assert set(rows) == {name.upper() for name in Settings.__struct_fields__}
    for name in Settings.__struct_fields__:
        value = getattr(defaults, name)
        if name != "data_dir":
            shown = f"`{int(value) if isinstance(value, bool) else value}`" if value != "" else "none"
            assert rows[name.upper()] == shown, name


def test_the_reference_lists_every_metric():
    declared = {
        (one._name + ("_total" if one._type == "counter" else ""), one._type, one._documentation)
        for one in vars(metrics).values()
        if isinstance(one, MetricWrapperBase)
    }
    rows = re.findall(r"^\| `(jiyi_\w+)` \| (\w+) \| .*? \| (.*) \|$", section(REFERENCE, "Metrics"), re.MULTILINE)
    assert set(rows) == declared


def test_the_reference_lists_every_key():
    documented = set(re.findall(r"^\| (`.*?) \|", section(REFERENCE, "Keys"), re.MULTILINE))
    assert documented == set(re.findall(r"^\| (`.*?) \|", keys.__doc__, re.MULTILINE))


def test_the_reference_lists_every_parameter_of_a_search_with_its_default():
    """And in which of the calls there is one."""
    asked = {"search": parameters_of(queries.SearchRequest), "list": parameters_of(listing.ListRequest)}
    asked["why"] = asked["search"] | {"id": None}
    table = section(REFERENCE, "Searching over HTTP").split("| answer |")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \| .* \|$", table, re.MULTILINE)
    documented = {call: set() for call in asked}
    for named, given, calls in rows:
        names, defaults = re.findall(r"`(\w+)`", named), given.split("; ")[0].split(", ")
        for call in asked if calls == "all" else calls.split(", "):
            documented[call].update(names)
        for name, default in zip(names, defaults * (len(names) // len(defaults)), strict=True):
            value = asked["list" if calls == "list" else "why"][name]
            shown = f"`{value}`".lower() if value not in (None, "") else "–"
            assert default == {"ns": "`default`", "at": "now", "tz": "`UTC`"}.get(name, shown), name
    assert documented == {
        "search": set(asked["search"]), "list": set(asked["list"]), "why": set(asked["why"]) - {"namespaces"},
    }  # fmt: skip


def test_the_reference_lists_every_field_of_an_answer():
    told = section(REFERENCE, "Searching over HTTP").split("| answer |")[1]
    found = (hits.SearchResult, hits.Hit, hits.IndexFigures, hits.MatchedTerm, hits.TimeFound, hits.Folded)
    made_of = (hits.Boost, hits.Factors, orders.Factor, hits.Snippet, hits.Explanation)
    for one in (*found, *made_of, listing.MemoryPage, why.Why, why.Condition):
        for field in msgspec.structs.fields(one):
            assert f"`{field.encode_name}`" in told, (one.__name__, field.encode_name)


def test_nothing_speaks_of_content_in_log_calls():
    """Log lines carry event names and bound facts: no content, no raw ids of memories."""
    for path in [*ROOT.glob("workers/**/*.py"), *ROOT.glob("api/**/*.py"), *ROOT.glob("jiyi/**/*.py")]:
        for call in re.findall(r"log\.(?:info|warning|error|exception)\((.*?)\)\n", path.read_text(), re.DOTALL):
            assert not re.search(r"content=|memory_id=|\bid=|fields=|query=|text=", call), (path.name, call)
