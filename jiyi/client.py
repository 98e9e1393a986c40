"""Clients of the reader's HTTP interface, with the standard library's HTTP: `Client` and `SyncClient`."""

from __future__ import annotations

import io
import math
import os
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import anyio
import anyio.to_thread
import msgspec

from jiyi import __version__
from jiyi.errors import ApiError, InvalidQueryError, SettingsError, UnavailableError
from jiyi.events import parse_entry
from jiyi.memories import DEFAULT_NAMESPACE, Memory, parse_id, parse_namespace
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, Unpack

TIMEOUT_S = 10.0
"""How long an answer may take, from the connection to its last byte; a `wait` is added to it."""
MAX_CONNECTIONS = 20
"""Requests of one asyncio client that are on their way at once; further ones wait for their turn."""
READY_IDS = 100
"""Most ids that a reader answers in one readiness request."""
URL_BYTES = 6_000
"""Longest query string of a readiness request (proxies allow about 8,000 bytes); more ids take more requests."""
WAIT_SLICE_S = 10.0
"""`wait_ready` asks for so long at once: less than what a reader grants by default, so it is never refused."""
ROUND_S = 0.05
"""`wait_ready` asks at most so often, should the reader answer without waiting."""

_AWAY = {429, 502, 503, 504}
"""Statuses that say "not now", of the reader or of a proxy before it."""
_TIMES = ("timestamp", "expires_at")
_WAIT = re.compile(r"(\d+(?:\.\d+)?)(ms|s)", re.ASCII)
_Answer = TypeVar("_Answer")


class Accepted(msgspec.Struct, frozen=True, rename="camel"):
    """A write or delete that the service has accepted. `entry` is its version; `wait_ready` takes it."""

    id: str
    ns: str
    entry: str


class Versioned(Protocol):
    """What `wait_ready` waits for: `Accepted` of this module or of `jiyi.producer`."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def ns(self) -> str: ...  # noqa: D102
    @property
    def entry(self) -> str: ...  # noqa: D102


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a memory can be found. When `ready`, the next query sees `entry` or a later version.

    `state` is `ready`, `pending`, `deleted`, `failed` (then `reason` says why) or `unknown`.
    """

    id: str
    ready: bool
    state: str
    entry: str | None = None
    indexed_at: datetime | None = None
    reason: str | None = None

    def is_final(self) -> bool:
        """Tell whether waiting longer would change nothing."""
        return self.state in ("ready", "deleted", "failed")


class MatchedTerm(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one term in a hit's score; the scores of all terms add up to the hit's."""

    term: str
    tf: int
    df: int
    idf: float
    score: float


class StoredMemory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A memory as the index holds it."""

    id: str
    content: str
    ns: str | None = None
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    timestamp: datetime | None = None
    importance: float | None = None
    expires_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    entry: str | None = None
    indexed_at: datetime | None = None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers that the parts of a score are made of, and the formula."""

    length: int
    avgdl: float
    docs: int
    k1: float
    b: float
    formula: str = ""


class Hit(StoredMemory, frozen=True, kw_only=True, rename="camel"):
    """A memory that was found, with its BM25 score and what each term gave to it; `explain` adds `explanation`."""

    score: float
    matched_terms: tuple[MatchedTerm, ...] = ()
    explanation: Explanation | None = None


class IndexStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """What the scores were computed with: documents alive and their mean length in tokens."""

    docs: int
    avgdl: float


class SearchResult(msgspec.Struct, frozen=True, rename="camel"):
    """The best hits, best first, and how many memories matched in all."""

    hits: tuple[Hit, ...]
    total: int
    took_ms: float
    index: IndexStatistics


class Filters(TypedDict, total=False):
    """Conditions of a search; a memory must meet all, and of several values one. `until` is exclusive."""

    user_id: str | Sequence[str] | None
    session_id: str | Sequence[str] | None
    author: str | Sequence[str] | None
    source_system: str | Sequence[str] | None
    kind: str | Sequence[str] | None
    tags: str | Sequence[str] | None
    since: datetime | str | int | None
    until: datetime | str | int | None
    min_importance: float | None


class MemoryFields(TypedDict, total=False):
    """A memory as `write` takes it; only `content` is required. A `datetime` without zone counts as UTC."""

    id: str | None
    ns: str | None
    content: str
    author: str | None
    source_system: str | None
    user_id: str | None
    session_id: str | None
    kind: str | None
    tags: Sequence[str] | None
    timestamp: datetime | str | int | None
    importance: float | None
    expires_at: datetime | str | int | None
    metadata: Mapping[str, Any] | None


class _AcceptedMany(msgspec.Struct):
    accepted: list[Accepted]


class _ReadinessMany(msgspec.Struct):
    memories: list[Readiness]


class _ErrorBody(msgspec.Struct):
    code: str = "unknown"
    message: str = ""


class _ErrorAnswer(msgspec.Struct):
    error: _ErrorBody


class _Request(NamedTuple, Generic[_Answer]):
    """One exchange: what to send, how long to wait, and the type of a good answer's body.

    A repeatable one is sent again when a kept connection turns out to be closed.
    """

    method: str
    target: str
    answer: type[_Answer]
    body: bytes | None = None
    wait_s: float = 0.0
    repeatable: bool = True


def _search(q: str, parameters: dict[str, Any], filters: Mapping[str, Any]) -> _Request[SearchResult]:
    for name in filters:
        if name not in Filters.__annotations__:
            raise InvalidQueryError(name, f"is no filter; filters are {', '.join(Filters.__annotations__)}")
    asked = {"q": q, **parameters, **{_camel(name): value for name, value in filters.items()}}
    body = msgspec.json.encode({name: _finite(name, value) for name, value in asked.items() if value is not None})
    return _Request("POST", "/memory/search", SearchResult, body)


def _finite(name: str, value: Any) -> Any:
    """Refuse what JSON cannot say: NaN and infinity would arrive as null, that is, as not given."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidQueryError(name, "must be a finite number")
    try:
        msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidQueryError(name, "must be text, a number, a time, or a list of texts; UTF-8 throughout") from None
    return value


def _write(memory: Mapping[str, Any]) -> _Request[Accepted]:
    return _Request("POST", "/memory/write", Accepted, msgspec.json.encode(_wire(memory)), repeatable=False)


def _write_many(memories: Iterable[Mapping[str, Any]]) -> _Request[_AcceptedMany]:
    body = msgspec.json.encode({"memories": [_wire(memory) for memory in memories]})
    return _Request("POST", "/memory/write", _AcceptedMany, body, repeatable=False)


def _delete(memory_id: str, ns: str) -> _Request[Accepted]:
    return _Request("DELETE", _path(memory_id, ns), Accepted, repeatable=False)


def _get(memory_id: str, ns: str) -> _Request[StoredMemory]:
    return _Request("GET", _path(memory_id, ns), StoredMemory)


def _path(memory_id: str, ns: str) -> str:
    return f"/memory/{quote(parse_id(memory_id), safe='')}?{urlencode({'ns': parse_namespace(ns)})}"


def _wire(memory: Mapping[str, Any]) -> dict[str, Any]:
    """Check a memory and give its JSON object; how large a content may be is for the reader to say."""
    fields = dict(memory)
    memory_id, ns = fields.pop("id", None), fields.pop("ns", None)
    for name in _TIMES:
        if isinstance(moment := fields.get(name), datetime):
            fields[name] = moment.isoformat()
    checked = Memory.from_fields(fields, sys.maxsize)
    wire = {_camel(name): value for name, value in msgspec.to_builtins(checked).items()}
    if checked.metadata is not None:
        wire["metadata"] = msgspec.Raw(checked.metadata.encode())
    if memory_id is not None:
        wire["id"] = parse_id(memory_id)
    wire["ns"] = DEFAULT_NAMESPACE if ns is None else parse_namespace(ns)
    return wire


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _seconds(wait: float | str) -> float:
    """Read `2`, `0.5`, `"2s"` or `"500ms"`."""
    if isinstance(wait, str):
        if (found := _WAIT.fullmatch(wait)) is None:
            raise InvalidQueryError("wait", "must be seconds, or text like 2s or 500ms")
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    if not 0 <= wait < threading.TIMEOUT_MAX:
        raise InvalidQueryError("wait", "must be a number of seconds, not negative")
    return float(wait)


_Asking: TypeAlias = "Generator[_Request[Any] | float, Any, list[Readiness]]"
"""A conversation without input and output: yields requests and seconds to sleep, is sent answers, returns a result."""


def _ask_ready(ids: Sequence[str], entries: Sequence[str] | None, ns: str, wait_s: float) -> _Asking:
    """Ask for ids, a bounded length of URL at once; the waiting time is that of all together."""
    if entries is not None and len(entries) != len(ids):
        raise InvalidQueryError("entries", f"has {len(entries)} for {len(ids)} ids; give one entry an id")
    parse_namespace(ns)
    asked = [[("id", parse_id(memory_id))] for memory_id in ids]
    for pairs, entry in zip(asked, entries or (), strict=False):
        parse_entry(entry)
        pairs.append(("entry", entry))
    deadline = time.monotonic() + wait_s
    results: list[Readiness] = []
    for group in _groups([urlencode(pairs) for pairs in asked]):
        left_s = round(max(deadline - time.monotonic(), 0.0), 3)
        target = f"/memory/ready?{urlencode({'ns': ns})}&{'&'.join(group)}" + (f"&wait={left_s:g}s" if left_s else "")
        if len(group) == 1:
            results.append((yield _Request("GET", target, Readiness, wait_s=left_s)))
        else:
            results += (yield _Request("GET", target, _ReadinessMany, wait_s=left_s)).memories
    return results


def _groups(queries: Sequence[str]) -> Iterator[list[str]]:
    """Split into groups of at most `READY_IDS` and `URL_BYTES`."""
    group: list[str] = []
    for query in queries:
        if len(group) == READY_IDS or (group and sum(map(len, group)) + len(group) + len(query) > URL_BYTES):
            yield group
            group = []
        group.append(query)
    if group:
        yield group


def _ask_until_ready(accepted: Sequence[Versioned], timeout_s: float) -> _Asking:
    """Ask again and again until all are final or the time is over; a reader that is away is waited for too."""
    deadline = time.monotonic() + timeout_s
    known: dict[int, Readiness] = {}
    while True:
        started = time.monotonic()
        pause_s = ROUND_S
        try:
            yield from _ask_open(accepted, known, deadline)
        except UnavailableError as error:
            pause_s = error.retry_after_s
            if time.monotonic() + pause_s > deadline:
                raise
        now = time.monotonic()
        if len(known) == len(accepted) and (now >= deadline or all(one.is_final() for one in known.values())):
            return [known[i] for i in range(len(accepted))]
        if (rest_s := min(started + pause_s, deadline) - now) > 0:
            yield rest_s


def _ask_open(accepted: Sequence[Versioned], known: dict[int, Readiness], deadline: float) -> _Asking:
    """Ask once for those that are not final yet, namespace by namespace, and note the answers in `known`."""
    for ns in dict.fromkeys(one.ns for one in accepted):
        numbers = [i for i, one in enumerate(accepted) if one.ns == ns and (i not in known or not known[i].is_final())]
        wait_s = min(WAIT_SLICE_S, max(deadline - time.monotonic(), 0.0))
        ids, entries = [accepted[i].id for i in numbers], [accepted[i].entry for i in numbers]
        answers = yield from _ask_ready(ids, entries, ns, wait_s)
        known.update(zip(numbers, answers, strict=True))
    return []


class _Exchange:
    """A request on its way. Another thread may abort it."""

    def __init__(self, request: _Request[Any]) -> None:
        self.request = request
        self._lock = threading.Lock()
        self._aborted = False
        self._socket: socket.socket | None = None

    def hold(self, connected: socket.socket | None) -> None:
        """Note the socket that is in use, None before its connection goes back to where others take it from."""
        with self._lock:
            if self._aborted:
                raise UnavailableError("the request was cancelled")
            self._socket = connected

    def abort(self) -> None:
        """End the exchange soon: whoever waits for its answer sees the connection closed."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


class _PunctualReader(io.RawIOBase):
    """Reads a socket until a deadline for the whole answer; a socket's own timeout begins anew at every byte."""

    def __init__(self, source: socket.socket, raw: Any, deadline: float) -> None:
        super().__init__()
        self._source = source
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._source.settimeout(_left_s(self._deadline))
        return cast("int | None", self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PunctualResponse(HTTPResponse):
    def __init__(self, source: socket.socket, *args: Any, deadline: float, **options: Any) -> None:
        super().__init__(source, *args, **options)
        self.fp = io.BufferedReader(_PunctualReader(source, self.fp.detach(), deadline))


def _left_s(deadline: float) -> float:
    if (left_s := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


class _Transport:
    """Exchanges with one reader over kept connections; safe to share between threads, and across a fork."""

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            parts = urlsplit(url)
            address = parts.hostname, parts.port
        except ValueError:
            address = None, None
        if address[0] is None or parts.scheme not in ("http", "https") or parts.username or parts.query:
            raise SettingsError(f"JIYI_API_URL is {url!r}; it must be like http://127.0.0.1:8700")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = address[0], address[1]
        self._prefix = parts.path.rstrip("/")
        self.timeout_s = timeout_s
        self._where = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._pid = os.getpid()

    def send(self, exchange: _Exchange) -> Any:
        """Give the decoded answer. Raises `UnavailableError` and `ApiError`."""
        request = exchange.request
        deadline = time.monotonic() + self.timeout_s + request.wait_s
        while True:
            connection, kept = self._take()
            try:
                response, body = self._attempt(connection, exchange, deadline)
                exchange.hold(None)
            except BaseException as error:
                connection.close()
                if kept and request.repeatable and isinstance(error, ConnectionError):
                    continue  # the reader had closed it; RemoteDisconnected is a ConnectionError too
                if isinstance(error, TimeoutError):
                    raise UnavailableError(f"the reader at {self._where} did not answer in time") from error
                if isinstance(error, OSError | HTTPException):
                    raise UnavailableError(f"no reader answers at {self._where}: {type(error).__name__}") from error
                raise
            if response.will_close:
                connection.close()
            else:
                self._keep(connection)
            return _decoded(response, body, request.answer)

    def _attempt(self, connection: HTTPConnection, exchange: _Exchange, deadline: float) -> tuple[HTTPResponse, bytes]:
        request = exchange.request
        headers = {"Accept": "application/json", "User-Agent": f"jiyi/{__version__}"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        # http.client calls it to make a response; that it is no class does not matter there.
        connection.response_class = cast("type[HTTPResponse]", partial(_PunctualResponse, deadline=deadline))
        connection.timeout = _left_s(deadline)
        if connection.sock is None:
            connection.connect()
        exchange.hold(connection.sock)
        connection.sock.settimeout(_left_s(deadline))
        connection.request(request.method, self._prefix + request.target, request.body, headers)
        response = connection.getresponse()
        return response, response.read()

    def _take(self) -> tuple[HTTPConnection, bool]:
        """Give a connection that is ours alone, and whether it was used before."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork these are the parent's: two would read one answer
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if not _is_readable(connection.sock):
                    return connection, True
                connection.close()  # nothing is asked, so what can be read is the end, or nonsense
        return self._kind(self._host, self._port), False

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._pid == os.getpid() and len(self._idle) < MAX_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the kept connections; those in use are kept afterwards and closed with the next `close`."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _is_readable(source: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(0))


def _decoded(response: HTTPResponse, body: bytes, answer: type[_Answer]) -> _Answer:
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004 - success
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"the answer is not that of a jiyi reader ({error}); is JIYI_API_URL right?"
            raise ApiError(status, "unreadable_answer", message) from None
    try:
        told = msgspec.json.decode(body, type=_ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = _ErrorBody()
    message = told.message or f"the reader answered {status} {response.reason}"
    if status in _AWAY:
        raise UnavailableError(message, retry_after_s=_retry_after_s(response.headers.get("Retry-After")))
    raise ApiError(status, told.code, message)


def _retry_after_s(header: str | None) -> float:
    """Read seconds or a date (RFC 9110, section 10.2.3); one second when there is neither."""
    if header is None:
        return 1.0
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return 1.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)


class SyncClient:
    """Asks the reader at `url`, by default `JIYI_API_URL`, on blocking sockets; safe to share between threads.

    Connections are kept and used again; `close` (or leaving `with`) closes them. `timeout_s` bounds every call as a
    whole, the time of a `wait` added.

    Raises `UnavailableError` when the reader is not there, is slow, or says "not now" (503, 429); `retry_after_s`
    says when to ask again. Raises `ApiError` when it refuses, `InvalidQueryError` and `InvalidEventError` before
    anything is sent. Questions may be repeated at will; a write or delete whose outcome is unknown may be repeated as
    a producer's (see `Producer`).
    """

    def __init__(self, url: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = _Transport(Settings.from_environment(api_url=url).api_url, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._transport.close()

    def search(  # noqa: PLR0913 - the parameters of the HTTP call
        self,
        q: str,
        ns: str = DEFAULT_NAMESPACE,
        limit: int = 10,
        k1: float | None = None,
        b: float | None = None,
        explain: bool = False,
        **filters: Unpack[Filters],
    ) -> SearchResult:
        """Find memories of a namespace by BM25; with `explain`, every hit says which term gave it what."""
        return self._send(_search(q, {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}, filters))

    def ready(
        self,
        ids: str | Sequence[str],
        entries: str | Sequence[str] | None = None,
        *,
        ns: str = DEFAULT_NAMESPACE,
        wait: float | str = 0.0,
    ) -> list[Readiness]:
        """Say of each id whether it can be found, given `entries` whether in that version or a later one.

        `wait` (seconds, or text like `2s`) lets the reader wait that long for all to become ready.
        """
        return self._hold(_ask_ready(_listed(ids), None if entries is None else _listed(entries), ns, _seconds(wait)))

    def wait_ready(self, accepted: Versioned | Sequence[Versioned], timeout_s: float = 30.0) -> list[Readiness]:
        """Wait until what was accepted is `ready`, `deleted` or `failed`, at most so long; gives how each stands then.

        It raises nothing for being late: look at `ready` of each. A reader that is away is waited for; raises
        `UnavailableError` if it stays away.
        """
        return self._hold(_ask_until_ready(_several(accepted), timeout_s))

    def get(self, id: str, ns: str = DEFAULT_NAMESPACE) -> StoredMemory:  # noqa: A002 - the field's name
        """Give the stored memory. Raises `ApiError` with status 404 when there is none."""
        return self._send(_get(id, ns))

    def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory through the reader; without `id` the reader makes one."""
        return self._send(_write(memory))

    def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in one request; each has the fields of `write`."""
        return self._send(_write_many(memories)).accepted

    def delete(self, id: str, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; that there is none is no error."""
        return self._send(_delete(id, ns))

    def _send(self, request: _Request[_Answer]) -> _Answer:
        return cast("_Answer", self._transport.send(_Exchange(request)))

    def _hold(self, asking: _Asking) -> list[Readiness]:
        """Carry on a conversation to its end."""
        step: Callable[[], _Request[Any] | float] = partial(next, asking)
        while True:
            try:
                asked = step()
            except StopIteration as end:
                return cast("list[Readiness]", end.value)
            try:
                if isinstance(asked, float):
                    time.sleep(asked)
                    step = partial(asking.send, None)
                else:
                    step = partial(asking.send, self._send(asked))
            except UnavailableError as error:
                step = partial(asking.throw, error)


class Client:
    """`SyncClient` for asyncio: the same calls as coroutines, each in a worker thread.

    One client serves any number of tasks; `MAX_CONNECTIONS` of their requests are on their way at once. Cancelling
    a call closes its connection. Close with `aclose`, or leave `async with`.
    """

    def __init__(self, url: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = _Transport(Settings.from_environment(api_url=url).api_url, timeout_s)
        self._turns = anyio.CapacityLimiter(MAX_CONNECTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the kept connections."""
        self._transport.close()

    async def search(  # noqa: PLR0913 - as above
        self,
        q: str,
        ns: str = DEFAULT_NAMESPACE,
        limit: int = 10,
        k1: float | None = None,
        b: float | None = None,
        explain: bool = False,
        **filters: Unpack[Filters],
    ) -> SearchResult:
        """Find memories of a namespace; see `SyncClient.search`."""
        return await self._send(_search(q, {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}, filters))

    async def ready(
        self,
        ids: str | Sequence[str],
        entries: str | Sequence[str] | None = None,
        *,
        ns: str = DEFAULT_NAMESPACE,
        wait: float | str = 0.0,
    ) -> list[Readiness]:
        """Say of each id whether it can be found; see `SyncClient.ready`."""
        asking = _ask_ready(_listed(ids), None if entries is None else _listed(entries), ns, _seconds(wait))
        return await self._hold(asking)

    async def wait_ready(self, accepted: Versioned | Sequence[Versioned], timeout_s: float = 30.0) -> list[Readiness]:
        """Wait until what was accepted can be found; see `SyncClient.wait_ready`."""
        return await self._hold(_ask_until_ready(_several(accepted), timeout_s))

    async def get(self, id: str, ns: str = DEFAULT_NAMESPACE) -> StoredMemory:  # noqa: A002 - the field's name
        """Give the stored memory; see `SyncClient.get`."""
        return await self._send(_get(id, ns))

    async def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory through the reader; see `SyncClient.write`."""
        return await self._send(_write(memory))

    async def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in one request; see `SyncClient.write_many`."""
        return (await self._send(_write_many(memories))).accepted

    async def delete(self, id: str, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; see `SyncClient.delete`."""
        return await self._send(_delete(id, ns))

    async def _send(self, request: _Request[_Answer]) -> _Answer:
        exchange = _Exchange(request)
        try:
            answer = await anyio.to_thread.run_sync(
                self._transport.send, exchange, abandon_on_cancel=True, limiter=self._turns
            )
        except BaseException:
            exchange.abort()  # after a cancellation the thread would wait for nobody
            raise
        return cast("_Answer", answer)

    async def _hold(self, asking: _Asking) -> list[Readiness]:
        """Carry on a conversation to its end."""
        step: Callable[[], _Request[Any] | float] = partial(next, asking)
        while True:
            try:
                asked = step()
            except StopIteration as end:
                return cast("list[Readiness]", end.value)
            try:
                step = partial(
                    asking.send, await (anyio.sleep(asked) if isinstance(asked, float) else self._send(asked))
                )
            except UnavailableError as error:
                step = partial(asking.throw, error)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _several(accepted: Versioned | Sequence[Versioned]) -> Sequence[Versioned]:
    return accepted if isinstance(accepted, Sequence) else [accepted]
