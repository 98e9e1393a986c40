"""The term dictionary and the postings, replaced where they are not what the documents say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import numpy as np
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.documents import Documents
from jiyi.check.forward import bucket_of, split
from jiyi.check.journal import ALIVE
from jiyi.check.known_keys import KnownKeys
from jiyi.check.namespace import groups_of_buckets
from jiyi.check.source import NamespaceMovedError
from jiyi.check.terms import Terms
from jiyi.errors import CorruptIndexError
from jiyi.postings import DF, GENERATION_BYTES, INLINE_BYTES
from jiyi.repair.rebuild import Rebuild
from jiyi.sealed_postings import RECORD, contents_of, open_part, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from jiyi.check.forward import Forward
    from jiyi.check.source import Source
    from jiyi.repair.target import Target
    from jiyi.scripts import Argument

_BATCH = 50
_BYTES = 65_536
"""Terms of one call, and bytes of postings that it carries about; a longer list is written beside its key first."""
_ROUNDS = 20


class Stored(NamedTuple):
    """A term as it was read: its dictionary entry, and its postings key where the entry points there.

    `key` is None where there is no key, `other_type` says that there is one which is no string, and `at_once` that
    all was read at the instant at which the journal stood when it was compared.
    """

    entry: bytes
    key: bytes | None = None
    other_type: bool = False
    at_once: bool = False

    def fence(self) -> list[Argument]:
        """Say what was read, as the script compares it."""
        at_once = "1" if self.at_once else "0"
        if self.key is None:
            return [self.entry, b"", -1 if self.other_type else 0, at_once]
        return [self.entry, self.key[:GENERATION_BYTES], len(self.key), at_once]

    def records(self) -> NDArray[np.void]:
        """Postings, as far as there are whole ones; `CorruptIndexError` where a sealed part is damaged."""
        return _whole(self.entry[DF.size :] or plain(self._content()))

    def open_records(self) -> NDArray[np.void]:
        """Postings that are not sealed."""
        return _whole(self.entry[DF.size :] or open_part(self._content()))

    def _content(self) -> bytes:
        return (self.key or b"")[GENERATION_BYTES:]


class TermsRepair:
    """Compares terms as the check does, and works out anew those that are wrong.

    The right postings of a term are those of the documents that were alive and read before, and the list's own
    records of documents born since, both as they are after the list was read. The list is replaced only if it is
    still what was read, for everything that changes a term's documents changes it. A term that workers change too
    fast for that is read again together with the journal, at one instant; what they add from there on is carried
    over by the script.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    async def mend(self) -> None:
        """Mend all terms, and remove postings keys to which nothing points."""
        source = self._target.source()
        known = KnownKeys()
        await source.snapshot()
        documents = Documents(source, known)
        groups = groups_of_buckets(source)
        for number, buckets in enumerate(groups):
            suffix = f" {number + 1}/{len(groups)}" if len(groups) > 1 else ""
            progress = self._target.progress(f"postings{suffix}")
            forward = await documents.read(buckets, verify=False, on_progress=progress)
            terms = Terms(source, known, forward)
            await terms.compare(on_progress=self._target.progress(f"terms{suffix}"))
            for key, term in terms.misplaced:  # nobody ever writes them
                self._target.done["terms"] += await self._target.command("HDEL", key, term)
            await self._replace_buckets(source, terms.unreadable)
            await self._mend(source, forward, sorted(terms.faulty))
        await self._remove_orphans(source)

    async def _mend(self, source: Source, forward: Forward, faulty: Sequence[bytes]) -> None:
        report = self._target.progress("mending terms")
        for at in range(0, len(faulty), _BATCH):
            waiting = faulty[at : at + _BATCH]
            for attempt in range(_ROUNDS):
                if attempt % 2:  # whatever moves is in use, and so of the right types
                    stored = await read_at_once(source, waiting)
                else:
                    stored = await self._read(waiting)
                    await source.snapshot()
                due = {term: _postings(source, forward, term, stored[term]) for term in waiting}
                waiting = await self.replace(source, stored, due)
                if not waiting:
                    break
            report(min(at + _BATCH, len(faulty)), len(faulty))

    async def _read(self, terms: Iterable[bytes]) -> dict[bytes, Stored]:
        return {term: await self._with_key(term, entry) for term, entry in (await self._entries(terms)).items()}

    async def _entries(self, terms: Iterable[bytes]) -> dict[bytes, bytes]:
        """Dictionary entries, empty where there is none."""
        buckets: dict[int, list[bytes]] = {}
        for term in terms:
            buckets.setdefault(bucket_of(term), []).append(term)
        found: dict[bytes, bytes] = {}
        for bucket, members in buckets.items():
            try:
                entries = await self._target.command("HMGET", keys.bucket_key(self._target.ns, bucket), *members)
            except ResponseError:  # no hash: replaced, and then it is empty
                entries = [None] * len(members)
            found |= {term: entry or b"" for term, entry in zip(members, entries, strict=True)}
        return found

    async def _with_key(self, term: bytes, entry: bytes) -> Stored:
        if len(entry) != DF.size:
            return Stored(entry)
        try:
            return Stored(entry, await self._target.command("GET", keys.index_key(self._target.ns, term.decode())))
        except ResponseError:
            return Stored(entry, other_type=True)

    async def replace(
        self, source: Source, stored: dict[bytes, Stored], due: dict[bytes, NDArray[np.void]]
    ) -> list[bytes]:
        """Replace terms by what they should be; gives those that have moved on."""
        left: list[bytes] = []
        call: dict[bytes, list[Argument]] = {}
        size = 0
        # In a thread: long lists take longer than other tasks of a worker should wait.
        values = await anyio.to_thread.run_sync(_values, due)
        for term, (entry, content) in values.items():
            if len(content) > _BYTES:
                async with Rebuild(self._target) as rebuild:
                    await rebuild.write(content)
                    change = [term, *stored[term].fence(), entry, b"", rebuild.size]
                    left += await self._call(source, {term: change}, rebuild.key)
                continue
            if call and size + len(content) > _BYTES:
                left += await self._call(source, call)
                call, size = {}, 0
            call[term] = [term, *stored[term].fence(), entry, content, 0]
            size += len(content)
        return left + (await self._call(source, call) if call else [])

    async def _call(self, source: Source, changes: dict[bytes, list[Argument]], rebuild: str = "") -> list[bytes]:
        target = self._target
        places = [(bucket_of(term), term.decode(), rebuild) for term in changes]
        answer = await scripts.repair_terms(target.database, target.ns, source.epoch, places, list(changes.values()))
        if not answer:
            raise NamespaceMovedError(target.ns)
        target.done["terms"] += sum(answer)
        return [term for term, done in zip(changes, answer, strict=True) if not done]

    async def _replace_buckets(self, source: Source, buckets: Sequence[int]) -> None:
        """Make buckets of another type hashes again, still empty: the script does so wherever it meets one."""
        for bucket in buckets:
            nothing: list[Argument] = [b"", b"", b"", 0, "0", b"", b"", 0]
            await scripts.repair_terms(
                self._target.database, self._target.ns, source.epoch, [(bucket, "", "")], [nothing]
            )

    async def _remove_orphans(self, source: Source) -> None:
        """Remove postings keys whose term has no dictionary entry, or has its postings there."""
        async for page in self._target.keys(keys.index_prefix(self._target.ns)):
            terms = [term for term in page if bucket_of(term) >= 0]
            for at in range(0, len(terms), _BATCH):
                entries = await self._entries(terms[at : at + _BATCH])
                changes: dict[bytes, list[Argument]] = {
                    term: [term, entry, b"", 0, "0", entry, b"", 0]
                    for term, entry in entries.items()
                    if len(entry) != DF.size
                }
                if changes:
                    await self._call(source, changes)


async def read_at_once(source: Source, terms: Sequence[bytes]) -> dict[bytes, Stored]:
    """Read terms and the journal's news at one instant."""
    stored = {}
    for term, state in zip(terms, await source.snapshot([term.decode() for term in terms]), strict=True):
        df = DF.pack(state.df)
        if state.generation:
            stored[term] = Stored(df, state.generation + state.records, at_once=True)
        else:  # postings in the entry, none at all, or in a key that is lost
            stored[term] = Stored(df + state.records if state.df else b"", at_once=True)
    return stored


def _postings(source: Source, forward: Forward, term: bytes, stored: Stored) -> NDArray[np.void]:
    """Work out the right postings of a term, sorted by document."""
    due, tfs = forward.of_terms(np.array([forward.vocabulary[term]], np.uint64))
    docs = split(due)[1]
    alive = source.journal.states(docs) == ALIVE
    ours = np.empty(int(alive.sum()), RECORD)
    ours["doc"], ours["tf"] = docs[alive], tfs[alive]
    try:
        listed = stored.records()
    except CorruptIndexError:  # what was added since it was sealed can still be told
        listed = stored.open_records()
    since = (source.journal.states(listed["doc"]) == ALIVE) & ~forward.covered(listed["doc"])
    records = np.concatenate([ours, listed[since]])
    _, first = np.unique(records["doc"], return_index=True)
    return records[first]


def _whole(raw: bytes) -> NDArray[np.void]:
    return np.frombuffer(raw[: len(raw) // RECORD.itemsize * RECORD.itemsize], RECORD)


def _values(due: dict[bytes, NDArray[np.void]]) -> dict[bytes, tuple[bytes, bytes]]:
    """Give dictionary entry and content of a key of its own, sealed, of each term; either is empty where none is."""
    values = {}
    long = []
    for term, postings in due.items():
        df = DF.pack(len(postings)) if len(postings) else b""
        if DF.size + postings.nbytes <= INLINE_BYTES:
            values[term] = df + postings.tobytes(), b""
        else:
            long.append(term)
    contents = contents_of([due[term] for term in long])
    values |= {term: (DF.pack(len(due[term])), content) for term, content in zip(long, contents, strict=True)}
    return values
