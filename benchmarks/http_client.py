"""A process that asks a reader over HTTP: `python -m benchmarks.http_client PORT CONNECTIONS SECONDS REPEAT < paths`.

It costs little itself, or it would measure itself: raw protocols on uvloop, requests made beforehand, answers parsed by
httptools in C. Each connection asks one question after the other; with REPEAT 1 they begin anew when all are asked. It
prints one JSON object: when each answer was complete, on the clock of `perf_counter`, and how many milliseconds it had
taken; the seconds of it all; and what it used of the processor.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import cycle
from typing import TYPE_CHECKING, cast

import httptools
import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator


class Asking(asyncio.Protocol):
    """One connection. `done` is set when the time is over, or to the error that ended it."""

    def __init__(self, requests: Iterator[bytes], end: float, answered: list[tuple[float, float]]) -> None:
        self._requests = requests
        self._end = end
        self._answered = answered
        self._sent = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to ask."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls `on_message_complete`."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Note the time, and ask the next."""
        now = time.perf_counter()
        if (status := self._parser.get_status_code()) != 200:
            self._finish(RuntimeError(f"the reader answered with status {status}"))
            return
        self._answered.append((now, (now - self._sent) * 1000))
        self._parser = httptools.HttpResponseParser(self)
        if now < self._end and (request := next(self._requests, None)) is not None:
            self._send(request)
        else:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, if it was not we who ended."""
        self._finish(exc or ConnectionError("the reader closed the connection"))

    def _ask(self) -> None:
        if (request := next(self._requests, None)) is None:
            self._finish(None)
        else:
            self._send(request)

    def _send(self, request: bytes) -> None:
        self._sent = time.perf_counter()
        self._transport.write(request)

    def _finish(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._transport.close()


async def ask(port: int, connections: int, seconds: float, paths: list[str], *, repeat: bool) -> dict[str, object]:
    """Ask on so many connections until the time is over or everything was asked."""
    made = [f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for path in paths]
    requests = cycle(made) if repeat else iter(made)
    answered: list[tuple[float, float]] = []
    started, used = time.perf_counter(), time.process_time()
    loop = asyncio.get_running_loop()
    asking = [
        await loop.create_connection(lambda: Asking(requests, started + seconds, answered), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in asking))
    return {
        "answered": answered,
        "seconds": time.perf_counter() - started,
        "client_cpu_s": time.process_time() - used,
    }


def main() -> None:
    """Read the paths from standard input, one a line."""
    port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    paths = sys.stdin.read().splitlines()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer = runner.run(ask(port, connections, seconds, paths, repeat=sys.argv[4] == "1"))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
