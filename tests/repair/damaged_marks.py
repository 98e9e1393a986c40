"""Faults beside the index, and what cannot be mended."""

from __future__ import annotations

from jiyi import keys, scripts
from jiyi.check import Kind

from .damage import damage
from .namespaces import doc_of, memory


@damage(Kind.TOMBSTONE)
async def tombstone_without_mark(db):
    await db.zrem(keys.tombstones_key("n"), "m4")


@damage(Kind.TOMBSTONE)
async def wrong_tombstones(db):
    await db.zadd(keys.tombstones_key("n"), {"m4": 1, "m20": 5, "nobody": 5, b"\xff": 5})


@damage(Kind.TOMBSTONE)
async def cluttered_tombstone(db):
    await db.hset(memory("m4"), "content", "left over")


@damage(Kind.EXPIRY)
async def wrong_expiries(db):
    key = keys.expiries_key("n")
    await db.zrem(key, "m0")
    await db.zadd(key, {"m1": 5, "m20": 5, "m4": 5, "nobody": 5})


@damage(Kind.STRAY_KEY)
async def marks_of_another_type(db):
    for name in (keys.tombstones_key, keys.expiries_key):
        await db.delete(name("n"))
        await db.set(name("n"), "x")


@damage(Kind.NAMESPACE)
async def not_announced(db):
    await db.srem(keys.NAMESPACES, "n")


@damage(Kind.DEAD_LETTER)
async def failed_without_letter(db):
    await db.hset(keys.failed_key("n"), "m50", "5000-0 bad reason")
    await db.hset(keys.letters_key("n"), "5000-0", "6000-0")


@damage(Kind.DEAD_LETTER)
async def letters_and_their_names(db):
    """A letter without name, one named otherwise, a name without letter, a replay without event, what is no version."""
    for i in range(3):
        await scripts.dead_letter(
            db,
            "n",
            f"d{i}",
            version=f"500{i}-0",
            code="bad",
            reason="r",
            now_ms=1,
            deliveries=1,
            fields=[(b"id", b"d")],
        )
    names = {"5001-0": "7-0", "6000-0": "7-0", "6001-0": "replayed 7-0", "soon": "7-0", "6002-0": "soon"}
    await db.hdel(keys.letters_key("n"), "5000-0")
    await db.hset(keys.letters_key("n"), mapping=names)


@damage(Kind.STRAY_LETTER, left=[Kind.STRAY_LETTER])
async def letters_of_somebody_else(db):
    await db.xadd(keys.dead_key("n"), {"event": "write", "id": "m20", "content": "x"})
    await db.xadd(keys.dead_key("n"), {"entry": "5000-0", "code": "bad"})


@damage(Kind.FENCE, left=[Kind.FENCE])
async def fence_of_a_document(db):
    await db.hset(memory("m20"), "entry", "soon")
    await db.hset(memory("m20"), "length", "7")


@damage(Kind.FENCE, left=[Kind.FENCE])
async def fence_of_a_tombstone(db):
    await db.hset(memory("m4"), "entry", "")


@damage(Kind.MEMORY, left=[Kind.MEMORY])
async def memory_of_another_type(db):
    await db.delete(memory("m22"))
    await db.set(memory("m22"), "x")


@damage(Kind.MEMORY, left=[Kind.MEMORY])
async def neither_document_nor_tombstone(db):
    await db.hset(memory("stranger"), "content", "x")
    await db.hset(memory("other"), mapping={"doc": await doc_of(db, "m20"), "entry": "1-0"})


@damage(Kind.STRAY_KEY, left=[Kind.STRAY_KEY])
async def stray_keys(db):
    for key in ("foreign:{n}", "{n}", "terms:{n}:64", "terms:{n}:01", "ids:{n}:x", "journal:{n}:1", "rebuild:{n}:1"):
        await db.set(key, "1")
