"""A private service: `jiyi up` with data of its own, for as long as a context lasts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jiyi.data_directory import find_running
from jiyi.errors import ServerStartError, UnavailableError
from jiyi.settings import PREFIX
from jiyi.sync_client import SyncClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jiyi.settings import Settings

_START_S = 120.0  # the first start compiles the scoring kernel
_STOP_S = 30.0


class Service(NamedTuple):
    """Where a service is: its server, and its reader."""

    redis_url: str
    api_url: str


@contextmanager
def private_service(settings: Settings, workers: int = 2) -> Iterator[Service]:
    """Run a service with these settings, but on an empty server of its own; all of it is gone afterwards.

    Raises `ServerStartError` when it does not come up.
    """
    folder = Path(tempfile.mkdtemp(prefix="jiyi-eval-"))
    private = msgspec.structs.replace(
        settings, redis_url="", data_dir=folder, redis_port=0, api_port=_free_port(), api_host="127.0.0.1"
    )
    log = folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "jiyi", "up", "--workers", str(workers)],
            env={**environment, **private.to_environment()},
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us, who then stop it in order
        )
    try:
        yield _wait_for(process, private, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], settings: Settings, log: Path) -> Service:
    api_url = f"http://{settings.api_host}:{settings.api_port}"
    deadline = time.monotonic() + _START_S
    with SyncClient(api_url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.search("ready?", limit=0)
            except UnavailableError:
                time.sleep(0.1)
            else:
                return Service(find_running(settings.data_dir) or "", api_url)
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    raise ServerStartError("the private service did not start: " + "; ".join(last))
