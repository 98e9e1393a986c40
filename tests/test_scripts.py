"""The scripts as texts: headers, declared keys, bounds, and that Lua and Python say the same."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from enum import IntEnum
from hashlib import sha1
from pathlib import Path

import anyio
import pytest
from redis.exceptions import ConnectionError, OutOfMemoryError, ResponseError, TimeoutError  # noqa: A004

from jiyi import keys, memories, postings, scripts
from jiyi.errors import UnavailableError

CHECKOUT = Path(__file__).parent.parent
NAMES = sorted(Path(path).stem for path in (CHECKOUT / "lua").iterdir())

UNPACKS = {
    ("apply_events", "terms"): "at most CHUNK terms, collected in a loop up to `size`",
    ("apply_events", "list, from, math.min(from + CHUNK - 1, #list)"): "cut at CHUNK",
    ("apply_events", "event.fields"): "names and values of one memory's hash, about 15 pairs",
    ("read_documents", "names"): "names of hash fields, constants of the callers",
    ("append_delete", "ARGV"): "one payload, or the flat fields of a delete",
    ("acknowledge", "ARGV, from, math.min(from + CHUNK - 1, #ARGV)"): "cut at CHUNK",
    ("repair_memories", "one.fields"): "names and values of the derived fields of one memory, at most seven pairs",
    ("repair_memories", "one.removed"): "names of such fields",
}
"""Where `unpack` may stand, and why its list is short: Lua's stack ends near 8,000 values."""

IN_CALLS = {"chunked": "command"}
"""Functions that take the name of their command as first parameter."""

FORBIDDEN = {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "TIME", "RANDOMKEY", "EVAL", "SELECT", "FLUSHDB", "FLUSHALL"}
"""Commands that touch undeclared keys, take unbounded time, or answer differently on every server."""

SECOND_ARGUMENT_IS_KEY = {"XINFO", "XGROUP"}

FLAGS = {
    "no-writes": {
        "read_documents": "a reader works on a replica, and on a full server, as well",
        "read_ids": "as above",
        "read_index": "as above",
        "read_readiness": "as above",
    },
    "allow-oom": {
        "acknowledge": "takes an entry off the pending list",
        "append_delete": "deletes make room",
        "begin_replay": "may be the replay of a delete",
        "create_group": "without a group nobody applies the deletes",
        "drop_letter": "removes",
        "drop_tombstones": "removes",
        "remove_consumer": "removes",
        "settle_replay": "removes",
        "sweep_stream": "removes",
    },
}
"""Which scripts run while the server's memory is full, and why. All others are refused as a whole then."""


def source(name):
    return (CHECKOUT / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def header(name):
    """The comment at the top, without the dashes."""
    lines = source(name).splitlines()[1:]
    taken = []
    for line in lines:
        if not line.startswith("--"):
            break
        taken.append(line.removeprefix("--").removeprefix(" "))
    return "\n".join(taken)


def code(name):
    """The script without its comments; no string of ours holds two dashes."""
    return "\n".join(line.partition("--")[0] for line in source(name).splitlines()[1:])


def expressions(text, begin):
    """The comma-separated expressions from `begin` on: to the closing bracket, or else to the end of the statement."""
    depth, quoted, parts = 0, "", []
    for at in range(begin, len(text)):
        character = text[at]
        if quoted:
            quoted = "" if character == quoted and text[at - 1] != "\\" else quoted
        elif character in "'\"":
            quoted = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        ends = depth < 0 or (depth == 0 and character == "\n" and not text[begin:at].rstrip().endswith(","))
        if not quoted and (ends or (character == "," and depth == 0)):
            parts.append(" ".join(text[begin:at].split()))
            begin = at + 1
            if ends:
                return parts
    return [*parts, " ".join(text[begin:].split())]


def calls(text, function):
    """The argument lists of all calls of a function, its definition left out."""
    for found in re.finditer(rf"(?<![\w.:]){re.escape(function)}\(", text):
        if not re.search(r"function\s+$", text[: found.start()]):
            yield expressions(text, found.end())


def commands(name):
    """(command, key argument or None) of every command that the script sends, through whatever function."""
    text = code(name)
    for given in calls(text, "redis.call"):
        if given[0] in IN_CALLS.values():
            continue
        yield _command(given)
    for function in IN_CALLS:
        for given in calls(text, function):
            yield _command(given)


def _command(given):
    assert re.fullmatch(r"'[A-Z]+'", given[0]), f"{given[0]} is no command word"
    word = given[0].strip("'")
    at = 2 if word in SECOND_ARGUMENT_IS_KEY else 1
    return word, given[at] if len(given) > at else None


class DeclaredKeys:
    """Which expressions of a script can only be declared keys.

    A name counts if everything that is ever assigned to it, anywhere in the script, is `KEYS[...]` or a name that
    counts; likewise parameters over all calls, `.key` fields, and what is pushed on a list that is looped over.
    """

    def __init__(self, text):
        self._given = {}
        for found in re.finditer(r"^\s*(?:local\s+)?(\w[\w., ]*?) = ", text, re.MULTILINE):
            values = expressions(text, found.end())
            names = found[1].split(", ")
            for i, name in enumerate(names):
                self._add(f".{name.rpartition('.')[2]}" if "." in name else name, values[i] if i < len(values) else "?")
        for found in re.finditer(r"[{,]\s*(\w+) = ", text):
            self._add(f".{found[1]}", expressions(text, found.end())[0])
        for item, table in re.findall(r"for\s+\w+,\s*(\w+)\s+in\s+ipairs\((\w+)\)", text):
            self._add(item, "KEYS[i]" if table == "KEYS" else f"{table}[]")
            self._add(f"{item}[1]", f"{table}[][1]")
        for found in re.finditer(r"(\w+)\[#\1 \+ 1\] = ({?)", text):
            self._add(f"{found[1]}[]", expressions(text, found.start(2))[0])
            self._add(f"{found[1]}[][1]", expressions(text, found.end())[0] if found[2] else "?")
        for function, parameters in re.findall(r"function\s+(\w+)\(([^)]*)\)", text):
            for given in calls(text, function):
                for i, parameter in enumerate(parameters.split(", ")):
                    self._add(parameter, given[i])
        # A value comes from somewhere: names that only hand it to one another in a circle hold nothing.
        self._proven = set(self._given)
        while wrong := {name for name in self._proven if not all(map(self.covers, self._given[name]))}:
            self._proven -= wrong

    def _add(self, name, value):
        self._given.setdefault(name, set()).add(value)

    def covers(self, expression):
        """Tell whether an expression is a declared key for certain."""
        if re.fullmatch(r"KEYS\[[\w\s*+-]+\]", expression):
            return True
        if field := re.fullmatch(r"\w+(\.\w+)", expression):
            expression = field[1]
        return expression in self._proven


@pytest.mark.parametrize(
    ("text", "key", "declared"),
    [
        ("local a, b = KEYS[1], KEYS[2]", "b", True),
        ("local a, b = KEYS[1], ARGV[2]", "b", False),
        ("local a = KEYS[1]\na = ARGV[1]", "a", False),
        ("local a = KEYS[1] .. 'x'", "a", False),
        ("", "KEYS[1] .. ARGV[1]", False),
        ("", "'index:' .. ARGV[1]", False),
        ("", "unknown", False),
        ("for i, k in ipairs(KEYS) do", "k", True),
        ("for i, k in ipairs(ARGV) do", "k", False),
        ("l[#l + 1] = KEYS[2]\nfor _, k in ipairs(l) do", "k", True),
        ("l[#l + 1] = KEYS[2]\nl[#l + 1] = 'x'\nfor _, k in ipairs(l) do", "k", False),
        ("l[#l + 1] = { KEYS[2], 1 }\nfor _, p in ipairs(l) do", "p[1]", True),
        ("l[#l + 1] = { term, KEYS[2] }\nfor _, p in ipairs(l) do", "p[1]", False),
        ("local function f(a, b)\nend\nf(1, KEYS[3])", "b", True),
        ("local function f(a, b)\nend\nf(1, KEYS[3])\nf(1, 2)", "b", False),
        ("local e = { op = f(1, 2), key = KEYS[i + 1] }", "e.key", True),
        ("local e = { key = KEYS[i] }\ne.key = ARGV[1]", "e.key", False),
    ],
)
def test_the_reading_of_declared_keys_itself(text, key, declared):
    assert DeclaredKeys(text).covers(key) is declared


# --- the header ---


def test_there_is_nothing_else_in_the_folder():
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*\.lua", path.name) for path in (CHECKOUT / "lua").iterdir())
    assert NAMES


def test_every_script_has_its_file_of_tests():
    files = {path.name for path in (CHECKOUT / "tests" / "lua").glob("test_*.py")}
    assert {f"test_{name}.py" for name in NAMES} <= files


@pytest.mark.parametrize("name", NAMES)
def test_flags_are_given_for_a_reason(name):
    first, *rest = source(name).splitlines()
    flags = [flag for flag, names in FLAGS.items() if name in names]
    assert first == " ".join(["#!lua", *(f"flags={flag}" for flag in flags)])
    assert not any(line.startswith("#!") for line in rest)


@pytest.mark.parametrize("name", ["prepare_events", "apply_events"])
def test_the_variant_for_a_full_server_differs_in_its_flag_only(name):
    """These two run for deletes on a full server, and are refused for anything that takes memory."""
    plain, allowing = scripts.load(name), scripts.allowing_oom(name)
    assert allowing.source.splitlines()[0] == "#!lua flags=allow-oom"
    assert allowing.source.splitlines()[1:] == plain.source.splitlines()[1:]
    assert allowing.sha == sha1(allowing.source.encode()).hexdigest() != plain.sha


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_purpose_guarantee_keys_arguments_and_answer(name):
    assert re.match(r"#!lua( flags=[a-z-]+)?\n-- [A-Z]", source(name))
    found = header(name)
    positions = [found.find(word) for word in ("\nGuarantee: ", "\nKEYS[", "\nARGV[", "\nReturns ")]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert found.partition("\n\n")[0].endswith((".", ":")), "the first sentence"
    assert max(map(len, source(name).splitlines())) <= 120


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_the_positions_in_the_header_are_those_that_the_code_uses(name, table):
    """Positions up to an open end `n..` are all named in the code, and an open end is read by a computed position."""
    ranges = re.findall(rf"^{table}\[(\d+)(\.\.)?(\d*)\]", header(name), re.MULTILINE)
    assert ranges, "nothing described"
    next_, open_end = 1, False
    for first, dots, last in ranges:
        assert int(first) == next_, "a gap or an overlap"
        assert not open_end, "something after an open end"
        open_end = bool(dots and not last)
        next_ = int(first) if open_end else int(last or first) + 1
    text = code(name)
    named = {int(position) for position in re.findall(rf"{table}\[(\d+)\]", text)}
    computed = bool(re.search(rf"{table}\[(?!\d+\])|(ipairs|unpack)\({table}\b", text))
    assert computed or named >= set(range(1, next_)), "described, and never read"
    assert open_end or max(named) < next_, "read, and not described"
    assert computed == open_end or name == "apply_events"


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_in_the_header_are_keys_of_the_layout(name):
    described = re.findall(r"\b([a-z]+:\{(?:ns|stream)\}[^\s,;`]*)", header(name))
    layout = set(re.findall(r"^\| `([^`]+)` \|", keys.__doc__, re.MULTILINE))
    assert described or re.search(r"^KEYS\[1\] +the stream$", header(name), re.MULTILINE)
    assert {key.rstrip(":") for key in described} - {key.partition(":<")[0] for key in layout} <= layout


# --- what scripts may do ---


@pytest.mark.parametrize("name", NAMES)
def test_every_command_names_a_declared_key(name):
    declared = DeclaredKeys(code(name))
    found = list(commands(name))
    assert found
    for word, key in found:
        assert key is not None, f"{word} without a key"
        assert declared.covers(key), f"{word} on {key}, which is not from KEYS for certain"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_forbidden_is_used(name):
    text = code(name)
    assert not FORBIDDEN & {word for word, _key in commands(name)}
    assert not re.search(r"\b(pcall|math\.random|os\.|loadstring|dofile|setfenv|redis\.sha1hex|replicate)", text)
    assert text.count("redis.call(") == len(list(calls(text, "redis.call"))), "redis.call is only called"
    assert not re.search(r"redis\.call(?!\()|redis\[", text), "redis.call under another name"


@pytest.mark.parametrize("name", NAMES)
def test_every_unpack_is_bounded(name):
    found = {(name, ", ".join(given)) for given in calls(code(name), "unpack")}
    assert found == {place for place in UNPACKS if place[0] == name}
    assert "table.unpack" not in code(name)


def test_the_lists_that_are_unpacked_are_short_indeed():
    full = memories.Memory(
        content="x", author="a", source_system="s", user_id="u", session_id="i", kind="k", tags=("t",),
        timestamp=1, importance=1.0, expires_at=1, metadata="{}",
    )  # fmt: skip
    assert {*full.stored()[::2]} == {*memories.FIELDS}
    assert len(full.stored()) + 10 < 100
    assert re.search(r"local size = math\.min\(CHUNK, count - from \+ 1\)", code("apply_events"))
    assert re.search(r"for j = 1, size do\s+terms\[j\] =", code("apply_events"))


@pytest.mark.parametrize("name", NAMES)
def test_checks_come_before_writes(name):
    """In the order of the text: no reading command and no refusal after the first writing command."""
    writing = scripts.WRITES | {"XGROUP"}
    text = code(name)
    sent = [(found.start(), found[1]) for found in re.finditer(r"(?:redis\.call|chunked)\('([A-Z]+)'", text)]
    writes = [at for at, word in sent if word in writing]
    if writes:
        assert max((at for at, word in sent if word not in writing), default=-1) < min(writes)
        assert text.rfind("error_reply") < min(writes)
        assert text.rfind("padded(") < min(writes), "it raises on what is no entry id"
        assert len(sent) == len(list(commands(name))) or name == "apply_events", "a command that is not seen here"


@pytest.mark.anyio
async def test_the_server_agrees_which_commands_write(database):
    """Scripts that claim to read only use reading commands; the others have one that writes."""
    for name in NAMES:
        words = {word for word, _key in commands(name)}
        read_only = set()
        for word in words:
            described = await database.execute_command("COMMAND", "INFO", word)
            if "readonly" in described[word.lower()]["flags"]:
                read_only.add(word)
        if source(name).startswith("#!lua flags=no-writes\n"):
            assert words == read_only, name
        else:
            assert words - read_only - {"XINFO"}, f"{name} could carry flags=no-writes"


@pytest.mark.anyio
async def test_the_server_knows_the_flags(database):
    """Each script, and each variant, is one that it can load and that its header describes."""
    for script in [*map(scripts.load, NAMES), *map(scripts.allowing_oom, ("prepare_events", "apply_events"))]:
        assert await database.script_load(script.source) == script.sha


# --- both sides of the border ---


def test_every_script_has_its_coroutine_and_every_coroutine_its_script():
    found = {
        name
        for name, function in inspect.getmembers(scripts, inspect.iscoroutinefunction)
        if function.__module__ == scripts.__name__
    }
    assert found - {"call"} == set(NAMES)
    for name in NAMES:
        signature = inspect.signature(getattr(scripts, name))
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
        assert f'"{name}"' in inspect.getsource(getattr(scripts, name))
        assert inspect.getdoc(getattr(scripts, name))


@pytest.mark.parametrize(
    ("name", "introduction", "statuses"),
    [("prepare_events", "Status: ", scripts.PrepareStatus), ("apply_events", "Returns ", scripts.ApplyStatus)],
)
def test_status_codes_are_the_same_in_header_lua_and_python(name, introduction, statuses):
    described = header(name).partition(f"\n{introduction}")[2]
    in_header = {word: int(value) for value, word in re.findall(r"\b(\d) ([A-Z_]{2,})\b", described)}
    assert in_header == {status.name: status.value for status in statuses}
    constants = {key: value for key, value in lua_constants(name).items() if key in in_header}
    assert constants == in_header
    for word in in_header:
        assert len(re.findall(rf"\b{word}\b", code(name))) >= 2, f"{word} is never used"


def lua_constants(name):
    """Upper-case locals of a script with their numbers."""
    found = {}
    for names, values in re.findall(r"^local ([A-Z_, ]+) = ([\d, ]+)$", code(name), re.MULTILINE):
        found |= dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    return found


def test_constants_are_the_same_on_both_sides():
    ours = {**vars(keys), **vars(memories), **vars(postings)}
    compared = set()
    for name in NAMES:
        for constant, value in lua_constants(name).items():
            if isinstance(ours.get(constant), int) and not isinstance(ours[constant], IntEnum):
                assert value == ours[constant], f"{constant} of {name}"
                compared.add((name, constant))
    assert compared == {
        ("apply_events", "INLINE_BYTES"),
        ("apply_events", "GENERATION_BYTES"),
        ("read_index", "GENERATION_BYTES"),
        ("prepare_events", "MAX_DOC"),
        ("repair_counters", "GENERATION_BYTES"),
        ("repair_counters", "MAX_DOC"),
        ("repair_journal", "GENERATION_BYTES"),
        ("repair_journal", "MAX_DOC"),
        ("repair_memories", "MAX_DOC"),
        ("repair_terms", "GENERATION_BYTES"),
        ("repair_terms", "MAX_DOC"),
    }


def test_sizes_that_lua_writes_as_numbers_are_those_of_the_records():
    text = code("apply_events")
    assert postings.POSTING.size == 6
    assert "#postings / 6" in text
    assert "for i = 1, #records, 6 do" in text
    assert "string.sub(records, i, i + 5)" in text
    assert postings.DF.size == 4
    assert "#dead / 4" in text
    assert "#value == 4" in text
    assert "4 + #records <= INLINE_BYTES" in text
    assert "'\\0\\0\\0\\0'" in text
    assert postings.GENERATION_BYTES == 4
    assert set(re.findall(r"struct\.\w+\('([^']+)'", text + code("read_index"))) == {
        postings.DF.format.replace("I", "I4")
    }


def test_chunks_hold_whole_pairs_and_stay_far_below_the_stack():
    for name in ("apply_events", "acknowledge"):
        chunk = lua_constants(name)["CHUNK"]
        assert chunk % 2 == 0
        assert chunk <= 1000
    assert all("CHUNK" not in lua_constants(name) for name in set(NAMES) - {"apply_events", "acknowledge"})


def test_the_longest_short_list_leaves_a_hash_in_its_compact_encoding():
    assert postings.INLINE_BYTES <= 64  # hash-max-listpack-value
    assert (postings.INLINE_BYTES - postings.DF.size) // postings.POSTING.size == 9


def test_document_numbers_end_below_the_mark_of_a_death():
    assert postings.MAX_DOC < postings.DEATH == 2**32 - 1


# --- calling ---


class Recorder:
    """Passes commands on and notes them; before each EVALSHA it can make the server forget its scripts."""

    def __init__(self, database, *, forget=False):
        self.sent = []
        self._database = database
        self._forget = forget

    async def execute_command(self, *command):
        self.sent.append(command)
        if self._forget and command[0] == "EVALSHA":
            await self._database.script_flush()
        return await self._database.execute_command(*command)


@pytest.mark.anyio
async def test_the_source_is_sent_once_and_the_digest_from_then_on(database):
    await database.script_flush()
    recorder = Recorder(database)
    for _ in range(3):
        assert await scripts.call(recorder, "read_ids", ["stats:{n}", "ids:{n}:0"], ["e", 7]) == [None]
    assert [command[0] for command in recorder.sent] == ["EVALSHA", "EVAL", "EVALSHA", "EVALSHA"]
    script = scripts.load("read_ids")
    assert [command[1] for command in recorder.sent[:2]] == [script.sha, script.source]
    assert {command[2:] for command in recorder.sent} == {(2, "stats:{n}", "ids:{n}:0", "e", 7)}
    assert await database.script_exists(script.sha) == [True]


@pytest.mark.anyio
async def test_a_server_that_forgets_before_every_call_is_still_served(database):
    recorder = Recorder(database, forget=True)
    for i in range(5):
        fields = [(b"event", b"write")]
        assert await scripts.dead_letter(
            recorder, "n", "m1", version=f"{i}-0", code="c", reason="r", now_ms=1, deliveries=1, fields=fields
        )
    assert [command[0] for command in recorder.sent] == ["EVALSHA", "EVAL"] * 5
    assert await database.execute_command("XLEN", "dead:{n}") == 5


@pytest.mark.anyio
async def test_an_error_of_the_script_is_passed_on_and_not_tried_again(database):
    await scripts.read_ids(database, "n", [0], epoch="")
    await database.set("stats:{n}", "of another type")
    recorder = Recorder(database)
    for _ in range(2):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await scripts.begin_reindex(recorder, "n", analyzer="a", force=False)
    assert [command[0] for command in recorder.sent].count("EVAL") <= 1
    assert recorder.sent[-1][0] == "EVALSHA"


@pytest.mark.anyio
async def test_a_loop_of_calls_ends_when_it_is_cancelled(database):
    """Each command is carried to its end; between two of them a cancelled caller is stopped."""
    calls = 0
    with anyio.CancelScope() as scope:
        while calls < 50:
            await scripts.read_ids(database, "n", [0], epoch="")
            calls += 1
            if calls == 10:
                scope.cancel()
    assert calls == 10
    assert await scripts.read_ids(database, "n", [0, 1], epoch="") == [None, None]


class Refusing:
    """A server that answers every command with an error."""

    def __init__(self, error):
        self.sent = 0
        self._error = error

    async def execute_command(self, *_command):
        self.sent += 1
        raise self._error


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error",
    [ConnectionError("gone"), TimeoutError("late"), OutOfMemoryError("full"), ResponseError("BUSY a script runs")],
    ids=["away", "late", "full", "busy"],
)
async def test_a_server_that_cannot_answer_now_is_reported_as_such_and_asked_once(error):
    database = Refusing(error)
    with pytest.raises(UnavailableError):
        await scripts.read_ids(database, "n", [0], epoch="")
    assert database.sent == 1


# --- the folder ---


def located(python_path):
    """Where a fresh process that imports jiyi from `python_path` finds its scripts, and what it can load."""
    report = (
        "from jiyi import scripts; print(scripts.folder()); "
        "print(sorted(p.name[:-4] for p in scripts.folder().iterdir())); print(scripts.load('apply_events').sha)"
    )
    done = subprocess.run(
        [sys.executable, "-c", report],
        env=os.environ | {"PYTHONPATH": str(python_path)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_checkout_has_its_scripts_beside_the_package():
    folder, found, sha = located(CHECKOUT)
    assert Path(folder) == CHECKOUT / "lua"
    assert found == str(NAMES)
    assert sha == scripts.load("apply_events").sha


def test_an_installed_package_has_its_scripts_inside(tmp_path):
    """Laid out as the wheel is, with another folder beside the package that must not be taken."""
    wheel = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"lua": "jiyi/lua"}
    shutil.copytree(CHECKOUT / "jiyi", tmp_path / "jiyi", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "lua", tmp_path / "jiyi" / "lua")
    (tmp_path / "lua").mkdir()
    folder, found, sha = located(tmp_path)
    assert Path(folder) == tmp_path / "jiyi" / "lua"
    assert found == str(NAMES)
    assert sha == scripts.load("apply_events").sha


async def test_scripts_that_write_with_several_commands_look_for_the_permission_first(database):
    """Which commands write the server says. What is put in takes the empty line behind the header."""
    used = {name: {word for word, _key in commands(name)} for name in NAMES}
    known = await database.execute_command("COMMAND", "INFO", *sorted(set().union(*used.values())))
    writing = {name.upper() for name, command in known.items() if "write" in command["flags"]}
    assert writing | {"XGROUP"} == scripts.WRITES | {"XGROUP"}
    for name in NAMES:
        writes = sorted(used[name] & scripts.WRITES)
        told, sent = source(name).splitlines(), scripts.load(name).source.splitlines()
        if len(writes) > 1:
            at = told.index("")
            assert f"ipairs({{{', '.join(map(repr, writes))}}}) do if not redis.acl_check_cmd(command" in sent[at]
            sent[at] = ""
        assert sent == told
