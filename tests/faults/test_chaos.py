"""The chaos driver: it runs, it sees a loss, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from conftest import wait_until

from faults.chaos import Options, run
from faults.members import ROOT
from faults.report import Report
from faults.sick_worker import ACKNOWLEDGE_FIRST

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary folders and logs go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left_behind(folder):
    return [path.name for path in folder.glob("jiyi-chaos-*")]


async def test_a_service_that_is_broken_at_random_loses_nothing(folder):
    report = await run(Options(seed=20, seconds=12, workers=3, pace_s=0.4, folder=folder))
    assert report.ok, str(report)
    verdict = report.verdict
    assert verdict.sent > 100
    assert verdict.sent == verdict.unknown + verdict.applied + verdict.superseded + verdict.dead_lettered + (
        verdict.dropped + verdict.vanished
    )
    assert report.answers > 50
    assert sum(report.faults.values()) > 10
    assert left_behind(folder) == []
    assert {path.name for path in (folder / "chaos-20").iterdir()} == {"faults.log", "report.json"}
    assert msgspec.json.decode((folder / "chaos-20" / "report.json").read_bytes(), type=Report) == report


async def test_workers_that_acknowledge_before_they_apply_are_found_out(folder):
    commands = [["faults.sick_worker", ACKNOWLEDGE_FIRST]] * 3
    weights = {"kill_worker": 1.0}
    report = await run(
        Options(seed=21, seconds=8, pace_s=0.5, weights=weights, commands=commands, keep_going=True, folder=folder)
    )
    assert not report.ok
    assert report.verdict.lost, str(report)
    assert any(violation.split(", ")[1].startswith("lost") for violation in report.violations)
    logs = {path.name for path in (folder / "chaos-21").iterdir()}
    assert logs >= {"faults.log", "server.log", "ledger.jsonl", "worker-0.log", "reader-0.log", "data", "report.json"}
    assert left_behind(folder) == []


async def test_the_same_seed_breaks_the_same_things(folder):
    from itertools import islice

    from faults import plan

    first, second, other = (list(islice(plan.steps(seed, pace_s=1), 200)) for seed in (5, 5, 6))
    assert first == second != other
    assert {step.name for step in first} > {"kill_worker", "kill_server", "lose_answer"}


async def test_an_interrupt_ends_everything(folder):
    command = [sys.executable, "-m", "faults.chaos", "--seed", "22", "--seconds", "60", "--folder", str(folder)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as driver:
        log = folder / "chaos-22" / "faults.log"

        async def breaking():
            assert driver.poll() is None, driver.stderr.read()
            return log.exists() and len(log.read_text().splitlines()) > 5

        try:
            await wait_until(breaking, "something is broken", timeout_s=120)
            started = children(driver.pid)
        finally:
            driver.send_signal(signal.SIGINT)
        assert len(started) >= 4
        _, said = await anyio.to_thread.run_sync(driver.communicate)
    assert driver.returncode == 130
    assert said.splitlines()[0] == "seed 22"
    assert "interrupted, seed 22" in said
    assert not any(map(alive, started))
    assert left_behind(folder) == []


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    return Path(f"/proc/{pid}").exists()
