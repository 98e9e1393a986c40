"""Load for the tests: a producer that knows what must come of it, and somebody who keeps asking the reader."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import contextmanager

import anyio
from conftest import wait_until

from jiyi import Producer, keys
from jiyi.check import check_namespace
from jiyi.errors import UnavailableError
from jiyi.events import parse_entry
from jiyi.streams import EventStream

WORDS = ("redis", "超时", "连接池", "ERR_CONN_RESET", "v1.2.3", "张工", "rollout", "记忆", "timeout", "索引")


class Load:
    """Writes, rewrites and deletes memories of a namespace, one after the other; `deletes` is the part of the last.

    What is refused, or has no answer, is repeated until it is accepted, so the newest event of each memory is known:
    `expected` has its content, None for a delete. `accepted` lists (entry, id, content) of all; `settled` lists (id,
    entry, token) of memories that are written only once, each with a token that no other has.
    """

    def __init__(self, settings, ns, *, seed=0, pause_s=0.0, deletes=0.2):
        self.settings, self.ns = settings, ns
        self.accepted, self.expected, self.settled = [], {}, []
        self.refusals = Counter()
        self._dice = random.Random(seed)
        self._pause_s = pause_s
        self._deletes = deletes
        self._number = 0

    async def run(self, count):
        """Have `count` more events accepted."""
        producer = Producer(settings=self.settings)
        await self._accepted(producer.open)
        try:
            for _ in range(count):
                await self._one(producer)
                await anyio.sleep(self._pause_s)
        finally:
            await producer.aclose()

    async def _one(self, producer):
        self._number += 1
        number, dice = self._number, self._dice
        token = f"token{number}z"
        content = " ".join([*dice.choices(WORDS, k=dice.randrange(1, 12)), token])
        if number % 4 == 0:
            entry = await self._write(producer, f"once-{number}", content)
            self.settled.append((f"once-{number}", entry, token))
            return
        memory_id = f"m{dice.randrange(60)}"
        if dice.random() < self._deletes:
            accepted = await self._accepted(producer.delete, memory_id, ns=self.ns)
            self._note(accepted.entry, memory_id, None)
        else:
            tags, author = dice.sample(("a", "b", "c"), k=dice.randrange(3)), dice.choice(("alice", "张伟", None))
            await self._write(producer, memory_id, content, tags=tags, author=author)

    async def _write(self, producer, memory_id, content, **fields):
        accepted = await self._accepted(producer.write, id=memory_id, ns=self.ns, content=content, **fields)
        self._note(accepted.entry, memory_id, content)
        return accepted.entry

    def _note(self, entry, memory_id, content):
        self.accepted.append((entry, memory_id, content))
        self.expected[memory_id] = content

    async def _accepted(self, call, *arguments, **fields):
        while True:
            try:
                return await call(*arguments, **fields)
            except UnavailableError as error:
                self.refusals[error.code] += 1
                await anyio.sleep(0.02)

    async def verify(self, database):
        """Wait until everything is processed; then nothing is lost, doubled, or among the dead letters."""
        stream = EventStream(database, self.settings.stream, self.settings.group)
        await processed(stream)
        for memory_id, content in self.expected.items():
            assert await self._stored(database, memory_id) == content, memory_id
        live = sum(content is not None for content in self.expected.values())
        assert int(await database.hget(keys.stats_key(self.ns), "docs")) == live
        assert await database.exists(keys.dead_key(self.ns), keys.failed_key(self.ns)) == 0
        report = await check_namespace(database, self.ns, stream=self.settings.stream)
        assert report.problems == []

    async def wait_applied(self, database):
        """Wait until all is applied, also what workers still hold although no server knows of it any more."""

        async def all_of_it():
            found = [await self._stored(database, memory_id) == content for memory_id, content in self.expected.items()]
            return all(found)

        await wait_until(all_of_it, "what workers hold is applied")

    async def _stored(self, database, memory_id):
        stored = await database.hget(keys.memory_key(self.ns, memory_id), "content")
        return stored.decode() if stored else None

    async def verify_without(self, database, lost):
        """As `verify` after a failover: of the entries in `lost` each may have taken effect or not."""
        await processed(EventStream(database, self.settings.stream, self.settings.group))
        allowed = {}
        for entry, memory_id, content in sorted(self.accepted, key=lambda event: parse_entry(event[0])):
            if entry in lost:
                allowed.setdefault(memory_id, {None}).add(content)
            else:
                allowed[memory_id] = {content}
        for memory_id, contents in allowed.items():
            assert await self._stored(database, memory_id) in contents, memory_id
        assert await database.exists(keys.dead_key(self.ns), keys.failed_key(self.ns)) == 0
        report = await check_namespace(database, self.ns, stream=self.settings.stream)
        assert report.problems == []


async def processed(stream, timeout_s=30.0):
    """Wait until nothing is unread or pending; gives the state of the group."""

    async def quiet():
        try:
            state = await stream.state(0)
        except UnavailableError:
            return None
        return state if state and state.lag == 0 and state.pending == 0 else None

    return await wait_until(quiet, "everything on the stream is processed", timeout_s)


class Watch:
    """Asks the reader again and again from a thread: search, readiness, one memory.

    Every answer must be 200 or 503 and come in time; what was called ready must be found by the next search.
    """

    def __init__(self, reader, load):
        self.reader, self.load = reader, load
        self.statuses = Counter()
        self.faults = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._dice = random.Random(1)

    def _run(self):
        while not self._stop.wait(0.01):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - told by the test
                self.faults.append(repr(error))

    def _look(self):
        self._ask(
            "POST", "/memory/search", b'{"q": "redis \xe8\xb6\x85\xe6\x97\xb6", "ns": "%s"}' % self.load.ns.encode()
        )
        if not self.load.settled:
            return
        memory_id, entry, token = self._dice.choice(self.load.settled)
        asked = f"?ns={self.load.ns}&id={memory_id}&entry={entry}"
        ready = self._ask("GET", f"/memory/ready{asked}")
        if ready is not None and ready["ready"]:
            found = self._ask(
                "POST", "/memory/search", b'{"q": "%s", "ns": "%s"}' % (token.encode(), self.load.ns.encode())
            )
            if found is not None and [hit["id"] for hit in found["hits"]] != [memory_id]:
                again = self._ask("GET", f"/memory/ready{asked}")  # it may have been lost in between
                if again is not None and again["ready"]:
                    self.faults.append(f"{memory_id} was called ready and not found")

    def _ask(self, method, target, body=None):
        """Body of a success, None for a 503; anything else is a fault."""
        answer = self.reader.request(method, target, body, timeout_s=10)
        self.statuses[answer.status] += 1
        if answer.status == 503 and int(answer.headers["Retry-After"]) >= 1:
            return None
        if answer.status != 200:
            self.faults.append(f"{method} {target} gave {answer.status}: {answer.raw!r}")
            return None
        return answer.body

    def start(self):
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join()


@contextmanager
def watching(reader, load):
    """A `Watch` until the end of the context, where it must have seen no fault."""
    watch = Watch(reader, load)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
    assert watch.faults == []
    assert not reader.failures(), reader.log.read_text()
