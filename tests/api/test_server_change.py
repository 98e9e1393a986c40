"""A reader whose server was replaced by one with another history never mixes the two."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import redis
from conftest import free_port, start_server, stop_server, wait_until

from api.conftest import Index
from api.test_snapshots import asked, scores, searcher_on
from jiyi import keys
from jiyi.connections import connect, server_of
from jiyi.errors import UnavailableError
from jiyi.settings import Settings

pytestmark = pytest.mark.anyio

WORDS = ["redis", "stream", "memory", "queue", "索引", "记忆", "超时"]


class Machine:
    """A port on which one server process after another answers."""

    def __init__(self, folder):
        self._folder, self.port, self._process = folder, free_port(), None
        self.start()
        self.settings = Settings(redis_url=f"redis://127.0.0.1:{self.port}")

    def start(self):
        self._process = start_server(self._folder, self.port)

    def replace(self):
        """Start another server, that knows nothing, in the place of this one."""
        self.stop()
        self.start()

    def stop(self):
        stop_server(self._process)

    def dump(self):
        with redis.Redis(port=self.port, protocol=2) as client:
            return {key: client.dump(key) for key in client.scan_iter()}

    def restore(self, dumped):
        with redis.Redis(port=self.port, protocol=2) as client:
            for key, value in dumped.items():
                client.restore(key, 0, value)

    async def follow(self, port):
        """Take over what another server has, and what it gets from now on."""
        with redis.Redis(port=self.port, protocol=2) as client:
            client.replicaof("127.0.0.1", port)

            async def follows():
                return client.info("replication")["master_link_status"] == "up"

            await wait_until(follows, "the replica follows")

    def lead(self):
        """Follow nobody any more; clients are sent away, as Sentinel does."""
        with redis.Redis(port=self.port, protocol=2) as client:
            client.replicaof("NO", "ONE")
            client.client_kill_filter(_type="normal", skipme=True)


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


async def test_what_an_earlier_server_had_is_forgotten(machine, analyzer):
    """The new server lacks the last writes and has had others since: as many bytes, under the same numbers."""
    rng = random.Random(3)
    texts = [" ".join(rng.choices(WORDS, k=6)) for _ in range(60)]
    database = await connect(machine.settings)
    index = Index(database, analyzer)
    await index.write_all({f"m{i}": text for i, text in enumerate(texts[:20])})
    snapshot = machine.dump()
    await index.write_all({f"lost{i}": text for i, text in enumerate(texts[20:40])})
    searcher = searcher_on(database, analyzer)
    for word in WORDS:
        assert any(name.startswith("lost") for name in await scores(searcher, word))
    machine.replace()
    machine.restore(snapshot)
    other = await connect(machine.settings)
    writer = Index(other, analyzer)
    writer.clock = iter(range(1_000, 2_000))
    await writer.write_all({f"new{i}": text for i, text in enumerate(reversed(texts[40:60]))})
    fresh = searcher_on(other, analyzer)
    for word in WORDS:
        expected = await scores(fresh, word)
        assert await scores(searcher, word) == expected
        assert not any(name.startswith("lost") for name in expected)
    await database.aclose()
    await other.aclose()


async def test_a_namespace_made_anew_between_ranking_and_fetching_gives_no_old_score(machine, analyzer):
    """The new documents have the same numbers and the same ids, so only the epoch tells."""
    database = await connect(machine.settings)
    index = Index(database, analyzer)
    await index.write_all({"a": "redis redis", "b": "redis queue"})
    searcher = searcher_on(database, analyzer, document_bytes=0)
    query = asked("redis")
    assert len(await scores(searcher, "redis")) == 2, "from here on the reader knows the ids by heart"
    ranking = await searcher.rank(query, {"redi": 1.0}, 10)
    assert ranking.total == 2
    await database.flushall()
    await index.write_all({"a": "redis", "b": "redis redis redis"})
    hits, expired, moved = await searcher._fetch(query, [[ranking]])
    assert (hits, expired, moved) == ([], 0, 2)
    found = await scores(searcher, "redis")
    assert found == await scores(searcher_on(database, analyzer), "redis")
    await database.aclose()


async def test_a_server_process_has_a_name_of_its_own(machine):
    database = await connect(machine.settings)
    before = server_of(database, keys.stats_key("default"))
    assert before
    machine.replace()

    async def answers():
        with suppress(redis.ConnectionError):  # of a connection to the old process
            return await database.ping()

    await wait_until(answers, "the new process answers")
    assert server_of(database, keys.stats_key("default")) not in ("", before)
    await database.aclose()


async def test_a_connection_to_an_earlier_process_is_not_used_again(machine, tmp_path):
    """Behind one address the old server may live on; what it is asked for must not count."""
    (tmp_path / "other").mkdir()
    other = Machine(tmp_path / "other")
    database = await connect(machine.settings)
    old = await database.connection_pool.get_connection()
    await old.send_command("PING")
    assert await old.read_response() == b"PONG"
    kind = database.connection_pool.connection_class
    new = kind(host="127.0.0.1", port=other.port, protocol=2)
    new.port = other.port
    await new.connect()
    # The address of the old connection now leads to the other process.
    old.address = new.address
    with pytest.raises(redis.ConnectionError, match="another server process has taken over"):
        await old.send_command("PING")
    await new.disconnect()
    await database.connection_pool.release(old)
    await database.aclose()
    other.stop()


async def test_a_server_that_was_a_replica_meanwhile_has_another_history(machine, tmp_path, analyzer):
    """Two failovers: the same process is the primary again, without its last writes and with those of the other."""
    (tmp_path / "other").mkdir()
    other = Machine(tmp_path / "other")
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=6)) for _ in range(60)]
    database = await connect(machine.settings)
    index = Index(database, analyzer)
    await index.write_all({f"m{i}": text for i, text in enumerate(texts[:20])})
    await other.follow(machine.port)
    other.lead()
    await index.write_all({f"lost{i}": text for i, text in enumerate(texts[20:40])})
    searcher = searcher_on(database, analyzer)
    for word in WORDS:
        assert any(name.startswith("lost") for name in await scores(searcher, word))
    elsewhere = await connect(other.settings)
    writer = Index(elsewhere, analyzer)
    writer.clock = iter(range(1_000, 2_000))
    await writer.write_all({f"new{i}": text for i, text in enumerate(reversed(texts[40:60]))})
    await machine.follow(other.port)
    machine.lead()

    async def is_connected():
        with suppress(UnavailableError):  # of a connection that was closed
            return await scores(searcher, "redis", ns="another") == {}

    await wait_until(is_connected, "the reader has connected anew")
    fresh = searcher_on(elsewhere, analyzer)
    for word in WORDS:
        assert await scores(searcher, word) == await scores(fresh, word)
    await database.aclose()
    await elsewhere.aclose()
    other.stop()
