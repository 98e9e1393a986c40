"""Requests that trickle in, never end or are too large hold nobody up and are ended in time."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import msgspec
import pytest

from api.conftest import resident_bytes, running_reader

DEADLINE_S = 1.5
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def strict(redis_url, tmp_path_factory):
    from jiyi.settings import Settings

    folder = tmp_path_factory.mktemp("strict")
    settings = Settings(redis_url=redis_url, data_dir=folder, drain_ms=1_000)
    settings = msgspec.structs.replace(settings, receive_timeout_ms=int(DEADLINE_S * 1000), max_request_bytes=100_000)
    with running_reader(settings, folder / "log") as reader:
        yield reader
        assert not reader.failures(), reader.log.read_text()


def connected(reader, timeout_s=20):
    return socket.create_connection(("127.0.0.1", reader.port), timeout=timeout_s)


def rest(connection):
    """Everything until the other side closes."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def trickle(connection, data, until):
    """Send a byte now and then, until the other side closes or the time is over; gives whether it was closed."""
    connection.settimeout(0.1)
    for byte in data:
        if time.monotonic() > until:
            return False
        try:
            connection.send(bytes([byte]))
            if connection.recv(1) in (b"", b"H"):  # closed, or the first byte of a refusal
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_head_and_body_of_an_answer_arrive_together(strict):
    with connected(strict) as connection:
        for _ in range(50):
            connection.sendall(REQUEST)
            head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in head


@pytest.mark.parametrize("begun", [b"", b"GET /heal", REQUEST[:-2], b"POST /memory/search HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends_is_ended(strict, begun):
    with connected(strict) as connection:
        connection.sendall(begun)
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_never_ends_is_ended(strict):
    with connected(strict) as connection:
        connection.sendall(b"POST /memory/search HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        rest(connection)


def test_a_body_of_pieces_without_an_end_is_ended_and_takes_no_memory(strict):
    before = resident_bytes(strict.process)
    with connected(strict) as connection:
        connection.sendall(b"POST /memory/write HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        until, closed = time.monotonic() + 20, False
        while not closed and time.monotonic() < until:
            try:
                connection.sendall(piece)
            except OSError:
                closed = True
        assert closed
        answer = rest(connection)
        assert not answer or answer.startswith(b"HTTP/1.1 413 ")
    assert strict.get("/healthz").status == 200
    assert resident_bytes(strict.process) - before < 20_000_000


def test_a_byte_now_and_then_is_not_enough(strict):
    with connected(strict) as connection:
        assert trickle(connection, b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 1000, time.monotonic() + 20)


def test_a_head_without_end_is_refused_by_its_size(strict):
    with connected(strict) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 5_000_000:
                connection.sendall(b"X: " + b"y" * 8_000 + b"\r\n")
                sent += 8_000
        except OSError:
            pass
        assert sent < 5_000_000
        assert rest(connection)[:13] in (b"", b"HTTP/1.1 431 ")


def test_two_hundred_slow_clients_keep_nobody_from_being_served(strict):
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(strict)) for _ in range(200)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(20):
            assert strict.get("/healthz").status == 200
        assert all(rest(connection).startswith(b"HTTP/1.1 408 ") for connection in slow)


def test_a_connection_that_is_kept_alive_may_wait_longer_than_a_request(strict):
    with connected(strict) as connection:
        for _ in range(3):
            connection.sendall(REQUEST)
            answer = b""
            while not answer.endswith(b"}") and (piece := connection.recv(65_536)):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200 ")
            time.sleep(DEADLINE_S + 0.5)  # the very point: nothing is sent for longer than the deadline


def test_an_answer_may_take_longer_than_the_deadline(strict):
    started = time.monotonic()
    answer = strict.get("/memory/ready", id="nobody", wait=f"{DEADLINE_S + 1}s")
    assert answer.status == 200
    assert time.monotonic() - started > DEADLINE_S
