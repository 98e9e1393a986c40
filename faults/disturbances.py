"""What is done to processes, to the server, and to connections."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import anyio
from redis.exceptions import RedisError

from faults.toxics import Bandwidth, Latency, Slicer, Timeout
from jiyi.connections import execute
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from random import Random

    from faults.connections import Direction
    from faults.findings import Findings
    from faults.members import Member
    from faults.proxy import Proxy
    from faults.service import Service

_WORKING = (
    "apply_events", "apply_events", "prepare_events", "acknowledge", "acknowledge", "XREADGROUP", "XAUTOCLAIM",
    "XCLAIM", "XPENDING", "XINFO", "dead_letter", "settle_replay", "sweep_stream", "drop_tombstones", "PUBLISH", "SADD",
)  # fmt: skip
_READING = ("XADD", "read_index", "read_documents", "read_ids", "read_readiness", "XRANGE", "PSUBSCRIBE")
_REQUESTS = {"producer": ("XADD",), "worker": _WORKING, "reader": _READING}
"""Requests that are lost, or whose answers are, by who sends them."""


class Disturbances:
    """One method a fault; each ends when the fault has been taken back."""

    def __init__(self, service: Service, findings: Findings) -> None:
        self._service, self._findings = service, findings
        self._server_turn = anyio.Lock()

    async def kill_worker(self, random: Random) -> None:
        """SIGKILL."""
        self._signal(random.choice(self._service.workers), signal.SIGKILL)

    async def kill_reader(self, random: Random) -> None:
        """SIGKILL."""
        self._signal(random.choice(self._service.readers), signal.SIGKILL)

    async def terminate_worker(self, random: Random) -> None:
        """SIGTERM, and sometimes another before it is through."""
        await self._terminate(random, random.choice(self._service.workers))

    async def terminate_reader(self, random: Random) -> None:
        """SIGTERM, and sometimes another before it is through."""
        await self._terminate(random, random.choice(self._service.readers))

    async def stop_worker(self, random: Random) -> None:
        """SIGSTOP, and SIGCONT after its entries have been taken over."""
        await self._stop(random, random.choice(self._service.workers), 4.0)

    async def stop_reader(self, random: Random) -> None:
        """SIGSTOP, SIGCONT."""
        await self._stop(random, random.choice(self._service.readers), 3.0)

    async def kill_server(self, random: Random) -> None:
        """SIGKILL, and a start on its files."""
        async with self._server_turn:
            self._findings.note("kill_server")
            with anyio.CancelScope(shield=True):
                await self._service.server.kill()
                await anyio.sleep(random.uniform(0, 1.5))
                await self._service.server.start()
            cut = self._service.server.cuts[-1]
            self._findings.note("server_started", f"its stream ends at {cut.after[0]}-{cut.after[1]}")

    async def stop_server(self, random: Random) -> None:
        """SIGSTOP and SIGCONT: a server that answers nobody for a while."""
        async with self._server_turn:
            pause_s = random.uniform(0.1, 3.0)
            self._findings.note("stop_server", f"{pause_s:.1f} s")
            self._service.server.send(signal.SIGSTOP)
            try:
                await anyio.sleep(pause_s)
            finally:
                self._service.server.send(signal.SIGCONT)

    async def rewrite_file(self, random: Random) -> None:
        """Let the server rewrite its append-only file, while the rest goes on."""
        del random
        await self._command("BGREWRITEAOF")

    async def flush_scripts(self, random: Random) -> None:
        """SCRIPT FLUSH, several times."""
        for _ in range(random.randint(1, 20)):
            await self._command("SCRIPT FLUSH", random.choice(["SYNC", "ASYNC"]))
            await anyio.sleep(0.05)

    async def kill_clients(self, random: Random) -> None:
        """CLIENT KILL of everybody."""
        kind = random.choice(["normal", "normal", "pubsub"])
        await self._command("CLIENT KILL", "TYPE", kind, "SKIPME", random.choice(["yes", "no"]))

    async def pause_clients(self, random: Random) -> None:
        """CLIENT PAUSE."""
        await self._command("CLIENT PAUSE", random.randint(100, 2_500), random.choice(["ALL", "WRITE"]))

    async def squeeze_memory(self, random: Random) -> None:
        """Set maxmemory about where the server is, and take it back."""
        async with self._server_turn:
            with suppress(UnavailableError, RedisError):
                info: Any = await self._service.database.info("memory")
                most = max(1, info["used_memory"] + random.randint(-200_000, 200_000))
                await self._command("CONFIG SET", "maxmemory", most)
                await anyio.sleep(random.uniform(0.5, 3.0))
            await self.release_memory()

    async def release_memory(self) -> None:
        """Set no limit; until it is done."""
        while True:
            if await self._command("CONFIG SET", "maxmemory", 0):
                return
            await anyio.sleep(0.1)

    async def slow_line(self, random: Random) -> None:
        """Latency with jitter, or little bandwidth."""
        toxic: Latency | Bandwidth = Latency(random.uniform(20, 300), 20, seed=random.getrandbits(32))
        if random.random() < 0.3:  # noqa: PLR2004
            toxic = Bandwidth(random.randint(10_000, 200_000))
        with self._line(random, "slow_line").toxic(toxic):
            await anyio.sleep(random.uniform(0.5, 4.0))

    async def slice_line(self, random: Random) -> None:
        """Bytes come in small pieces."""
        with self._line(random, "slice_line").toxic(Slicer(random.randint(50, 500))):
            await anyio.sleep(random.uniform(0.5, 3.0))

    async def cut_line(self, random: Random) -> None:
        """The connections of one process end."""
        self._line(random, "cut_line").cut()

    async def reset_line(self, random: Random) -> None:
        """The connections of one process are reset."""
        self._line(random, "reset_line").reset()

    async def refuse_line(self, random: Random) -> None:
        """One process finds no server for a while."""
        line = self._line(random, "refuse_line")
        line.refuse()
        line.cut()
        try:
            await anyio.sleep(random.uniform(0.2, 3.0))
        finally:
            line.accept()

    async def half_open_line(self, random: Random) -> None:
        """Nothing passes, in one direction or both, and then everything at once."""
        direction: Direction | None = random.choice(["upstream", "downstream", None])
        with self._line(random, f"half_open_line {direction or 'both'}").toxic(Timeout(), direction):
            await anyio.sleep(random.uniform(0.5, 4.0))

    async def lose_answer(self, random: Random) -> None:
        """A connection ends when the server has executed a certain request, and its client does not know."""
        await self._lose(random, "reply")

    async def lose_request(self, random: Random) -> None:
        """A connection ends when a certain request is about to reach the server."""
        await self._lose(random, "request")

    async def _lose(self, random: Random, at: Any) -> None:
        owner = self._owner(random)
        name = random.choice(_REQUESTS[owner.partition("-")[0]])
        how: Literal["cut", "reset"] = random.choice(["cut", "reset"])
        line, nth = self._service.lines[owner], random.randint(1, 3)
        with line.failpoint(name, at=at, do=how, nth=nth, times=random.randint(1, 3)) as point:
            await anyio.sleep(random.uniform(0.5, 3.0))
        self._findings.note(f"{how} at {at}", f"{owner}, {name} number {nth}: {point.hits} times")
        self._findings.done["requests lost" if at == "request" else "answers lost"] += point.hits

    def _owner(self, random: Random) -> str:
        return random.choice(sorted(self._service.lines))

    def _line(self, random: Random, what: str) -> Proxy:
        owner = self._owner(random)
        self._findings.note(what, owner)
        return self._service.lines[owner]

    def _signal(self, member: Member, signum: signal.Signals) -> None:
        self._findings.note(signum.name, member.name)
        member.send(signum)

    async def _terminate(self, random: Random, member: Member) -> None:
        self._signal(member, signal.SIGTERM)
        if random.random() < 0.3:  # noqa: PLR2004
            await anyio.sleep(random.uniform(0, 0.5))
            self._signal(member, random.choice([signal.SIGTERM, signal.SIGKILL]))

    async def _stop(self, random: Random, member: Member, most_s: float) -> None:
        self._signal(member, signal.SIGSTOP)
        try:
            await anyio.sleep(random.uniform(0.2, most_s))
        finally:
            self._signal(member, signal.SIGCONT)

    async def _command(self, *command: Any) -> bool:
        """Run a command of an administrator; False when the server cannot do it now."""
        self._findings.note("command", " ".join(map(str, command)))
        try:
            await execute(self._service.database, *command)
        except (UnavailableError, RedisError) as error:
            self._findings.note("command failed", str(error))
            return False
        return True
