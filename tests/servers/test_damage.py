"""A bit flips in what is stored: `check` finds it or no score is other than before, and nobody falls over it.

`JIYI_TEST_FLIPS` sets how many bits are tried, `JIYI_TEST_SEED` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections import Counter

import msgspec
import pytest
from conftest import start_server, wait_until

from jiyi import Producer, dead_letters, keys
from jiyi.check import check, check_namespace
from jiyi.compaction import compact_namespace
from jiyi.connections import connect
from jiyi.errors import AnalyzerMismatchError, CorruptIndexError
from servers.asking import Asker
from servers.consumer import Consumer
from servers.load import WORDS
from servers.processes import OwnServer, running_workers

pytestmark = pytest.mark.anyio

FLIPS = int(os.environ.get("JIYI_TEST_FLIPS", "60"))
QUESTIONS = [
    {"q": "redis 超时", "limit": 100, "explain": True},
    {"q": "连接池 err_conn_reset", "limit": 100},
    {"q": "记忆", "author": "alice", "tags": ["a", "b"], "limit": 100},
]
REFUSALS = {"corrupt_index", "analyzer_mismatch"}


async def build(database, settings, analyzer):
    """A namespace with rewrites, deletes, expiries, short and long lists; everything is applied and right."""
    dice = random.Random(7)
    consumer = Consumer(database, settings, analyzer)
    await consumer.stream.ensure_group()
    async with Producer(settings=settings) as producer:
        for number in range(240):
            if number == 160:
                await consumer.catch_up()
                await compact_namespace(database, "default")
            memory_id = f"m{dice.randrange(90)}"
            if number % 10 == 9:
                await producer.delete(memory_id)
                continue
            await producer.write(
                id=memory_id,
                content=" ".join([*dice.choices(WORDS, k=dice.randrange(1, 12)), f"word{number % 50}"]),
                author=dice.choice(("alice", "张伟", None)),
                tags=dice.sample("abc", k=dice.randrange(3)),
                importance=0.5,
                expires_at=None if number % 7 else "9999-01-01T00:00:00Z",
                metadata={"number": number},
            )
    await consumer.catch_up()
    assert (await check_namespace(database, "default")).problems == []
    return consumer


async def cells(database):
    """All values of the namespace, {(key, field or None): value}, by their kind."""
    found = {}
    async for key in database.scan_iter(match="*{default}*"):
        name = key.split(b":")[0]
        kind = await database.type(key)
        if kind == b"string":
            found.setdefault(name, {})[key, None] = await database.get(key)
        elif kind == b"hash":
            for field, value in (await database.hgetall(key)).items():
                part = name + b" " + field if name in {b"memory", b"stats"} else name
                found.setdefault(part, {})[key, field] = value
    return found


async def put(database, place, value):
    key, field = place
    if field is None:
        await database.set(key, value)
    else:
        await database.hset(key, field, value)


def flipped(value, dice):
    bit = dice.randrange(8 * len(value))
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def asked(reader, memory_id):
    """What the reader says: per question ids with their scores, or "refused"; nothing but 200 and an honest 503."""
    answers = []
    for question in QUESTIONS:
        answer = reader.post("/memory/search", question)
        if answer.status == 503 and answer.error[1] in REFUSALS:
            answers.append("refused")
            continue
        assert answer.status == 200, answer.raw
        body = json.loads(answer.raw)
        hits = [(hit["id"], hit["score"], hit["matchedTerms"], hit.get("explanation")) for hit in body["hits"]]
        answers.append((hits, body["total"], body["index"]))
    for target in (f"/memory/{memory_id}", f"/memory/ready?id={memory_id}"):
        answer = reader.request("GET", target)
        assert answer.status in {200, 404} or (answer.status == 503 and answer.error[1] in REFUSALS), answer.raw
        json.loads(answer.raw)
    return answers


def in_order(kinds, dice):
    """Places with their kind, each kind in turn, so that the many memories do not hide the few counters."""
    while True:
        for kind in sorted(kinds):
            place = dice.choice(sorted(kinds[kind], key=repr))
            if kinds[kind][place]:
                yield kind.decode(), place, kinds[kind][place]


async def test_a_flipped_bit_is_found_or_changes_no_score(database, settings, analyzer, reader, seed):
    dice = random.Random(seed)
    await build(database, settings, analyzer)
    places = in_order(await cells(database), dice)
    before = asked(reader, "m1")
    found = 0
    for number in range(FLIPS):
        kind, place, value = next(places)
        await database.hset(keys.stats_key("default"), "epoch", f"epoch{number}")  # or the reader keeps what it has
        changed = flipped(value, dice)
        sys.stdout.write(f"{kind} {place} {value[:40]} becomes {changed[:40]}\n")
        await put(database, place, changed)
        memory_id = place[0].rpartition(b":")[2].decode() if kind.startswith("memory") else "m1"
        after = asked(reader, memory_id)
        report = await check_namespace(database, "default")
        found += not report.ok
        assert not report.ok or all(now in (then, "refused") for now, then in zip(after, before, strict=True))
        await put(database, place, value)
    assert found > FLIPS // 4


async def test_workers_live_with_damage_and_go_on_with_the_others(database, settings, analyzer, seed):
    """What cannot be applied stays pending, to end as a dead letter; the next event of another memory is applied."""
    dice = random.Random(seed)
    consumer = await build(database, settings, analyzer)
    kinds = await cells(database)
    del kinds[b"stats analyzer"]  # at another analyzer workers end, and say why
    dumped = {key: await database.dump(key) async for key in database.scan_iter()}
    places = in_order(kinds, dice)
    async with Producer(settings=settings) as producer:
        for number in range(FLIPS // 2):
            kind, place, value = next(places)
            changed = flipped(value, dice)
            sys.stdout.write(f"{kind} {place} {value[:40]} becomes {changed[:40]}\n")
            await put(database, place, changed)
            memory_id = place[0].rpartition(b":")[2].decode()
            for write in (
                producer.write(id=memory_id, content=f"rewrite {number}", expires_at=10**12),
                producer.delete(memory_id),
                producer.write(id="another", ns="another", content=f"another {number}"),
            ):
                await write
                assert await consumer.step() == 1
            assert await database.hget(keys.memory_key("another", "another"), "content") == b"another %d" % number
            await consumer.housekeeping.sweep()
            await database.flushdb()
            for key, raw in dumped.items():
                await database.restore(key, 0, raw)


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_what_cannot_be_applied_is_filed_and_logged_without_its_content(database, settings, tmp_path, log_format):
    """The forward list of one memory is damaged: its next event becomes a dead letter, and its worker lives."""
    settings = msgspec.structs.replace(
        settings, claim_idle_ms=200, document_timeout_ms=150, sweep_ms=50, log_format=log_format
    )
    with running_workers(settings, tmp_path / "workers", 1) as [worker]:
        async with Producer(settings=settings) as producer:
            await producer.write(id="damaged", content="secret1")
            await wait_until(lambda: database.exists(keys.memory_key("default", "damaged")), "it is applied")
            await database.hset(keys.memory_key("default", "damaged"), "terms", b"\xc1")
            entry = (await producer.write(id="damaged", content="secret2")).entry
            await wait_until(lambda: database.exists(keys.dead_key("default")), "the rewrite is a dead letter")
            await producer.write(id="whole", content="secret3")
            await wait_until(lambda: database.exists(keys.memory_key("default", "whole")), "others are applied")
    [letter] = [letter async for letter in dead_letters.letters(database, "default")]
    assert (letter.entry, letter.code) == (entry, "max_deliveries")
    told = worker.log.read_text()
    assert "apply_refused" in told
    assert "CorruptIndexError" in told
    assert "secret" not in told


async def test_a_flipped_bit_in_the_append_only_file_is_found_or_changes_no_score(tmp_path, analyzer, seed):
    """Or the server refuses to start, or it cuts the file there and says so: then it is as after a loss of power."""
    dice = random.Random(seed)
    server = OwnServer(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "no")
    settings = server.patient
    database = await connect(settings)
    await build(database, settings, analyzer)
    before = [await told(Asker(database, settings, analyzer), question) for question in QUESTIONS]
    await database.aclose()
    server.kill()
    outcomes = Counter()
    for _ in range(FLIPS // 2):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(server.folder, tmp_path / "copy")
        [file] = (tmp_path / "copy").glob("appendonlydir/*.incr.aof")
        data = bytearray(file.read_bytes())
        at, bit = dice.randrange(len(data)), dice.randrange(8)
        sys.stdout.write(f"bit {bit} of byte {at} of {len(data)}\n")
        data[at] ^= 1 << bit
        file.write_bytes(data)
        outcomes[await outcome(server, tmp_path / "copy", analyzer, before)] += 1
    assert {"refused to start", "as before"} <= set(outcomes)


async def outcome(server, folder, analyzer, before):
    """How a server on a damaged folder is found: one of a few honest ways."""
    try:
        process = start_server(folder, server.port, *server.options)
    except AssertionError:  # its log is the message: it has ended
        return "refused to start"
    try:
        database = await connect(server.patient)
        reports = await check(database)
        after = [await told(Asker(database, server.patient, analyzer), question) for question in QUESTIONS]
        keys_left = await database.dbsize()
        await database.aclose()
    finally:
        process.kill()
        process.wait()
    if not all(report.ok for report in reports):
        return "found"
    if "runcated" in (folder / "server.log").read_text(errors="replace").rpartition("oading")[0]:
        return "cut"
    if not keys_left:
        return "empty"
    assert all(now in (then, "refused") for now, then in zip(after, before, strict=True))
    return "as before"


async def told(asker, question):
    """Scores and sizes as a fresh reader tells them, or "refused"."""
    try:
        scores, total, figures = await asker.scores(
            **{name: value for name, value in question.items() if name != "limit"}
        )
    except (CorruptIndexError, AnalyzerMismatchError):
        return "refused"
    return scores, total, figures
