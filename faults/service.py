"""The whole service under chaos: server, workers, readers, and the proxies that some of them go through."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec

from faults.members import Member
from faults.proxy import Proxy
from faults.server import ChaosServer
from jiyi.client import Client
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.settings import Settings
from jiyi.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from faults.findings import Findings
    from jiyi.connections import Database

READERS = 2
ANSWER_S = 30.0
"""Far longer than any answer may take, stopped processes and outages included: one that takes longer hangs."""
_START_S = 120
"""The first start of a reader compiles the scoring kernel."""
_POLL_S = 0.1


class Service:
    """All processes of one run.

    `lines` are the proxies by the name of who goes through; producers have one too. `database` is a direct client.
    """

    def __init__(self, settings: Settings, server: ChaosServer, findings: Findings) -> None:
        self.settings, self.server, self.findings = settings, server, findings
        self.lines: dict[str, Proxy] = {}
        self.members: list[Member] = []
        self.clients: list[Client] = []
        """One client for each reader, in their order."""
        self.database: Database
        self.stream: EventStream

    @property
    def workers(self) -> list[Member]:
        """All worker processes."""
        return [member for member in self.members if member.kind == "worker"]

    @property
    def readers(self) -> list[Member]:
        """All reader processes."""
        return [member for member in self.members if member.kind == "reader"]

    async def close(self) -> None:
        """End all members, readers last."""
        for group in (self.workers, self.readers):
            async with anyio.create_task_group() as tasks:
                for member in group:
                    tasks.start_soon(member.close)

    async def answering(self) -> None:
        """Wait until every reader answers. Raises `TimeoutError`."""
        with anyio.fail_after(_START_S):
            for client in self.clients:
                while True:
                    if await _answers(client):
                        break
                    await anyio.sleep(_POLL_S)


@asynccontextmanager
async def running(
    folder: Path, logs: Path, findings: Findings, workers: Sequence[Sequence[str]]
) -> AsyncIterator[Service]:
    """Run a service of these workers (arguments of Python's -m) and two readers until the end of the context."""
    port = _free_port()
    settings = Settings(
        redis_url=f"redis://127.0.0.1:{port}", data_dir=folder, max_backlog=2_000,
        claim_idle_ms=1_000, sweep_ms=300, block_ms=400,
        document_timeout_ms=800, drain_ms=3_000, redis_timeout_ms=2_000, confirm_ms=1_000, max_wait_ms=3_000,
        max_content_bytes=65_536, batch=32,
    )  # fmt: skip
    server = ChaosServer(folder, logs / "server.log", port, settings.stream)
    service = Service(settings, server, findings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_shielded, server.stop)
        await server.start()
        await _open(service, stack, logs, workers)
        async with anyio.create_task_group() as tasks:
            try:
                _keep(service, tasks)
                await service.answering()
                yield service
            finally:
                with anyio.CancelScope(shield=True):
                    await service.close()
                tasks.cancel_scope.cancel()


async def _open(service: Service, stack: AsyncExitStack, logs: Path, workers: Sequence[Sequence[str]]) -> None:
    settings, findings = service.settings, service.findings
    service.database = await connect(settings)
    stack.push_async_callback(service.database.aclose)
    service.stream = EventStream(service.database, settings.stream, settings.group)

    async def through(name: str, settings: Settings) -> Settings:
        service.lines[name] = line = await stack.enter_async_context(Proxy(settings.redis_url))
        return msgspec.structs.replace(settings, redis_url=line.url)

    await through("producer", settings)
    for i, command in enumerate(workers):
        name, own = f"worker-{i}", settings
        if i % 2:
            own = await through(name, settings)
        log = logs / f"{name}.log"
        service.members.append(Member(name, "worker", command, own, log, findings, service.lines.get(name)))
    for i in range(READERS):
        name, own = f"reader-{i}", msgspec.structs.replace(settings, api_port=_free_port())
        if i % 2:
            own = await through(name, own)
        log = logs / f"{name}.log"
        service.members.append(Member(name, "reader", ["jiyi_api"], own, log, findings, service.lines.get(name)))
        client = Client(f"http://127.0.0.1:{own.api_port}", timeout_s=ANSWER_S)
        service.clients.append(await stack.enter_async_context(client))


def _keep(service: Service, tasks: TaskGroup) -> None:
    for member in service.members:
        tasks.start_soon(member.keep)


def sick_workers(count: int) -> list[list[str]]:
    """Commands of `count` workers as everybody runs them, but for certain texts that kill them."""
    return [["faults.sick_worker"]] * count


async def _answers(client: Client) -> bool:
    try:
        await client.search("一")
    except UnavailableError:
        return False
    return True


async def _shielded(close: object) -> None:
    with anyio.CancelScope(shield=True):
        await close()  # type: ignore[operator]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
