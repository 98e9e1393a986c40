"""Dead letters against the names under which they are filed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from jiyi import keys
from jiyi.check.documents import is_entry
from jiyi.check.report import Kind
from jiyi.dead_letters import decode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jiyi.check.source import Source

_PAGE = 250
_REPLAYED = b"replayed "


class Misfit(NamedTuple):
    """A version whose name in `letters` is wrong. All that there is none of is b""."""

    version: bytes
    name: bytes
    named: bytes  # the letter in the name
    letter: bytes  # that it ought to have
    expected: str
    found: str


class Letters:
    """Compares `dead:{ns}` with `letters:{ns}`: every letter is named by its version, every name has its letter.

    Every script that changes one of the two changes the other with it, but they are read one after the other. What
    looks wrong is read again in an order that proves it. A letter that is gone never comes back, for ids of a stream
    only grow. So a letter that is there after its name was read was there at that time; and a letter that was not
    there before its name was read is not there at that time.
    """

    def __init__(self, source: Source, stream: str | None) -> None:
        self._source = source
        self._stream = stream
        self._dead = keys.dead_key(source.ns)
        self._letters = keys.letters_key(source.ns)
        self._foreign: list[bytes] = []  # entries among the letters that nobody of us has filed

    async def check(self) -> None:
        """Report what does not fit."""
        try:
            async for misfit in self.misfits():
                version = misfit.version.decode() if is_entry(misfit.version) else self._source.shown(misfit.version)
                self._source.report.add(Kind.DEAD_LETTER, f"{self._letters} {version}", misfit.expected, misfit.found)
            for letter in self._foreign:
                if await self._is_kept(letter):
                    where = f"{self._dead} {letter.decode()}"
                    self._source.report.add(Kind.STRAY_LETTER, where, "a dead letter", "fields that are none")
        except ResponseError as error:
            where = f"{self._dead} or {self._letters}"
            self._source.report.add(
                Kind.STRAY_KEY, where, "keys of the types in the layout", str(error).split(" ", 1)[0]
            )

    async def misfits(self) -> AsyncIterator[Misfit]:
        """Give all that does not fit, each proven. Names of replays are judged only when the stream is known."""
        names = await self._names()
        kept: set[bytes] = set()
        async for letter, version in self._versions():
            kept.add(letter)
            if version and names.get(version, b"") not in (letter, _REPLAYED + letter):
                name = await self._name(version)
                if name not in (letter, _REPLAYED + letter) and await self._is_kept(letter):
                    yield _unnamed(version, name, letter)
        under_way: dict[bytes, bytes] = {}
        for version, name in names.items():
            letter = name.removeprefix(_REPLAYED)
            if not is_entry(version) or not is_entry(letter):
                if await self._name(version) == name:
                    yield Misfit(version, name, b"", b"", "an entry id, and a letter", "something else")
            elif letter not in kept and not await self._is_kept(letter) and await self._name(version) == name:
                if name == letter:
                    yield Misfit(version, name, letter, b"", "the letter that is named", "none")
                else:
                    under_way[version] = name
        async for misfit in self._lost(under_way):
            yield misfit

    async def _versions(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Give all letters, each with the version of its event; b"" for a foreign one."""
        self._foreign = []
        async for letter, flat in self._source.entries(self._dead):
            found = decode(self._source.ns, letter.decode(), flat)
            if found.is_foreign:
                self._foreign.append(letter)
            yield letter, found.entry.encode()

    async def _lost(self, under_way: dict[bytes, bytes]) -> AsyncIterator[Misfit]:
        """Judge names of replays whose letter is gone: it was removed after the event was appended.

        A worker that has processed the event removes the name before it acknowledges. So a name that still is there
        after the stream was read without meeting the event waits for nothing.
        """
        if self._stream is None:
            return
        missed = set(under_way)
        async for _, flat in self._source.entries(self._stream, missed):
            # The origin stands in a field of its own or inside the payload.
            missed -= {version for version in missed if any(version in value for value in flat)}
        for version in missed:
            if await self._name(version) == under_way[version]:
                name = under_way[version]
                yield Misfit(version, name, name.removeprefix(_REPLAYED), b"", "the replayed event", "none")

    async def _names(self) -> dict[bytes, bytes]:
        names: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._source.command("HSCAN", self._letters, cursor, "COUNT", _PAGE)
            names |= page
            if cursor == 0:
                return names

    async def _name(self, version: bytes) -> bytes:
        found: bytes | None = await self._source.command("HGET", self._letters, version)
        return found or b""

    async def _is_kept(self, letter: bytes) -> bool:
        return bool(await self._source.command("XRANGE", self._dead, letter, letter))


def _unnamed(version: bytes, name: bytes, letter: bytes) -> Misfit:
    """Give the misfit of a letter that its version does not name."""
    found = "another letter" if name else "none"
    return Misfit(version, name, name.removeprefix(_REPLAYED), letter, "the name of a dead letter", found)
