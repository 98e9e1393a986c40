"""After a repair no list gets a generation that it has had: readers would take it for what they know."""

from __future__ import annotations

import pytest
from check.changes import build, delete, write

from jiyi import compaction, keys
from jiyi.repair import repair_namespace
from jiyi_api.snapshots import SnapshotReader

from .namespaces import WORDS, agrees_with_a_fresh_index, scores

pytestmark = pytest.mark.anyio


async def lose_counters(database):
    await database.delete(keys.stats_key("n"))


async def lose_the_next_number(database):
    await database.hdel(keys.stats_key("n"), "next_doc")


async def generation_of(database, term):
    return int.from_bytes(await database.getrange(keys.index_key("n", term), 0, 3), "little")


@pytest.mark.parametrize("damage", [lose_counters, lose_the_next_number])
async def test_a_generation_that_stands_is_not_given_out_again(database, damage):
    """Compaction numbers what it rewrites beyond all documents, and the numbers below may be free again."""
    await build(database, "n", [write(f"m{i}", f"{1000 + i}-0", "common word") for i in range(40)])
    await build(database, "n", [write(f"x{i}", f"{2000 + i}-0", "common") for i in range(50)])
    await build(database, "n", [delete(f"x{i}", f"{3000 + i}-0") for i in range(50)])
    await compaction.compact_namespace(database, "n")
    generation = await generation_of(database, "common")
    await damage(database)
    assert (await repair_namespace(database, "n", WORDS)).ok
    assert await generation_of(database, "common") == generation, "numbers begin above it, so the list may keep it"
    reader = SnapshotReader(database, "f1", 2**20)
    await scores(database, "n", reader, ["common"])
    # Up to the number at which compaction would give the list the same generation again.
    free = generation - int(await database.hget(keys.stats_key("n"), "next_doc"))
    await build(database, "n", [write(f"n{i}", f"{4000 + i}-0", "common") for i in range(free)])
    await compaction.compact_namespace(database, "n")
    await agrees_with_a_fresh_index(database, "n", reader)
