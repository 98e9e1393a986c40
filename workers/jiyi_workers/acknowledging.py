"""Acknowledging: an entry is done when its effect is where the entry is, or as safe as producers are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from redis.exceptions import ResponseError

from jiyi import confirmation, keys
from jiyi.appending import node_of
from jiyi.connections import live_together, only_at, server_of, translated_errors
from jiyi.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.connections import Database
    from jiyi.settings import Settings
    from jiyi.streams import EventStream


class Acknowledger:
    """Acknowledges entries after their effect on a namespace, never without it.

    Mostly one server has stream and namespace. It forgets both or neither when it loses its tail, so only the process
    that has the effect may acknowledge: one that was promoted meanwhile may never have heard of it. In a cluster two
    may have them, which forget independently of each other. There, with `JIYI_CONFIRM`, an effect is confirmed as the
    write was, before the entry is acknowledged.
    """

    def __init__(self, database: Database, stream: EventStream, settings: Settings) -> None:
        self._database = database
        self.stream = stream
        self._settings = settings
        self._confirmation = confirmation.command(settings)

    def server(self, ns: str) -> str:
        """Name the server process of a namespace: to be asked before anything is done there."""
        return server_of(self._database, keys.stats_key(ns))

    async def acknowledge(self, ns: str, server: str, entries: Sequence[str]) -> None:
        """Acknowledge entries whose effect on a namespace is complete, on the server process that `server` named.

        Raises `UnavailableError` when another process answers for the namespace by now, or when it does not confirm:
        then the entries are to be processed again. `SettingsError` if the server cannot confirm in the way it should.
        """
        if live_together(self._database, keys.stats_key(ns), self.stream.name):
            with only_at(server):
                await self.stream.acknowledge(entries)
            return
        if self._confirmation is not None:
            with only_at(server):
                await self._confirm(ns, self._confirmation)
        await self.stream.acknowledge(entries)

    async def _confirm(self, ns: str, command: confirmation.Command) -> None:
        """Wait until all that the namespace's server has written is on disk, or at a replica."""
        key = keys.confirmed_key(ns)
        node = node_of(self._database, key)
        with translated_errors(), anyio.CancelScope(shield=True):
            pipeline: Any = self._database.pipeline(transaction=False)
            # WAIT and WAITAOF ask for the last write of their own connection, which everything before comes along with.
            pipeline.execute_command("SET", key, "", "PX", 1)
            pipeline.execute_command(*command, **node)
            written, reached = await pipeline.execute(raise_on_error=False)
            if isinstance(written, Exception):
                raise written
            if isinstance(reached, ResponseError):
                raise confirmation.refuse(self._settings, reached)
            if isinstance(reached, Exception):
                raise reached
        moved = node != node_of(self._database, key)  # then another node was asked
        if moved or not confirmation.is_confirmed(reached):
            what = "on disk" if self._settings.confirm == "fsync" else "at a replica"
            within = f"within {self._settings.confirm_ms} ms"
            raise UnavailableError(
                f"Redis does not confirm {within} that the changes of a namespace are {what}", code="not_confirmed"
            )
