"""Readers' users: they ask whether events are ready, search at once, and believe nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from faults.ledger import digest_of
from faults.texts import mark_of
from faults.traffic import NAMESPACES, ROUTE
from jiyi.errors import ApiError, UnavailableError
from jiyi.events import parse_entry

if TYPE_CHECKING:
    from random import Random

    from faults.findings import Findings
    from faults.ledger import Sent
    from faults.service import Service
    from faults.traffic import Traffic
    from faults.witness import Seen, Witness
    from jiyi.answers import Readiness, SearchResult
    from jiyi.client import Client

_PAUSE_S = 0.05
_WAIT_S = 2.0
_LIMIT = 20
_NOT_FOUND = 404
_HANGS = "did not answer in time"


class Poller:
    """One user of the readers, at all times."""

    def __init__(
        self, service: Service, traffic: Traffic, witness: Witness, findings: Findings, random: Random
    ) -> None:
        self._service, self._traffic, self._witness = service, traffic, witness
        self._findings, self._random = findings, random

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await anyio.sleep(_PAUSE_S * (1 + self._random.random()))
            lives = [reader.lives for reader in self._service.readers]
            try:
                await self._ask()
            except UnavailableError as error:
                self._findings.done["readers away"] += 1
                if _HANGS in str(error) and lives == [reader.lives for reader in self._service.readers]:
                    self._findings.violate("hang", str(error))
            except ApiError as error:
                self._findings.violate("answer", f"a reader answered {error.status} {error.code}: {error}")

    async def _ask(self) -> None:
        if self._traffic.fresh and self._random.random() < 0.7:  # noqa: PLR2004
            await self._follow(*self._random.choice(self._traffic.fresh))
        else:
            question = self._traffic.texts.question()
            await self._search(self._client(), self._random.choice(NAMESPACES), question)

    def _client(self) -> Client:
        return self._random.choice(self._service.clients)

    async def _search(self, client: Client, ns: str, question: str) -> tuple[Seen, SearchResult]:
        seen = self._witness.before()
        result = await client.search(question, ns=ns, limit=_LIMIT, explain=True, time_words="off")
        self._witness.result(ns, question, result, seen)
        return seen, result

    async def _follow(self, event: Sent, content: str) -> None:
        """Ask for the readiness of an accepted event; when it is ready, look whether it is."""
        assert event.entry is not None
        seen = self._witness.before()
        (answer,) = await self._client().ready(event.id, event.entry, ns=event.ns, wait=_WAIT_S)
        self._findings.done[f"answered {answer.state}"] += 1
        if not self._witness.same_history(seen):
            return
        self._witness.readiness(event.ns, answer, seen)
        if answer.state in {"ready", "deleted"}:
            self._judge_version(event, answer)
            await self._verify(event, answer, content, seen)
        elif answer.state == "failed" and not (answer.reason or "").startswith("max_deliveries"):
            self._findings.violate("failed", f"{event.key} entry {event.entry}: {answer.reason}")
        elif answer.state == "unknown" and event.op == "write":
            self._judge_unknown(event, answer)

    def _judge_version(self, event: Sent, answer: Readiness) -> None:
        if answer.entry is None or parse_entry(answer.entry) < event.version:
            self._findings.violate("ready", f"{event.key}: {answer.state} in {answer.entry}, asked for {event.entry}")

    def _judge_unknown(self, event: Sent, answer: Readiness) -> None:
        """An accepted write is unknown only after a later delete was forgotten, or its dead letter dropped."""
        assert event.entry is not None
        gone = (event.ns, event.entry) in self._traffic.dropped or self._service.server.has_lost(event.entry)
        hidden = answer.reason is not None  # behind the mark of a later event that failed
        if self._witness.settled(event.key, event.version) and not gone and not hidden:
            self._findings.violate("unknown", f"{event.key} entry {event.entry}: {answer}")

    async def _verify(self, event: Sent, answer: Readiness, content: str, seen: Seen) -> None:
        """The next query, to any reader, sees the version that is ready; if nothing has happened since."""
        assert answer.entry is not None
        if not content:
            return
        asked, result = await self._search(self._client(), event.ns, mark_of(content))
        found = next((hit for hit in result.hits if hit.id == event.id), None)
        version, applied = parse_entry(answer.entry), self._traffic.ledger.at(answer.entry)
        if applied is None or not self._witness.settled(event.key, version) or not self._witness.same_history(asked):
            return
        if seen.lives != asked.lives:
            return
        if answer.state == "ready" and applied.digest != digest_of(content):
            return  # a later version is ready: others ask for that
        if answer.state == "deleted":
            if found is not None:
                self._findings.violate("deleted", f"{event.key} is deleted by {answer.entry}, and found: {found.entry}")
        elif found is None or found.entry != answer.entry:
            self._findings.violate(
                "not found", f"{event.key} is ready in {answer.entry}, and found in {found and found.entry}"
            )
        elif event.id != ROUTE:
            await self._get(event, answer)

    async def _get(self, event: Sent, answer: Readiness) -> None:
        seen = self._witness.before()
        try:
            memory = await self._client().get(event.id, event.ns)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            assert answer.entry is not None
            settled = self._witness.settled(event.key, parse_entry(answer.entry))
            if settled and self._witness.same_history(seen):
                self._findings.violate("gone", f"{event.key} is ready in {answer.entry}, and not found by its id")
        else:
            self._witness.memory(event.ns, memory, seen)
