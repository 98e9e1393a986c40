"""A namespace to be damaged."""

from __future__ import annotations

import pytest

from jiyi.check import check_namespace

from .changes import build, delete, write


@pytest.fixture
async def built(database):
    """A namespace with a long list (`common`, `@author:alice`), inline lists, tombstones, expiries and rewrites."""
    changes = [
        write(f"m{i}", f"{1000 + i}-0", f"common rare{i % 7} own{i} own{i}", author="alice", importance=0.25)
        for i in range(30)
    ]
    changes += [
        write(f"m{i}", f"{2000 + i}-0", f"common again rare{i}", expires_at=9_000_000_000_000) for i in range(5)
    ]
    changes += [delete(f"m{i}", f"{3000 + i}-0") for i in range(3, 8)]
    await build(database, "n", changes)
    assert (await check_namespace(database, "n")).problems == []
    return database
