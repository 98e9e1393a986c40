"""A rule: a pattern, and what its match means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jiyi_api.time_words.clock import Clock, Range

    Cycle: TypeAlias = Literal["week", "month", "year"]
    Meaning: TypeAlias = Callable[[re.Match[str], Clock], Range | None]

find_signs = re.compile(r"[a-z]+|[0-9]+|[^\0-\x7f]|[-/]").findall
"""Give the signs of a folded text: its words and numbers, and each character of other scripts."""


class Rule(NamedTuple):
    """Recognises one kind of time in a folded text.

    `signs` are those (see `find_signs`) of which a text must have one, or the rule cannot match: most texts are done
    with after looking at them. Patterns repeat nothing without a limit, so at each character a match is tried in a
    bounded number of steps, and a text takes time in proportion to its length. `meaning` gives None, or raises
    ValueError or OverflowError, for what only looks like a time: 30 February.
    """

    pattern: re.Pattern[str]
    meaning: Meaning
    signs: frozenset[str]
    comes_again: Cycle | None
    """How often there is such a time, if it means the latest one unless another is named."""


def rules(signs: Iterable[str], *meanings: tuple[str, Meaning], comes_again: Cycle | None = None) -> tuple[Rule, ...]:
    """Make rules for patterns that have one of the signs in common."""
    return tuple(Rule(re.compile(pattern), meaning, frozenset(signs), comes_again) for pattern, meaning in meanings)
