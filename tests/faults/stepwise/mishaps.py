"""A database client whose process dies, stalls or loses its connection at a chosen command."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

import redis

MOST_COMMANDS = 3_000
"""No job of these tests needs more: beyond it something never ends."""


class Died(BaseException):
    """The process is gone, in the middle of what it did."""


class Mishap(NamedTuple):
    """What happens at the n-th command of a job, counted from 0.

    `after` is when the server has executed it and before its answer is seen. A dead process sends nothing more; a
    cut connection fails once; a stalled process goes on when it is told to.
    """

    kind: Literal["dies before", "dies after", "cut before", "cut after", "stalls before"]
    command: int


class Wire:
    """What one process has for a database: every command passes through, one at a time.

    One at a time, because the order in which the commands of two namespaces reach the server would be chance.
    """

    def __init__(self, database):
        self._database = database
        self._turn = asyncio.Lock()
        self._dead = False
        self.expect(None)

    def expect(self, mishap):
        """Begin a job, to which this happens."""
        self._mishap = mishap
        self._commands = 0
        self.stalled = asyncio.Event()
        self._resumed = asyncio.Event()

    def resume(self):
        """Let a stalled process go on."""
        self._resumed.set()

    def kill(self):
        """Let nothing more reach the server, also of a stalled process."""
        self._dead = True
        self._resumed.set()

    async def execute_command(self, *command, **options):
        async with self._turn:
            kind = self._kind()
            if kind == "stalls before":
                self.stalled.set()
                await self._resumed.wait()
            self._dead = self._dead or kind == "dies before"
            if self._dead:
                raise Died
            if kind == "cut before":
                raise redis.ConnectionError("cut before the command was sent")
            answer = await self._database.execute_command(*_without_block(command), **options)
            if kind == "dies after":
                self._dead = True
                raise Died
            if kind == "cut after":
                raise redis.ConnectionError("cut before the answer was read")
            return answer

    async def info(self, *sections):
        return await self.execute_command("INFO", *sections)

    def _kind(self):
        number = self._commands
        self._commands += 1
        assert number < MOST_COMMANDS, "this never ends"
        return self._mishap.kind if self._mishap is not None and self._mishap.command == number else None


def _without_block(command):
    """Nobody writes while we wait, and the server looks at its clock ten times a second only."""
    if "BLOCK" not in command:
        return command
    at = command.index("BLOCK")
    return command[:at] + command[at + 2 :]
