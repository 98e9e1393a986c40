"""The reader on bad lines: right answers or 503 with Retry-After, in finite time, and never half an answer."""

from __future__ import annotations

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anyio
import pytest
from api.conftest import Index, running_reader
from conftest import wait_until
from histories import load_scripts

from faults.proxy import serving
from faults.toxics import Bandwidth, Latency, LimitData, Slicer, Timeout
from jiyi.analysis import Analyzer
from jiyi.settings import Settings

pytestmark = pytest.mark.anyio

POOL = 4
TIMEOUT_MS = 600
PATIENCE_S = 10
"""Far beyond the time-outs of a request: whoever waits longer hangs."""
COUNT = 30


@pytest.fixture(scope="module")
def line(redis_url):
    """(proxy, portal): the reader's way to Redis, in a thread of its own."""
    with serving(redis_url) as (proxy, portal):
        yield proxy, portal


@pytest.fixture(scope="module")
def running(line, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    settings = Settings(
        redis_url=line[0].url, data_dir=folder, max_pool=POOL, redis_timeout_ms=TIMEOUT_MS, confirm_ms=100
    )  # fmt: skip
    with running_reader(settings, folder / "log") as reader:
        yield reader


@pytest.fixture(scope="module")
def analyzer():
    return Analyzer()


@pytest.fixture
async def reader(running, line, database, analyzer):
    """The reader with thirty memories to find, and healthy; no request may end in a defect (500)."""
    await load_scripts(database)
    index = Index(database, analyzer)
    await index.write_all({f"m{i}": f"redis word{i} 记忆 number {i}" for i in range(COUNT)})
    running.wait_for("/readyz", 200)
    before = running.failures()
    yield running
    assert running.failures() == before, running.log.read_text()
    running.wait_for("/readyz", 200)
    assert_right(running, 3)


def ask(reader, what, i):
    """Send a request about memory i."""
    return {
        "search": lambda: reader.request("GET", f"/memory/search?q=word{i}", timeout_s=PATIENCE_S),
        "get": lambda: reader.request("GET", f"/memory/m{i}", timeout_s=PATIENCE_S),
        "ready": lambda: reader.request("GET", f"/memory/ready?id=m{i}", timeout_s=PATIENCE_S),
        "write": lambda: reader.request(
            "POST", "/memory/write", b'{"id": "new", "content": "x"}', timeout_s=PATIENCE_S
        ),
    }[what]()


QUESTIONS = ("search", "get", "ready")


def is_right(what, i, answer):
    """Whether this is the whole and right answer about memory i."""
    body = answer.body
    content = f"redis word{i} 记忆 number {i}"
    if what == "search":
        return [(hit["id"], hit["content"]) for hit in body["hits"]] == [(f"m{i}", content)] and body["total"] == 1
    if what == "get":
        return (body["id"], body["content"]) == (f"m{i}", content)
    return (body["id"], body["state"]) == (f"m{i}", "ready")


def assert_right(reader, i):
    for what in QUESTIONS:
        answer = ask(reader, what, i)
        assert answer.status == 200, answer.raw
        assert is_right(what, i, answer), answer.raw


def assert_right_or_unavailable(what, i, answer):
    """Give whether it was right."""
    if answer.status == 200:
        assert is_right(what, i, answer), answer.raw
        return True
    assert answer.error[:2] == (503, "unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
    return False


def look(reader, i):
    """Ask everything about memory i; gives what was answered, and not unavailable."""
    return [assert_right_or_unavailable(what, i, ask(reader, what, i)) for what in QUESTIONS]


LINES = {"byte by byte": Slicer(1), "slow to answer": Latency(80, 60, seed=5), "narrow": Bandwidth(50_000)}


@pytest.mark.parametrize("toxic", LINES.values(), ids=LINES)
async def test_a_slow_line_gives_the_same_answers(toxic, reader, line):
    with line[0].toxic(toxic):
        for i in range(3):
            assert_right(reader, i)


@pytest.mark.parametrize("direction", ["upstream", "downstream"])
async def test_dead_lines_are_given_up_in_time_and_new_ones_serve(direction, reader, line):
    """Half-open connections: each request that gets one is told so, until all of them are gone."""
    proxy, portal = line
    with ExitStack() as stack:
        for connection in proxy.connections:
            # The toxic's event belongs to the proxy's thread.
            stack.enter_context(portal.wrap_async_context_manager(DeadLine(proxy, direction, connection)))
        for i in range(COUNT):
            if set(look(reader, i)) == {True}:
                break
        else:
            pytest.fail("it never came back")
        assert i > 0, "the first questions met dead lines"


class DeadLine:
    """`Proxy.toxic` of one dead connection, entered and left in the proxy's thread."""

    def __init__(self, proxy, direction, connection):
        self._toxic = proxy.toxic(Timeout(), direction, connection)

    async def __aenter__(self):
        return self._toxic.__enter__()

    async def __aexit__(self, *error):
        return self._toxic.__exit__(*error)


CUTS = [
    *(("search", name) for name in ("read_index", "read_documents")),
    ("get", "read_documents"),
    ("ready", "read_readiness"),
]


@pytest.mark.parametrize("do", ["cut", "reset"])
@pytest.mark.parametrize("at", ["request", "reply"])
@pytest.mark.parametrize(("what", "name"), CUTS)
async def test_a_line_that_is_cut_in_a_question(what, name, at, do, reader, line):
    proxy, _ = line
    for i in range(3):
        point = proxy.failpoint(name, at=at, do=do)
        assert_right_or_unavailable(what, i, ask(reader, what, i))
        assert point.hits == 1
        assert_right(reader, i)


@pytest.mark.parametrize("passed", [1, 7, 40, 200, 700])
async def test_half_an_answer_of_redis_is_none(passed, reader, line):
    for i, what in enumerate(QUESTIONS):
        with line[0].toxic(LimitData(passed), "downstream"):
            assert_right_or_unavailable(what, i, ask(reader, what, i))
        assert_right(reader, i)


@pytest.mark.parametrize(("at", "written"), [("request", 0), ("reply", 1)])
async def test_a_write_whose_answer_is_lost_is_not_accepted(at, written, reader, line, database, settings):
    """202 would be a lie in one case, and an error that says "not written" in the other."""
    proxy, _ = line
    point = proxy.failpoint("XADD", at=at, do="cut")
    answer = ask(reader, "write", 0)
    assert answer.error[:2] == (503, "unavailable")
    assert answer.headers["Retry-After"]
    assert (point.hits, await database.xlen(settings.stream)) == (1, written)
    assert ask(reader, "write", 0).status == 202


async def test_a_storm_of_resets(reader, line):
    """Thirty questions at once while the lines break again and again: each is answered, rightly or with 503."""
    proxy, portal = line
    with ThreadPoolExecutor(10) as threads:
        for _ in range(6):
            asked = [(what, i, threads.submit(ask, reader, what, i)) for i in range(10) for what in QUESTIONS]
            while not all(future.done() for _, _, future in asked):
                portal.call(proxy.reset)
                await anyio.sleep(0.02)
            for what, i, future in asked:
                assert_right_or_unavailable(what, i, future.result())


async def test_a_storm_of_clients_that_hang_up_leaves_no_connection_in_use(reader, line, database):
    """Hundreds of requests, dropped at any moment of their way through a small pool on a slow line."""
    proxy, portal = line
    others = len(await database.client_list()) - len(proxy.connections)

    def hang_up(seed):
        rng = random.Random(seed)
        i, what = rng.randrange(COUNT), rng.choice(QUESTIONS)
        path = {"search": f"/memory/search?q=word{i}", "get": f"/memory/m{i}", "ready": f"/memory/ready?id=m{i}"}[what]
        with socket.create_connection(("127.0.0.1", reader.port)) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            time.sleep(rng.random() * 0.03)

    with proxy.toxic(Latency(2, 2, seed=6)), ThreadPoolExecutor(24) as threads:
        storm = threads.map(hang_up, range(600))
        looks = list(threads.map(lambda i: look(reader, i % COUNT), range(60)))
        assert len(list(storm)) == 600
    assert any(all(right) for right in looks)

    async def quiet():
        return not any(connection.unanswered for connection in proxy.connections)

    await wait_until(quiet, "no connection waits for an answer")
    assert_right(reader, 1)
    await assert_many_can_wait(reader, proxy, portal)
    # The pools of questions and of writes, the lane, and the connection that listens.
    assert len(proxy.connections) <= 2 * POOL + 2
    assert len(await database.client_list()) <= len(proxy.connections) + others, "nothing is left behind"


async def assert_many_can_wait(reader, proxy, portal):
    """Many questions can wait for Redis at the same time, on whatever connections."""
    held = proxy.failpoint("read_documents", at="reply", times=None)
    done = threading.Event()

    def keep_asking():
        while not done.is_set():
            assert_right_or_unavailable("get", 1, ask(reader, "get", 1))

    async def all_wait():
        for _ in range(3):  # a connection that was just given up may still be seen, but not for long
            if sum(connection.unanswered for connection in proxy.connections) < POOL:
                return False
            await anyio.sleep(0.02)
        return True

    with ThreadPoolExecutor(2 * POOL) as threads:
        asking = [threads.submit(keep_asking) for _ in range(2 * POOL)]
        try:
            await wait_until(all_wait, "many questions wait for an answer")
        finally:
            done.set()
            portal.call(held.disarm)
        for future in asking:
            future.result()
