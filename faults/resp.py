"""The Redis serialisation protocol, as far as one must read it to know where a request or a reply ends."""

from __future__ import annotations

from typing import NamedTuple

_BLOBS = frozenset(b"$=!")
_CHILDREN = {ord("*"): (1, 0), ord("~"): (1, 0), ord(">"): (1, 0), ord("%"): (2, 0), ord("|"): (2, 1)}
"""Aggregate types → (values per counted element, values besides); an attribute is followed by what it describes."""
_LINES = frozenset(b"+-:_,#(")


class ProtocolError(Exception):
    """These bytes are no RESP."""


class Message(NamedTuple):
    """One complete request or reply: its bytes as they came, and the blobs in it where they were asked for."""

    raw: bytes
    blobs: list[bytes]


class Splitter:
    """Cuts a stream of bytes, however it is sliced, into messages (RESP2 and RESP3). Binary safe, linear time.

    With `requests` the blobs of each message are collected, and a line of words is a request too, as for Redis.
    """

    def __init__(self, *, requests: bool = False) -> None:
        self._requests = requests
        self._buffer = bytearray()
        self._at = 0  # everything before is understood
        self._open: list[int] = []  # values that each open aggregate still waits for
        self._blobs: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """Give the messages that are complete now. Raises `ProtocolError`."""
        self._buffer += data
        messages = []
        while self._take_value():
            if not self._open:
                messages.append(Message(bytes(self._buffer[: self._at]), self._blobs))
                del self._buffer[: self._at]
                self._at, self._blobs = 0, []
        return messages

    def _take_value(self) -> bool:
        """Understand one more value, or the head of an aggregate; False when it has not come whole."""
        buffer = self._buffer
        end = buffer.find(b"\r\n", self._at)
        if end < 0:
            return False
        kind, after = buffer[self._at], end + 2
        if kind in _CHILDREN:
            each, besides = _CHILDREN[kind]
            if (children := each * self._number(end) + besides) > 0:
                self._open.append(children)
            else:
                self._close()
        elif kind in _BLOBS:
            if (size := self._number(end)) >= 0:
                if len(buffer) < after + size + 2:
                    return False
                if self._requests:
                    self._blobs.append(bytes(buffer[after : after + size]))
                after += size + 2
            self._close()
        elif self._requests and not self._open:
            self._blobs = bytes(buffer[self._at : end]).split()
        elif kind in _LINES:
            self._close()
        else:
            raise ProtocolError(f"no value begins with byte {kind:#x}")
        self._at = after
        return True

    def _number(self, end: int) -> int:
        try:
            return int(self._buffer[self._at + 1 : end])
        except ValueError:
            raise ProtocolError("a length is no number") from None

    def _close(self) -> None:
        """A value is complete, and with it every aggregate that waited for nothing else."""
        while self._open:
            self._open[-1] -= 1
            if self._open[-1]:
                return
            self._open.pop()
