"""The term dictionary and the postings against the documents that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jiyi import keys
from jiyi.check.forward import bucket_of, join, split
from jiyi.check.journal import ALIVE, DEAD, UNKNOWN
from jiyi.check.report import KEPT_PER_KIND, Kind
from jiyi.errors import CorruptIndexError
from jiyi.postings import DF, GENERATION_BYTES, POSTING, generation_number, split_term_value
from jiyi.sealed_postings import RECORD, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from jiyi.check.forward import Forward
    from jiyi.check.known_keys import KnownKeys
    from jiyi.check.source import Source, TermState

_PAGE = 1_000
"""Fields that HSCAN is asked for at once."""
_LONG_TERMS = 100
_LONG_BYTES = 4_194_304
"""Long lists are read together up to so many, and up to about so many bytes; a longer one is read alone."""


class Lists(NamedTuple):
    """Postings lists of some terms, of one instant: per term its number, df and records, and all records in a row."""

    numbers: NDArray[np.uint64]
    df: NDArray[np.int64]
    counts: NDArray[np.int64]
    records: NDArray[np.void]
    inline: bool


class Terms:
    """Compares every term of some buckets with a `Forward` that was read just before.

    A list is compared at one instant: an inline list is one value, a long one comes with its df and the
    journal's news from one call of `read_index`. Of the documents only those count that were alive when
    the forward side was begun and still are: of these both sides are complete. Of all others a list may or
    may not hold records; they only have to be documents that the journal knows.
    """

    def __init__(self, source: Source, known: KnownKeys, forward: Forward) -> None:
        self._source = source
        self._known = known
        self._forward = forward
        self._add = source.report.add
        self._seen = np.zeros(0, np.bool_)
        self.faulty: set[bytes] = set()
        self.misplaced: list[tuple[str, bytes]] = []
        self.unreadable: list[int] = []

    async def compare(self, *, on_progress: Callable[[int, int], None]) -> None:
        """Compare all terms, and report those of live documents that the dictionary lacks."""
        buckets = sorted(self._forward.buckets)
        for done, bucket in enumerate(buckets):
            await self._bucket(bucket)
            on_progress(done + 1, len(buckets))
        self._report_absent()

    async def _bucket(self, bucket: int) -> None:
        key = keys.bucket_key(self._source.ns, bucket)
        cursor = 0
        long: dict[str, int] = {}
        while True:
            [reply] = await self._source.tolerant(
                [(key, cursor)], self._scan, lambda item, error: self._add(Kind.TERM, item[0], "a hash", error)
            )
            if reply is None:
                self.unreadable.append(bucket)
                return
            cursor, page = reply
            inline = self._sort_page(key, bucket, page, long)
            before = self._source.journal.states(inline.records["doc"])
            await self._source.snapshot()
            self._compare_lists(inline, died_before=before == DEAD)
            if cursor == 0:
                break
        await self._long(long)

    async def _scan(self, items: Sequence[tuple[str, int]]) -> list[tuple[int, dict[bytes, bytes]]]:
        return [await self._source.command("HSCAN", key, cursor, "COUNT", _PAGE) for key, cursor in items]

    def _sort_page(self, key: str, bucket: int, page: Mapping[bytes, bytes], long: dict[str, int]) -> Lists:
        """Split a page into inline lists, given back, and the dfs of `long` ones; report what is neither."""
        numbers, values = [], []
        report = self._source.report
        for term, value in page.items():
            if bucket_of(term) != bucket:
                self.misplaced.append((key, term))
                self._add(Kind.TERM, self._where(key, term), "a term of this bucket", "another one")
                continue
            number = self._forward.vocabulary[term]
            if not self._first_time(number):
                continue
            report.terms += 1
            report.index_bytes += len(term) + len(value)
            if value == DF.pack(0):
                self._add(Kind.DF, self._place(number), "a df above 0, or no entry", 0)
            elif len(value) == DF.size:
                long[term.decode()] = split_term_value(value)[0]
            elif len(value) > DF.size:
                numbers.append(number)
                values.append(value)
            else:
                self._add(Kind.TERM, self._place(number), "a df of 4 bytes", f"{len(value)} bytes")
        return self._lists(numbers, values, inline=True)

    def _first_time(self, number: int) -> bool:
        """Tell whether a term is met for the first time; HSCAN may give one twice."""
        if number >= len(self._seen):
            grown = np.zeros(max(2 * number, _PAGE, len(self._forward.vocabulary)), np.bool_)
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        first = not self._seen[number]
        self._seen[number] = True
        return first

    def _lists(self, numbers: Sequence[int], values: Sequence[bytes], *, inline: bool) -> Lists:
        """Decode df and postings of some terms; a list's torn end is reported and left out."""
        dfs, whole = [], []
        for number, value in zip(numbers, values, strict=True):
            df, records = split_term_value(value)
            records = records or b""
            if rest := len(records) % POSTING.size:
                self._add(Kind.POSTING, self._place(number), "whole records of 6 bytes", f"{rest} bytes at the end")
                records = records[:-rest]
            dfs.append(df)
            whole.append(records)
        return Lists(
            np.array(numbers, np.uint64),
            np.array(dfs, np.int64),
            np.array([len(records) // POSTING.size for records in whole], np.int64),
            np.frombuffer(b"".join(whole), RECORD),
            inline,
        )

    async def _long(self, long: dict[str, int]) -> None:
        batch: list[str] = []
        size = 0
        for term, df in long.items():
            if batch and (len(batch) == _LONG_TERMS or size + df * POSTING.size > _LONG_BYTES):
                await self._long_batch(batch)
                batch, size = [], 0
            batch.append(term)
            size += df * POSTING.size
        if batch:
            await self._long_batch(batch)

    async def _long_batch(self, terms: Sequence[str]) -> None:
        def complain(term: str, error: str) -> None:
            self._add(Kind.POSTING, self._place(self._forward.vocabulary[term.encode()]), "a string", error)

        await self._source.tolerant(terms, self._compare_long, complain)

    async def _compare_long(self, terms: Sequence[str]) -> list[None]:
        inline: list[tuple[int, bytes]] = []
        long: list[tuple[int, bytes]] = []
        for term, state in zip(terms, await self._source.snapshot(terms), strict=True):
            number = self._forward.vocabulary[term.encode()]
            df = DF.pack(state.df)
            if state.generation or not state.df:  # without a df it has left the dictionary
                self._account_long(term, number, state)
                if (records := self._plain(number, state.records)) is not None:
                    long.append((number, df + records))
            elif state.records:
                inline.append((number, df + state.records))
            else:
                self._add(Kind.POSTING, self._place(number), f"postings of {state.df} documents", "no such key")
        for found, is_inline in ((inline, True), (long, False)):
            numbers, values = [number for number, _ in found], [value for _, value in found]
            self._compare_lists(self._lists(numbers, values, inline=is_inline))
        return [None] * len(terms)

    def _plain(self, number: int, postings: bytes) -> bytes | None:
        """Give all records of a list in a key of its own; None, reported, where its sealed part is damaged."""
        try:
            return plain(postings)
        except CorruptIndexError as error:
            self._add(Kind.POSTING, self._place(number), "a sealed part that can be read", str(error).partition(";")[0])
            return None

    def _account_long(self, term: str, number: int, state: TermState) -> None:
        self._source.report.index_bytes += state.total
        if state.total:
            self._known.add([keys.index_key(self._source.ns, term)])
        if 0 < state.total < GENERATION_BYTES:
            self._add(Kind.POSTING, self._place(number), "a generation of 4 bytes", f"{state.total} bytes in all")
        elif state.total and (generation := generation_number(state.generation)) >= self._source.next_doc:
            # It would be given out again, and readers would take the new list for the one that they know.
            self._add(Kind.POSTING, self._place(number), f"a generation below {self._source.next_doc}", generation)

    def _compare_lists(self, lists: Lists, died_before: NDArray[np.bool_] | None = None) -> None:
        """Compare lists with the journal and with the forward side."""
        if not len(lists.numbers):
            return
        docs = lists.records["doc"]
        term_of = np.repeat(lists.numbers, lists.counts)
        states = self._source.journal.states(docs)
        live = states == ALIVE
        self._source.report.live_postings += int(live.sum())
        self._source.report.dead_postings += int((states == DEAD).sum())
        self._each(term_of, docs, states == UNKNOWN, "a document that the journal knows", "an unknown number")
        if died_before is not None:
            self._each(term_of, docs, died_before, "no dead documents in a short list", "a dead one")
        # An inline value holds its df itself, so all its records count, whatever has died since.
        counted = np.ones(len(docs), np.bool_) if lists.inline else live
        counts = np.bincount(
            np.repeat(np.arange(len(lists.numbers)), lists.counts)[counted], minlength=len(lists.numbers)
        )
        for i in np.flatnonzero(counts != lists.df):
            self._add(Kind.DF, self._place(int(lists.numbers[i])), counts[i], lists.df[i])
        steady = live & self._forward.covered(docs)
        self._compare_postings(lists, join(term_of, docs.astype(np.uint64))[steady], lists.records["tf"][steady])

    def _compare_postings(self, lists: Lists, listed: NDArray[np.uint64], tfs: NDArray[np.uint16]) -> None:
        order = np.argsort(listed)
        listed, tfs = listed[order], tfs[order]
        due, due_tfs = self._forward.of_terms(lists.numbers)
        still = self._source.journal.states(split(due)[1]) == ALIVE
        due, due_tfs = due[still], due_tfs[still]
        if np.array_equal(listed, due) and np.array_equal(tfs, due_tfs):
            return
        doubled = np.zeros(len(listed), np.bool_)
        doubled[1:] = listed[1:] == listed[:-1]
        self._each(*split(listed), doubled, "one posting of a live document", "another one")
        listed, tfs = listed[~doubled], tfs[~doubled]
        self._each(*split(due), ~np.isin(due, listed), "the posting of a live document", "none")
        self._each(*split(listed), ~np.isin(listed, due), "no posting, the document has no such term", "a posting")
        _, ours, theirs = np.intersect1d(due, listed, assume_unique=True, return_indices=True)
        for i in np.flatnonzero(due_tfs[ours] != tfs[theirs]):
            number, doc = (int(part) for part in split(due[ours[i]]))
            self._add(
                Kind.POSTING, f"{self._place(number)} doc {doc}", f"tf {due_tfs[ours[i]]}", f"tf {tfs[theirs[i]]}"
            )

    def _each(
        self,
        term_of: NDArray[np.uint64],
        docs: NDArray[np.integer],
        wrong: NDArray[np.bool_],
        expected: str,
        found: str,
    ) -> None:
        places = np.flatnonzero(wrong)
        self.faulty.update(self._forward.vocabulary.terms[number] for number in np.unique(term_of[places]))
        for i in places[:KEPT_PER_KIND]:
            self._add(Kind.POSTING, f"{self._place(int(term_of[i]))} doc {docs[i]}", expected, found)
        self._source.report.count(Kind.POSTING, len(places[KEPT_PER_KIND:]))

    def _report_absent(self) -> None:
        """Report terms of documents that are alive still, where no dictionary entry was met."""
        numbers = np.arange(len(self._forward.vocabulary.terms), dtype=np.uint64)
        seen = np.zeros(len(numbers), np.bool_)
        seen[: len(self._seen)] = self._seen[: len(numbers)]
        due, _ = self._forward.of_terms(numbers[~seen])
        alive = self._source.journal.states(split(due)[1]) == ALIVE
        absent, counts = np.unique(split(due[alive])[0], return_counts=True)
        for number, count in zip(absent, counts, strict=True):
            self._add(Kind.TERM, self._place(int(number)), f"an entry for {count} documents", "none")

    def _place(self, number: int) -> str:
        """Say where a term with a problem is, and note it."""
        term = self._forward.vocabulary.terms[number]
        self.faulty.add(term)
        return self._where(keys.bucket_key(self._source.ns, bucket_of(term)), term)

    def _where(self, key: str, term: bytes) -> str:
        return f"{key} {self._source.shown(term)}"
