"""Which keys of a namespace have been accounted for, in 8 bytes each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_CHUNK = 65_536


class KnownKeys:
    """A set of key names kept as 64-bit hashes: salted ones, so that no two names can be made to collide."""

    def __init__(self) -> None:
        self._new: list[int] = []
        self._parts: list[NDArray[np.int64]] = []
        self._sorted: NDArray[np.int64] | None = None

    def add(self, names: Iterable[str]) -> None:
        """Add key names."""
        self._new += [hash(name.encode()) for name in names]
        self._sorted = None
        if len(self._new) >= _CHUNK:
            self._parts.append(np.array(self._new, np.int64))
            self._new = []

    def unknown(self, names: Sequence[bytes]) -> list[bytes]:
        """Give those of the names that were not added."""
        if self._sorted is None:
            self._parts = [np.unique(np.concatenate([*self._parts, np.array(self._new, np.int64)]))]
            self._new, self._sorted = [], self._parts[0]
        if not len(self._sorted):
            return list(names)
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        places = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        return [name for name, known in zip(names, self._sorted[places] == hashes, strict=True) if not known]
