"""No engine: the same small computation for every question, which shows how much the machine was disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.engines import InProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question

_NUMBERS = range(20_000)


class FixedLoop(InProcess):
    """Takes its turns among the engines. On a machine of its own, p99 is hardly more than p50."""

    name = "fixed_loop"

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:  # noqa: ARG002
        """Find nothing, in a constant time."""
        sum(_NUMBERS)
        return []
