"""Back-pressure: producers stop appending before the stream outgrows what workers and memory can take."""

from __future__ import annotations

import time

from jiyi.errors import BacklogFullError

LOOK_S = 0.25
"""How long a look at the stream is good for; a limit need not be exact, and every look is a round trip."""
CHUNKS_PER_LOOK = 10
"""Round trips between two looks within one call, so that calls of moderate size are accepted as a whole or not."""
WAIT_S = 0.5
"""The pause of a producer that waits for room: workers trim the stream every few seconds at most."""


class Backlog:
    """Decides whether more may be appended; no I/O. The length of the stream counts, which no group can hide.

    The limit is soft: each producer looks every `LOOK_S` and counts its own events in between, so several together
    can go beyond it by what they append in that time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._length = 0
        self._looked_at = -LOOK_S

    def must_look(self, count: int) -> bool:
        """Tell whether the stream has to be measured before `count` events are appended."""
        if not self._limit:
            return False
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now  # others need not look at the same time
            return True
        return self._length + count > self._limit

    def looked(self, length: int) -> None:
        """Take in the length of the stream, just measured."""
        self._length, self._looked_at = length, time.monotonic()

    def has_room(self) -> bool:
        """Tell whether anything may be appended; what is appended at once may reach beyond the limit."""
        return not self._limit or self._length < self._limit

    def appended(self, count: int) -> None:
        """Count events that were appended."""
        self._length += count

    def full(self, written: int) -> BacklogFullError:
        """Make the error for a producer that does not wait, of whose events the first `written` are on the stream."""
        done = f"Only the first {written} events were written" if written else "Nothing was written"
        return BacklogFullError(
            f"{self._length} events wait on the stream, the limit (JIYI_MAX_BACKLOG) is {self._limit}: workers are "
            f"behind. {done}; try again later, and start more workers: jiyi worker --processes N"
        )
