"""Memory per document: all that the server has allocated, and the share of each kind of key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.ingest import append, applied
from benchmarks.load import spread
from benchmarks.processes import jiyi_server, service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.results import Results
    from jiyi.connections import Database
    from jiyi.settings import Settings

NAMESPACES = 300
_WORKERS = 2


async def used_memory(database: Database) -> int:
    """Bytes that the server has allocated."""
    return int((await database.info("memory"))["used_memory"])


async def trimmed(settings: Settings, database: Database) -> None:
    """Wait until the workers, which must be running, have removed from the stream what is done."""
    with anyio.move_on_after(30):
        while await database.xlen(settings.stream):
            await anyio.sleep(0.1)


async def measure_memory(results: Results, database: Database, docs: int, empty: int) -> None:
    """Record what a document takes: of the whole server, beyond what it had allocated when empty, and by kind."""
    results.about("memory", "jiyi", docs).record("bytes_per_doc", (await used_memory(database) - empty) / docs, "B")
    kinds: dict[str, int] = {}
    async for key in database.scan_iter(count=1000):
        kind = key.partition(b":")[0].decode()
        kinds[kind] = kinds.get(kind, 0) + int(await database.memory_usage(key, samples=0) or 0)
    for kind, size in sorted(kinds.items(), key=lambda pair: -pair[1]):
        if size / docs >= 1:
            results.about("memory", "jiyi", docs).record(f"{kind}_bytes_per_doc", size / docs, "B")


async def measure_namespaces(results: Results, memories: Sequence[dict[str, Any]]) -> None:
    """Record what a document takes when the same documents are spread over many namespaces."""
    docs = len(memories)
    async with jiyi_server() as (settings, database):
        empty = await used_memory(database)
        await anyio.to_thread.run_sync(append, settings, spread(memories, NAMESPACES))
        async with service("jiyi_workers", settings, _WORKERS):
            await applied(settings, database)
            await trimmed(settings, database)
        size = (await used_memory(database) - empty) / docs
    results.about("memory", "jiyi", docs).record(f"{NAMESPACES}_namespaces_bytes_per_doc", size, "B")
