"""Re-analysis of a namespace while it is read and written: every document again through the same path.

`begin_reindex.lua` switches the namespace to the new analyzer. From that moment workers with the old one are
refused, so every document number below the mark `end` was analysed the old way, and every later one the new
way. What is left to do is therefore what still lives below `end`, whatever was interrupted, done twice, or done
by two processes at once; `reindex_cursor` only spares a second look.

Until it is through, queries see documents of both analyses. Scores are exact for the postings there are.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import anyio.lowlevel
import anyio.to_thread
import msgspec

from jiyi import keys, scripts
from jiyi.analysis import TooManyTerms
from jiyi.connections import execute
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError
from jiyi.index import IndexWriter, Outcome
from jiyi.logs import id_hash
from jiyi.memories import FIELDS, Memory
from jiyi.packing import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jiyi.connections import Database

_BATCH = 32
"""Documents that are analysed in one go: at most 2 MiB of content with the default cap."""
_STORED = ("entry", "doc", "version_hash", *FIELDS)

Stored = dict[str, str]


class TermsOf(Protocol):
    """What re-analysis needs of an analyzer."""

    fingerprint: str

    def terms(self, text: str) -> dict[str, int]:
        """Give each term of a text with its frequency."""


class Failure(msgspec.Struct, frozen=True):
    """A document that could not be analysed the new way; it stays searchable by its old terms."""

    id_hash: str
    code: str  # too_many_terms, or unreadable where the stored memory is damaged


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done: documents that it analysed again, those it could not, and how long it took."""

    documents: int
    seconds: float
    failed: tuple[Failure, ...] = ()


async def reindex_namespace(
    database: Database,
    ns: str,
    analyzer: TermsOf,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Analyse all documents of a namespace again with `analyzer`, and make it the namespace's analyzer.

    Nothing is done where it is that already, unless a run was interrupted (then it goes on) or `force` is
    given. A run with a third analyzer starts over. Memories written or deleted meanwhile keep their newest
    version. A document that cannot be analysed is reported and keeps its old terms; the next run that starts
    over tries it again. `on_progress` is called with document numbers: those passed, and the end.

    Raises `AnalyzerMismatchError` when another process has switched the namespace to yet another analyzer,
    `UnavailableError` when Redis is away (calling again goes on), and `CorruptIndexError`.
    """
    started = time.monotonic()
    cursor, end = await scripts.begin_reindex(database, ns, analyzer=analyzer.fingerprint, force=force)
    run = _Run(database, ns, analyzer, end)
    if end == 0:
        await run.advance(0)
    # Below the cursor lives only what failed before an interruption: it is reported again.
    for first in range(0, end, keys.IDS_PER_BLOCK):
        await run.block(first)
        after = min(first + keys.IDS_PER_BLOCK, end)
        if after > cursor and not await run.advance(after):
            break
        if on_progress is not None:
            on_progress(after, end)
    return Result(documents=run.documents, seconds=time.monotonic() - started, failed=tuple(run.failed))


class _Run:
    """One run over one namespace."""

    def __init__(self, database: Database, ns: str, analyzer: TermsOf, end: int) -> None:
        self._database = database
        self._ns = ns
        self._analyzer = analyzer
        self._end = end
        self._writer = IndexWriter(database, analyzer.fingerprint)
        self.documents = 0
        self.failed: list[Failure] = []

    async def advance(self, cursor: int) -> bool:
        """Record progress; False when another process has ended this run."""
        ours = self._analyzer.fingerprint
        if await scripts.advance_reindex(self._database, self._ns, analyzer=ours, end=self._end, cursor=cursor):
            return True
        stored = await execute(self._database, "HGET", keys.stats_key(self._ns), "analyzer")
        if stored is not None and stored.decode() != ours:
            raise AnalyzerMismatchError(self._ns, stored.decode(), ours)
        return False

    async def block(self, first: int) -> None:
        """Analyse what lives of one block of document numbers, below the end."""
        found = await execute(self._database, "HGETALL", keys.ids_key(self._ns, first))
        try:
            ids = {number: raw.decode() for field, raw in found.items() if (number := int(field)) < self._end}
        except ValueError:
            raise CorruptIndexError(f"{keys.ids_key(self._ns, first)} holds no ids; run: jiyi check") from None
        docs = sorted(ids)
        for at in range(0, len(docs), _BATCH):
            await self._batch({doc: ids[doc] for doc in docs[at : at + _BATCH]})

    async def _batch(self, ids: dict[int, str]) -> None:
        """Analyse some documents until each is done or gone.

        An event with unchanged content moves a memory's version without giving it a new document: then the
        version read here is refused as superseded, and the document has to be taken once more.
        """
        while ids:
            await anyio.lowlevel.checkpoint()
            stored = await self._read(ids)
            changes = await self._changes(stored)
            outcomes = await self._writer.apply(self._ns, changes, again=True)
            self.documents += outcomes.count(Outcome.APPLIED)
            superseded = {
                change.id for change, outcome in zip(changes, outcomes, strict=True) if outcome is Outcome.SUPERSEDED
            }
            ids = {doc: memory_id for doc, memory_id in ids.items() if memory_id in superseded}

    async def _read(self, ids: dict[int, str]) -> dict[str, Stored | None]:
        """Read the memories that still are these documents, by id; None for one that is no text."""
        rows = await scripts.read_documents(self._database, self._ns, list(ids.values()), _STORED)
        memories: dict[str, Stored | None] = {}
        for (doc, memory_id), row in zip(ids.items(), rows, strict=True):
            named = {name: value for name, value in zip(_STORED, row, strict=True) if value is not None}
            if named.get("doc") == b"%d" % doc:
                try:
                    memories[memory_id] = {name: value.decode() for name, value in named.items()}
                except UnicodeDecodeError:
                    memories[memory_id] = None
        return memories

    async def _changes(self, memories: dict[str, Stored | None]) -> list[Change]:
        """Analyse memories in a thread; those that cannot be are noted and left out."""
        changes = [self._change(memory_id, stored) for memory_id, stored in memories.items()]
        readable = [change for change in changes if change is not None]
        texts = [change.memory.content for change in readable if change.memory is not None]
        analysed = await anyio.to_thread.run_sync(lambda: list(_analyse(self._analyzer, texts)))
        kept = []
        for change, terms in zip(readable, analysed, strict=True):
            if terms is None:
                self._fail(change.id, "too_many_terms")
            else:
                change.terms = terms
                kept.append(change)
        return kept

    def _change(self, memory_id: str, stored: Stored | None) -> Change | None:
        try:
            if stored is not None:
                return Change(
                    id=memory_id,
                    version=stored["entry"],
                    memory=Memory.from_stored(stored),
                    version_hash=stored["version_hash"],
                )
        except (KeyError, ValueError, msgspec.MsgspecError):
            pass
        self._fail(memory_id, "unreadable")
        return None

    def _fail(self, memory_id: str, code: str) -> None:
        self.failed.append(Failure(id_hash(self._ns, memory_id) or "", code))


def _analyse(analyzer: TermsOf, texts: Sequence[str]) -> Iterator[dict[str, int] | None]:
    for text in texts:
        try:
            yield analyzer.terms(text)
        except TooManyTerms:
            yield None
