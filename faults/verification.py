"""Compare a ledger with what is stored: every accepted event is accounted for, and nothing else is there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from faults.ledger import History, Key, Ledger, Sent, digest_of
from jiyi import dead_letters, keys
from jiyi.check import check
from jiyi.check.key_scan import scan
from jiyi.connections import translated_errors
from jiyi.events import parse_entry
from jiyi.streams import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from jiyi.connections import Database
    from jiyi.settings import Settings

Letter: TypeAlias = tuple[str, str]
"""(namespace, version) of a dead letter."""

_AT_ONCE = 500
_NOTHING = (0, 0)


class Stored(msgspec.Struct, frozen=True):
    """What is stored of one memory: a live one has a digest, a tombstone has none; `entry` is None for nothing."""

    entry: str | None
    digest: str | None

    @property
    def version(self) -> tuple[int, int]:
        """The stored version; before all others when nothing is stored."""
        return _NOTHING if self.entry is None else parse_entry(self.entry)


class Verdict(msgspec.Struct, kw_only=True):
    """What became of the events of a ledger.

    `sent` = `unknown` + `applied` + `superseded` + `dead_lettered` + `dropped` + `vanished` + what `pending` and `lost`
    name. An event is applied when it is the stored version of its memory (or a delete of which nothing is left),
    superseded when a later one is. `unknown` counts outcomes that are still unknown; one that was found stored counts
    as applied. `dropped` was a dead letter that an operator threw away, `vanished` what the server itself has lost.
    """

    sent: int = 0
    unknown: int = 0
    applied: int = 0
    superseded: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    vanished: int = 0
    pending: list[str] = []
    """Entry ids that are still unread or pending."""
    lost: list[str] = []
    """Entry ids that were accepted and are nowhere."""
    wrong: list[str] = []
    """What is stored and must not be."""
    problems: list[str] = []
    """What `jiyi.check` found."""

    @property
    def ok(self) -> bool:
        """Whether everything is processed and right."""
        return not (self.pending or self.lost or self.wrong or self.problems)

    def __str__(self) -> str:
        counted = ("sent", "unknown", "applied", "superseded", "dead_lettered", "dropped", "vanished")
        lines = ["  ".join(f"{name.replace('_', '-')} {getattr(self, name)}" for name in counted)]
        for name in ("pending", "lost", "wrong", "problems"):
            lines += [f"{name}: {item}" for item in getattr(self, name)]
        return "\n".join(lines)


async def verify(
    ledger: Ledger,
    database: Database,
    settings: Settings,
    *,
    dropped: Container[Letter] = (),
    vanished: Callable[[str], bool] = lambda _entry: False,
) -> Verdict:
    """Compare a ledger with the memories, tombstones and dead letters of the namespaces that it names.

    Meant for a pipeline that has come to rest. An event of unknown outcome that is found stored is recorded as
    accepted in the ledger, so that later verifications demand it. Nobody is to blame for dead letters that were
    `dropped`, nor for accepted entries that the server itself has lost, of which `vanished` tells.
    """
    histories = ledger.histories()
    namespaces = sorted({ns for ns, _ in histories})
    dead: dict[Letter, str] = {}
    filed: Counter[Letter] = Counter()
    for ns in namespaces:
        async for letter in dead_letters.letters(database, ns):
            dead[letter.ns, letter.entry] = letter.code
            filed[letter.ns, letter.entry] += 1
    judge = _Judge(ledger, EventStream(database, settings.stream, settings.group), dead, dropped, vanished)
    judge.verdict.wrong += [f"{entry}: a dead letter {times} times" for (_, entry), times in filed.items() if times > 1]
    found = list(histories)
    for at in range(0, len(found), _AT_ONCE):
        chunk = found[at : at + _AT_ONCE]
        for key, stored in zip(chunk, await _stored(database, chunk), strict=True):
            await judge.judge(histories[key], stored)
    verdict = judge.verdict
    verdict.sent = len(ledger.sent)
    for ns in namespaces:
        known = {keys.memory_key(ns, memory_id).encode() for other, memory_id in histories if other == ns}
        prefix = keys.memory_key(ns, "").encode()
        strange = {key async for page in scan(database, ns) for key in page if key.startswith(prefix)} - known
        verdict.wrong += [f"{key.decode(errors='replace')}: nobody wrote this" for key in sorted(strange)]
    for report in await check(database, namespaces, stream=settings.stream):
        verdict.problems += [
            f"{report.namespace}: {problem.kind} at {problem.where}: expected {problem.expected}, found {problem.found}"
            for problem in report.problems
        ]
    return verdict


async def _stored(database: Database, found: Sequence[Key]) -> list[Stored]:
    with translated_errors():
        pipeline: Any = database.pipeline(transaction=False)
        for ns, memory_id in found:
            pipeline.hmget(keys.memory_key(ns, memory_id), "entry", "content")
        rows = await pipeline.execute()
    return [
        Stored(entry and entry.decode(), None if content is None else digest_of(content)) for entry, content in rows
    ]


class _Judge:
    """Judges one memory after the other."""

    def __init__(
        self,
        ledger: Ledger,
        stream: EventStream,
        dead: Mapping[Letter, str],
        dropped: Container[Letter],
        vanished: Callable[[str], bool],
    ) -> None:
        self.verdict = Verdict()
        self._ledger, self._stream = ledger, stream
        self._dead, self._dropped, self._vanished = dead, dropped, vanished

    async def judge(self, history: History, stored: Stored) -> None:
        """Account for every event of one memory."""
        accepted, unknown = history.accepted, history.unknown
        if stored.entry is not None and all(event.entry != stored.entry for event in accepted):
            guess = self._explained(unknown, accepted, stored)
            if guess is None:
                key = (accepted or unknown)[0].key
                self.verdict.wrong.append(f"{stored.entry} of {key}: stored, but never sent")
            else:
                self._ledger.accept(guess.number, stored.entry)
                accepted = sorted(
                    [*accepted, msgspec.structs.replace(guess, entry=stored.entry)], key=lambda event: event.version
                )
                unknown = [event for event in unknown if event is not guess]
        self.verdict.unknown += len(unknown)
        version = stored.version if stored.entry is not None else self._forgotten(accepted, unknown)
        for event in accepted:
            await self._account(event, version, stored)

    def _forgotten(self, accepted: Sequence[Sent], unknown: Sequence[Sent]) -> tuple[int, ...]:
        """Nothing is stored: give the version of a delete that was applied and forgotten and so explains it.

        One of unknown outcome has no version of its own: it comes right behind those that were accepted before it.
        """
        deletes: list[tuple[int, ...]] = [
            event.version for event in accepted if event.op == "delete" and not self._is_dead(event)
        ]
        for event in unknown:
            if event.op == "delete":
                deletes += [(*version, 1) for version in _before(event, accepted)]
        return max(deletes, default=_NOTHING)

    @staticmethod
    def _explained(unknown: Sequence[Sent], accepted: Sequence[Sent], stored: Stored) -> Sent | None:
        """Find an event of unknown outcome that may have become what is stored."""
        for event in unknown:
            if event.digest == stored.digest and stored.version > max(_before(event, accepted), default=_NOTHING):
                return event
        return None

    def _is_dead(self, event: Sent) -> bool:
        return event.entry is not None and (event.ns, event.entry) in self._dead

    async def _account(self, event: Sent, version: tuple[int, ...], stored: Stored) -> None:
        verdict, entry = self.verdict, event.entry
        assert entry is not None
        named = f"{entry} of {event.key}"
        if self._is_dead(event):
            verdict.dead_lettered += 1
            # Applied and never acknowledged, because each of its workers died in between: given up all the same.
            if event.version == stored.version and self._dead[event.ns, entry] != "max_deliveries":
                verdict.wrong.append(f"{named}: a dead letter, and applied")
        elif event.version < version:
            verdict.superseded += 1
        elif event.version == version:
            verdict.applied += 1
            if event.digest != stored.digest:
                verdict.wrong.append(f"{named}: stored with another content")
        elif (event.ns, entry) in self._dropped:
            verdict.dropped += 1
        elif self._vanished(entry):
            verdict.vanished += 1
        elif await self._stream.is_unprocessed(entry):
            verdict.pending.append(entry)
        else:
            verdict.lost.append(entry)


def _before(event: Sent, accepted: Sequence[Sent]) -> list[tuple[int, int]]:
    """Versions of the events that were accepted before this one was sent."""
    return [other.version for other in accepted if other.concluded is not None and other.concluded < event.number]
