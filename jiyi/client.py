"""Clients of the reader's HTTP interface: `Client` for asyncio, and `SyncClient`, which stands in `sync_client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from jiyi import questions, requests
from jiyi.http import MAX_CONNECTIONS, Call, Transport
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings
from jiyi.sync_client import PAGE_SIZE, TIMEOUT_S, SyncClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from jiyi.answers import (
        DeadLetter,
        DeadLetterEvent,
        MemoryPage,
        Readiness,
        Replayed,
        SearchResult,
        StoredMemory,
        Why,
    )
    from jiyi.events import Accepted
    from jiyi.http import Answer, Request
    from jiyi.memories import MemoryFields
    from jiyi.questions import Choices, Filters

__all__ = ["Client", "SyncClient"]

_Result = TypeVar("_Result")


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

    async def search(  # noqa: PLR0913 - as in `SyncClient`
        self,
        q: str,
        ns: str | None = None,
        limit: int = 10,
        k1: float | None = None,
        b: float | None = None,
        explain: bool = False,
        **choices: Unpack[Choices],
    ) -> SearchResult:
        """Find the best memories of a namespace; see `SyncClient.search`."""
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return await self._send(questions.search(q, parameters, choices))

    async def why(  # noqa: PLR0913 - as above
        self,
        id: str,  # noqa: A002 - the field's name
        q: str,
        ns: str | None = None,
        limit: int = 10,
        k1: float | None = None,
        b: float | None = None,
        explain: bool = False,
        **choices: Unpack[Choices],
    ) -> Why:
        """Say of one memory why it is, or is not, among the hits of a search; see `SyncClient.why`."""
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return await self._send(questions.why(id, q, parameters, choices))

    async def list_memories(
        self, ns: str | None = None, limit: int = 20, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> MemoryPage:
        """List a page of the memories that meet the filters; see `SyncClient.list_memories`."""
        return await self._send(questions.listing({"ns": ns, "limit": limit}, filters)(cursor))

    def all_memories(
        self, ns: str | None = None, *, page_size: int = PAGE_SIZE, **filters: Unpack[Filters]
    ) -> AsyncIterator[StoredMemory]:
        """Give all memories that meet the filters, for `async for`; see `SyncClient.all_memories`."""
        return self._pages(questions.listing({"ns": ns, "limit": page_size}, filters))

    async def _pages(self, page_after: Callable[[str | None], Request[MemoryPage]]) -> AsyncIterator[StoredMemory]:
        page = await self._send(page_after(None))
        while True:
            for memory in page.memories:
                yield memory
            if page.next is None:
                return
            page = await self._send(page_after(page.next))

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
