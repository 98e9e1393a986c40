"""Many at once: writers beside readers, clients that hang up, storms of requests."""

import json
import math
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import quote

import anyio
import pytest
from conftest import wait_until

from api.conftest import Index
from jiyi.settings import Settings
from jiyi.streams import EventStream
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.readiness import ReadinessReader
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader
from jiyi_api.stored import fetch_documents

pytestmark = pytest.mark.anyio


async def test_every_answer_is_one_instant_while_a_writer_is_at_work(index, reader):
    """I9: finite scores, consistent N, no id twice, and each memory as it was before or after a change."""
    count, words = 25, ["stream", "queue", "索引"]
    versions = {f"m{i}": [f"redis {words[i % 3]} version{i}x0"] for i in range(count)}
    await index.write_all({name: contents[0] for name, contents in versions.items()})
    problems, answers = [], []
    done = threading.Event()

    def ask():
        while not done.is_set():
            body = reader.search("redis stream queue", limit=100, explain=True)
            answers.append(len(body["hits"]))
            ids = [hit["id"] for hit in body["hits"]]
            if len(set(ids)) != len(ids) or not body["index"]["docs"] == body["total"] == count:
                problems.append(body)
            for hit in body["hits"]:
                terms = {part["term"] for part in hit["matchedTerms"]}
                if not (
                    math.isfinite(hit["score"])
                    and hit["score"] > 0
                    and hit["explanation"]["docs"] == count
                    and hit["content"] in versions[hit["id"]]
                    and terms == {"redi"} | {word for word in words[:2] if word in hit["content"]}
                ):
                    problems.append(hit)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    rng = random.Random(3)
    for step in range(1, 3000):
        if step > 150 and len(answers) > 60:
            break
        name = f"m{rng.randrange(count)}"
        content = f"redis {rng.choice(words)} version{name}x{step}" + " pad" * rng.randrange(5)
        versions[name].append(content)
        await index.write(name, content)
    done.set()
    await anyio.to_thread.run_sync(lambda: [thread.join() for thread in threads])
    assert not problems, problems[0]
    assert len(answers) > 60
    assert max(answers) == count


def hang_up(port, request, seconds):
    """Send a request and close the connection at once or a little later, with a reset."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sendall(request)
    time.sleep(seconds)
    connection.close()


async def test_clients_that_hang_up_leave_no_answer_to_others(index, reader, database):
    """B18, B19: after hundreds of requests dropped half-way every answer belongs to its question."""
    for ns in ("a", "b"):
        await index.write_all({f"{ns}{i}": f"word{i} of {ns}" for i in range(40)}, ns=ns)
    rng = random.Random(1)

    def storm(number):
        ns, i = "ab"[number % 2], number % 40
        target = rng.choice([
            f"/memory/search?ns={ns}&q=word{i}", f"/memory/{ns}{i}?ns={ns}", f"/memory/ready?ns={ns}&id={ns}{i}",
            f"/memory/ready?ns={ns}&id=never&entry=9999999999999-0&wait=1s",
        ])  # fmt: skip
        body = json.dumps({"id": "x", "ns": "c", "content": "x"}).encode()
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        if number % 7 == 0:
            request = b"POST /memory/write HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            request = request[: rng.randrange(20, len(request))]
        hang_up(reader.port, request, rng.choice([0, 0, 0.001, 0.003]))

    def check(number):
        ns, i = "ab"[number % 2], number % 40
        hits = reader.search(f"word{i}", ns=ns)["hits"]
        got = reader.get(f"/memory/{ns}{i}", ns=ns).body
        state = reader.ready(f"{ns}{i}", ns=ns)
        named = [hit["id"] for hit in hits] == [got["id"]] == [state["id"]] == [f"{ns}{i}"]
        return named and got["content"] == f"word{i} of {ns}"

    def both(number):
        storm(number)
        return number % 5 or check(number)

    def everything():
        with ThreadPoolExecutor(12) as threads:
            return list(threads.map(both, range(600)))

    assert all(await anyio.to_thread.run_sync(everything))
    assert all(await anyio.to_thread.run_sync(lambda: [check(number) for number in range(80)]))
    # At most the pool (20), the wake-ups' own among them, the producer's pool, and ours.
    clients = await database.client_list()
    assert len(clients) <= 2 * 20 + 5
    assert reader.get("/readyz").status == 200


async def test_cancelled_calls_leave_no_answer_to_others(database, analyzer, settings):
    """B18 in one process, cancelled at any point: what is read next belongs to who asks next."""
    index = Index(database, analyzer)
    await index.write_all({f"m{i}": f"word{i}" for i in range(50)})
    searcher = Searcher(database, analyzer, SnapshotReader(database, analyzer.fingerprint, 2**20))
    waiting = ReadinessReader(database, EventStream(database, settings.stream, settings.group), 65_536)
    rng = random.Random(5)
    finished = [0]

    async def call(i):
        with anyio.move_on_after(rng.random() * 0.004):
            result = await searcher.search(SearchQuery.from_request(SearchRequest(q=f"word{i % 50}"), Settings()))
            assert [hit.id for hit in result.hits] == [f"m{i % 50}"]
            (stored,) = await fetch_documents(database, "default", [f"m{i % 50}"])
            assert stored["content"] == f"word{i % 50}"
            (answer,) = await waiting.ready("default", [(f"m{i % 50}", None)], 0)
            assert answer.id == f"m{i % 50}"
            assert answer.ready
            finished[0] += 1

    for _ in range(20):
        async with anyio.create_task_group() as tasks:
            for i in range(60):
                tasks.start_soon(call, i)
    assert finished[0] < 1200, "some must have been cancelled"
    for i in range(50):
        result = await searcher.search(SearchQuery.from_request(SearchRequest(q=f"word{i}"), Settings()))
        assert [hit.id for hit in result.hits] == [f"m{i}"]
    assert len(await database.client_list()) <= settings.max_pool + 25


async def test_three_hundred_requests_at_once_are_all_answered(index, reader, database):
    """B19: far more than the pool holds wait for their turn; none fails."""
    for i in range(10):
        await index.write_all({f"m{j}": f"redis word{j}" for j in range(20)}, ns=f"n{i}")

    def ask(number):
        body = reader.search(f"word{number % 20}", ns=f"n{number % 10}")
        return [hit["id"] for hit in body["hits"]] == [f"m{number % 20}"]

    def everything():
        with ThreadPoolExecutor(60) as threads:
            return list(threads.map(ask, range(300)))

    assert all(await anyio.to_thread.run_sync(everything))
    assert len(await database.client_list()) <= 2 * 20 + 5


async def test_waiting_requests_do_not_keep_searches_from_connections(index, reader, database):
    """Sixty waiters are three times the pool: they share one subscription and look only now and then."""
    await index.write("m", "redis")
    connections = []
    try:
        for i in range(60):
            connection = HTTPConnection("127.0.0.1", reader.port, timeout=20)
            connection.request("GET", f"/memory/ready?id={quote(f'w{i}')}&wait=3s")
            connections.append(connection)

        async def listening():
            return await database.execute_command("PUBSUB", "NUMPAT")

        await wait_until(listening, "the reader listens")
        assert await listening() == 1
        for _ in range(20):
            assert reader.found("redis") == ["m"]
        for connection in connections:
            assert json.loads(connection.getresponse().read())["state"] == "unknown"
    finally:
        for connection in connections:
            connection.close()
