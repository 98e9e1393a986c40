"""A namespace to be damaged and mended."""

from __future__ import annotations

import pytest
from check.changes import build

from .namespaces import changes


@pytest.fixture
async def built(database):
    """A namespace with long lists (`common`, `@author:alice`), inline lists, tombstones, expiries and rewrites."""
    await build(database, "n", changes())
    return database
