"""A database client whose process dies, stalls or loses its connection at a chosen command."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Literal, NamedTuple

from redis import ConnectionError  # noqa: A004
from redis.asyncio import Redis

from jiyi import connections, scripts

MOST_COMMANDS = 3_000
"""No job of these tests needs more: beyond it something never ends."""


class Died(BaseException):
    """The process is gone, in the middle of what it did."""


class Mishap(NamedTuple):
    """What happens at one command of a job: the n-th, counted from 0, or the first call of a script.

    `after` is when the server has executed it and before its answer is seen. A dead process sends nothing more; a
    cut connection fails once; a stalled process goes on when it is told to.
    """

    kind: Literal["dies before", "dies after", "cut before", "cut after", "stalls before"]
    command: int | str


class Wire(Redis):
    """A client of one process, on the connections of another: every command passes through, one at a time.

    One at a time, because the order in which the commands of two namespaces reach the server would be chance.
    """

    def __init__(self, database):
        super().__init__(connection_pool=database.connection_pool)
        self.response_callbacks = database.response_callbacks
        connections._PROCESSES[self] = connections._PROCESSES[database]
        self._turn = asyncio.Lock()
        self._dead = False
        self.unseen = set()  # commands that were executed, and whose answer was not seen
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
            kind = self._kind(command)
            if kind == "stalls before":
                self.stalled.set()
                await self._resumed.wait()
            self._dead = self._dead or kind == "dies before"
            if self._dead:
                raise Died
            if kind == "cut before":
                raise ConnectionError("cut before the command was sent")
            if kind in {"dies after", "cut after"}:
                self.unseen.add(command[0])
            answer = await super().execute_command(*_without_block(command), **options)
            if kind == "dies after":
                self._dead = True
                raise Died
            if kind == "cut after":
                raise ConnectionError("cut before the answer was read")
            return answer

    def _kind(self, command):
        number = self._commands
        self._commands += 1
        assert number < MOST_COMMANDS, "this never ends"
        if self._mishap is None or self._mishap.command not in {number, _script(command)}:
            return None
        kind, self._mishap = self._mishap.kind, None
        return kind


@cache
def _names():
    names = [path.name.removesuffix(".lua") for path in scripts.folder().iterdir()]
    return {script(name).sha: name for name in names for script in (scripts.load, scripts.allowing_oom)}


def _script(command):
    return _names().get(command[1]) if command[0] == "EVALSHA" else None


def _without_block(command):
    """Nobody writes while we wait, and the server looks at its clock ten times a second only."""
    if "BLOCK" not in command:
        return command
    at = command.index("BLOCK")
    return command[:at] + command[at + 2 :]
