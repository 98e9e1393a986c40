"""The end of a run: everything comes to rest, and then everything is accounted for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
from redis.exceptions import RedisError

from faults.reference import Reference
from faults.texts import DEADLY, ENDLESS, MARK
from faults.traffic import IDS, NAMESPACES
from faults.verification import Verdict, verify
from jiyi import dead_letters, keys
from jiyi.connections import execute, translated_errors
from jiyi.errors import ApiError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from faults.findings import Findings
    from faults.service import Service
    from faults.traffic import Traffic
    from jiyi.analysis import Analyzer
    from jiyi.dead_letters import DeadLetter

QUIET_S = 180
"""Poison is tried several times, each ending a process; everything else takes seconds."""
_QUIET_LOOKS = 3
_LOOK_S = 0.3
_QUESTIONS = 5
_IDLE_CONSUMER_MS = 75_000
"""A consumer that holds nothing and is idle for a minute is removed with the next sweep; and some patience."""
_CONNECTIONS = 120
"""Two readers whose pools have been full once, and everybody else's few."""
_LOSSES = ("events_lost", "event_lost", "group_wiped", "apply_refused", "sweep_refused", "worker_refused",
           "request_failed", "Traceback (most recent call last)")  # fmt: skip
"""Words of logs that nobody should find after faults that lose nothing."""


class Settlement:
    """Waits for rest, and looks at everything that is left."""

    def __init__(self, service: Service, traffic: Traffic, analyzer: Analyzer, findings: Findings) -> None:
        self._service, self._traffic, self._analyzer, self._findings = service, traffic, analyzer, findings
        self.seconds = 0.0
        """How long it took until the stream was empty."""
        self.innocent = 0
        """Dead letters of events that do no harm: whoever had them died, again and again."""

    async def rest(self) -> bool:
        """Wait until everything is processed and trimmed; False, and a violation, when it never is."""
        started, quiet = time.monotonic(), 0
        state: Any = None
        with anyio.move_on_after(QUIET_S):
            while quiet < _QUIET_LOOKS:
                await anyio.sleep(_LOOK_S)
                try:
                    state = await self._service.stream.state(time.time_ns() // 10**6)
                    length = int(await execute(self._service.database, "XLEN", self._service.settings.stream))
                except (UnavailableError, RedisError):
                    quiet = 0
                    continue
                quiet = quiet + 1 if state and not state.lag and not state.pending and not length else 0
        self.seconds = time.monotonic() - started
        if quiet < _QUIET_LOOKS:
            self._findings.violate("rest", f"not at rest after {QUIET_S} s: {state}")
        return quiet == _QUIET_LOOKS

    async def account(self) -> Verdict:
        """Account for every event, and prove the index and the answers."""
        service, traffic = self._service, self._traffic
        verdict = await verify(
            traffic.ledger, service.database, service.settings,
            dropped=traffic.dropped, vanished=service.server.has_lost,
        )  # fmt: skip
        for what in ("lost", "pending", "wrong", "problems"):
            for item in getattr(verdict, what):
                self._findings.violate(what, item)
        await self._dead_letters(verdict)
        await self._account_of_the_stream()
        await self._keys()
        await self._answers()
        return verdict

    async def _dead_letters(self, verdict: Verdict) -> None:
        """Every malformed event has its letter, and every letter its event."""
        service, traffic, strange = self._service, self._traffic, self._traffic.strange
        letters = [
            letter for ns in [*NAMESPACES, "default"] async for letter in dead_letters.letters(service.database, ns)
        ]
        filed = {(letter.ns, letter.entry) for letter in letters}
        self.innocent = sum(letter.code == "max_deliveries" and not _is_poison(letter) for letter in letters)
        for version, event in strange.accepted.items():
            letter = (event.ns, version)
            gone = letter in traffic.dropped or version in strange.excused or service.server.has_lost(version)
            if letter not in filed and not gone:
                self._findings.violate("lost", f"{version} ({event.name}): no dead letter in {event.ns!r}")
        unknown = [
            (ns, version)
            for ns, version in filed
            if version not in strange.accepted and traffic.ledger.at(version) is None
        ]
        if len(unknown) > strange.unknown + verdict.unknown:
            self._findings.violate("wrong", f"dead letters of events that nobody sent: {unknown}")

    async def _account_of_the_stream(self) -> None:
        """The workers have missed nothing, and have left nothing behind."""
        service, settings = self._service, self._service.settings
        lost = await execute(service.database, "HGET", keys.processed_key(settings.stream), f"{settings.group}:lost")
        if lost not in {None, b"0"}:
            self._findings.violate(
                "account", f"the workers' account of the stream says that {lost!r} entries were lost"
            )
        old = [
            consumer["name"].decode()
            for consumer in await service.stream.consumers()
            if consumer["pending"] == 0 and consumer["idle"] > _IDLE_CONSUMER_MS
        ]
        if old:
            self._findings.violate("consumers", f"idle for long and still there: {old}")
        with translated_errors():
            info: Any = await service.database.info("clients")
        if (count := info["connected_clients"]) > _CONNECTIONS:
            self._findings.violate("connections", f"{count} are open at rest")

    async def _keys(self) -> None:
        """No key is nobody's. Those of known namespaces were judged by the check."""
        tags = tuple(f"{{{keys.encode_namespace(ns)}}}" for ns in [*NAMESPACES, "default"])
        settings = self._service.settings
        known = {settings.stream, keys.processed_key(settings.stream), keys.NAMESPACES}
        cursor = 0
        while True:
            cursor, page = await execute(self._service.database, "SCAN", cursor, "COUNT", 1_000)
            for key in page:
                name = key.decode(errors="replace")
                if name not in known and not any(tag in name for tag in tags):
                    self._findings.violate("key", f"nobody's: {name!r}")
            if not int(cursor):
                return

    async def _answers(self) -> None:
        """Both readers give what follows from the stored memories alone."""
        for ns in NAMESPACES:
            reference = await Reference.read(self._service.database, self._analyzer, ns, IDS)
            for _ in range(_QUESTIONS):
                question = self._traffic.texts.question()
                for number, client in enumerate(self._service.clients):
                    try:
                        result = await client.search(question, ns=ns, limit=len(IDS), time_words="off")
                        fault = reference.differs(question, result)
                    except (UnavailableError, ApiError) as error:
                        fault = str(error)
                    if fault is not None:
                        self._findings.violate("answer", f"reader-{number}, {ns!r}, {question!r}: {fault}")


def _is_poison(letter: DeadLetter) -> bool:
    return any(poison.encode() in value for poison in (DEADLY, ENDLESS) for _, value in letter.fields)


def read_logs(folder: Path, findings: Findings) -> None:
    """Look for what no log should say."""
    for log in sorted(folder.glob("*.log")):
        if log.name in {"faults.log", "server.log"}:
            continue
        with log.open(errors="replace") as lines:
            for line in lines:
                if any(word in line for word in _LOSSES):
                    findings.violate("log", f"{log.name}: {line.strip()[:500]}")
                if MARK.search(line):
                    findings.violate("content in a log", f"{log.name}: {line.strip()[:500]}")
