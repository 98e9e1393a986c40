"""Events on the stream: how producers encode them and how workers decode them.

An event is either flat (`event write id m1 content …`, readable in redis-cli) or one field `payload`, a
msgpack map of the same fields. The id of the stream entry is the event's version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import msgspec

from jiyi.errors import InvalidEventError
from jiyi.memories import DEFAULT_NAMESPACE, Memory, parse_id, parse_namespace, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS: dict[str, Literal["write", "delete"]] = {
    "write": "write",
    "create": "write",
    "update": "write",
    "delete": "delete",
}
ENVELOPE = ("event", "id", "ns", "origin")
"""Fields of an event that are not fields of the memory."""

_ENTRY = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)
_MAX_ENTRY_PART = 2**64 - 1


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded event. `version` is the entry id that it is fenced with: `origin` when replayed."""

    kind: Literal["write", "delete"]
    ns: str
    id: str
    entry: str
    version: str
    memory: Memory | None  # None for a delete


class Accepted(msgspec.Struct, frozen=True):
    """A write or delete that is on the stream. `entry` is its stream entry id, and so the version that it writes."""

    id: str
    ns: str
    entry: str


def parse_entry(entry: str) -> tuple[int, int]:
    """Split a stream entry id `ms-seq` into two integers, which compare exactly (a double would not)."""
    found = _ENTRY.fullmatch(entry)
    if found is None or int(found[1]) > _MAX_ENTRY_PART or int(found[2]) > _MAX_ENTRY_PART:
        raise InvalidEventError("invalid_field", "entry", "must be a stream entry id like 1764470000000-0")
    return int(found[1]), int(found[2])


def next_entry(entry: str) -> str:
    """Give the first entry id after this one; after the very last there is none, and it is given itself."""
    ms, sequence = parse_entry(entry)
    if sequence < _MAX_ENTRY_PART:
        return f"{ms}-{sequence + 1}"
    return f"{ms + 1}-0" if ms < _MAX_ENTRY_PART else entry


def parse_letter(letter: str, field: str = "letter") -> str:
    """Check the id of a dead letter, and give it as Redis writes it. Raises `InvalidEventError` that names `field`."""
    try:
        ms, sequence = parse_entry(letter)
    except InvalidEventError as error:
        raise InvalidEventError(error.code, field, "must be the id of a dead letter, like 1764470000000-0") from None
    return f"{ms}-{sequence}"


def encode_write(memory_id: str, ns: str, memory: Memory) -> dict[str, bytes]:
    """Stream fields of a write, as our own producers send them."""
    fields = {"event": "write", "id": memory_id, "ns": ns, **memory.to_fields()}
    return {"payload": msgpack.packb(fields, use_bin_type=False)}


def encode_delete(memory_id: str, ns: str) -> dict[str, bytes]:
    """Stream fields of a delete."""
    return {"payload": msgpack.packb({"event": "delete", "id": memory_id, "ns": ns}, use_bin_type=False)}


def decode_event(entry: str, fields: Sequence[tuple[bytes, bytes]], max_content_bytes: int) -> Event:
    """Decode a stream entry.

    Raises `InvalidEventError` with a code, the field and a message without memory content when the entry
    can never be applied.
    """
    named = _named(fields)
    return parse_event(entry, named, max_content_bytes)


def parse_event(entry: str, named: Mapping[str, Any], max_content_bytes: int) -> Event:
    """Check the named fields of an event; see `decode_event`."""
    word = named.get("event")
    if word is None:
        raise InvalidEventError("missing_field", "event", "is missing; it must be write or delete")
    if not isinstance(word, str) or word not in KINDS:
        raise InvalidEventError("unknown_event", "event", "must be write (create, update) or delete")
    if named.get("id") is None:
        raise InvalidEventError("missing_field", "id", "is missing; it names the memory")
    kind, memory_id = KINDS[word], parse_id(named["id"])
    ns = parse_namespace(DEFAULT_NAMESPACE if named.get("ns") is None else named["ns"])
    version = _version(entry, named.get("origin"))
    memory = None
    if kind == "write":
        memory = Memory.from_fields({k: v for k, v in named.items() if k not in ENVELOPE}, max_content_bytes)
    return Event(kind=kind, ns=ns, id=memory_id, entry=entry, version=version, memory=memory)


def identify(fields: Sequence[tuple[bytes, bytes]]) -> tuple[str, str | None]:
    """Namespace and id of an entry that could not be decoded, as far as they can be read.

    Used to file its dead letter: the namespace is the default one and the id None where unreadable.
    """
    try:
        named: Mapping[str, Any] = _named(fields)
    except InvalidEventError:
        named = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields}
    ns, memory_id = DEFAULT_NAMESPACE, None
    try:
        ns = parse_namespace(named.get("ns", DEFAULT_NAMESPACE))
        memory_id = parse_id(named["id"])
    except (InvalidEventError, KeyError):
        pass
    return ns, memory_id


def version_of(entry: str, fields: Sequence[tuple[bytes, bytes]]) -> str:
    """Version of an entry that could not be decoded: its `origin` where that can be read, else its own id."""
    try:
        origin: Any = _named(fields).get("origin")
    except InvalidEventError:
        origin = next((value.decode(errors="replace") for name, value in fields if name == b"origin"), None)
    try:
        return _version(entry, origin)
    except InvalidEventError:
        return entry


def _named(fields: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for raw_name, raw_value in fields:
        try:
            name = raw_name.decode()
        except UnicodeDecodeError:
            raise InvalidEventError("not_utf8", "", "a field name is not UTF-8") from None
        if name in named:
            raise InvalidEventError("duplicate_field", shown(name), "stands in the entry twice")
        if name == "payload":
            if len(fields) > 1:
                raise InvalidEventError("unknown_field", "payload", "must be the only field of its entry")
            return _unpacked(raw_value)
        try:
            named[name] = raw_value.decode()
        except UnicodeDecodeError:
            raise InvalidEventError("not_utf8", shown(name), "is not UTF-8") from None
    return named


def _unpacked(payload: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        raise InvalidEventError("invalid_payload", "payload", "must be a msgpack map with text keys") from None
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InvalidEventError("invalid_payload", "payload", "must be a msgpack map with text keys")
    return fields


def _version(entry: str, origin: Any) -> str:
    if origin is None:
        return entry
    if not isinstance(origin, str) or not _ENTRY.fullmatch(origin):
        raise InvalidEventError("invalid_field", "origin", "must be the stream entry id that is replayed")
    ms, seq = map(int, origin.split("-"))
    # A fence from the future would block every honest write of this memory.
    if (ms, seq) > parse_entry(entry):
        raise InvalidEventError("invalid_field", "origin", "lies after the entry that carries it")
    return f"{ms}-{seq}"  # without leading zeros: one version has one spelling
