"""Apply events to the index of a namespace: prepare, pack, apply, and again when somebody was faster."""

from __future__ import annotations

import random
import secrets
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio

from jiyi import keys, scripts
from jiyi.connections import execute, server_of
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError, UnavailableError
from jiyi.events import parse_entry
from jiyi.packing import Prepared, Reservation, old_document, pack
from jiyi.scripts import ApplyStatus, PrepareStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jiyi.connections import Database
    from jiyi.packing import Change

POSTINGS_PER_CALL = 250
"""Term entries of one apply call. Fewer cost the server more per document; more hold it for longer at a time, and every
reader with it: a call of this size takes 1 to 2 ms."""
_ATTEMPTS = 50
"""Every conflict means that another worker got on, so this many in a row is a sign of something else."""


class Outcome(StrEnum):
    """What became of a change."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"


_FINAL = {PrepareStatus.APPLIED: Outcome.DUPLICATE, PrepareStatus.SUPERSEDED: Outcome.SUPERSEDED}


class IndexWriter:
    """Writes the index. Holds nothing but the epochs of the namespaces that it has announced, and where.

    `observe` is called with the seconds of every apply call.
    """

    def __init__(
        self, database: Database, analyzer: str, *, observe: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._database = database
        self._analyzer = analyzer
        self._observe = observe
        self._announced: dict[str, tuple[str, str]] = {}
        # One call at a time waits at the server: all that wait there, a reader's question waits for.
        self._at_server = anyio.Lock(fast_acquire=True)

    async def apply(self, ns: str, changes: Sequence[Change], *, again: bool = False) -> list[Outcome]:
        """Apply analysed changes of one namespace; gives the outcome of each, in their order.

        Each change is atomic. For one memory the highest version wins, whatever the order of calls, also
        between processes; a change that is applied already changes nothing. `again` applies stored versions
        once more (re-analysis; expiry) and never anything else.

        Changes that are all deletes are applied also while the server's memory is full.

        Raises `AnalyzerMismatchError` when the namespace was analysed in another way, and `UnavailableError`
        when Redis is away: then some of the changes may be applied, and applying all again is harmless.
        """
        outcomes: dict[int, Outcome] = {}
        waiting = self._newest(changes, outcomes)
        for attempt in range(_ATTEMPTS):
            waiting = await self._attempt(ns, changes, waiting, outcomes, again=again)
            if not waiting:
                return [outcomes[i] for i in range(len(changes))]
            await anyio.sleep(random.uniform(0, 0.002 * (attempt + 1)))  # noqa: S311 - jitter
        raise UnavailableError("too many conflicts with other workers on the same memories", code="conflict")

    @staticmethod
    def _newest(changes: Sequence[Change], outcomes: dict[int, Outcome]) -> list[int]:
        """Keep the newest change of each memory; a copy of it in the same batch is a duplicate."""
        newest: dict[str, int] = {}
        for i, change in enumerate(changes):
            other = newest.setdefault(change.id, i)
            if other == i:
                continue
            versions = parse_entry(changes[other].version), parse_entry(change.version)
            if versions[1] > versions[0]:
                newest[change.id] = i
                outcomes[other] = Outcome.SUPERSEDED
            else:
                outcomes[i] = Outcome.DUPLICATE if versions[0] == versions[1] else Outcome.SUPERSEDED
        return list(newest.values())

    async def _attempt(
        self, ns: str, changes: Sequence[Change], waiting: list[int], outcomes: dict[int, Outcome], *, again: bool
    ) -> list[int]:
        """Prepare and apply what waits; gives what has to be tried again."""
        frees = all(changes[i].memory is None for i in waiting)
        reservation, prepared = await self._prepare(ns, [changes[i] for i in waiting], again=again, allow_oom=frees)
        jobs: list[tuple[int, Prepared]] = []
        for i, found in zip(waiting, prepared, strict=True):
            if isinstance(found, Outcome):
                outcomes[i] = found
            else:
                jobs.append((i, found))
        left: list[int] = []
        status = ApplyStatus.OK
        calls, now_ms = list(_calls(jobs)), time.time_ns() // 10**6
        packed = [  # before the first is sent: the server would wait for each of the others
            pack(ns, reservation, self._analyzer, [job for _, job in call], now_ms, last=call is calls[-1])
            for call in calls
        ]
        for call, (key_names, arguments) in zip(calls, packed, strict=True):
            async with self._at_server:
                started = time.perf_counter()
                status = await scripts.apply_events(self._database, key_names, arguments, allow_oom=frees)
                self._observe(time.perf_counter() - started)
            if status is ApplyStatus.OK:
                for i, job in call:
                    outcomes[i] = Outcome.UNCHANGED if job.fence_only else Outcome.APPLIED
            else:
                left += [i for i, _ in call]
        if status is not ApplyStatus.OK and reservation.token:  # the last call has not released it
            await execute(self._database, "ZREM", keys.reservations_key(ns), reservation.token)
        return left

    async def _prepare(
        self, ns: str, changes: Sequence[Change], *, again: bool, allow_oom: bool = False
    ) -> tuple[Reservation, list[Prepared | Outcome]]:
        token = secrets.token_hex(8)
        raw_epoch, analyzer, *rest = await scripts.prepare_events(
            self._database,
            ns,
            token=token,
            now_ms=time.time_ns() // 10**6,
            analyzer=self._analyzer,
            again=again,
            ids=[change.id for change in changes],
            versions=[(change.version, change.version_hash) for change in changes],
            allow_oom=allow_oom,
        )
        if not rest:
            raise AnalyzerMismatchError(ns, _text(analyzer), self._analyzer)
        epoch = _text(raw_epoch)
        await self._announce(ns, epoch)
        first, states = int(rest[0]), rest[1:]
        doc = first
        prepared: list[Prepared | Outcome] = []
        for change, (status, *stored) in zip(changes, states, strict=True):
            found = _prepared(change, PrepareStatus(status), stored)
            if isinstance(found, Prepared) and not found.fence_only and change.memory is not None:
                found.doc = doc
                doc += 1
            prepared.append(found)
        return Reservation(epoch, token if doc > first else ""), prepared

    async def _announce(self, ns: str, epoch: str) -> None:
        """Add the namespace to the set of all before anything is applied in it.

        Again after a wipe, and at another server process: it may have the namespace and have lost the announcement.
        """
        announced = epoch, server_of(self._database, keys.NAMESPACES)
        if self._announced.get(ns) != announced:
            # Looked at first: a server whose memory is full refuses to add even what is there.
            if not await execute(self._database, "SISMEMBER", keys.NAMESPACES, ns):
                await execute(self._database, "SADD", keys.NAMESPACES, ns)
            self._announced[ns] = announced


def _prepared(change: Change, status: PrepareStatus, stored: Sequence[Any]) -> Prepared | Outcome:
    if status in _FINAL:
        return _FINAL[status]
    entry, doc = [*stored, None][:2]
    expected = f"{_text(entry or b'')} {_text(doc or b'')}"
    old = old_document(stored[1:]) if status is PrepareStatus.REPLACES else None
    return Prepared(change=change, expected=expected, fence_only=status is PrepareStatus.UNCHANGED, old=old)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptIndexError("a fence, an epoch or an analyzer cannot be read; run: jiyi check") from error


def _calls(jobs: Sequence[tuple[int, Prepared]]) -> Iterator[list[tuple[int, Prepared]]]:
    """Split into calls of bounded size; a single larger change is a call of its own."""
    call: list[tuple[int, Prepared]] = []
    size = 0
    for job in jobs:
        postings = job[1].postings()
        if call and size + postings > POSTINGS_PER_CALL:
            yield call
            call, size = [], 0
        call.append(job)
        size += postings
    if call:
        yield call
