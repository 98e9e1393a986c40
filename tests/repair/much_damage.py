"""Damage in many parts at once."""

from __future__ import annotations

import random

from jiyi import keys
from jiyi.forward_lists import pack_forward_list

from .namespaces import memories_of


async def plant_much(db, ns, seed):
    """Damage in many parts at once that leaves all memories as they are; another choice for each seed."""
    stats, journal = keys.stats_key(ns), keys.journal_key(ns)
    documents = await memories_of(db, ns)
    ids = sorted(documents)

    async def alter(memory_id, field, value):
        """Not a memory that is deleted meanwhile: that would leave half a one."""
        script = "if redis.call('HEXISTS', KEYS[1], 'doc') == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end"
        await db.execute_command("EVAL", script, 1, keys.memory_key(ns, memory_id), field, value)

    async def replace(key):
        await db.execute_command("EVAL", "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x')", 1, key)

    async def forward_lists():
        for memory_id, garbage in zip(ids[::7], [b"", b"\xc1", pack_forward_list({"w1": 40})] * 9, strict=False):
            await alter(memory_id, "terms", garbage)

    parts = [
        forward_lists,
        lambda: alter(ids[1], "length", 3),
        lambda: alter(ids[2], "doc", documents[ids[3]]["doc"]),
        lambda: alter(ids[4], "doc", "x"),
        lambda: db.delete(stats),
        lambda: db.hset(stats, mapping={"docs": 1, "tokens": 2, "next_doc": 5}),
        lambda: db.hincrby(stats, "docs", 3),
        lambda: db.setrange(journal, 44, b"garbage" * 9),
        lambda: db.delete(journal),
        lambda: db.delete(keys.ids_key(ns, 0)),
        lambda: db.delete(*[keys.bucket_key(ns, number) for number in range(0, 64, 5)]),
        lambda: replace(keys.bucket_key(ns, keys.bucket_of("w1"))),
        lambda: db.delete(keys.index_key(ns, "common")),
        lambda: db.setrange(keys.index_key(ns, "common"), 6, b"garbage"),
        lambda: replace(keys.tombstones_key(ns)),
        lambda: db.delete(keys.tombstones_key(ns), keys.expiries_key(ns)),
    ]
    dice = random.Random(seed)
    for part in dice.sample(parts, dice.randrange(1, len(parts))):
        await part()
