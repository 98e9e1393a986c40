"""A transport that sends the head of an answer together with its body."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, BaseProtocol


class JoiningTransport(asyncio.Transport):
    """Joins two writes of one turn of the event loop, for a call of the system costs as much as making a small answer.

    A write waits for the next one, but not beyond the turn. Everything else is as the transport below does it, which
    talks to the protocol itself.
    """

    def __init__(self, transport: asyncio.Transport, loop: AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: bytes | bytearray | memoryview = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the data together with the write before, or keep it for the next one, until the turn is over."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines([held, data])
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():  # it may have been lost since
            self._transport.write(held)

    def close(self) -> None:
        """Send what there is, then close."""
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        """Send what there is, then end our side."""
        self._flush()
        self._transport.write_eof()

    def abort(self) -> None:
        """Close at once; what has not been sent is lost."""
        self._held = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._transport.set_protocol(protocol)
