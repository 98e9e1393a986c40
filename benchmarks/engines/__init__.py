"""jiyi and its peers behind one small protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question

TOP = 10


class AbsentError(Exception):
    """An engine cannot be had here; the message says why."""


class ServerLoad(NamedTuple):
    """What a server has done since it started: seconds of the processor, and seconds inside commands."""

    cpu_s: float
    commands_s: float


class Engine(Protocol):
    """An index that answers questions.

    A search is timed from the terms of the question to the best ten documents with their scores, as objects of
    Python. What an engine calls its documents is its own matter; `places` translates, and is not timed.
    """

    name: str

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Give the best ten documents in the engine's own terms, with scores; best first."""

    async def places(self, question: Question, found: Sequence[tuple[Any, float]]) -> list[int]:
        """Translate what a question has found into places in the list that was indexed."""

    async def server_load(self) -> ServerLoad | None:
        """Tell what the engine's server has done so far; None if the engine lives in this process."""

    async def close(self) -> None:
        """Give back what the engine holds."""


class InProcess:
    """What engines without a server have in common: documents are called by their place."""

    async def places(self, question: Question, found: Sequence[tuple[Any, float]]) -> list[int]:  # noqa: ARG002
        """Give the places, which the documents are called by."""
        return [int(place) for place, _ in found]

    async def server_load(self) -> ServerLoad | None:
        """Tell that there is no server."""
        return None

    async def close(self) -> None:
        """Give back nothing: memory goes with the object."""
