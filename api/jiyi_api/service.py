"""The reader's parts, and how they come to life: Redis may come later than we do."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
from redis.exceptions import RedisError

from jiyi import metrics, scripts
from jiyi.analysis import Analyzer
from jiyi.conditions import check_server, server_conditions
from jiyi.connections import connect
from jiyi.dead_letters import Replays
from jiyi.errors import JiyiError, UnavailableError
from jiyi.logs import get_logger
from jiyi.memories import DEFAULT_NAMESPACE
from jiyi.producer import Producer
from jiyi.streams import EventStream
from jiyi_api.documents import Documents
from jiyi_api.listing import Lister
from jiyi_api.ranking import choose_ranker
from jiyi_api.readiness import ReadinessReader
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader
from jiyi_api.why import Explainer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jiyi.connections import Database
    from jiyi.settings import Settings
    from jiyi.streams import GroupState

_RETRY_S = 0.5
_RED = ("eviction", "replica")
"""Conditions of the server under which answers may be wrong."""

log = get_logger()


class Parts(msgspec.Struct, frozen=True):
    """Everything that needs a server to talk to."""

    database: Database
    analyzer: Analyzer
    stream: EventStream
    producer: Producer
    replays: Replays
    snapshots: SnapshotReader
    searcher: Searcher
    lister: Lister
    explainer: Explainer
    readiness: ReadinessReader


class Health(msgspec.Struct, rename="camel"):
    """Answer of `/readyz`. Checks are "ok" or say what is wrong and make the status `not ready`.

    Warnings make it `degraded`: searches are answered, but an operator has to do something. The backlog is told, but
    turns nothing red. `kernel` says what ranks (see `JIYI_KERNEL`), once that is known.
    """

    status: str
    checks: dict[str, str]
    warnings: list[str] = []
    lag: int | None = None
    pending: int | None = None
    oldest_unapplied_ms: int | None = None
    kernel: str | None = None


class Service:
    """Starts the parts in the background; until they are there, `parts` raises `UnavailableError`.

    Raises `SettingsError` for files of words that are not as they must be.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._analyzer = Analyzer.from_settings(settings)
        self._parts: Parts | None = None
        self._kernel: str | None = None
        self._trouble = "starting"
        self._tried = anyio.Event()

    @property
    def parts(self) -> Parts:
        """The parts of a started service."""
        if self._parts is None:
            raise UnavailableError(f"the reader is not ready: {self._trouble}")
        return self._parts

    @asynccontextmanager
    async def running(self, patience_s: float = 0.0) -> AsyncIterator[None]:
        """Context in which the service starts, runs and stops.

        It is entered when the service can answer or knows why it cannot, at the latest after `patience_s`.
        """
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            tasks.start_soon(self._start, stack)
            try:
                with anyio.move_on_after(patience_s):
                    await self._tried.wait()
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        analyzer = self._analyzer
        await anyio.to_thread.run_sync(analyzer.warm_up)
        if (report := await anyio.to_thread.run_sync(analyzer.check_dictionary)).not_whole:
            log.warning("user_dictionary", message=str(report))
        ranker = choose_ranker(settings.kernel)
        await anyio.to_thread.run_sync(ranker.warm_up)
        scripts.load_all()
        self._kernel = ranker.name
        database, producer = await self._connected(stack)
        stream = EventStream(database, settings.stream, settings.group)
        replays = Replays(database, settings.stream, settings.max_backlog)
        readiness = ReadinessReader(database, stream, settings.max_content_bytes)
        snapshots = SnapshotReader(
            database,
            analyzer.fingerprint,
            settings.cache_bytes,
            patience_s=settings.redis_timeout_ms / 1000,
            unseal=ranker.unseal,
        )
        documents = Documents(database, settings.document_cache_bytes)
        searcher = Searcher(database, analyzer, snapshots, ranker, documents=documents)
        self._parts = Parts(
            database=database,
            analyzer=analyzer,
            stream=stream,
            producer=producer,
            replays=replays,
            snapshots=snapshots,
            searcher=searcher,
            lister=Lister(snapshots, documents),
            explainer=Explainer(database, analyzer, searcher, readiness),
            readiness=readiness,
        )
        self._tried.set()
        log.info("reader_started", analyzer=analyzer.fingerprint, kernel=ranker.name)
        await readiness.wakeups.run()

    async def _connected(self, stack: AsyncExitStack) -> tuple[Database, Producer]:
        while True:
            try:
                async with AsyncExitStack() as attempt:
                    database = await connect(self.settings)
                    attempt.push_async_callback(database.aclose)
                    for condition in await check_server(database):
                        log.warning("server_condition", condition=condition.name, message=condition.message)
                    producer = await attempt.enter_async_context(Producer(settings=self.settings))
                    stack.push_async_exit(attempt.pop_all())
                    return database, producer
            except (JiyiError, RedisError) as error:  # RedisError: not allowed to ask, and the like
                self._trouble = str(error)
                self._tried.set()
                log.warning("reader_waits", error=str(error))
                await anyio.sleep(_RETRY_S)

    async def health(self) -> Health:
        """Check everything that an answer needs: kernel, Redis by way of a script, and the state of the server."""
        health = Health("ready", {"kernel": "ok" if self._kernel else "compiling"}, kernel=self._kernel)
        state: GroupState | None = None
        try:
            parts = self.parts
            await scripts.read_index(parts.database, DEFAULT_NAMESPACE, limit=1, journal=(b"", 0), terms=[])
            health.checks["redis"] = "ok"
            state = await self.measure(parts)
            await self._judge_server(parts, health)
        except (JiyiError, RedisError) as error:
            health.checks["redis"] = str(error)
        if set(health.checks.values()) != {"ok"}:
            health.status = "not ready"
        elif health.warnings:
            health.status = "degraded"
        if state is not None:
            health.lag, health.pending, health.oldest_unapplied_ms = state[:3]
        return health

    async def _judge_server(self, parts: Parts, health: Health) -> None:
        found = await server_conditions(parts.database)
        metrics.publish_conditions(found)
        health.checks |= dict.fromkeys(_RED, "ok")
        for condition in found:
            if condition.name in _RED:
                health.checks[condition.name] = condition.message
            else:
                health.warnings.append(condition.message)
        if wipe := parts.snapshots.recent_wipe():
            health.warnings.append(wipe)

    async def measure(self, parts: Parts) -> GroupState | None:
        """Measure the stream and set its gauges."""
        state = await parts.stream.state(time.time_ns() // 10**6)
        if state is not None:
            metrics.publish_state(state)
        return state


def retry_headers(error: UnavailableError) -> dict[str, Any]:
    """Headers of a 503."""
    return {"Retry-After": str(max(1, round(error.retry_after_s)))}
