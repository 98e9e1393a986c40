"""Readiness: five states, exact per entry, and waiting that ends as soon as the answer changes (B47)."""

import time
from functools import partial
from urllib.parse import urlencode

import anyio
import pytest
from conftest import wait_until

from api.conftest import Index
from jiyi import keys
from jiyi.streams import EventStream
from jiyi_api import readiness
from jiyi_api.readiness import ReadinessReader
from jiyi_workers.pipeline import Pipeline

pytestmark = pytest.mark.anyio

STREAM = "stream:memory:write"


def write(reader, memory_id, content="redis", **fields):
    answer = reader.post("/memory/write", {"id": memory_id, "content": content, **fields})
    assert answer.status == 202
    return answer.body["entry"]


async def test_a_write_is_pending_then_ready_then_deleted(index, reader, work):
    entry = write(reader, "m")
    assert reader.ready("m", entry=entry) == {
        "id": "m", "ready": False, "state": "pending", "indexedAt": None, "entry": None,
        "reason": "accepted, not applied yet",
    }  # fmt: skip
    assert reader.state("m") == "unknown", "without an entry only what is applied counts"
    await work()
    ready = reader.ready("m", entry=entry)
    assert (ready["ready"], ready["state"], ready["entry"], ready["reason"]) == (True, "ready", entry, None)
    assert ready["indexedAt"].endswith("Z")
    assert reader.ready("m") == ready
    assert reader.found("redis") == ["m"], "ready means that the next query sees it"
    deletion = reader.request("DELETE", "/memory/m").body["entry"]
    assert reader.state("m", entry=deletion) == "pending"
    assert reader.state("m") == "ready"
    await work()
    for parameters in ({}, {"entry": deletion}, {"entry": entry}):
        gone = reader.ready("m", **parameters)
        assert (gone["ready"], gone["state"], gone["entry"]) == (False, "deleted", deletion)
    assert reader.get("/memory/m").status == 404


async def test_an_update_is_not_ready_while_the_old_version_is_served(index, reader, work):
    first = write(reader, "m", "redis")
    await work()
    second = write(reader, "m", "queue")
    assert reader.ready("m", entry=second) | {"reason": None} == {
        "id": "m", "ready": False, "state": "pending", "indexedAt": None, "entry": first, "reason": None,
    }  # fmt: skip
    assert reader.state("m", entry=first) == "ready"
    await work()
    assert reader.ready("m", entry=second)["ready"]
    assert reader.ready("m", entry=first)["entry"] == second, "a later version of the memory answers for an earlier"
    assert reader.found("redis") == []


async def test_an_entry_of_another_memory_says_nothing_about_this_one(index, reader, work):
    other = write(reader, "other")
    await index.write("m", "redis")
    assert reader.state("m", entry=other) == "unknown"
    assert reader.state("other", entry=other, ns="elsewhere") == "unknown"
    await work()
    assert reader.state("m", entry=other) == "unknown"


async def test_what_was_never_accepted_or_is_trimmed_is_unknown(database, reader, work):
    assert reader.ready("m") == {
        "id": "m", "ready": False, "state": "unknown", "indexedAt": None, "entry": None, "reason": None,
    }  # fmt: skip
    assert reader.state("m", entry="1-1") == "unknown"
    assert reader.state("m", entry="18446744073709551615-18446744073709551615") == "unknown"
    entry = write(reader, "m")
    await database.xtrim(STREAM, maxlen=0)
    assert reader.state("m", entry=entry) == "unknown"


async def test_a_dead_letter_is_failed_with_its_reason(database, reader, work):
    good = write(reader, "m")
    await work()
    bad = (await database.xadd(STREAM, {"event": "write", "id": "m", "importance": "9", "content": "x"})).decode()
    assert reader.state("m", entry=bad) == "pending"
    await work()
    failed = reader.ready("m", entry=bad)
    assert (failed["ready"], failed["state"], failed["entry"]) == (False, "failed", good)
    assert "importance" in failed["reason"]
    assert reader.state("m", entry=good) == "ready"
    assert reader.found("redis") == ["m"], "the version before it is still served"
    assert reader.state("m") == "failed"
    healed = write(reader, "m", "redis again")
    await work()
    assert reader.state("m") == reader.state("m", entry=healed) == "ready"


async def test_read_but_unacknowledged_is_pending(database, reader, work):
    """A worker that died after reading leaves the entry pending, and so says the answer."""
    stream = EventStream(database, STREAM, "jiyi")
    await stream.ensure_group()
    entry = write(reader, "m")
    assert len(await stream.read_new("dying", 10, 1)) == 1
    assert reader.state("m", entry=entry) == "pending"
    await database.xack(STREAM, "jiyi", entry)
    assert reader.state("m", entry=entry) == "unknown", "acknowledged and not applied: nothing is known of it"


async def test_many_ids_in_one_question(index, reader, work):
    entries = [write(reader, f"m{i}") for i in range(60)]
    await work()
    pending = [write(reader, f"p{i}") for i in range(40)]
    ids = [f"m{i}" for i in range(60)] + [f"p{i}" for i in range(40)]
    body = reader.get("/memory/ready", id=ids, entry=entries + pending).body
    assert [one["id"] for one in body["memories"]] == ids
    assert [one["state"] for one in body["memories"]] == ["ready"] * 60 + ["pending"] * 40
    body = reader.get("/memory/ready", id=["m1", "m1", "nobody"]).body
    assert [(one["id"], one["state"]) for one in body["memories"]] == [("m1", "ready")] * 2 + [("nobody", "unknown")]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "id"),
        ([("id", "")], "id: "),
        ([("id", "x" * 257)], "id: "),
        ([("id", "a\nb")], "id: "),
        ([("id", str(i)) for i in range(101)], "id: is given 101 times"),
        ([("id", "m"), ("entry", "")], "entry: "),
        ([("id", "m"), ("entry", "1")], "entry: "),
        ([("id", "m"), ("entry", "1-x")], "entry: "),
        ([("id", "m"), ("entry", "$")], "entry: "),
        ([("id", "m"), ("entry", "18446744073709551616-0")], "entry: "),
        ([("id", "m"), ("entry", "1-0"), ("entry", "1-1")], "entry: is given 2 times"),
        ([("id", "m"), ("id", "n"), ("entry", "1-0")], "entry: is given 1 times"),
    ],
)
async def test_bad_questions_are_refused_by_name(reader, asked, message):
    status, _, said = reader.request("GET", f"/memory/ready?{urlencode(asked)}").error
    assert status == 400
    assert message in said


@pytest.mark.parametrize("wait", ["", "x", "-1s", "1e3", "1m", "2 s", "s", "1,5s", "nan", "inf", "0x1"])
async def test_a_wait_that_is_no_duration_is_refused(reader, wait):
    assert reader.get("/memory/ready", id="m", wait=wait).error[0] == 400
    assert reader.get("/memory/ready", id="m", wait=wait).error[2].startswith("wait: ")


@pytest.mark.parametrize("wait", ["0", "0s", "0ms", "20ms", "0.05", " 10ms "])
async def test_a_wait_ends_at_its_time_with_what_is_known_then(reader, database, wait):
    assert reader.state("m", wait=wait) == "unknown"


@pytest.mark.parametrize("wait", ["9" * 400, "99999s"])
async def test_a_wait_is_never_longer_than_the_setting(reader, index, wait):
    """An answer that is final comes at once, however long the wait."""
    await index.write("m", "redis")
    assert reader.state("m", wait=wait) == "ready"


async def in_background(function, *arguments, **parameters):
    return await anyio.to_thread.run_sync(lambda: function(*arguments, **parameters))


async def test_a_waiting_request_is_answered_when_its_event_is_applied(database, reader, work):
    entry = write(reader, "m")
    answers = []

    async def ask():
        answers.append(await in_background(reader.ready, "m", entry=entry, wait="5s"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await wait_until(lambda: is_listening(database), "the reader listens")
        assert not answers
        await work()
    assert [answer["state"] for answer in answers] == ["ready"]


async def is_listening(database):
    return await database.execute_command("PUBSUB", "NUMPAT")


async def test_after_the_last_waiter_nobody_listens(database, reader):
    reader.ready("m", wait="10ms")

    async def quiet():
        return await is_listening(database) == 0

    await wait_until(quiet, "the reader stops listening")


async def test_rubbish_on_the_channel_harms_nobody(database, reader, work):
    """The channel belongs to a Redis that others use too: the listener, and the writes beside it, must live on."""
    entry = write(reader, "m")
    answers = []

    async def ask():
        answers.append(await in_background(reader.ready, "m", entry=entry, wait="5s"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        for rubbish in ((b"applied:\xff", b"x"), (keys.applied_channel("default").encode(), b"\xff\n\n\x00m")):
            await wait_until(partial(database.execute_command, "PUBLISH", *rubbish), "the reader takes the rubbish")
        await work()
    assert [answer["state"] for answer in answers] == ["ready"]
    assert reader.post("/memory/write", {"id": "after", "content": "x"}).status == 202
    assert reader.get("/readyz").status == 200


@pytest.fixture
async def waiting(either, settings):
    """A `ReadinessReader` in this process, and its listener."""
    found = ReadinessReader(either, EventStream(either, settings.stream, settings.group), 65_536)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.wakeups.run)
        yield found
        tasks.cancel_scope.cancel()


async def test_the_wake_up_ends_the_wait_long_before_the_next_look(either, waiting, analyzer, monkeypatch):
    """On one server and on a cluster, where a message may be published on another node than it is awaited at."""
    monkeypatch.setattr(readiness, "_POLL_S", 60)
    index = Index(either, analyzer)
    for ns in ("default", "a", "b", "c"):
        answers = []

        async def ask(ns=ns, answers=answers):
            answers.extend(await waiting.ready(ns, [("m", None), ("n", None)], 30))

        started = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await wait_until(lambda: listens_anywhere(either), "the reader listens")
            await index.write("m", "redis", ns=ns)
            await index.write("n", "redis", ns=ns)
            await either.execute_command("PUBLISH", keys.applied_channel(ns), "x\nm\nn")
        assert [answer.state for answer in answers] == ["ready", "ready"]
        assert time.monotonic() - started < 25


async def listens_anywhere(database):
    if hasattr(database, "get_primaries"):
        return sum([await node.execute_command("PUBSUB NUMPAT") for node in database.get_primaries()])
    return await database.execute_command("PUBSUB", "NUMPAT")


async def test_the_states_are_the_same_on_a_cluster(either, waiting, analyzer, settings):
    """There the stream, the namespace and the dead letters lie on different nodes."""
    stream = EventStream(either, settings.stream, settings.group)
    pipeline = Pipeline(either, stream, analyzer, settings)
    await stream.ensure_group()

    async def add(**event):
        flat = [part for pair in event.items() for part in pair]
        return (await either.execute_command("XADD", settings.stream, "*", *flat)).decode()

    for ns in ("default", "a", "b"):
        good = await add(event="write", ns=ns, id="good", content="redis")
        bad = await add(event="write", ns=ns, id="bad", content="redis", unheard_of="x")
        asked = [("good", good), ("bad", bad), ("good", bad), ("none", None), ("good", None)]
        assert await states(waiting, ns, asked) == ["pending", "pending", "unknown", "unknown", "unknown"]
        await pipeline.process(await stream.read_new("test", 10, 1))
        assert await states(waiting, ns, asked) == ["ready", "failed", "unknown", "unknown", "ready"]
        gone = await add(event="delete", ns=ns, id="good")
        assert await states(waiting, ns, [("good", gone)]) == ["pending"]
        await pipeline.process(await stream.read_new("test", 10, 1))
        assert await states(waiting, ns, [("good", gone), ("good", good)]) == ["deleted", "deleted"]


async def states(waiting, ns, asked):
    return [answer.state for answer in await waiting.ready(ns, asked, 0)]


async def test_a_lost_wake_up_costs_one_look_more_and_no_answer(either, waiting, analyzer, monkeypatch):
    monkeypatch.setattr(readiness, "_POLL_S", 0.02)
    index = Index(either, analyzer)
    answers = []

    async def ask():
        with anyio.fail_after(20):
            answers.extend(await waiting.ready("default", [("m", None)], 100))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.sleep(0.05)
        await index.write("m", "redis")  # and nothing is published
    assert [answer.state for answer in answers] == ["ready"]


async def test_a_wake_up_between_two_looks_is_not_forgotten(either, waiting, analyzer, monkeypatch):
    """It comes after the look that found nothing and before the wait: the wait must end at once."""
    monkeypatch.setattr(readiness, "_POLL_S", 60)
    index, looked = Index(either, analyzer), waiting._look
    done = []

    async def look_then_apply(ns, asked):
        answers = await looked(ns, asked)
        if not done:
            done.append(True)
            await index.write("m", "redis")
            waiting.wakeups._wake(keys.applied_channel("default"), ["m"])
        return answers

    monkeypatch.setattr(waiting, "_look", look_then_apply)
    with anyio.fail_after(25):
        (answer,) = await waiting.ready("default", [("m", None)], 50)
    assert answer.state == "ready"


async def test_a_wait_without_an_event_ends_at_its_deadline(either, waiting, monkeypatch):
    monkeypatch.setattr(readiness, "_POLL_S", 60)
    with anyio.fail_after(20):
        (answer,) = await waiting.ready("default", [("m", None)], 0.05)
    assert answer.state == "unknown"


async def test_waiters_leave_nothing_behind(waiting):
    async with anyio.create_task_group() as tasks:
        for i in range(20):
            tasks.start_soon(waiting.ready, "default", [(f"m{i % 3}", None), ("same", None)], 10)
        await anyio.sleep(0.05)
        assert waiting.wakeups._waiters
        tasks.cancel_scope.cancel()
    assert not waiting.wakeups._waiters
