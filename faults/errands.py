"""What operators and careless programs do while everything runs: checks, re-analysis, dead letters, copies, claims."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import msgpack
import msgspec
from redis.exceptions import RedisError

from faults.members import environment_of
from faults.texts import attributes_of
from faults.traffic import NAMESPACES
from jiyi import dead_letters
from jiyi.connections import execute
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from faults.findings import Findings
    from faults.ledger import Sent
    from faults.service import Service
    from faults.traffic import Traffic
    from jiyi.dead_letters import DeadLetter
    from jiyi.producer import Producer

_COMMAND_S = 120
_MOST_COPIES = 10
_AT_ONCE = 20
_POISON_AGAIN = 0.2
"""Share of the poison that is replayed: each costs a worker process several times."""


class Errands:
    """One method an errand; the names are those of faults in a plan."""

    def __init__(self, service: Service, traffic: Traffic, producer: Producer, logs: Path, findings: Findings) -> None:
        self._service, self._traffic, self._producer, self._findings = service, traffic, producer, findings
        self._log = logs / "commands.log"
        self._repairs: bool | None = None

    async def burst(self, random: Random) -> None:
        """Write many memories at once: a backlog."""
        count = random.randint(50, 400)
        self._findings.note("burst", str(count))
        await self._traffic.burst(self._producer, count)

    async def copy_events(self, random: Random) -> None:
        """Append events again that were accepted before, under their old version, as a replay does.

        Only the newest of a memory, while nobody can delete that: the promise does not cover copies of events that
        come after a later delete, unless they come from the dead letters.
        """
        for event, content in random.sample(list(self._traffic.fresh), min(len(self._traffic.fresh), _AT_ONCE)):
            async with self._traffic.lock(event.key):
                newest = self._traffic.ledger.newest(event.key)
                if newest is not event or self._traffic.ledger.open(event.key):
                    continue
                for _ in range(random.randint(1, _MOST_COPIES)):
                    await self._copy(event, content)

    async def _copy(self, event: Sent, content: str) -> None:
        fields: dict[str, Any] = {"event": event.op, "ns": event.ns, "id": event.id, "origin": event.entry}
        if event.op == "write":
            fields |= {"content": content, **attributes_of(content)}
        try:
            await execute(
                self._service.database, "XADD", self._service.settings.stream, "*", "payload", msgpack.packb(fields)
            )
        except UnavailableError:
            self._traffic.frozen.add(event.key)
        else:
            self._findings.done["copies"] += 1

    async def claim_for_the_dead(self, random: Random) -> None:
        """Give pending entries to a consumer that does not exist."""
        stream, settings = self._service.settings.stream, self._service.settings
        with suppress(UnavailableError, RedisError):
            rows = await execute(self._service.database, "XPENDING", stream, settings.group, "-", "+", 100)
            entries = [row[0].decode() for row in rows]
            if entries:
                chosen = random.sample(entries, min(len(entries), random.randint(1, _AT_ONCE)))
                ghost = f"ghost-{random.randint(1, 3)}"
                await execute(self._service.database, "XCLAIM", stream, settings.group, ghost, 0, *chosen, "JUSTID")
                self._findings.did("claimed", f"{len(chosen)} for {ghost}")

    async def replay_letters(self, random: Random) -> None:
        """Append dead letters again."""
        for letter in await self._letters(random):
            if letter.code == "max_deliveries" and random.random() > _POISON_AGAIN:
                continue
            strange = self._traffic.strange
            event = strange.accepted.get(letter.entry)
            moves = event is not None and not event.versioned
            if moves:
                strange.excused.add(letter.entry)
                strange.unknown += 1
            try:
                entry = await dead_letters.replay(self._service.database, self._service.settings.stream, letter)
            except UnavailableError:
                continue
            if moves and event is not None and entry is not None:
                strange.accepted[entry] = event
                strange.unknown -= 1
            self._findings.did("replayed", f"{letter.entry} of {letter.ns!r} as {entry}: {letter.code}")

    async def drop_letters(self, random: Random) -> None:
        """Throw dead letters away."""
        for letter in await self._letters(random):
            self._traffic.dropped.add((letter.ns, letter.entry))
            with suppress(UnavailableError):
                await dead_letters.drop(self._service.database, letter)
                self._findings.did("dropped", f"{letter.entry} of {letter.ns!r}: {letter.code}")

    async def _letters(self, random: Random) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        with suppress(UnavailableError):
            for ns in [*NAMESPACES, "default"]:
                found += [letter async for letter in dead_letters.letters(self._service.database, ns)]
        return random.sample(found, min(len(found), random.randint(1, _AT_ONCE)))

    async def check(self, random: Random) -> None:
        """`jiyi check`."""
        del random
        await self.prove("check")

    async def repair(self, random: Random) -> None:
        """`jiyi check --repair`, where there is such a thing; on an index that needs none."""
        del random
        if self._repairs is None:
            _, help_text = await self._run("check", "--help")
            self._repairs = b"--repair" in help_text
        if self._repairs:
            await self.prove("check", "--repair")

    async def prove(self, *command: str) -> None:
        """Run a check: it must find nothing, unless the server has died meanwhile."""
        lives = self._service.server.lives
        code, output = await self._run(*command, "--json")
        same = lives == self._service.server.lives
        try:
            reports = msgspec.json.decode(output)
        except msgspec.DecodeError:  # it could not ask
            self._findings.note("check", f"status {code}, no answer")
            if same and code not in (0, 1):
                self._findings.violate("check", f"status {code}")
            return
        bad = [report for report in reports if not report["ok"] or report.get("repaired")]
        self._findings.did("checked" if same else "checked in vain", f"{len(reports)} namespaces")
        if same and (bad or code):
            self._findings.violate("check", f"status {code}: {msgspec.json.encode(bad).decode()}")

    async def reindex(self, random: Random) -> None:
        """`jiyi reindex --force` of one namespace."""
        ns = random.choice(NAMESPACES)
        code, output = await self._run("reindex", "--force", "--json", "--ns", ns)
        self._findings.did("reindexed" if code == 0 else "reindex broken off", f"{ns!r} {output.decode()[:200]}")

    async def _run(self, *arguments: str) -> tuple[int, bytes]:
        """Run a command of the command line; gives its status and what it printed. Messages go to a log."""
        self._findings.note("command", "jiyi " + " ".join(arguments))
        environment = environment_of(self._service.settings)
        with self._log.open("ab") as log:
            try:
                with anyio.fail_after(_COMMAND_S):
                    done = await anyio.run_process(
                        [sys.executable, "-m", "jiyi", *arguments],
                        env=environment, check=False, stderr=log, start_new_session=True,
                    )  # fmt: skip
            except TimeoutError:
                self._findings.violate("command", f"jiyi {' '.join(arguments)} took longer than {_COMMAND_S} s")
                return -1, b""
        return done.returncode, done.stdout
