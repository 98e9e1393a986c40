"""A value of any size, written piece by piece beside the key that it will replace in one step."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self

import anyio

from jiyi import keys
from jiyi.postings import GENERATION_BYTES

if TYPE_CHECKING:
    from types import TracebackType

    from jiyi.repair.target import Target

PIECE_BYTES = 1_048_576
"""Bytes of one command: a millisecond of the server."""
_LIFETIME_MS = 600_000


class Rebuild:
    """A key of its own, gone after the context, or ten minutes after its writer was killed.

    `size` counts its bytes; the first four are the place of a generation, which the script that puts it in place
    fills in.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.key = keys.rebuild_key(target.ns, secrets.token_hex(8))
        self.size = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._target.command("DEL", self.key)

    async def write(self, data: bytes) -> None:
        """Begin anew with `data`."""
        await self._target.command("SET", self.key, bytes(GENERATION_BYTES), "PX", _LIFETIME_MS)
        for at in range(0, len(data), PIECE_BYTES):
            await self._target.command("APPEND", self.key, data[at : at + PIECE_BYTES])
            await self._target.command("PEXPIRE", self.key, _LIFETIME_MS)
        self.size = GENERATION_BYTES + len(data)
