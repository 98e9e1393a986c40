"""What is broken when: an endless sequence of faults that follows from the seed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WEIGHTS: dict[str, float] = {
    "kill_worker": 8,
    "stop_worker": 5,
    "terminate_worker": 3,
    "kill_reader": 2,
    "stop_reader": 2,
    "terminate_reader": 1,
    "kill_server": 3,
    "stop_server": 2,
    "rewrite_file": 2,
    "flush_scripts": 4,
    "kill_clients": 4,
    "pause_clients": 3,
    "squeeze_memory": 2,
    "slow_line": 3,
    "slice_line": 1,
    "cut_line": 4,
    "reset_line": 3,
    "refuse_line": 2,
    "half_open_line": 3,
    "lose_answer": 10,
    "lose_request": 4,
    "copy_events": 6,
    "claim_for_the_dead": 5,
    "burst": 2,
    "replay_letters": 4,
    "drop_letters": 2,
    "check": 2,
    "repair": 1,
    "reindex": 2,
}
"""How often each fault comes, relative to the others. The names are those of methods."""

_CALM = 0.04
"""Share of the steps after which nothing happens for a while, so that everything can be caught up with."""
_CALM_S = 4.0


class Step(NamedTuple):
    """One fault: when, in seconds, which, and the seed of its choices."""

    at_s: float
    name: str
    seed: int


def steps(seed: int, *, pace_s: float, weights: Mapping[str, float] = WEIGHTS) -> Iterator[Step]:
    """Give the faults of a seed in the order of their time, `pace_s` apart on average; they may overlap."""
    random = Random(f"plan {seed}")  # noqa: S311 - to be repeated
    at_s = 0.0
    names, odds = list(weights), list(weights.values())
    while True:
        at_s += random.expovariate(1 / pace_s)
        if random.random() < _CALM:
            at_s += _CALM_S
        yield Step(at_s, random.choices(names, odds)[0], random.getrandbits(32))
