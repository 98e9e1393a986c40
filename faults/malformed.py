"""Events that can never be applied: each must become a dead letter, and disturb nothing.

None of them becomes right by being replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgpack

from jiyi.memories import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from random import Random

Fields = list[tuple[bytes, bytes]]


class Malformed(NamedTuple):
    """Fields of a stream entry, and the namespace in which its dead letter is to be filed.

    One that is not `versioned` cannot be read far enough to be given its old version when it is replayed: it comes
    back as another event.
    """

    name: str
    fields: Fields
    ns: str
    versioned: bool = True


def make(random: Random, ns: str, memory_id: str, content: str, max_content_bytes: int) -> Malformed:
    """Make one of them for a memory that exists or could."""
    named = [(b"event", b"write"), (b"ns", ns.encode()), (b"id", memory_id.encode())]
    text = (b"content", content.encode())
    whole = [*named, text]
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    wrong = {
        "content missing": named,
        "content twice": [*whole, text],
        "content too large": [*named, (b"content", b"x" * (max_content_bytes + 1))],
        "content not UTF-8": [*named, (b"content", content.encode() + b"\xff\xc3")],
        "unknown field": [*whole, (b"contnet", b"x")],
        "importance beyond": [*whole, (b"importance", b"1e999")],
        "importance no number": [*whole, (b"importance", b"nan")],
        "metadata too deep": [*whole, (b"metadata", b'{"a":' * 5_000 + b"1" + b"}" * 5_000)],
        "time unreadable": [*whole, (b"timestamp", "昨天".encode())],
        "unknown event": [(b"event", b"upsert"), *named[1:], text],
        "payload of the wrong types": [(b"payload", msgpack.packb({"event": "write", "id": memory_id, "ns": ns,
                                                                   "content": deep}))],
    }  # fmt: skip
    nobodys = {
        "id missing": [named[0], text],
        "id too long": [(b"event", b"delete"), (b"id", b"x" * 257)],
        "namespace with a control character": [named[0], (b"ns", b"a\x00b"), named[2], text],
        "name not UTF-8": [(b"\xff", b"1")],
    }
    unreadable = {
        "payload unreadable": [(b"payload", b"\xc1" + content.encode())],
        "payload no map": [(b"payload", msgpack.packb([1, 2, 3]))],
        "payload cut": [(b"payload", msgpack.packb({"event": "write", "id": memory_id, "content": content})[:-3])],
    }
    name = random.choice([*wrong, *nobodys, *unreadable])
    if name in wrong:
        return Malformed(name, wrong[name], ns)
    return Malformed(name, (nobodys | unreadable)[name], DEFAULT_NAMESPACE, versioned=name in nobodys)
