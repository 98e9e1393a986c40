"""The client of the reader's HTTP interface on blocking sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jiyi import questions, requests
from jiyi.http import Call, Transport
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    from jiyi.http import Request
    from jiyi.memories import MemoryFields
    from jiyi.questions import Choices, Filters

TIMEOUT_S = 10.0
"""How long an answer may take, from the connection to its last byte; a `wait` is added to it."""
PAGE_SIZE = 100
"""Memories that `all_memories` asks for at once: what a reader grants unless `JIYI_MAX_LIMIT` says otherwise."""


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
        ns: str | None = None,
        limit: int = 10,
        k1: float | None = None,
        b: float | None = None,
        explain: bool = False,
        **choices: Unpack[Choices],
    ) -> SearchResult:
        """Find the best memories of a namespace, by BM25 unless the choices say otherwise.

        With `explain`, every hit has all numbers that its score comes from. `ns` is `default` unless `namespaces` are
        given.
        """
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return self._call().send(questions.search(q, parameters, choices))

    def why(  # noqa: PLR0913 - as above
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
        """Say of one memory why it is, or is not, among the hits of this very `search`."""
        parameters = {"ns": ns, "limit": limit, "k1": k1, "b": b, "explain": explain}
        return self._call().send(questions.why(id, q, parameters, choices))

    def list_memories(
        self, ns: str | None = None, limit: int = 20, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> MemoryPage:
        """List a page of the memories that meet the filters, newest first; `cursor` is the `next` of the page before.

        While one pages, what is not written is listed exactly once; what is written anew moves to its new place.
        """
        return self._call().send(questions.listing({"ns": ns, "limit": limit}, filters)(cursor))

    def all_memories(
        self, ns: str | None = None, *, page_size: int = PAGE_SIZE, **filters: Unpack[Filters]
    ) -> Iterator[StoredMemory]:
        """Give all memories that meet the filters, as `list_memories`, and ask for a page when it is needed.

        What is wrong with the filters is raised at once, what the reader says when its answer is needed.
        """
        return self._pages(questions.listing({"ns": ns, "limit": page_size}, filters))

    def _pages(self, page_after: Callable[[str | None], Request[MemoryPage]]) -> Iterator[StoredMemory]:
        page = self._call().send(page_after(None))
        while True:
            yield from page.memories
            if page.next is None:
                return
            page = self._call().send(page_after(page.next))

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
