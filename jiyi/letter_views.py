"""Dead letters as they are shown: facts that hold no content, and on demand the fields of the event."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec

from jiyi.memories import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jiyi.dead_letters import DeadLetter

_DEEPEST = 16
"""Levels of lists and maps that are shown: an event may be nested deeper than JSON can be written."""


class LetterFacts(msgspec.Struct, kw_only=True, rename="camel"):
    """What is known of a dead letter. It holds nothing of its event but where it belongs: namespace and memory id.

    `letter` names it here, `entry` was the event's entry in the stream, `id` is null where none can be read.
    """

    letter: str
    ns: str
    id: str | None
    entry: str
    code: str
    reason: str
    dead_at: str
    deliveries: int

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterFacts:
        """Give the facts of a letter."""
        return cls(**_facts(letter))


class EventField(msgspec.Struct):
    """One field of an event.

    `exact` is false where name or value had to be changed to be shown: bytes that are no UTF-8 are replaced by U+FFFD.
    """

    name: str
    value: Any
    exact: bool


class LetterView(LetterFacts, kw_only=True, rename="camel"):
    """A dead letter with the fields of its event in their order, and so with the content of the memory."""

    fields: list[EventField]

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterView:
        """Give facts and fields; a payload is shown as the fields that are packed in it, where it can be read."""
        return cls(**_facts(letter), fields=_shown_fields(letter.fields))


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.letter,
        "ns": letter.ns,
        "id": letter.id,
        "entry": letter.entry,
        "code": letter.code,
        "reason": letter.reason,
        "dead_at": format_time(letter.dead_at_ms),
        "deliveries": letter.deliveries,
    }


def _shown_fields(fields: Sequence[tuple[bytes, bytes]]) -> list[EventField]:
    pairs: Sequence[tuple[Any, Any]] = [(_escaped(name), _escaped(value)) for name, value in fields]
    if len(fields) == 1 and fields[0][0] == b"payload" and (named := _unpacked(fields[0][1])) is not None:
        pairs = list(named.items())
    shown = []
    for name, value in pairs:
        name_shown, name_exact = _plain(name)
        value_shown, value_exact = _plain(value)
        shown.append(EventField(name_shown, value_shown, name_exact and value_exact))
    return shown


def _unpacked(payload: bytes) -> dict[Any, Any] | None:
    try:
        named = msgpack.unpackb(payload, raw=False, strict_map_key=True, unicode_errors="surrogateescape")
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    return named if isinstance(named, dict) else None


def _escaped(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _plain(value: Any, depth: int = 0) -> tuple[Any, bool]:
    """Give a value that JSON can say, and whether it is the same."""
    if isinstance(value, str):
        text = value.encode(errors="surrogateescape").decode(errors="replace")
        return text, text == value
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value, True
    if isinstance(value, bytes):
        return value.decode(errors="replace"), False
    if isinstance(value, list | dict):
        return _plain_container(value, depth + 1) if depth < _DEEPEST else ("…", False)
    return str(value), False  # NaN, infinity, and the types that msgpack has beyond JSON


def _plain_container(value: list[Any] | dict[Any, Any], depth: int) -> tuple[Any, bool]:
    if isinstance(value, list):
        items = [_plain(one, depth) for one in value]
        return [one for one, _ in items], all(exact for _, exact in items)
    names = [_plain(name) for name in value]
    items = [_plain(one, depth) for one in value.values()]
    shown = {name: one for (name, _), (one, _) in zip(names, items, strict=True)}
    return shown, all(exact for _, exact in (*names, *items))
