"""What the clients ask the reader besides searches and listings: checked before it is sent, as JSON in camel case."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from jiyi.answers import (
    AcceptedMany,
    DeadLetter,
    DeadLetterEvent,
    DeadLetterPage,
    Dropped,
    LetterStep,
    Readiness,
    ReadinessMany,
    Replayed,
    StoredMemory,
)
from jiyi.errors import InvalidQueryError, UnavailableError
from jiyi.events import Accepted, parse_entry, parse_letter
from jiyi.http import Request
from jiyi.memories import DEFAULT_NAMESPACE, Memory, parse_id, parse_namespace, to_camel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jiyi.http import Call

READY_IDS = 100
"""Most ids that a reader answers in one readiness request."""
LETTERS = 100
"""Most dead letters that a reader gives in one answer."""
URL_BYTES = 6_000
"""Longest query string of a readiness request (proxies allow about 8,000 bytes); more ids take more requests."""
WAIT_SLICE_S = 10.0
"""`wait_ready` asks for so long at once: less than what a reader grants by default, so it is never refused."""
ROUND_S = 0.05
"""`wait_ready` asks at most so often, should the reader answer without waiting."""

_WAIT = re.compile(r"(\d+(?:\.\d+)?)(ms|s)?", re.ASCII)


def write(memory: Mapping[str, Any]) -> Request[Accepted]:
    """Write one memory. Raises `InvalidEventError`; how large a content may be is for the reader to say."""
    return Request("POST", "/memory/write", Accepted, msgspec.json.encode(_wire(memory)), repeatable=False)


def write_many(memories: Iterable[Mapping[str, Any]]) -> Request[AcceptedMany]:
    """Write memories in one request. Raises as `write`."""
    body = msgspec.json.encode({"memories": [_wire(memory) for memory in memories]})
    return Request("POST", "/memory/write", AcceptedMany, body, repeatable=False)


def delete(memory_id: str, ns: str) -> Request[Accepted]:
    """Delete a memory."""
    return Request("DELETE", _path(memory_id, ns), Accepted, repeatable=False)


def get(memory_id: str, ns: str) -> Request[StoredMemory]:
    """Get a memory."""
    return Request("GET", _path(memory_id, ns), StoredMemory)


def ready(
    call: Call, ids: str | Sequence[str], entries: str | Sequence[str] | None, ns: str, wait: float | str
) -> list[Readiness]:
    """Ask for ids, a bounded length of URL at once; the waiting time is that of all together."""
    ids, entries = _listed(ids), None if entries is None else _listed(entries)
    deadline = time.monotonic() + _seconds(wait)
    if entries is not None and len(entries) != len(ids):
        raise InvalidQueryError("entries", f"has {len(entries)} for {len(ids)} ids; give one entry an id")
    parse_namespace(ns)
    asked = [[("id", parse_id(memory_id))] for memory_id in ids]
    for pairs, entry in zip(asked, entries or (), strict=False):
        parse_entry(entry)
        pairs.append(("entry", entry))
    answers: list[Readiness] = []
    for group in _groups([urlencode(pairs) for pairs in asked]):
        left_s = round(max(deadline - time.monotonic(), 0.0), 3)
        target = f"/memory/ready?{urlencode({'ns': ns})}&{'&'.join(group)}" + (f"&wait={left_s:g}s" if left_s else "")
        if len(group) == 1:
            answers.append(call.send(Request("GET", target, Readiness, wait_s=left_s)))
        else:
            answers += call.send(Request("GET", target, ReadinessMany, wait_s=left_s)).memories
    return answers


def wait_ready(call: Call, accepted: Accepted | Sequence[Accepted], timeout_s: float) -> list[Readiness]:
    """Ask again and again until all are final or the time is over; a reader that is away is waited for too."""
    accepted = [accepted] if isinstance(accepted, Accepted) else accepted
    deadline = time.monotonic() + timeout_s
    known: dict[Accepted, Readiness] = {}
    while True:
        next_round = time.monotonic() + ROUND_S
        try:
            _ask_open(call, accepted, known, deadline)
        except UnavailableError as error:
            next_round = time.monotonic() + error.retry_after_s
            if next_round > deadline:
                raise
        over = time.monotonic() >= deadline or all(one.is_final() for one in known.values())
        if len(known) == len(set(accepted)) and over:
            return [known[one] for one in accepted]
        call.sleep(max(min(next_round, deadline) - time.monotonic(), 0.0))


def _ask_open(call: Call, accepted: Sequence[Accepted], known: dict[Accepted, Readiness], deadline: float) -> None:
    """Ask once for those that are not final yet, namespace by namespace, and note the answers in `known`."""
    for ns in dict.fromkeys(one.ns for one in accepted):
        asked = [one for one in accepted if one.ns == ns and (one not in known or not known[one].is_final())]
        wait_s = min(WAIT_SLICE_S, max(deadline - time.monotonic(), 0.0))
        answers = ready(call, [one.id for one in asked], [one.entry for one in asked], ns, wait_s)
        known.update(zip(asked, answers, strict=True))


def dead_letters(call: Call, ns: str, limit: int | None, after: str | None) -> list[DeadLetter]:
    """Ask for dead letters, a page at a time, until there are `limit` or no more."""
    if limit is not None and limit < 0:
        raise InvalidQueryError("limit", f"is {limit}; it must not be negative")
    parameters = {"ns": parse_namespace(ns)} | ({} if after is None else {"after": parse_letter(after, "after")})
    found: list[DeadLetter] = []
    while limit is None or len(found) < limit:
        parameters["limit"] = str(LETTERS if limit is None else min(LETTERS, limit - len(found)))
        page = call.send(Request("GET", f"/dead?{urlencode(parameters)}", DeadLetterPage))
        found += page.letters
        if page.next is None:
            break
        parameters["after"] = page.next
    return found


def dead_letter(letter: str, ns: str) -> Request[DeadLetterEvent]:
    """Get one dead letter with its event."""
    return Request("GET", _letter_path(letter, ns), DeadLetterEvent)


def replay(letter: str, ns: str) -> Request[Replayed]:
    """Put the event of a dead letter on the stream again."""
    return Request("POST", _letter_path(letter, ns, "/replay"), Replayed, repeatable=False)


def drop(letter: str, ns: str) -> Request[Dropped]:
    """Remove a dead letter."""
    return Request("DELETE", _letter_path(letter, ns), Dropped, repeatable=False)


def replay_all(call: Call, ns: str) -> int:
    """Replay all dead letters that there are at the beginning."""
    return _step_through(call, "POST", "/dead/replay", {"ns": parse_namespace(ns)})


def drop_all(call: Call, ns: str) -> int:
    """Drop all dead letters that there are at the beginning."""
    return _step_through(call, "DELETE", "/dead", {"ns": parse_namespace(ns), "all": "true"})


def _step_through(call: Call, method: str, path: str, parameters: dict[str, str]) -> int:
    """Ask for step after step up to the letter that was the newest at the first."""
    count = 0
    while True:
        step = call.send(Request(method, f"{path}?{urlencode(parameters)}", LetterStep, repeatable=False))
        count += step.count
        if not step.more or step.until is None:
            return count
        parameters["until"] = step.until


def _letter_path(letter: str, ns: str, action: str = "") -> str:
    return f"/dead/{parse_letter(letter)}{action}?{urlencode({'ns': parse_namespace(ns)})}"


def _groups(queries: Sequence[str]) -> Iterator[list[str]]:
    """Split into groups of at most `READY_IDS` and `URL_BYTES`."""
    group: list[str] = []
    for query in queries:
        if len(group) == READY_IDS or (group and sum(map(len, group)) + len(group) + len(query) > URL_BYTES):
            yield group
            group = []
        group.append(query)
    if group:
        yield group


def _wire(memory: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(memory)
    memory_id, ns = fields.pop("id", None), fields.pop("ns", None)
    checked = Memory.from_fields(fields, sys.maxsize)
    wire = {to_camel(name): value for name, value in checked.to_fields().items()}
    if checked.metadata is not None:
        wire["metadata"] = msgspec.Raw(checked.metadata.encode())
    if memory_id is not None:
        wire["id"] = parse_id(memory_id)
    wire["ns"] = DEFAULT_NAMESPACE if ns is None else parse_namespace(ns)
    return wire


def _path(memory_id: str, ns: str) -> str:
    return f"/memory/{quote(parse_id(memory_id), safe='')}?{urlencode({'ns': parse_namespace(ns)})}"


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _seconds(wait: float | str) -> float:
    """Read `2`, `0.5`, `"2s"` or `"500ms"`."""
    if isinstance(wait, str):
        if (found := _WAIT.fullmatch(wait)) is None:
            raise InvalidQueryError("wait", "must be seconds, or text like 2s or 500ms")
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    if not 0 <= wait < threading.TIMEOUT_MAX:
        raise InvalidQueryError("wait", "must be a number of seconds, not negative")
    return float(wait)
