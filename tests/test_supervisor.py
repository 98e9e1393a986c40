"""The supervisor, with real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import anyio
import pytest

from jiyi import supervisor as supervisor_module
from jiyi.supervisor import Child, Supervisor

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")

# A child: writes what happens to it into a file, and takes its time (or for ever) to stop.
SERVICE = """
import os, signal, sys, time
name, diary, stop_s = sys.argv[1], sys.argv[2], float(sys.argv[3])

def say(word):
    with open(diary, "a") as file:
        file.write(f"{name} {word} {os.getpid()}\\n")

def stop(signum, frame):
    say("term")
    time.sleep(stop_s)
    say("end")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: say("interrupt"))
say("up")
while True:
    signal.pause()
"""

# A program that supervises the children given as "group name stop_s timeout_s" and exits as told.
PROGRAM = """
import anyio, sys
from jiyi.supervisor import Child, Supervisor

service, diary, *specs = sys.argv[1:]
groups = {}
for spec in specs:
    group, name, stop_s, timeout_s = spec.split()
    command = [sys.executable, "-S", "-c", service, name, diary, stop_s]
    groups.setdefault(group, []).append(Child(name, command, stop_timeout_s=float(timeout_s)))

supervisor = Supervisor(list(groups.values()), on_event=lambda event, /, **fields: None)
sys.exit(anyio.run(supervisor.run))
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def events():
    return []


@pytest.fixture
def on_event(events):
    return lambda event, /, **fields: events.append((event, fields))


@pytest.fixture
def diary(tmp_path):
    path = tmp_path / "diary"
    path.touch()
    return path


@pytest.fixture
def supervise(diary):
    """Start PROGRAM and wait until its children are up; afterwards nothing of it is left."""
    started = []

    def start(*specs):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, SERVICE, str(diary), *specs], start_new_session=True)
        started.append(process)
        until(lambda: len(words(diary, "up")) == len(specs), "children up")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for pid in pids(diary):
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def until(predicate, description, timeout_s=8.0):
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {description}"
        time.sleep(0.01)


def words(diary, word=None):
    """Return "name word" for each line of the diary, or the names that have said the word."""
    lines = [line.split() for line in diary.read_text().splitlines()]
    return (
        [f"{name} {said}" for name, said, _ in lines]
        if word is None
        else [line[0] for line in lines if line[1] == word]
    )


def pids(diary):
    return {int(line.split()[2]) for line in diary.read_text().splitlines()}


def is_running(pid):
    """Whether the process exists and is not a zombie that waits for a lazy init."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()[:1] not in ("", "Z")


def exiting(code):
    return ["/bin/sh", "-c", f"exit {code}"]


class TestStop:
    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_the_groups_are_stopped_in_order_and_each_at_once(self, supervise, diary, signum):
        process = supervise("front worker 0.2 5", "front api 0.2 5", "back store 0 5")
        process.send_signal(signum)
        assert process.wait(8) == 0
        said = [line for line in words(diary) if not line.endswith("up")]
        assert sorted(said[:2]) == ["api term", "worker term"]
        assert sorted(said[2:4]) == ["api end", "worker end"]
        assert said[4:] == ["store term", "store end"]
        assert not any(map(is_running, pids(diary)))

    def test_ctrl_c_in_the_terminal_reaches_the_supervisor_alone(self, supervise, diary):
        process = supervise("front worker 0 5")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(8) == 0
        assert words(diary) == ["worker up", "worker term", "worker end"]

    def test_a_child_past_its_own_deadline_is_killed(self, supervise, diary):
        process = supervise("front slow 60 0.1", "front quick 0.3 5", "back store 0 5")
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 1
        assert words(diary, "end") == ["quick", "store"]
        assert not any(map(is_running, pids(diary)))

    def test_a_second_signal_kills_at_once(self, supervise, diary):
        process = supervise("front slow 60 60", "back store 60 60")
        process.send_signal(signal.SIGINT)
        until(lambda: words(diary, "term") == ["slow"], "the first group stops")
        process.send_signal(signal.SIGINT)
        assert process.wait(8) == 1
        assert words(diary, "end") == []
        assert not any(map(is_running, pids(diary)))

    @linux_only
    def test_children_are_told_to_stop_when_the_supervisor_is_killed(self, supervise, diary):
        process = supervise("front worker 0 5", "back store 0 5")
        process.kill()
        process.wait()
        until(lambda: not any(map(is_running, pids(diary))), "children gone")
        assert set(words(diary, "term")) == set(words(diary, "end")) == {"store", "worker"}


@pytest.mark.anyio
class TestRestart:
    async def test_the_pause_doubles_up_to_its_limit(self, events, on_event, monkeypatch):
        monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
        monkeypatch.setattr(supervisor_module, "MAX_DELAY_S", 0.03)
        exits = []

        def count(event, /, **fields):
            on_event(event, **fields)
            if event == "child_exited":
                exits.append((fields["code"], fields["restart_in_s"], anyio.current_time()))
            elif event == "child_started" and exits:
                assert anyio.current_time() - exits[-1][2] >= exits[-1][1]
            if len(exits) == 4:
                supervisor.stop()

        supervisor = Supervisor([[Child("failing", exiting(3))]], on_event=count)
        with anyio.fail_after(8):
            assert await supervisor.run() == 0
        assert [exit_[:2] for exit_ in exits] == [(3, 0.01), (3, 0.02), (3, 0.03), (3, 0.03)]
        assert [event for event, _ in events] == [*["child_started", "child_exited"] * 4, "stopping"]
        assert events[-1] == ("stopping", {"signal": None})

    async def test_a_child_that_has_lived_long_begins_with_the_first_pause_again(self, events, on_event, monkeypatch):
        monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
        monkeypatch.setattr(supervisor_module, "STEADY_S", 0)

        def count(event, /, **fields):
            on_event(event, **fields)
            if len(events) == 6:
                supervisor.stop()

        supervisor = Supervisor([[Child("failing", exiting(0))]], on_event=count)
        with anyio.fail_after(8):
            await supervisor.run()
        assert [fields["restart_in_s"] for event, fields in events if event == "child_exited"] == [0.01] * 3

    async def test_a_killed_child_is_restarted_and_the_others_are_left_alone(
        self, events, on_event, diary, monkeypatch
    ):
        monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
        commands = {name: [sys.executable, "-S", "-c", SERVICE, name, str(diary), "0"] for name in ("a", "b")}
        supervisor = Supervisor([[Child(*pair) for pair in commands.items()]], on_event=on_event)

        async def drive():
            await self.until(lambda: sorted(words(diary)) == ["a up", "b up"])
            victim = next(fields["pid"] for event, fields in events if fields["name"] == "a")
            os.kill(victim, signal.SIGKILL)
            await self.until(lambda: sorted(words(diary)) == ["a up", "a up", "b up"])
            supervisor.stop()

        with anyio.fail_after(8):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drive)
                assert await supervisor.run() == 0
        assert ("child_exited", {"name": "a", "code": -9, "restart_in_s": 0.01}) in events
        assert sorted(words(diary, "end")) == ["a", "b"]

    async def test_a_stop_does_not_wait_for_a_pause(self, on_event, monkeypatch):
        monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 60)

        def stop_in_pause(event, /, **fields):
            on_event(event, **fields)
            if event == "child_exited":
                supervisor.stop()

        supervisor = Supervisor([[Child("failing", exiting(1))]], on_event=stop_in_pause)
        with anyio.fail_after(5):
            assert await supervisor.run() == 0

    async def test_a_refused_configuration_ends_everything_with_its_code(self, events, on_event, diary):
        keeper = Child("keeper", [sys.executable, "-S", "-c", SERVICE, "keeper", str(diary), "0"])
        refusing = Child("refusing", ["/bin/sh", "-c", f"until [ -s {diary} ]; do sleep 0.01; done; exit 78"])
        with anyio.fail_after(8):
            assert await Supervisor([[refusing], [keeper]], on_event=on_event).run() == 78
        assert ("child_exited", {"name": "refusing", "code": 78, "restart_in_s": None}) in events
        assert [fields["name"] for event, fields in events if event == "child_started"].count("refusing") == 1
        assert words(diary) == ["keeper up", "keeper term", "keeper end"]

    async def test_a_cancelled_run_stops_the_children(self, on_event, diary):
        keeper = Child("keeper", [sys.executable, "-S", "-c", SERVICE, "keeper", str(diary), "0"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Supervisor([[keeper]], on_event=on_event).run)
            await self.until(lambda: words(diary) == ["keeper up"])
            tasks.cancel_scope.cancel()
        assert words(diary) == ["keeper up", "keeper term", "keeper end"]

    async def test_a_child_gets_its_own_variables_and_ours(self, on_event, tmp_path, monkeypatch):
        monkeypatch.setenv("OURS", "1")
        command = ["/bin/sh", "-c", f"echo $OURS $ITS > {tmp_path}/answer; exit 78"]
        with anyio.fail_after(8):
            await Supervisor([[Child("a", command, {"ITS": "2"})]], on_event=on_event).run()
        assert (tmp_path / "answer").read_text() == "1 2\n"

    async def test_a_command_that_does_not_exist_is_a_failing_child(self, events, capfd):
        def stop(event, /, **fields):
            events.append((event, fields))
            if event == "child_exited":
                supervisor.stop()

        supervisor = Supervisor([[Child("lost", ["/no/such/program"])]], on_event=stop)
        with anyio.fail_after(8):
            assert await supervisor.run() == 0
        assert events[1] == ("child_exited", {"name": "lost", "code": 1, "restart_in_s": 0.5})
        assert capfd.readouterr().err == "/no/such/program: No such file or directory\n"

    @staticmethod
    async def until(predicate):
        deadline = anyio.current_time() + 8
        while not predicate():
            assert anyio.current_time() < deadline
            await anyio.sleep(0.01)
