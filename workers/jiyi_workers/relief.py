"""What goes on while the server's memory is full: deletes are applied ahead of their turn, for they make room."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from jiyi.errors import CorruptIndexError, InvalidEventError
from jiyi.events import decode_event
from jiyi.packing import Change

if TYPE_CHECKING:
    from jiyi.index import IndexWriter
    from jiyi.settings import Settings
    from jiyi.streams import EventStream

_PAGE = 200


class Relief:
    """Looks through the stream for deletes, without reading them as a consumer does.

    The order of processing does not matter to the index, so a delete may come before older events of its memory;
    when its turn comes it is found done. What was looked through is not looked through again.
    """

    def __init__(self, stream: EventStream, writer: IndexWriter, settings: Settings) -> None:
        self._stream = stream
        self._writer = writer
        self._settings = settings
        self._after = "0-0"

    async def step(self) -> int:
        """Apply the deletes among the next entries; gives the number of entries looked through.

        Raises `UnavailableError` when the server refuses deletes as well.
        """
        entries = await self._stream.after(self._after, _PAGE)
        deletes: dict[str, list[Change]] = {}
        for entry in entries:
            try:
                event = decode_event(entry.id, entry.fields, self._settings.max_content_bytes)
            except InvalidEventError:
                continue  # in its turn
            if event.memory is None:
                deletes.setdefault(event.ns, []).append(Change(id=event.id, version=event.version, memory=None))
        for ns, changes in deletes.items():
            with suppress(ResponseError, CorruptIndexError):  # a damaged namespace: in their turn
                await self._writer.apply(ns, changes)
        if entries:
            self._after = entries[-1].id
        return len(entries)
