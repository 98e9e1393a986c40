"""Clients of the reader's HTTP interface: `SyncClient` on blocking sockets, `Client` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from jiyi import requests
from jiyi.http import MAX_CONNECTIONS, Call, Transport
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from jiyi.answers import DeadLetter, DeadLetterEvent, Readiness, Replayed, SearchResult, StoredMemory
    from jiyi.events import Accepted
    from jiyi.http import Answer, Request
    from jiyi.memories import MemoryFields
    from jiyi.requests import Filters

TIMEOUT_S = 10.0
"""How long an answer may take, from the connection to its last byte; a `wait` is added to it."""

_Result = TypeVar("_Result")


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
        self._transport = Transport(Settings.from_environment(api_url=url).api_url, timeout_s)

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
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return self._call().send(requests.search(q, parameters, filters))

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
        return requests.ready(self._call(), ids, entries, ns, wait)

    def wait_ready(self, accepted: Accepted | Sequence[Accepted], timeout_s: float = 30.0) -> list[Readiness]:
        """Wait until what was accepted is `ready`, `deleted` or `failed`, at most so long; gives how each stands then.

        It raises nothing for being late: look at `ready` of each. A reader that is away is waited for; raises
        `UnavailableError` if it stays away.
        """
        return requests.wait_ready(self._call(), accepted, timeout_s)

    def get(self, id: str, ns: str = DEFAULT_NAMESPACE) -> StoredMemory:  # noqa: A002 - the field's name
        """Give the stored memory. Raises `ApiError` with status 404 when there is none."""
        return self._call().send(requests.get(id, ns))

    def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory through the reader; without `id` the reader makes one."""
        return self._call().send(requests.write(memory))

    def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in one request; each has the fields of `write`."""
        return self._call().send(requests.write_many(memories)).accepted

    def delete(self, id: str, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; that there is none is no error."""
        return self._call().send(requests.delete(id, ns))

    def dead_letters(
        self, ns: str = DEFAULT_NAMESPACE, limit: int | None = None, after: str | None = None
    ) -> list[DeadLetter]:
        """List the events that could not be applied, oldest first, without contents: all, or `limit` after a letter."""
        return requests.dead_letters(self._call(), ns, limit, after)

    def dead_letter(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> DeadLetterEvent:
        """Give a dead letter with the fields of its event. Raises `ApiError` with status 404 when there is none."""
        return self._call().send(requests.dead_letter(letter, ns))

    def replay(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> Replayed:
        """Put the event of a dead letter on the stream again; it cannot undo what was written later. 404 as above.

        Should it fail again, it comes back as a new letter.
        """
        return self._call().send(requests.replay(letter, ns))

    def replay_all(self, ns: str = DEFAULT_NAMESPACE) -> int:
        """Replay all dead letters of a namespace, step by step; gives their number.

        Should the reader go away meanwhile, some are replayed and the others are still there.
        """
        return requests.replay_all(self._call(), ns)

    def drop(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> None:
        """Remove a dead letter for good. Raises `ApiError` with status 404 when there is none."""
        self._call().send(requests.drop(letter, ns))

    def drop_all(self, ns: str = DEFAULT_NAMESPACE) -> int:
        """Remove all dead letters of a namespace, step by step as `replay_all`; gives their number."""
        return requests.drop_all(self._call(), ns)

    def _call(self) -> Call:
        return Call(self._transport)


class Client:
    """`SyncClient` for asyncio: the same calls as coroutines, each in a worker thread.

    One client serves any number of tasks; `MAX_CONNECTIONS` of their calls are on their way at once. Cancelling a
    call closes its connection. Close with `aclose`, or leave `async with`.
    """

    def __init__(self, url: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = Transport(Settings.from_environment(api_url=url).api_url, timeout_s)
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
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return await self._send(requests.search(q, parameters, filters))

    async def ready(
        self,
        ids: str | Sequence[str],
        entries: str | Sequence[str] | None = None,
        *,
        ns: str = DEFAULT_NAMESPACE,
        wait: float | str = 0.0,
    ) -> list[Readiness]:
        """Say of each id whether it can be found; see `SyncClient.ready`."""
        return await self._run(lambda call: requests.ready(call, ids, entries, ns, wait))

    async def wait_ready(self, accepted: Accepted | Sequence[Accepted], timeout_s: float = 30.0) -> list[Readiness]:
        """Wait until what was accepted can be found; see `SyncClient.wait_ready`."""
        return await self._run(lambda call: requests.wait_ready(call, accepted, timeout_s))

    async def get(self, id: str, ns: str = DEFAULT_NAMESPACE) -> StoredMemory:  # noqa: A002 - the field's name
        """Give the stored memory; see `SyncClient.get`."""
        return await self._send(requests.get(id, ns))

    async def write(self, **memory: Unpack[MemoryFields]) -> Accepted:
        """Write one memory through the reader; see `SyncClient.write`."""
        return await self._send(requests.write(memory))

    async def write_many(self, memories: Iterable[Mapping[str, Any]]) -> list[Accepted]:
        """Write memories in one request; see `SyncClient.write_many`."""
        return (await self._send(requests.write_many(memories))).accepted

    async def delete(self, id: str, ns: str = DEFAULT_NAMESPACE) -> Accepted:  # noqa: A002 - the field's name
        """Delete a memory; see `SyncClient.delete`."""
        return await self._send(requests.delete(id, ns))

    async def dead_letters(
        self, ns: str = DEFAULT_NAMESPACE, limit: int | None = None, after: str | None = None
    ) -> list[DeadLetter]:
        """List the events that could not be applied; see `SyncClient.dead_letters`."""
        return await self._run(lambda call: requests.dead_letters(call, ns, limit, after))

    async def dead_letter(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> DeadLetterEvent:
        """Give a dead letter with the fields of its event; see `SyncClient.dead_letter`."""
        return await self._send(requests.dead_letter(letter, ns))

    async def replay(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> Replayed:
        """Put the event of a dead letter on the stream again; see `SyncClient.replay`."""
        return await self._send(requests.replay(letter, ns))

    async def replay_all(self, ns: str = DEFAULT_NAMESPACE) -> int:
        """Replay all dead letters of a namespace; see `SyncClient.replay_all`."""
        return await self._run(lambda call: requests.replay_all(call, ns))

    async def drop(self, letter: str, ns: str = DEFAULT_NAMESPACE) -> None:
        """Remove a dead letter for good; see `SyncClient.drop`."""
        await self._send(requests.drop(letter, ns))

    async def drop_all(self, ns: str = DEFAULT_NAMESPACE) -> int:
        """Remove all dead letters of a namespace; see `SyncClient.drop_all`."""
        return await self._run(lambda call: requests.drop_all(call, ns))

    async def _send(self, request: Request[Answer]) -> Answer:
        return await self._run(lambda call: call.send(request))

    async def _run(self, ask: Callable[[Call], _Result]) -> _Result:
        call = Call(self._transport)
        try:
            return await anyio.to_thread.run_sync(ask, call, abandon_on_cancel=True, limiter=self._turns)
        except BaseException:
            call.abort()  # after a cancellation the thread would wait for nobody
            raise
