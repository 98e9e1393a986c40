"""The writer of the index: what was prepared for a state that is gone is prepared again."""

from __future__ import annotations

import pytest

from jiyi import keys, scripts
from jiyi.check import check_namespace
from jiyi.index import IndexWriter, Outcome
from jiyi.memories import Memory
from jiyi.packing import Change

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lost", ["the reservation", "everything"])
async def test_what_the_server_loses_between_two_steps_is_prepared_again(database, monkeypatch, lost):
    """Whatever the second step answers but success, nothing was written, so nothing may be called applied."""
    apply_events, calls = scripts.apply_events, []

    async def forgotten_before(*arguments, **options):
        if not calls:
            await (database.flushdb() if lost == "everything" else database.delete(keys.reservations_key("default")))
        calls.append(await apply_events(*arguments, **options))
        return calls[-1]

    monkeypatch.setattr(scripts, "apply_events", forgotten_before)
    change = Change(id="m1", version="1-0", memory=Memory.from_fields({"content": "x"}, 100), terms={"x": 1})
    assert await IndexWriter(database, "a").apply("default", [change]) == [Outcome.APPLIED]
    assert len(calls) == 2
    assert await database.hexists(keys.memory_key("default", "m1"), "doc")
    assert (await check_namespace(database, "default")).ok
