"""Compaction by workers: one namespace at a time, each by one worker at a time, beside everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec
from redis.exceptions import ResponseError

from jiyi import keys, metrics
from jiyi.compaction import compact_namespace, has_grown, is_due
from jiyi.connections import execute
from jiyi.errors import CorruptIndexError, UnavailableError
from jiyi.logs import get_logger
from jiyi.repair.target import number_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jiyi.connections import Database

_LEASE_MS = 60_000
"""Longer than any step; who died while compacting is replaced after this."""
_LONGEST_REST_S = 1.0
"""Far less than the lease lasts."""

log = get_logger()


class Compactor:
    """Compacts namespaces that were found to be due. `name` is that of this worker."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._due: dict[str, bool] = {}  # namespace → whether it has only grown
        self._wanted = anyio.Event()

    async def look(self, ns: str) -> None:
        """See whether a namespace is due, and if so take it up soon."""
        counters = await execute(self._database, "HMGET", keys.stats_key(ns), "docs", "next_doc", "sealed")
        docs, next_doc = (int(counter or 0) for counter in counters[:2])
        sealed = number_of(counters[2]) or 0  # of what it says nothing hangs on but the time of the next
        wasteful = is_due(docs, int(await execute(self._database, "STRLEN", keys.journal_key(ns))))
        if wasteful or has_grown(docs, next_doc, sealed):
            self._due[ns] = not wasteful
            self._wanted.set()

    async def run(self, scope: anyio.CancelScope) -> None:
        """Compact what is due, until the scope is cancelled; broken off, it leaves a right index."""
        with scope:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                while self._due:
                    ns, growth_only = self._due.popitem()
                    await self._compact(ns, growth_only=growth_only)

    async def _compact(self, ns: str, *, growth_only: bool = False) -> None:
        key = keys.compaction_key(ns)
        try:
            if not await execute(self._database, "SET", key, self._name, "NX", "PX", _LEASE_MS):
                return  # another worker does it
            try:
                done = await compact_namespace(
                    self._database, ns, growth_only=growth_only, on_step=self._pace(key, rests=growth_only)
                )
            finally:
                with anyio.CancelScope(shield=True):
                    await execute(self._database, "DEL", key)
        except (UnavailableError, ResponseError, CorruptIndexError) as error:
            log.warning("compaction_failed", ns=ns, error=str(error))
        else:
            metrics.COMPACTED_POSTINGS.inc(done.postings)
            log.info("namespace_compacted", ns=ns, **msgspec.structs.asdict(done))

    def _pace(self, key: str, *, rests: bool) -> Callable[[], Awaitable[None]]:
        """Give what is awaited between steps: it renews the lease, and rests as long as the step has taken.

        What has only grown can wait; the entries that come in meanwhile should not.
        """
        began = anyio.current_time()

        async def step() -> None:
            nonlocal began
            await execute(self._database, "PEXPIRE", key, _LEASE_MS)
            if rests:
                await anyio.sleep(min(anyio.current_time() - began, _LONGEST_REST_S))
            began = anyio.current_time()

        return step
