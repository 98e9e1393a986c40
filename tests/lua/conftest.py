"""What the tests of the scripts share: raw dumps of all keys, planted damage, and a watch for stray keys."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import RedisCluster
from redis.exceptions import OutOfMemoryError, ResponseError

from jiyi import keys
from jiyi.errors import UnavailableError
from jiyi.index import IndexWriter
from jiyi.memories import Memory
from jiyi.packing import Change, pack

ANALYZER = "f1"
NOW_MS = 1_764_470_000_123
STREAM = "stream:memory:write"
GROUP = "workers"
PROCESSED = f"processed:{{{STREAM}}}"

LAYOUT = [
    (rb"memory:\{[^{}]+\}:.+", b"hash"),
    (rb"terms:\{[^{}]+\}:([0-9]|[1-5][0-9]|6[0-3])", b"hash"),
    (rb"index:\{[^{}]+\}:.+", b"string"),
    (rb"journal:\{[^{}]+\}", b"string"),
    (rb"ids:\{[^{}]+\}:(0|[1-9][0-9]*)", b"hash"),
    (rb"stats:\{[^{}]+\}", b"hash"),
    (rb"(tombstones|expiries|reservations):\{[^{}]+\}", b"zset"),
    (rb"dead:\{[^{}]+\}", b"stream"),
    (rb"(failed|letters):\{[^{}]+\}", b"hash"),
    (rb"namespaces", b"set"),
    (STREAM.encode(), b"stream"),
    (rb"processed:\{%s\}" % STREAM.encode(), b"hash"),
]
"""Every key that may exist, and its type. Written down here once more: the tests do not ask `jiyi.keys`."""


async def all_keys(database):
    return sorted([key async for key in database.scan_iter(count=10_000)])


async def dump(database, ns):
    """Every key of a namespace, and the event stream with its account: type and whole value, as Redis holds it."""
    tag = b"{%s}" % keys.encode_namespace(ns).encode()
    found = {}
    for key in await all_keys(database):
        if tag in key or key in (STREAM.encode(), PROCESSED.encode()):
            kind = (await database.type(key)).decode()
            found[key] = (kind, await _value(database, key, kind))
            assert await database.pttl(key) == -1, f"{key!r} would vanish by itself"
    return found


async def _value(database, key, kind):
    if kind == "hash":
        return await database.hgetall(key)
    if kind == "zset":
        return dict(await database.zrange(key, 0, -1, withscores=True))
    if kind == "set":
        return await database.smembers(key)
    if kind == "list":
        return await database.lrange(key, 0, -1)
    if kind == "stream":
        entries = await database.execute_command("XRANGE", key, "-", "+")
        groups = await database.execute_command("XINFO", "GROUPS", key)
        names = [group[1] for group in groups]
        pending = [await database.execute_command("XPENDING", key, name, "-", "+", 100) for name in names]
        consumers = [await database.execute_command("XINFO", "CONSUMERS", key, name) for name in names]
        held = [[entry[:2] for entry in entries] for entries in pending]  # without idle times
        return entries, names, held, [[consumer[1] for consumer in group] for group in consumers]
    return await database.get(key)


def hash_of(dumped, key):
    """A hash of a dump as {text: bytes}."""
    return {field.decode(): value for field, value in dumped[key.encode()][1].items()}


async def check_layout(database):
    for key in await all_keys(database):
        kinds = [kind for pattern, kind in LAYOUT if re.fullmatch(pattern, key, re.DOTALL)]
        assert kinds, f"{key!r} is no key of the layout"
        assert kinds == [await database.type(key)], f"{key!r} is of the wrong type"


@pytest.fixture
async def database(database):
    """The test server; afterwards no key outside the layout may be there."""
    yield database
    await check_layout(database)


@pytest.fixture
async def either(either):
    """The test server and the cluster; afterwards no key outside the layout may be there."""
    yield either
    await check_layout(either)


def write(memory_id, version, terms, **fields):
    """A write with its analysis given: `terms` is a map to frequencies, or words."""
    if isinstance(terms, str):
        words = terms.split()
        terms = {word: words.count(word) for word in words}
    memory = Memory(content=fields.pop("content", str(terms)), **fields)
    return Change(id=memory_id, version=version, memory=memory, version_hash=memory.version_hash(), terms=terms)


def delete(memory_id, version):
    return Change(id=memory_id, version=version, memory=None)


async def apply(database, ns, *changes, again=False):
    return await IndexWriter(database, ANALYZER).apply(ns, changes, again=again)


async def packed(database, ns, *changes, analyzer=ANALYZER, again=False, last=True):
    """Keys and arguments of an `apply_events` call for prepared changes, as the writer would send them."""
    reservation, prepared = await IndexWriter(database, analyzer)._prepare(ns, changes, again=again)
    return pack(ns, reservation, analyzer, prepared, NOW_MS, last=last)


async def append(database, *entries):
    """Put entries of these ids on the stream."""
    for entry in entries:
        await database.execute_command("XADD", STREAM, entry, "event", "write")


async def append_range(database, first, last):
    """Put the entries `<first>-0` to `<last>-0` on the stream, in one call."""
    source = (
        "for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do redis.call('XADD', KEYS[1], i .. '-0', 'event', 'write') end"
    )
    await database.execute_command("EVAL", source, 1, STREAM, first, last)


async def read(database, count, consumer="c", group=GROUP):
    """Read new entries; gives their ids."""
    reply = await database.execute_command(
        "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", STREAM, ">"
    )
    return [entry.decode() for entry, _fields in reply[0][1]] if reply else []


async def account(database, group=GROUP):
    """What `processed` says of a group."""
    fields = {name.decode(): value.decode() for name, value in (await database.hgetall(PROCESSED)).items()}
    return {name.removeprefix(f"{group}:"): value for name, value in fields.items() if name.startswith(f"{group}:")}


async def refused(database, ns, call, match=None):
    """A call raises, and not one byte of the namespace has moved."""
    before = await dump(database, ns)
    with pytest.raises(ResponseError, match=match):
        await call()
    assert await dump(database, ns) == before


@asynccontextmanager
async def wrong_type(database, key):
    """A list, which no key of the layout is, in the place of a key; afterwards the key is as before."""
    kept = await database.dump(key)
    await database.delete(key)
    await database.rpush(key, "planted")
    try:
        yield
    finally:
        await database.delete(key)
        if kept is not None:
            await database.restore(key, 0, kept)


@asynccontextmanager
async def memory_limit(database, limit_bytes):
    """A server whose memory is limited for a while."""
    before = await database.config_get("maxmemory", "maxmemory-policy")
    await database.config_set("maxmemory-policy", "noeviction")
    await database.config_set("maxmemory", limit_bytes)
    try:
        yield
    finally:
        await database.config_set("maxmemory", before["maxmemory"])
        await database.config_set("maxmemory-policy", before["maxmemory-policy"])


async def used_memory(database):
    return (await database.info("memory"))["used_memory"]


async def refused_when_full(database, ns, call):
    """With the memory limit just below the memory in use a writing call is refused as a whole."""
    before = await dump(database, ns)
    async with memory_limit(database, await used_memory(database) - 1024):
        with pytest.raises(UnavailableError, match="memory is full"):
            await call()
    assert await dump(database, ns) == before


async def carried_out_when_full(database, call):
    """With the memory limit just below the memory in use a call that frees memory is carried out; gives its answer."""
    async with memory_limit(database, await used_memory(database) - 1024):
        with pytest.raises(OutOfMemoryError):
            await database.set("stats:{nobody}", "x")
        return await call()


async def flush_scripts(database):
    """Make every server forget all scripts."""
    node = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(database, RedisCluster) else {}
    await database.execute_command("SCRIPT FLUSH", **node)
