"""Stored values that cannot be what their keys promise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from jiyi.errors import CorruptIndexError, InvalidEventError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNREADABLE = (ValueError, KeyError, OverflowError, msgspec.MsgspecError, InvalidEventError)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Context in which stored values are decoded: where that fails, `CorruptIndexError` names what it was.

    Workers store only what they have checked, so it is neither bad input nor a defect of the reader.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise CorruptIndexError(f"{what} cannot be read; run: jiyi check") from error
