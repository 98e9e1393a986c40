"""Classes of connections, derived from the library's: what a connection must notice, and how it packs commands."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import hiredis
from redis import exceptions

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


REQUIRED_RUN_ID: ContextVar[str] = ContextVar("required_run_id", default="")
"""Run id of the only server process that changes may be sent to, where that matters."""
_CHANGES = ("EVALSHA", "EVAL", "SET")


class ServerProcesses:
    """The server process that was last met at each address, by the run id that it chose when it started.

    `histories` has for each address the replication id as well, which a server gives itself anew whenever it stops
    following another: a process that was a replica meanwhile may have lost writes and got others.
    """

    def __init__(self) -> None:
        self.run_ids: dict[str, str] = {}
        self.histories: dict[str, str] = {}


def identifying(connection: type[AbstractConnection], processes: ServerProcesses) -> type[AbstractConnection]:
    """Derive a connection class that learns which server process it talks to, and refuses when there is a newer one.

    After a failover behind one address the old server may live on: a connection to it must not be used beside
    connections to the new one. And no change is sent to another process than `REQUIRED_RUN_ID`, if that is set; the
    library's own questions about a cluster go where they have to.
    """

    async def on_connect_check_health(self: Any, check_health: bool = True) -> None:
        self.run_id = None  # while the connection is made, its commands pass
        await connection.on_connect_check_health(self, check_health=check_health)
        await self.send_command("INFO", "server", "replication", check_health=False)
        info = await self.read_response()
        self.address = self.path if hasattr(self, "path") else f"{self.host}:{self.port}"
        self.run_id = processes.run_ids[self.address] = _field(info, b"run_id")
        processes.histories[self.address] = _field(info, b"master_replid")

    def pack_command(self: Any, *arguments: Any) -> list[bytes]:
        # In a cluster this comes before it is looked whether a connection has to be made first.
        if self.is_connected and self.run_id is not None and processes.run_ids[self.address] != self.run_id:
            self.mark_for_reconnect()
            raise exceptions.ConnectionError("another server process has taken over at this address")
        if arguments[0] in _CHANGES:
            self.required_run_id = REQUIRED_RUN_ID.get()
        return connection.pack_command(self, *arguments)

    async def _send_packed_command(self: Any, command: Any) -> None:
        # The last moment: the connection may have been made, or made anew, since the command was packed.
        if self.run_id is not None:
            required, self.required_run_id = self.required_run_id, ""
            if required not in ("", self.run_id):
                raise exceptions.ConnectionError("another server process has taken over")
        await connection._send_packed_command(self, command)  # noqa: SLF001 - the library has no other place

    functions = (on_connect_check_health, pack_command, _send_packed_command)
    return type(
        connection.__name__,
        (connection,),
        {"run_id": None, "required_run_id": "", **{f.__name__: f for f in functions}},
    )


def _field(info: bytes, name: bytes) -> str:
    found = re.search(rb"^%s:(\w+)" % name, info, re.MULTILINE)
    return found[1].decode() if found else ""


def noticing_resets(connection: type[AbstractConnection]) -> type[AbstractConnection]:
    """Derive a connection class that notices when it was reset while nobody used it, or closed while somebody did.

    The library looks for an orderly end only, and would write to the closed transport. There uvloop raises what is no
    connection error to anybody, and a worker would die of it. And when one caller learns that a cluster is down, the
    library closes the connections of all the others, who would then write to no transport at all.
    """

    def is_gone(self: Any) -> bool:
        return self._writer is None or self._writer.is_closing()

    async def can_read(self: Any) -> bool:  # true means to the pool: not fit for use, connect anew
        return bool(is_gone(self) or await connection.can_read(self))

    async def _send_packed_command(self: Any, command: Any) -> None:
        if is_gone(self):
            raise ConnectionResetError("the connection was reset or closed")
        await connection._send_packed_command(self, command)  # noqa: SLF001 - the library has no other place

    return type(connection.__name__, (connection,), {f.__name__: f for f in (can_read, _send_packed_command)})


def packing_in_c(connection: type[AbstractConnection]) -> type[AbstractConnection]:
    """Derive a connection class that packs commands with hiredis.

    The asyncio client packs in Python, at about a microsecond an argument: for a batch of thousands of postings
    that is more than the analysis of its texts. The synchronous client uses hiredis by itself.
    """

    def pack_command(_self: AbstractConnection, *arguments: str | bytes | float) -> list[bytes]:
        command = arguments[0]
        if isinstance(command, str) and " " in command:  # "CONFIG GET" is two words on the wire
            arguments = (*command.split(), *arguments[1:])
        return [hiredis.pack_command(arguments)]  # type: ignore[arg-type] # the stub says a tuple of one

    return type(connection.__name__, (connection,), {"pack_command": pack_command})
