"""HTTP with one reader by the standard library: connections are kept, deadlines hold, and calls can be aborted."""

from __future__ import annotations

import io
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from jiyi import __version__
from jiyi.answers import ErrorAnswer, ErrorBody
from jiyi.errors import ApiError, BacklogFullError, SettingsError, UnavailableError

MAX_CONNECTIONS = 20
"""Connections that are kept for the next request."""

_AWAY = {429, 502, 503, 504}
"""Statuses that say "not now", of the reader or of a proxy before it."""
_HEADERS = {"Accept": "application/json", "User-Agent": f"jiyi/{__version__}"}
Answer = TypeVar("Answer")


class Request(NamedTuple, Generic[Answer]):
    """What to send, the type of a good answer's body, and how long the reader may wait before it answers.

    A repeatable one is sent again when a kept connection turns out to be closed.
    """

    method: str
    target: str
    answer: type[Answer]
    body: bytes | None = None
    wait_s: float = 0.0
    repeatable: bool = True


class Transport:
    """Connections to the reader at `url`; safe to share between threads, and across a fork.

    Raises `SettingsError` for a bad URL.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme not in ("http", "https") or parts.username or parts.query:
            raise SettingsError(f"JIYI_API_URL is {url!r}; it must be like http://127.0.0.1:8700")
        self._open = partial(HTTPSConnection if parts.scheme == "https" else HTTPConnection, host, port)
        self.prefix = parts.path.rstrip("/")
        self.where = f"{parts.scheme}://{parts.netloc}{self.prefix}"
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._pid = os.getpid()

    def take(self) -> tuple[HTTPConnection, bool]:
        """Give a connection that is the caller's alone, and whether it was used before."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork these are the parent's: two would read one answer
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if not _is_readable(connection.sock):
                    return connection, True
                connection.close()  # nothing is asked, so what can be read is the end, or nonsense
        return self._open(), False

    def keep(self, connection: HTTPConnection) -> None:
        """Keep a connection for the next request."""
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


class Call:
    """Requests that somebody waits for, one after another. Another thread may abort it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._aborted = threading.Event()
        self._socket: socket.socket | None = None

    def send(self, request: Request[Answer]) -> Answer:
        """Give the decoded answer. Raises `UnavailableError` and `ApiError`."""
        transport = self._transport
        deadline = time.monotonic() + transport.timeout_s + request.wait_s
        while True:
            connection, kept = transport.take()
            try:
                response, body = self._exchange(connection, request, deadline)
            except BaseException as error:
                connection.close()
                if kept and request.repeatable and isinstance(error, ConnectionError):
                    continue  # the reader had closed it; RemoteDisconnected is a ConnectionError too
                if isinstance(error, TimeoutError):
                    raise UnavailableError(f"the reader at {transport.where} did not answer in time") from error
                if isinstance(error, OSError | HTTPException):
                    reason = type(error).__name__
                    raise UnavailableError(f"no reader answers at {transport.where}: {reason}") from error
                raise
            if response.will_close:
                connection.close()
            else:
                transport.keep(connection)
            return _decoded(response, body, request.answer, transport.where)

    def sleep(self, seconds: float) -> None:
        """Let time pass, not longer than until it is aborted."""
        if self._aborted.wait(seconds):
            raise UnavailableError("the call was cancelled")

    def abort(self) -> None:
        """End the call soon: whoever waits for its answer sees the connection closed."""
        with self._lock:
            self._aborted.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _exchange(
        self, connection: HTTPConnection, request: Request[Any], deadline: float
    ) -> tuple[HTTPResponse, bytes]:
        headers = _HEADERS if request.body is None else _HEADERS | {"Content-Type": "application/json"}
        # http.client calls it to make a response; that it is no class does not matter there.
        connection.response_class = cast("type[HTTPResponse]", partial(_PunctualResponse, deadline=deadline))
        connection.timeout = _left_s(deadline)
        if connection.sock is None:
            connection.connect()
        self._hold(connection.sock)
        connection.sock.settimeout(_left_s(deadline))
        connection.request(request.method, self._transport.prefix + request.target, request.body, headers)
        response = connection.getresponse()
        body = response.read()
        self._hold(None)  # from here on others may use the connection
        return response, body

    def _hold(self, connected: socket.socket | None) -> None:
        """Note the socket that `abort` must close."""
        with self._lock:
            if self._aborted.is_set():
                raise UnavailableError("the call was cancelled")
            self._socket = connected


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


def _is_readable(source: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(0))


def _decoded(response: HTTPResponse, body: bytes, answer: type[Answer], where: str) -> Answer:
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004 - success
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"what answers at {where} is no jiyi reader ({error}); is JIYI_API_URL right?"
            raise ApiError(status, "unreadable_answer", message) from None
    try:
        told = msgspec.json.decode(body, type=ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = ErrorBody()
    message = (
        f"{told.message} (the reader at {where})" if told.message else f"{where} answered {status} {response.reason}"
    )
    if status in _AWAY:
        retry_after = response.headers.get("Retry-After", "").strip()
        retry_after_s = float(retry_after) if retry_after.isdecimal() else 1.0
        if told.code == "backlog_full":
            raise BacklogFullError(message, retry_after_s)
        raise UnavailableError(message, retry_after_s, code=told.code)
    raise ApiError(status, told.code, message)
