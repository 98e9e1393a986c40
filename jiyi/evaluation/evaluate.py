"""Evaluation through the whole product: stream, workers, index, reader, HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jiyi.errors import SourceError
from jiyi.evaluation.measures import DEPTH, Scores, measure
from jiyi.sync_client import SyncClient
from jiyi.sync_producer import SyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jiyi.evaluation.judged import JudgedQuery, JudgedSet
    from jiyi.evaluation.service import Service

_DOCUMENTS_AT_ONCE = 500
_READY_S = 600.0


def _in_silence(_doing: str, _done: int, _of: int) -> None:
    pass


def write_all(service: Service, judged: JudgedSet, on_step: Callable[[str, int, int], None] = _in_silence) -> None:
    """Write all documents and wait until they can be found. Raises `SourceError` if one cannot be.

    `on_step` is called with what is done, how much of it, and of how much.
    """
    rows, accepted = judged.documents, []
    with SyncProducer(service.redis_url, when_full="wait") as producer:
        for at in range(0, len(rows), _DOCUMENTS_AT_ONCE):
            accepted += producer.write_many(rows[at : at + _DOCUMENTS_AT_ONCE])
            on_step("writing", len(accepted), len(rows))
    with SyncClient(service.api_url) as client:
        for at in range(0, len(accepted), _DOCUMENTS_AT_ONCE):
            for answer in client.wait_ready(accepted[at : at + _DOCUMENTS_AT_ONCE], _READY_S):
                # Expired ones are none of a search's business either.
                if answer.state not in {"ready", "deleted"}:
                    raise SourceError(f"document {answer.id!r} is {answer.state}: {answer.reason or 'not in time'}")
            on_step("indexing", min(at + _DOCUMENTS_AT_ONCE, len(rows)), len(rows))


def ask_all(
    service: Service,
    queries: Sequence[JudgedQuery],
    *,
    k1: float | None = None,
    b: float | None = None,
    on_step: Callable[[str, int, int], None] = _in_silence,
) -> list[list[str]]:
    """Ask every question over HTTP; gives the ids found for each, best first, at most `DEPTH`."""
    found: list[list[str]] = []
    with SyncClient(service.api_url) as client:
        for query in queries:
            result = client.search(query.query, query.ns, DEPTH, k1=k1, b=b)
            found.append([hit.id for hit in result.hits])
            on_step("asking", len(found), len(queries))
    return found


def scores_of(queries: Sequence[JudgedQuery], found: Sequence[Sequence[str]]) -> Scores:
    """Measure what was found for each question."""
    return measure((ids, query.relevant) for query, ids in zip(queries, found, strict=True))
