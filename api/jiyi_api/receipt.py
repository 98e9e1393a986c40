"""Receipt of requests within a time, a size and a number of clients: nobody can hold a connection for ever, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jiyi_api.transports import JoiningTransport

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from litestar.types import Receive, Scope, Send

MAX_HEAD_BYTES = 65_536
"""Request line and headers; the longest question and a hundred ids of the longest kind fit in."""
_GRACE_S = 0.25
_LATE = b"408 Request Timeout"
_LARGE = b"431 Request Header Fields Too Large"
_TOO_MANY = msgspec.json.encode(
    {"error": {"code": "unavailable", "message": "the reader has too many connections; close some, or come again"}}
)


class Receipt(HttpToolsProtocol):
    """HTTP on one connection, as uvicorn does it, but every request must have arrived whole after `deadline_s`.

    The time begins when the connection is made and with the first byte of each later request. A connection that is
    late, or whose head is too large, gets 408 or 431 (unless its answer has begun) and is closed.

    A client beyond `most_clients` gets 503 for its first request and is closed. When a quarter as many again are there,
    which ask nothing, a further one is closed at once.
    """

    deadline_s = 30.0
    most_clients = 10_000
    _timer: TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as the base class has it
        """Start the time of the first request, unless there are too many clients."""
        super().connection_made(JoiningTransport(transport, self.loop))
        clients = len(self.connections)
        if clients > self.most_clients * 5 // 4:
            transport.close()
            return
        if clients > self.most_clients:
            self.app = _too_many
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bound the head before it is parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + 65_536:  # one read may bring the beginning of the body along
                self._refuse(_LARGE)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Start the time of a request on a connection that is kept alive."""
        super().on_message_begin()
        self._in_head = True
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Take note that what comes now is the body."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the time: the request is here; how long its answer takes is our business."""
        self._stop_timer()
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.deadline_s, self._look_again)

    def _look_again(self) -> None:
        """Read first what came while we were busy: a stall of our own is not the client's fault."""
        self._timer = self.loop.call_later(_GRACE_S, self._refuse, _LATE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status)
        self.transport.close()


async def _too_many(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer 503 in the shape of all failures, and end the connection."""
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"connection", b"close")]
    headers.append((b"content-length", b"%d" % len(_TOO_MANY)))
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_MANY, "more_body": False})


def receipt_within(deadline_ms: int, most_clients: int) -> type[Receipt]:
    """Give the protocol class with other limits; uvicorn makes the instances."""
    return type("Receipt", (Receipt,), {"deadline_s": deadline_ms / 1000, "most_clients": most_clients})
