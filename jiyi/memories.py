"""One memory: its fields, their limits, and the form in which it is stored.

Every way in (flat stream fields, msgpack payload, HTTP, JSONL) goes through `Memory.from_fields`, so the
same memory gives the same stored hash and the same version hash whichever way it came.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

import msgspec

from jiyi.errors import InvalidEventError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ID_BYTES = 256
MAX_NAMESPACE_BYTES = 128
MAX_LABEL_BYTES = 256
"""Longest author, source_system, user_id, session_id, kind or tag, in UTF-8."""
MAX_TAGS = 64
MAX_METADATA_BYTES = 16_384
DEFAULT_NAMESPACE = "default"
DEFAULT_IMPORTANCE = 0.5
LABELS = ("author", "source_system", "user_id", "session_id", "kind")
"""The exact-match string fields."""
FIELDS = ("content", *LABELS, "tags", "timestamp", "importance", "expires_at", "metadata")
"""The fields of a memory besides `id` and `ns`."""

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: no time of a memory lies behind it."""
EARLIEST_MS = -62_135_596_800_000
"""The first moment of the year 1."""
_SECONDS_BELOW = 100_000_000_000
"""As milliseconds such a number is a day near 1970, which nobody means; as seconds, any until the year 5138."""


class MemoryFields(TypedDict, total=False):
    """A memory as producers and clients take it; only `content` is required. A `datetime` without zone is UTC."""

    id: str | None
    ns: str | None
    content: str
    author: str | None
    source_system: str | None
    user_id: str | None
    session_id: str | None
    kind: str | None
    tags: Sequence[str] | None
    timestamp: datetime | str | int | None
    importance: float | None
    expires_at: datetime | str | int | None
    metadata: Mapping[str, Any] | None


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content and the attributes of a memory, validated. Times are epoch milliseconds (UTC)."""

    content: str
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    timestamp: int | None = None
    importance: float | None = None
    expires_at: int | None = None
    metadata: str | None = None  # a JSON object, as text

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], max_content_bytes: int) -> Memory:
        """Build a memory from named values as producers send them.

        Values are text (flat fields), JSON types or, for times, `datetime`. Absent fields, `None` and, for all but
        `content`, the empty string mean "not given". Raises `InvalidEventError` that names the field.
        """
        given = {name: value for name, value in fields.items() if value is not None and value != ""}
        if "content" not in fields or fields["content"] is None:
            raise InvalidEventError("missing_field", "content", "is missing; a write carries the whole memory")
        for name in fields:
            if name not in FIELDS:
                raise InvalidEventError("unknown_field", shown(name), f"is no field; fields are {', '.join(FIELDS)}")
        content = _text("content", fields["content"])
        if (size := len(content.encode())) > max_content_bytes:
            raise InvalidEventError("too_large", "content", f"has {size} bytes; at most {max_content_bytes} are kept")
        return cls(
            content=content,
            **{name: _label(name, given[name]) for name in LABELS if name in given},
            tags=parse_tags(given.get("tags", ())),
            timestamp=parse_time("timestamp", given["timestamp"]) if "timestamp" in given else None,
            importance=_importance(given["importance"]) if "importance" in given else None,
            expires_at=parse_time("expires_at", given["expires_at"]) if "expires_at" in given else None,
            metadata=_metadata(given["metadata"]) if "metadata" in given else None,
        )

    def version_hash(self) -> str:
        """16 characters (96 bits of BLAKE2b) over all fields as given, defaults not filled in."""
        digest = blake2b(msgspec.msgpack.encode(msgspec.structs.astuple(self)), digest_size=12).digest()
        return urlsafe_b64encode(digest).decode()

    def to_fields(self) -> dict[str, Any]:
        """Give what `from_fields` makes the same memory of: times as milliseconds, or as text near 1970."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("timestamp", "expires_at"):
            if name in fields and abs(fields[name]) < _SECONDS_BELOW:
                fields[name] = format_time(fields[name])
        return fields

    def stored(self) -> list[str]:
        """Field, value, field, value, … of the memory's hash in Redis; fields at their default are left out."""
        flat = ["content", self.content]
        for name in LABELS:
            if (label := getattr(self, name)) is not None:
                flat += (name, label)
        if self.tags:
            flat += ("tags", msgspec.json.encode(self.tags).decode())
        for name in ("timestamp", "importance", "expires_at", "metadata"):
            if (value := getattr(self, name)) is not None:
                flat += (name, str(value))
        return flat

    def filter_values(self) -> list[tuple[str, str]]:
        """(field, value) pairs by which this memory can be filtered."""
        pairs = [(name, label) for name in LABELS if (label := getattr(self, name)) is not None]
        return pairs + [("tags", tag) for tag in self.tags]

    @classmethod
    def from_stored(cls, stored: Mapping[str, str]) -> Memory:
        """Rebuild a memory from its hash in Redis."""
        return cls(
            content=stored["content"],
            **{name: stored[name] for name in LABELS if name in stored},
            tags=tuple(msgspec.json.decode(stored["tags"], type=list[str])) if "tags" in stored else (),
            timestamp=int(stored["timestamp"]) if "timestamp" in stored else None,
            importance=float(stored["importance"]) if "importance" in stored else None,
            expires_at=int(stored["expires_at"]) if "expires_at" in stored else None,
            metadata=stored.get("metadata"),
        )


class _Last(threading.local):
    """The last id of a thread; one per thread, so that no lock is there to be held across a fork."""

    value = 0


_last = _Last()


def new_id() -> str:
    """Make a unique id that sorts by its time: a UUIDv7 (RFC 9562), which Python has from 3.14 on.

    Its 48 bits of Unix milliseconds are followed by 74 random bits; the ids that one thread makes always grow,
    also within a millisecond and when the clock is set back (section 6.2 of the RFC, method 2).
    """
    fresh = (time.time_ns() // 1_000_000) << 74 | secrets.randbits(73)
    _last.value = fresh if fresh > _last.value else _last.value + 1 + secrets.randbits(32)
    ms, random = divmod(_last.value, 1 << 74)
    high, low = divmod(random, 1 << 62)
    return str(UUID(int=ms << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low))


def to_camel(name: str) -> str:
    """Give the name that a field has in JSON: `source_system` is `sourceSystem`."""
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


_FROM_CAMEL = {to_camel(name): name for name in FIELDS}


def from_camel(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of a memory their own names: `sourceSystem` becomes `source_system`.

    Other names stay as they are. Raises `InvalidEventError` when a field is given under both names.
    """
    fields: dict[str, Any] = {}
    for key, value in mapping.items():
        name = _FROM_CAMEL.get(key, key)
        if name in fields:
            raise InvalidEventError("duplicate_field", name, "is given under two names")
        fields[name] = value
    return fields


def parse_namespace(value: Any) -> str:
    """Check a namespace: 1 to 128 bytes of UTF-8 without control characters, compared byte by byte."""
    return _identifier("ns", value, MAX_NAMESPACE_BYTES)


def parse_id(value: Any) -> str:
    """Check a memory id: 1 to 256 bytes of UTF-8 without control characters, compared byte by byte."""
    return _identifier("id", value, MAX_ID_BYTES)


def parse_time(field: str, value: Any) -> int:
    """Read ISO 8601, a `datetime` (both without zone: UTC) or epoch milliseconds; give epoch milliseconds.

    A number below 10^11 is refused: it would be a day near 1970, but what is meant are seconds, or by 0 no time at all.
    """
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, datetime):
        number = _epoch_ms(value)
    elif isinstance(value, str):
        text = value.strip()
        try:
            number = int(text) if text.lstrip("+-").isdecimal() else _epoch_ms(datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            number = None
    if number is None or not EARLIEST_MS <= number <= LATEST_MS:
        raise InvalidEventError("invalid_field", field, "must be ISO 8601 (2026-05-04T10:30:00Z) or epoch milliseconds")
    if abs(number) < _SECONDS_BELOW and (isinstance(value, int) or str(value).strip().lstrip("+-").isdecimal()):
        advice = "are these seconds? Give milliseconds, or ISO 8601"
        raise InvalidEventError("invalid_field", field, f"is too small for epoch milliseconds; {advice}")
    return number


def format_time(ms: int) -> str:
    """Give epoch milliseconds as ISO 8601 in UTC, with milliseconds and `Z`."""
    seconds, rest = divmod(ms, 1000)
    # Not strftime, which writes the years before 1000 with fewer than four digits.
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat() + f".{rest:03d}Z"


def parse_tags(value: Any) -> tuple[str, ...]:
    """Read a list of strings, a JSON array, or a comma list; give the distinct tags in their order."""
    if isinstance(value, str):
        value = _json_tags(value) if value.lstrip().startswith("[") else value.split(",")
    if not isinstance(value, list | tuple):
        raise InvalidEventError("invalid_field", "tags", "must be a JSON array of strings or a comma list")
    tags = dict.fromkeys(tag for item in value if (tag := _text("tags", item).strip()))
    if len(tags) > MAX_TAGS:
        raise InvalidEventError("too_large", "tags", f"has {len(tags)} tags; at most {MAX_TAGS} are kept")
    return tuple(_label("tags", tag) for tag in tags)


def shown(name: Any) -> str:
    """Make a stranger's field name fit for an error message: short and printable."""
    return ascii(str(name)[:40]).strip("'")


def _identifier(field: str, value: Any, limit: int) -> str:
    text = _text(field, value)
    size = len(text.encode())
    if not 1 <= size <= limit:
        raise InvalidEventError("invalid_field", field, f"has {size} bytes; it must have 1 to {limit}")
    if any(character < " " or character == "\x7f" for character in text):
        raise InvalidEventError("invalid_field", field, "holds a control character")
    return text


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidEventError("invalid_field", field, f"must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidEventError("not_utf8", field, "holds a lone surrogate, which is no character") from None
    return value


def _label(field: str, value: Any) -> str:
    text = _text(field, value)
    if (size := len(text.encode())) > MAX_LABEL_BYTES:
        raise InvalidEventError("too_large", field, f"has {size} bytes; at most {MAX_LABEL_BYTES} are kept")
    return text


def _epoch_ms(moment: datetime) -> int:
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def _importance(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number <= 1.0:  # also false for nan
        raise InvalidEventError("invalid_field", "importance", "must be a number from 0 to 1")
    return number


def _json_tags(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidEventError("invalid_json", "tags", "must be a JSON array of strings or a comma list") from None


def _metadata(value: Any) -> str:
    try:
        decoded = msgspec.json.decode(value) if isinstance(value, str) else value
        if not isinstance(decoded, dict):
            raise InvalidEventError("invalid_field", "metadata", "must be a JSON object")
        if decoded is value:  # msgspec would write NaN as null in silence
            json.dumps(msgspec.to_builtins(decoded), allow_nan=False)
        text = msgspec.json.encode(decoded).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError, ValueError):
        raise InvalidEventError("invalid_json", "metadata", "must be a JSON object, its numbers finite") from None
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise InvalidEventError("too_large", "metadata", f"has more than {MAX_METADATA_BYTES} bytes")
    return text
