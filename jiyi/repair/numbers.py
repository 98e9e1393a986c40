"""Counters and document numbers: whatever is mended later needs numbers that nobody else has or will get."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.check.journal import Journal
from jiyi.check.report import Report
from jiyi.errors import AnalyzerMismatchError
from jiyi.postings import GENERATION_BYTES, JOURNAL, MAX_DOC, generation_number
from jiyi.repair.target import Target, number_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PIECE = JOURNAL.size * 65_536
_MARGIN = 65_536
_SPARSE = 64
"""A number beyond `next_doc`, `_MARGIN` and so many numbers a memory is garbage: it must not use up all others."""


async def mend_counters(target: Target, analyzer: str) -> Journal:
    """Make `next_doc` lie above all numbers in use, and the other counters numbers; gives the journal as it was.

    Generations of the journal and of lists are numbers in use as well: one that was given out again would make readers
    take what is new for what they know.

    Raises `AnalyzerMismatchError` when the namespace has another analyzer.
    """
    stored = await _stored_next_doc(target)
    journal = Journal(Report(namespace=target.ns), "")
    async for records in _records(target):
        journal.absorb(records, stored)
    numbers = []
    async for ids in target.ids("numbers"):
        for row in await target.read(ids, ("doc",)):
            number = number_of((row or {}).get("doc"))
            if number is not None:
                numbers.append(number)
    generations = [generation async for generation in _generations(target)]
    limit = min(MAX_DOC, max(stored, _MARGIN + _SPARSE * max(len(numbers), journal.records)))
    used = [*numbers, *generations, journal.highest]
    floor = 1 + max((number for number in used if number < limit), default=-1)
    mended = await scripts.repair_counters(
        target.database, target.ns, revision=secrets.token_hex(8), analyzer=analyzer, floor=floor
    )
    if mended < 0:
        found = await target.command("HGET", keys.stats_key(target.ns), "analyzer")
        raise AnalyzerMismatchError(target.ns, (found or b"").decode(errors="replace"), analyzer)
    target.done["counters"] += mended
    return journal


async def _stored_next_doc(target: Target) -> int:
    try:
        found = await target.command("HGET", keys.stats_key(target.ns), "next_doc")
    except ResponseError:  # no hash
        return 0
    return min(number_of(found) or 0, MAX_DOC)


async def _generations(target: Target) -> AsyncIterator[int]:
    """Yield the generations of the journal and of all lists in keys of their own; what is no string has none."""
    for prefix in (keys.journal_key(target.ns), keys.index_prefix(target.ns)):
        async for page in target.keys(prefix):
            for rest in page:
                try:
                    found = await target.command("GETRANGE", prefix.encode() + rest, 0, GENERATION_BYTES - 1)
                except ResponseError:
                    continue
                if len(found) == GENERATION_BYTES:
                    yield generation_number(found)


async def _records(target: Target) -> AsyncIterator[bytes]:
    """Whole records of the journal; nothing if it is no string."""
    key, at = keys.journal_key(target.ns), GENERATION_BYTES
    while True:
        try:
            piece = await target.command("GETRANGE", key, at, at + _PIECE - 1)
        except ResponseError:
            return
        if whole := len(piece) // JOURNAL.size * JOURNAL.size:
            yield piece[:whole]
        if len(piece) < _PIECE:
            return
        at += _PIECE
