"""Mend what can be mended from the stored memories, also while workers write.

The truth is what a memory's hash says of itself: content, fields and `entry`. All else follows from it and can be
worked out anew: the forward list from the content, the journal and the counters from the memories, `ids` likewise,
the postings from the forward lists, the marks from the hashes. What does not follow is never guessed at: a fence that
is no entry id, a hash that is neither a memory nor a tombstone, keys of others. That is left, and reported.

How it can be right beside workers:

* Every step is one script that compares what it replaces with what was read, and is tried again when that has moved.
  So a repair may be killed at any point, and two may run at once: each step leaves less to do.
* A step that changes what a worker may have prepared from (a forward list, a length, a number) gives the namespace a
  new epoch. Workers prepare again, and readers drop what they have cached. A new journal and new postings have a new
  generation, which readers notice as well.
* Order: first numbers that nobody else can get, then the memories, then `ids` and journal, then the postings. From
  each step on, workers keep right what it has mended.
* A server is held for a few milliseconds at most: long values are written beside their keys, and renamed.

Whether all holds is for `jiyi.check` to say: it runs before and after.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from jiyi.check import Kind, check, check_namespace
from jiyi.check.source import DamagedError, NamespaceMovedError
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError
from jiyi.repair.documents import Documents
from jiyi.repair.ids import mend_ids
from jiyi.repair.journal import JournalRepair
from jiyi.repair.marks import mend_marks
from jiyi.repair.numbers import mend_counters
from jiyi.repair.result import Repair, result
from jiyi.repair.target import Target
from jiyi.repair.terms import TermsRepair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from jiyi.check import Progress, Report
    from jiyi.connections import Database
    from jiyi.reindex import TermsOf

__all__ = ["Repair", "repair", "repair_namespace"]

_ROUNDS = 6
"""One is enough where nobody writes. Workers that go on with damaged terms can make a second one necessary, and a
check that could not read on finds more after the first."""
_WHOLE = frozenset({Kind.JOURNAL, Kind.STATS, Kind.IDS, Kind.MEMORY, Kind.FORWARD_LIST, Kind.LENGTH})
"""Kinds after which everything is worked out anew."""
_DOUBTFUL = frozenset({Kind.POSTING, Kind.TERM})
"""Kinds after which nobody knows whether the postings are wrong or the forward lists: the contents decide."""
_LISTS = frozenset({Kind.DF, Kind.INDEX_KEY})
_MARKS = frozenset({Kind.TOMBSTONE, Kind.EXPIRY, Kind.NAMESPACE, Kind.DEAD_LETTER, Kind.STRAY_KEY})


async def repair(
    database: Database,
    analyzer: TermsOf,
    namespaces: Sequence[str] | None = None,
    *,
    stream: str | None = None,
    on_progress: Progress | None = None,
) -> list[Repair]:
    """Check some namespaces, by default all, and mend those that need it; others are not touched.

    `stream` as in `check_namespace`; errors as in `repair_namespace`.
    """
    reports = await check(database, namespaces, stream=stream, on_progress=on_progress)
    return [await _mend(database, analyzer, report, stream, on_progress) for report in reports]


async def repair_namespace(
    database: Database,
    ns: str,
    analyzer: TermsOf,
    *,
    stream: str | None = None,
    on_progress: Progress | None = None,
) -> Repair:
    """Check one namespace, mend what can be mended, and check it again; see the module.

    `analyzer` has to be that of the namespace wherever memories have to be looked at: otherwise nothing is done, and
    `Repair.refused` says so. Raises `UnavailableError` when Redis is away (calling again goes on), and
    `CorruptIndexError` when the server refuses a step for good.
    """
    report = await check_namespace(database, ns, stream=stream, on_progress=on_progress)
    return await _mend(database, analyzer, report, stream, on_progress)


async def _mend(
    database: Database, analyzer: TermsOf, report: Report, stream: str | None, on_progress: Progress | None
) -> Repair:
    target = Target(database, report.namespace, on_progress)
    repaired: Counter[Kind] = Counter()
    for _ in range(_ROUNDS):
        if report.ok:
            break
        before = report
        try:
            await _round(target, analyzer, set(report.counts), stream)
        except AnalyzerMismatchError as error:
            return result(report, repaired, target.done, str(error))
        except ResponseError as error:
            raise CorruptIndexError(f"the server refuses to mend namespace {target.ns!r}: {error}") from error
        except (NamespaceMovedError, DamagedError):
            pass  # wiped, or damaged anew: the check says what there is to do now
        report = await check_namespace(database, target.ns, stream=stream, on_progress=on_progress)
        for kind, count in before.counts.items():
            repaired[kind] += max(0, count - report.counts.get(kind, 0))
        if report.problems == before.problems and report.counts == before.counts:
            break
    return result(report, repaired, target.done)


async def _round(target: Target, analyzer: TermsOf, kinds: AbstractSet[Kind], stream: str | None) -> None:
    """Mend what the kinds of problems found call for."""
    whole = bool(kinds & _WHOLE)
    if whole or kinds & _DOUBTFUL:
        journal = await mend_counters(target, analyzer.fingerprint)
        documents = Documents(target, analyzer, journal)
        await documents.mend(analyse=bool(kinds & _DOUBTFUL))
        whole = whole or documents.changed > 0
        if whole:
            await mend_ids(target, documents)
            await JournalRepair(target, documents.strangers).mend()
    if whole or kinds & (_DOUBTFUL | _LISTS):
        await TermsRepair(target).mend()
    if whole or kinds & _MARKS:
        await mend_marks(target, stream)
