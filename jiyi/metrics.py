"""Every metric of jiyi: name, kind, unit and help text. Ids, namespaces and users are never labels.

In several processes prometheus-client needs its multiprocess mode: `PROMETHEUS_MULTIPROC_DIR` has to be in
the environment before this module is imported. The supervisor sets it for its children.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import REGISTRY

from jiyi.conditions import CONDITIONS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from jiyi.conditions import Condition
    from jiyi.streams import GroupState

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LAG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

EVENTS = Counter(
    "jiyi_events_total",
    "Events that workers have finished, by kind (write, delete, unknown) and result "
    "(applied, unchanged, superseded, duplicate, dead).",
    ["kind", "result"],
)
DEAD_LETTERS = Counter("jiyi_dead_letters_total", "Events moved to the dead-letter stream, by reason code.", ["code"])
CLAIMED = Counter("jiyi_claimed_total", "Pending entries taken over from consumers that stopped working on them.")
EVENTS_LOST = Counter(
    "jiyi_events_lost_total",
    "Accepted entries that somebody removed from the stream before they were processed, by what is gone "
    "(entries, or the whole stream).",
    ["what"],
)
for _what in ("entries", "stream"):
    EVENTS_LOST.labels(_what)  # from the start, for an alert sees no increase in what was not there before
WIPES = Counter(
    "jiyi_wipes_total",
    "Times that something was found removed and made again, by what it was (group, namespace).",
    ["what"],
)
for _what in ("group", "namespace"):
    WIPES.labels(_what)
COMPACTED_POSTINGS = Counter("jiyi_compacted_postings_total", "Postings of dead documents that compaction dropped.")
WORKER_ERRORS = Counter(
    "jiyi_worker_errors_total",
    "Errors after which a worker backed off, by code (connection, timeout, loading, busy, oom, ...).",
    ["code"],
)
BATCH_SIZE = Histogram(
    "jiyi_batch_size", "Entries in one batch read from the stream.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
)
TOKENISE_SECONDS = Histogram("jiyi_tokenise_seconds", "Seconds of analysis for one batch of events.", buckets=_FAST)
APPLY_SECONDS = Histogram(
    "jiyi_apply_seconds", "Seconds of one atomic apply call, as the worker sees it.", buckets=_FAST
)
SEARCHABLE_SECONDS = Histogram(
    "jiyi_write_to_searchable_seconds",
    "Seconds from the event's entry in the stream to its place in the index.",
    buckets=_LAG,
)
SERVER_CONDITION = Gauge(
    "jiyi_server_condition",
    "1 while Redis is in a state that endangers the index, by name (eviction, replica, aof_off, disk_error, "
    "memory_nearly_full).",
    ["condition"],
    multiprocess_mode="mostrecent",
)
STREAM_LAG = Gauge(
    "jiyi_stream_lag_entries",
    "Entries that no worker has read yet; NaN while the server cannot tell.",
    multiprocess_mode="mostrecent",
)
PENDING = Gauge(
    "jiyi_pending_entries", "Entries read by a worker and not acknowledged yet.", multiprocess_mode="mostrecent"
)
OLDEST_UNAPPLIED_SECONDS = Gauge(
    "jiyi_oldest_unapplied_seconds",
    "Age of the oldest entry that is not applied yet; 0 when there is none.",
    multiprocess_mode="mostrecent",
)
CONSUMERS = Gauge("jiyi_consumers", "Consumers of the worker group.", multiprocess_mode="mostrecent")
DEAD_LETTERS_KEPT = Gauge(
    "jiyi_dead_letters_kept", "Dead letters that wait for replay or removal.", multiprocess_mode="mostrecent"
)
SEARCH_SECONDS = Histogram("jiyi_search_seconds", "Seconds of one search in the reader, all steps.", buckets=_FAST)
SEARCHES = Counter("jiyi_searches_total", "Searches, by result (hits, empty, refused, unavailable).", ["result"])
HITS = Histogram("jiyi_search_hits", "Hits returned by one search.", buckets=(0, 1, 2, 5, 10, 20, 50, 100))
CACHE_TERMS = Counter(
    "jiyi_cache_terms_total",
    "Terms of searches by what the cache had: hit (nothing new), delta (new bytes), miss (all bytes), short (a short "
    "list, which comes whole when its namespace has changed).",
    ["result"],
)
CACHE_BYTES = Gauge("jiyi_cache_bytes", "Bytes of decoded postings that readers keep.", multiprocess_mode="livesum")
DOCUMENT_CACHE_BYTES = Gauge(
    "jiyi_document_cache_bytes", "Bytes of stored memories that readers keep.", multiprocess_mode="livesum"
)
HTTP_REQUESTS = Counter("jiyi_http_requests_total", "HTTP requests, by route and status.", ["route", "status"])


def publish_state(state: GroupState) -> None:
    """Set the gauges of the stream; a lag that the server cannot tell is NaN, never 0."""
    STREAM_LAG.set(math.nan if state.lag is None else state.lag)
    PENDING.set(state.pending)
    OLDEST_UNAPPLIED_SECONDS.set(state.oldest_unapplied_ms / 1000)
    CONSUMERS.set(state.consumers)


def publish_conditions(found: Sequence[Condition]) -> None:
    """Set the gauge of the server's conditions: 1 for those found, 0 for the others."""
    names = {condition.name for condition in found}
    for name in CONDITIONS:
        SERVER_CONDITION.labels(name).set(name in names)


def render() -> bytes:
    """Give all metrics in the Prometheus text format, those of sibling processes included."""
    if MULTIPROCESS_VARIABLE in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest(REGISTRY)


_PATIENCE_S = 10
"""What a scraper has for its request; each holds a thread and a descriptor meanwhile."""
_PAUSE_S = 0.5


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each scraper: one that connects and says nothing holds up no other."""

    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; without a descriptor for it, pause: it waits there still, and would be tried at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep scrapers that leave, or never say what they want, out of the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _QuietHandler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Keep scrapes out of the log."""


def serve(host: str, port: int) -> Callable[[], None]:
    """Serve `/metrics` from a thread of this process; gives a function that stops it."""
    registry: CollectorRegistry = REGISTRY
    if MULTIPROCESS_VARIABLE in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    server = make_server(host, port, make_wsgi_app(registry), _Server, _QuietHandler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server.shutdown
