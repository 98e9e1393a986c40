"""Receipt of requests within a time and a size: who sends a byte now and then must not hold a connection for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

MAX_HEAD_BYTES = 65_536
"""Request line and headers; the longest question and a hundred ids of the longest kind fit in."""
_LATE = b"408 Request Timeout"
_LARGE = b"431 Request Header Fields Too Large"


class Receipt(HttpToolsProtocol):
    """HTTP on one connection, as uvicorn does it, but every request must have arrived whole after `deadline_s`.

    The time begins when the connection is made and with the first byte of each later request. A connection that is
    late, or whose head is too large, gets 408 or 431 (unless its answer has begun) and is closed.
    """

    deadline_s = 30.0
    _timer: TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as the base class has it
        """Start the time of the first request."""
        super().connection_made(transport)
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
        self._timer = self.loop.call_later(self.deadline_s, self._refuse, _LATE)

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


def receipt_within(deadline_ms: int) -> type[Receipt]:
    """Give the protocol class with another deadline; uvicorn makes the instances."""
    return type("Receipt", (Receipt,), {"deadline_s": deadline_ms / 1000})
