"""The namespace of the fixture, and what must hold of any after its repair."""

from __future__ import annotations

from collections import Counter

import pytest
from check.changes import build, delete, write

from jiyi import keys
from jiyi.memories import FIELDS, Memory
from jiyi.packing import Change
from jiyi.settings import Settings
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader


class Words:
    """Splits at spaces, as `check.changes.write` does."""

    fingerprint = "f1"

    def terms(self, text):
        return dict(Counter(text.split()))


WORDS = Words()


def changes():
    first = [
        write(f"m{i}", f"{1000 + i}-0", f"common rare{i % 7} own{i} own{i}", author="alice", importance=0.25)
        for i in range(30)
    ]
    again = [
        write(f"m{i}", f"{2000 + i}-0", f"common again rare{i}", expires_at=9_000_000_000_000, tags=("a", "b"))
        for i in range(5)
    ]
    return [*first, *again, *(delete(f"m{i}", f"{3000 + i}-0") for i in range(3, 8))]


def bucket(term, ns="n"):
    return keys.bucket_key(ns, keys.bucket_of(term))


def memory(memory_id):
    return keys.memory_key("n", memory_id)


async def doc_of(database, memory_id):
    return int(await database.hget(memory(memory_id), "doc"))


async def memories_of(database, ns):
    """The documents of a namespace by id, from their hashes alone."""
    prefix, found = keys.memory_key(ns, "").encode(), {}
    for key in [key async for key in database.scan_iter(count=10_000)]:
        if key.startswith(prefix) and await database.type(key) == b"hash":
            stored = await database.hgetall(key)
            if b"doc" in stored or (b"content" in stored and b"deleted_at" not in stored):
                found[key[len(prefix) :].decode()] = {name.decode(): value for name, value in stored.items()}
    return found


def words_of(documents):
    """Words to search for: the frequent ones, and some of the rare."""
    counts = Counter(word for stored in documents.values() for word in set(stored["content"].decode().split()))
    return (
        [word for word, _ in counts.most_common(15)]
        + [word for word in counts if word.startswith("own2")]
        + ["nothing"]
    )


async def scores(database, ns, reader, words, **filters):
    """Hits of each word, with their exact scores."""
    searcher, found = Searcher(database, None, reader), {}
    for word in words:
        query = SearchQuery.from_request(SearchRequest(q=word, ns=ns, limit=100, **filters), Settings())
        ranking = await searcher.rank(query, {word: 1.0}, 100)
        hits = (await searcher._fetch(query, [[ranking]]))[0]
        found[word] = {hit.id: hit.score for hit in hits}
        assert len(hits) == ranking.total
    return found


async def agrees_with_a_fresh_index(database, ns, *readers):
    """Searches find and score as in an index that is built anew from the memories that are there."""
    documents = await memories_of(database, ns)
    rewritten = []
    for memory_id, stored in documents.items():
        named = {name: stored[name].decode() for name in FIELDS if name in stored}
        one = Memory.from_stored(named)
        entry = stored["entry"].decode()
        rewritten.append(Change(id=memory_id, version=entry, memory=one, terms=WORDS.terms(one.content)))
    await build(database, "fresh", rewritten, batch=100)
    fresh = SnapshotReader(database, "f1", 2**20)
    for filters in ({}, {"author": ["alice"]}, {"tags": ["b"]}):
        words = ["common"] if filters else words_of(documents)
        expected = await scores(database, "fresh", fresh, words, **filters)
        assert filters or any(expected.values())
        for reader in (*readers, SnapshotReader(database, "f1", 2**20)):
            found = await scores(database, ns, reader, words, **filters)
            assert {word: hits.keys() for word, hits in found.items()} == {w: h.keys() for w, h in expected.items()}
            for word, hits in expected.items():
                assert found[word] == pytest.approx(hits, abs=1e-9)
    await database.delete(*[key async for key in database.scan_iter(match="*{fresh}*", count=10_000)])
    await database.srem(keys.NAMESPACES, "fresh")


async def dumps(database):
    """Every key with all its bytes; of a table not their order, which moves when Redis 7.0 reads it."""
    return {key: await _dumped(database, key) for key in [key async for key in database.scan_iter(count=10_000)]}


async def _dumped(database, key):
    if await database.object("encoding", key) != b"hashtable":
        return await database.dump(key)
    return await (database.hgetall(key) if await database.type(key) == b"hash" else database.smembers(key))


async def truth(database, ns="n"):
    """What people have stored: content, fields and version."""
    documents = await memories_of(database, ns)
    kept = ("entry", "content", *FIELDS)
    return {
        memory_id: {name: value for name, value in stored.items() if name in kept and name != "timestamp"}
        for memory_id, stored in documents.items()
    }
