"""`jiyi check --repair`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
import anyio.to_thread
import pytest

from jiyi.analysis import Analyzer
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change

from .namespaces import memory

pytestmark = pytest.mark.anyio


async def test_the_command_says_what_it_did_and_exits_by_what_is_left(database, settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment |= settings.to_environment()

    def run(*options):
        command = [sys.executable, "-m", "jiyi", "check", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    analyzer = Analyzer()
    one = Memory(content="张工修好了 Redis 超时", tags=("a",))
    change = Change(id="m1", version="1-0", memory=one, terms=analyzer.terms(one.content))
    await IndexWriter(database, analyzer.fingerprint).apply("n", [change])
    await database.hset(memory("m1"), "length", 99)
    assert (await anyio.to_thread.run_sync(run, "--json"))[0] == 1
    status, printed = await anyio.to_thread.run_sync(run, "--repair", "--json")
    [found] = json.loads(printed)
    assert status == 0
    assert (found["namespace"], found["ok"], found["documents"], found["problems"]) == ("n", True, 1, [])
    assert found["repaired"]["length"] == 1
    assert (found["unrepaired"], found["refused"], found["done"]["memories"]) == ({}, "", 1)
    await database.hset(memory("m1"), "length", 99)
    await database.set("foreign:{n}", "1")
    status, printed = await anyio.to_thread.run_sync(run, "--repair")
    assert status == 1
    assert "repaired: 1 length" in printed
    assert "not repaired: 1 stray_key" in printed
    await database.delete("foreign:{n}")
    assert (await anyio.to_thread.run_sync(run, "--json"))[0] == 0
