"""The namespace under repair: how its memories are passed through, and what has been done to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.key_scan import scan
from jiyi.check.report import Report
from jiyi.check.source import Source
from jiyi.connections import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from jiyi.check import Progress
    from jiyi.connections import Database

BATCH = 32
"""Memories that are read, analysed or mended in one go: at most 2 MiB of content with the default cap."""

Stored = dict[str, bytes]


class Target:
    """One namespace, and `done`: how many things of each sort were mended. `memories` is about how many it has."""

    def __init__(self, database: Database, ns: str, on_progress: Progress | None) -> None:
        self.database = database
        self.ns = ns
        self.done: Counter[str] = Counter()
        self.memories = 0
        self._on_progress = on_progress

    def source(self) -> Source:
        """Readings of the check, whose findings nobody needs a second time."""
        return Source(self.database, self.ns, Report(namespace=self.ns))

    def progress(self, phase: str) -> Callable[[int, int], None]:
        """Progress of one phase."""

        def on_progress(done: int, total: int) -> None:
            if self._on_progress is not None:
                self._on_progress(done, max(done, total), phase)

        return on_progress

    async def command(self, *arguments: Any) -> Any:
        """Send one command."""
        return await execute(self.database, *arguments)

    async def keys(self, prefix: str) -> AsyncIterator[list[bytes]]:
        """What follows `prefix` in the names of the namespace's keys, page by page; one may come twice."""
        start = prefix.encode()
        async for page in scan(self.database, self.ns):
            if found := [key[len(start) :] for key in page if key.startswith(start)]:
                yield found

    async def ids(self, phase: str) -> AsyncIterator[list[str]]:
        """Ids of all memory keys, batch by batch; whoever was there all the time comes at least once."""
        report, done = self.progress(phase), 0
        async for page in self.keys(keys.memory_key(self.ns, "")):
            found = [memory_id for memory_id in map(_decoded, page) if memory_id]
            for at in range(0, len(found), BATCH):
                yield found[at : at + BATCH]
            done += len(found)
            report(done, self.memories)
        self.memories = done
        report(done, done)

    async def read(self, ids: Sequence[str], fields: Sequence[str]) -> list[Stored | None]:
        """Fields of memories that are there; None for a key of another type."""

        async def read(part: Sequence[str]) -> list[list[bytes | None]]:
            return await scripts.read_documents(self.database, self.ns, part, fields)

        rows = await self.source().tolerant(ids, read, lambda _id, _error: None)
        return [
            None if row is None else {name: value for name, value in zip(fields, row, strict=True) if value is not None}
            for row in rows
        ]

    async def fields(self, key: str) -> dict[bytes, bytes] | None:
        """All of a hash; None for a key of another type."""
        try:
            found: dict[bytes, bytes] = await self.command("HGETALL", key)
        except ResponseError:
            return None
        return found


def number_of(raw: bytes | None) -> int | None:
    """Read a document number as it is written; None for anything else."""
    if raw is None or not raw.isdigit() or (raw.startswith(b"0") and raw != b"0"):
        return None
    return int(raw)


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
