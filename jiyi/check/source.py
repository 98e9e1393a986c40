"""Reading a namespace while others write it: snapshots that say which documents are alive at their instant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio.lowlevel
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.journal import Journal
from jiyi.check.report import Kind
from jiyi.connections import execute
from jiyi.logs import id_hash
from jiyi.postings import GENERATION_BYTES, JOURNAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from jiyi.check.report import Report
    from jiyi.connections import Database

Item = TypeVar("Item")
Result = TypeVar("Result")

_ENTRIES = 50
"""Stream entries read at once: each may carry the largest content."""
_PIECE = JOURNAL.size * 65_536
_WHOLE = 1 << 40
"""A byte limit that no key reaches: what is compared must not be cut."""
_ANSWER_PARTS = 6
_STATE = re.compile(rb"(0|[1-9]\d{0,14}) (0|[1-9]\d{0,14})")


class NamespaceMovedError(Exception):
    """The namespace was wiped, or its journal compacted, while it was read: begin anew."""


class DamagedError(Exception):
    """A value that everything else hangs on cannot be read; it is reported already."""


class TermState(NamedTuple):
    """A term at one instant: df, whether its postings lie in their own key, and all bytes of them.

    In a key of their own they may begin with a sealed part.
    """

    df: int
    generation: bytes
    total: int
    records: bytes


class Source:
    """Reads of one namespace. `journal` is as of the last `snapshot`; counters likewise."""

    def __init__(self, database: Database, ns: str, report: Report) -> None:
        self.database = database
        self.ns = ns
        self.report = report
        self.journal = Journal(report, keys.journal_key(ns))
        self.docs = self.tokens = self.next_doc = 0
        self._epoch: bytes | None = None
        self._generation = b""
        self._have = 0
        self._torn = False

    @property
    def exists(self) -> bool:
        """Whether the namespace has counters."""
        return bool(self._epoch)

    @property
    def epoch(self) -> bytes:
        """Epoch of all that was read; empty for an unknown namespace."""
        return self._epoch or b""

    @property
    def generation(self) -> bytes:
        """Generation of the journal that was read."""
        return self._generation

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal read so far."""
        return self._have

    async def command(self, *arguments: Any) -> Any:
        """Send one command."""
        await anyio.lowlevel.checkpoint_if_cancelled()  # the command itself runs to its end
        return await execute(self.database, *arguments)

    async def entries(
        self, stream: str, wanted: Collection[bytes] | None = None
    ) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        """Ids of a stream's entries, each with its fields and values; as long as any are `wanted`, if that is given."""
        start = b"-"
        while wanted is None or wanted:
            rows = await self.command("XRANGE", stream, start, "+", "COUNT", _ENTRIES)
            for entry, flat in rows:
                yield entry, flat
            if len(rows) < _ENTRIES:
                return
            start = b"(" + rows[-1][0]

    async def snapshot(self, terms: Sequence[str] = ()) -> list[TermState]:
        """Read counters, journal and `terms` as they are at one instant.

        Raises `NamespaceMovedError`, and `DamagedError` (reported) when counters or journal are unreadable.
        """
        while not await self._read(_PIECE, ()):
            pass
        if not terms:
            return []
        # A long pause could have made the journal's news larger than a piece; with no limit nothing is cut.
        answer = await self._read(_WHOLE, terms)
        return [TermState(df, generation, total, records) for df, generation, _, total, records in answer[6:]]

    async def _read(self, limit: int, terms: Sequence[str]) -> list[Any]:
        """Call `read_index` once; empty when the journal was cut at the limit and more is to come."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        try:
            answer = await scripts.read_index(
                self.database,
                self.ns,
                limit=limit,
                journal=(self._generation, self._have),
                terms=[(term, b"", 0) for term in terms],
            )
        except ResponseError as error:
            if terms:
                raise
            self._damaged(f"an error: {str(error).split(' ', 1)[0]}")
        if len(answer) < _ANSWER_PARTS:
            self._damaged("no number")
        epoch, _, self.docs, self.tokens, self.next_doc, (state, generation, start, total, records) = answer[:6]
        if epoch and not _STATE.fullmatch(state):
            self._damaged("changes or fence_moves that are no number")
        self._check_identity(epoch, generation, start, total)
        whole = len(records) // JOURNAL.size * JOURNAL.size
        self._have = start + whole
        self._generation = generation
        self.journal.absorb(records[:whole], self.next_doc)
        rest = total - self._have
        if 0 < rest < JOURNAL.size and not self._torn:
            self._torn = True
            self.report.add(
                Kind.JOURNAL, keys.journal_key(self.ns), "whole records of 20 bytes", f"{rest} bytes at the end"
            )
        return answer if rest < JOURNAL.size else []

    def _check_identity(self, epoch: bytes, generation: bytes, start: int, total: int) -> None:
        if self._epoch is None:
            self._epoch = epoch
        grown = start == self._have and total >= self._have
        if epoch != self._epoch or (self._have and not (generation == self._generation and grown)):
            raise NamespaceMovedError(self.ns)
        if total and len(generation) < GENERATION_BYTES:
            self.report.add(Kind.JOURNAL, keys.journal_key(self.ns), "a generation of 4 bytes", f"{total} bytes in all")
            raise DamagedError

    def _damaged(self, found: str) -> None:
        where = f"{keys.stats_key(self.ns)} or {keys.journal_key(self.ns)}"
        self.report.add(Kind.STATS, where, "counters that are whole numbers, and a journal", found)
        raise DamagedError

    async def tolerant(
        self,
        items: Sequence[Item],
        read: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        complain: Callable[[Item, str], None],
    ) -> list[Result | None]:
        """Read items together; where the server answers with an error, find the guilty ones and go on without."""
        try:
            return [*await read(items)]
        except ResponseError as error:
            if len(items) == 1:
                complain(items[0], str(error).split(" ", 1)[0])
                return [None]
            middle = len(items) // 2
            first = await self.tolerant(items[:middle], read, complain)
            return first + await self.tolerant(items[middle:], read, complain)

    def shown(self, text: bytes | str) -> str:
        """Name a term or a memory id by its hash, as log lines do."""
        return f"#{id_hash(self.ns, text.decode(errors='replace') if isinstance(text, bytes) else text)}"
