"""What a worker does, step by step, in the test's own process."""

from __future__ import annotations

from jiyi.streams import EventStream
from jiyi_workers.housekeeping import Housekeeping
from jiyi_workers.pipeline import Pipeline


class Consumer:
    """One consumer of the group. It does only what it is told, and can stop between any two steps."""

    def __init__(self, database, settings, analyzer, name="here"):
        self.name, self.settings = name, settings
        self.stream = EventStream(database, settings.stream, settings.group)
        self.pipeline = Pipeline(database, self.stream, analyzer, settings)
        self.housekeeping = Housekeeping(database, self.stream, analyzer.fingerprint, settings)

    async def read(self, count=64):
        """Read new entries; nothing is done with them."""
        return await self.stream.read_new(self.name, count, 1)

    async def step(self, count=64):
        """Read and process one batch; gives its size."""
        entries = await self.read(count)
        await self.pipeline.process(entries)
        return len(entries)

    async def catch_up(self):
        """Process what anybody holds, and then all that is unread."""
        await self.stream.ensure_group()
        cursor = "0-0"
        while True:
            claim = await self.stream.claim(self.name, 0, cursor, 100)
            await self.pipeline.process([entry for entry in claim.entries if entry.fields])
            cursor = claim.cursor
            if cursor == "0-0":
                break
        while await self.step():
            pass
