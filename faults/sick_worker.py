"""`python -m faults.sick_worker`: a worker process that certain texts kill, as `python -m jiyi_workers` otherwise.

With `acknowledge-first` it is broken besides, in the way in which queues are most often used wrongly: it acknowledges
what it has read and applies it after. A driver that does not see events vanish then sees nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio

from faults.texts import DEADLY, ENDLESS
from jiyi.analysis import Analyzer
from jiyi_workers.__main__ import main
from jiyi_workers.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.streams import Entry

ACKNOWLEDGE_FIRST = "acknowledge-first"
_GAP_S = 0.3
"""Long enough to be met by a signal."""

_analyse, _process = Analyzer.terms, Pipeline.process


def _terms(self: Analyzer, text: str) -> dict[str, int]:
    if DEADLY in text:
        os.kill(os.getpid(), signal.SIGKILL)
    while ENDLESS in text:
        pass
    return _analyse(self, text)


async def _acknowledge_first(self: Pipeline, entries: Sequence[Entry]) -> None:
    await self._acknowledger.stream.acknowledge([entry.id for entry in entries])
    await anyio.sleep(_GAP_S)
    await _process(self, entries)


if __name__ == "__main__":
    Analyzer.terms = _terms  # type: ignore[method-assign]
    if ACKNOWLEDGE_FIRST in sys.argv:
        Pipeline.process = _acknowledge_first  # type: ignore[method-assign]
    sys.exit(main())
