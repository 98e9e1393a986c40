"""A replica that lags is promoted: its history goes on, and nothing of the lost one is mixed into it."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial

import anyio
import msgspec
import pytest
import redis
from api.conftest import running_reader
from conftest import wait_until

from jiyi import Producer, keys
from jiyi.check import check
from jiyi.connections import connect
from jiyi.errors import UnavailableError
from jiyi.events import parse_entry
from jiyi.index import IndexWriter, Outcome
from jiyi.memories import Memory
from jiyi.packing import Change
from servers.asking import Asker
from servers.cluster import SLOTS, running_cluster
from servers.consumer import Consumer
from servers.load import WORDS, Load, watching
from servers.pair import running_pair
from servers.processes import running_workers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(anyio_backend, tmp_path):
    with running_pair(tmp_path) as pair:
        await pair.in_sync()
        yield pair


@pytest.fixture
async def database(pair):
    """A client that goes where the address of the pair leads."""
    client = await connect(msgspec.structs.replace(pair.settings, redis_timeout_ms=10_000))
    yield client
    await client.aclose()


@pytest.fixture
async def consumer(database, pair, analyzer):
    consumer = Consumer(database, pair.settings, analyzer)
    await consumer.stream.ensure_group()
    return consumer


@pytest.fixture
async def producer(database, pair):
    async with Producer(settings=pair.settings) as producer:
        yield producer


async def problems(database, settings):
    return [problem for report in await check(database, stream=settings.stream) for problem in report.problems]


class Redirected(IndexWriter):
    """A writer whose connections lead to another server right after its first numbers are reserved."""

    def __init__(self, database, analyzer, redirect):
        super().__init__(database, analyzer)
        self._redirect = redirect

    async def _prepare(self, *arguments, **options):
        answer = await super()._prepare(*arguments, **options)
        redirect, self._redirect = self._redirect, None
        if redirect is not None:
            self._database = await redirect()
        return answer


def change(memory_id, version, analyzer):
    content = f"common {memory_id}"
    return Change(id=memory_id, version=version, memory=Memory(content=content), terms=analyzer.terms(content))


async def test_a_change_prepared_on_the_old_primary_takes_no_number_that_the_new_one_gives_out(
    pair, database, analyzer
):
    """The numbers were reserved where the replica could not see it, and it gives the same ones to somebody else."""
    await IndexWriter(database, analyzer.fingerprint).apply("default", [change("first", "1-0", analyzer)])
    await pair.in_sync()
    pair.fall_behind()
    async with AsyncExitStack() as stack:

        async def fail_over():
            pair.fail_over()
            promoted = await connect(pair.primary.settings)
            stack.push_async_callback(promoted.aclose)
            await IndexWriter(promoted, analyzer.fingerprint).apply("default", [change("other", "2-0", analyzer)])
            return promoted

        writer = Redirected(database, analyzer.fingerprint, fail_over)
        outcomes = await writer.apply("default", [change("one", "3-0", analyzer), change("two", "3-1", analyzer)])
        assert outcomes == [Outcome.APPLIED, Outcome.APPLIED]
        assert await problems(writer._database, pair.settings) == []
        scores, _, _ = await Asker(writer._database, pair.settings, analyzer).scores("common")
    assert set(scores) == {"first", "other", "one", "two"}


async def test_a_reader_that_knew_more_than_the_new_primary_scores_as_a_fresh_one(pair, database, analyzer):
    """Its journal and postings are shorter than what was read, then as long, then longer, and begin alike."""
    writer = IndexWriter(database, analyzer.fingerprint)
    await writer.apply("default", [change(f"m{i}", f"1-{i}", analyzer) for i in range(30)])
    await pair.in_sync()
    pair.fall_behind()
    await writer.apply("default", [change(f"lost{i}", f"2-{i}", analyzer) for i in range(40)])
    asker = Asker(database, pair.settings, analyzer)
    assert (await asker.scores("common"))[1] == 70
    pair.fail_over()
    await recovered(database)
    for step, count in enumerate((0, 20, 20, 20)):
        await writer.apply("default", [change(f"m{40 * step + i}", f"{3 + step}-{i}", analyzer) for i in range(count)])
        for word in ("common", "m45", "lost3"):
            assert await asker.scores(word) == await Asker(database, pair.settings, analyzer).scores(word)
    assert (await asker.scores("common"))[1] == 90


async def recovered(database):
    """Wait until a client has noticed that its connections are broken."""

    async def answers():
        with suppress(redis.ConnectionError):
            return await database.ping()

    await wait_until(answers, "the address leads to the new primary")


async def test_a_namespace_whose_announcement_was_lost_is_announced_again(pair, database, analyzer):
    class Announcer(IndexWriter):
        async def _announce(self, ns, epoch):
            if not self._announced:
                await pair.in_sync()
                pair.fall_behind()
            await super()._announce(ns, epoch)

    writer = Announcer(database, analyzer.fingerprint)
    await writer.apply("new", [change("one", "1-0", analyzer)])
    pair.fail_over()
    await recovered(database)
    assert not await database.sismember(keys.NAMESPACES, "new")
    await writer.apply("new", [change("two", "2-0", analyzer)])
    assert await database.sismember(keys.NAMESPACES, "new")
    assert await problems(database, pair.settings) == []


async def test_acknowledged_entries_that_come_back_change_nothing(pair, database, consumer, producer):
    await producer.write_many({"id": f"m{i}", "content": f"common {i}"} for i in range(20))
    await producer.write(id="m3", content="newer")
    await producer.delete("m4")

    async def fall_behind(_request):
        await pair.in_sync()
        pair.fall_behind()

    pair.failpoint("acknowledge", do=fall_behind)
    await consumer.step()
    assert (await consumer.stream.state(0)).pending == 0
    pair.fail_over()
    await recovered(database)
    assert (await consumer.stream.state(0)).pending == 22
    journal = await database.get(keys.journal_key("default"))
    await consumer.catch_up()
    assert (await consumer.stream.state(0)).pending == 0
    assert await database.get(keys.journal_key("default")) == journal
    assert await problems(database, pair.settings) == []


@pytest.mark.parametrize("step", ["applied", "filed"])
async def test_who_has_never_heard_of_an_effect_is_not_told_that_it_is_done(
    step, pair, database, consumer, producer, analyzer
):
    """The replica has the entry, but not what became of it, and is promoted right before the acknowledgement."""
    await producer.write(id="m", content="common")
    (entry,) = await consumer.read()
    await pair.in_sync()
    acknowledge = consumer.stream.acknowledge

    async def late(entries):
        pair.fail_over()
        await recovered(database)
        consumer.stream.acknowledge = acknowledge
        await acknowledge(entries)

    pair.fall_behind()
    consumer.stream.acknowledge = late
    reason = "was delivered 5 times without success"
    pipeline = consumer.pipeline
    with pytest.raises(UnavailableError):
        await (pipeline.process([entry]) if step == "applied" else pipeline.bury(entry, "max_deliveries", reason))
    assert (await consumer.stream.state(0)).pending == 1
    assert not await database.exists(keys.stats_key("default")), "nothing of it was there"
    await consumer.catch_up()
    assert (await consumer.stream.state(0)).pending == 0
    assert set((await Asker(database, pair.settings, analyzer).scores("common"))[0]) == {"m"}
    assert await problems(database, pair.settings) == []


async def test_workers_and_reader_go_on_with_whoever_is_primary(pair, tmp_path, analyzer):
    """A failover to a lagging replica; the old primary returns as replica; and back, while the other one lives on."""
    load, lost = Load(pair.settings, "default", seed=21), set()  # what the old primary may have accepted alone
    with (
        running_workers(pair.settings, tmp_path / "workers"),
        running_reader(pair.settings, tmp_path / "log") as reader,
        watching(reader, load) as watch,
    ):
        for kill in (True, False):
            await load.run(100)
            await pair.in_sync()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run, 400)
                await anyio.sleep(0.05)
                pair.fall_behind()
                await seen_more(load, watch)
                if kill:
                    pair.fail_over()
                else:
                    pair.promote()
                last = pair.primary.last_entry(pair.settings.stream)
                await anyio.sleep(0 if kill else 0.5)
                pair.cut()
                until_ms = time.time_ns() // 10**6
            # Only now: an answer of the old primary may have been on its way when it was cut.
            accepted = {entry: parse_entry(entry) for entry, _, _ in load.accepted}
            lost |= {entry for entry, found in accepted.items() if found > parse_entry(last) and found[0] <= until_ms}
            await same_everywhere([load], [lost], reader, pair.settings, analyzer)
            if kill:
                await pair.rejoin()
    assert lost


async def seen_more(load, watch):
    """Wait until the old primary has had more events, and the reader has asked it."""
    events, answers = len(load.accepted), watch.statuses[200]

    async def more():
        return len(load.accepted) > events + 50 and watch.statuses[200] > answers + 3

    await wait_until(more, "the replica is behind")


async def test_a_cluster_fails_over_and_the_old_primary_returns(tmp_path, analyzer):
    """The node with the stream and one of two namespaces dies. Workers and reader find its replica by themselves."""
    stream = "stream:memory:write"
    with running_cluster(tmp_path, stream) as cluster:
        settings, here, there = cluster.settings, *namespaces(cluster, stream)
        await cluster.formed()
        loads = [Load(settings, here, seed=31), Load(settings, there, seed=32)]
        with (
            running_workers(settings, tmp_path / "workers"),
            running_reader(settings, tmp_path / "log") as reader,
            watching(reader, loads[0]),
            watching(reader, loads[1]),
        ):
            await all_run(loads, 60)
            await cluster.in_sync()
            known = [len(load.accepted) for load in loads]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_run, loads, 300)
                await anyio.sleep(0.05)
                cluster.doomed.kill()
                await cluster.failed_over()
            lost = [{entry for entry, _, _ in load.accepted[count:]} for load, count in zip(loads, known, strict=True)]
            await all_run(loads, 60)
            await same_everywhere(loads, lost, reader, settings, analyzer)
            cluster.doomed.start()
            await cluster.returned()
            await all_run(loads, 60)
            await same_everywhere(loads, lost, reader, settings, analyzer)


def namespaces(cluster, stream):
    """A namespace on the node that has the stream, and one on another."""
    node = cluster.nodes[0]
    owners = {}
    for i in range(50):
        slot = node.command("CLUSTER", "KEYSLOT", keys.stats_key(f"ns-{i}"))
        owners.setdefault(next(j for j, (first, last) in enumerate(SLOTS) if first <= slot <= last), f"ns-{i}")
    return owners[cluster.owner], owners[cluster.owner - 1 if cluster.owner else 1]


async def all_run(loads, count):
    async with anyio.create_task_group() as tasks:
        for load in loads:
            tasks.start_soon(load.run, count)


async def same_everywhere(loads, lost, reader, settings, analyzer):
    """Everything is processed and right, and the reader scores as a fresh one does."""
    async with aclosing(await connect(settings)) as database:  # what a failure left open would fail the next test
        for load, entries in zip(loads, lost, strict=True):
            await load.verify_without(database, entries)
            for word in WORDS:
                fresh, total, _ = await Asker(database, settings, analyzer).scores(word, load.ns)
                answer = await anyio.to_thread.run_sync(partial(reader.search, word, ns=load.ns, limit=100))
                assert ({hit["id"]: hit["score"] for hit in answer["hits"]}, answer["total"]) == (fresh, total)
