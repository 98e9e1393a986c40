"""Fail-points: what shall happen when a certain request is seen, before it is forwarded or before its reply is."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio

from jiyi import scripts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from faults.connections import Connection

    Predicate = Callable[["Request"], bool]
    Action = Callable[["Request"], Any]

Stage = Literal["request", "reply"]
"""`request`: the server has not seen the request. `reply`: it has executed it, and the client does not know."""


class Request(NamedTuple):
    """One request on its way. `number` counts those of its connection from 1.

    `name` is the name of the script for a script of jiyi (`apply_events`), else the command (`XADD`). `reply` is the
    raw reply, at the stage `reply`.
    """

    connection: Connection
    number: int
    name: str
    arguments: list[bytes]
    reply: bytes = b""


@cache
def _scripts_by_sha() -> dict[bytes, str]:
    """Names of all scripts, also of their variants for a full server, by their SHA-1."""
    names = [file.name.removesuffix(".lua") for file in scripts.folder().iterdir() if file.name.endswith(".lua")]
    return {variant(name).sha.encode(): name for name in names for variant in (scripts.load, scripts.allowing_oom)}


def name_of(arguments: list[bytes]) -> str:
    """Name of a request: see `Request`."""
    command = arguments[0].decode(errors="replace").upper()
    script = None
    if len(arguments) > 1 and command in {"EVALSHA", "EVALSHA_RO"}:
        script = _scripts_by_sha().get(arguments[1].lower())
    elif len(arguments) > 1 and command in {"EVAL", "EVAL_RO"}:
        digest = sha1(arguments[1], usedforsecurity=False).hexdigest()
        script = _scripts_by_sha().get(digest.encode())
    return script or command


class Failpoint:
    """One armed fail-point; made by `Proxy.failpoint`, which describes it.

    As a context it is disarmed, and lets go what it holds, at the end.
    """

    def __init__(
        self,
        match: tuple[str | Predicate, ...],
        at: Stage,
        do: Literal["hold", "cut", "reset"] | Action,
        nth: int,
        times: int | None,
    ) -> None:
        self.at = at
        self.seen = 0
        """Matching requests that have come."""
        self.hits = 0
        """How often it has acted."""
        self._match, self._do, self._nth, self._times = match, do, nth, times
        self._taken = 0
        self._last: Request | None = None
        self._reached = anyio.Event()
        self._released = anyio.Event()

    def takes(self, request: Request) -> bool:
        """Count a request that has come; whether to act on it."""
        if not any(match == request.name if isinstance(match, str) else match(request) for match in self._match):
            return False
        self.seen += 1
        if self.seen < self._nth or (self._times is not None and self._taken >= self._times):
            return False
        self._taken += 1
        return True

    async def hit(self, request: Request) -> None:
        """Act."""
        self.hits += 1
        self._last = request
        if self._do == "hold":
            self._reached.set()
            await self._released.wait()
            return
        if self._do == "cut":
            request.connection.cut()
        elif self._do == "reset":
            request.connection.reset()
        else:
            result = self._do(request)
            if isawaitable(result):
                await result
        self._reached.set()

    async def reached(self, timeout_s: float = 60.0) -> Request:
        """Wait until it has acted, or holds; gives the request. Raises `TimeoutError`."""
        with anyio.fail_after(timeout_s):
            await self._reached.wait()
        assert self._last is not None
        return self._last

    def release(self) -> None:
        """Let go what it holds, and hold nothing any more."""
        self._released.set()

    def disarm(self) -> None:
        """Act on no further request, and let go."""
        self._times = 0
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disarm()
