"""Routes of single memories: write, delete, get, ready."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.exceptions import NotFoundException
from litestar.params import Parameter

from jiyi.errors import InvalidEventError, InvalidQueryError
from jiyi.events import parse_entry
from jiyi.memories import DEFAULT_NAMESPACE, parse_id, parse_namespace
from jiyi_api.damage import reading
from jiyi_api.failures import documented
from jiyi_api.parameters import MemoryId, Namespace, memory_id_of, refuse_encoded, refuse_unknown
from jiyi_api.readiness import Readiness
from jiyi_api.service import Service
from jiyi_api.stored import StoredMemory, fetch_documents

if TYPE_CHECKING:
    from jiyi.producer import Accepted

MAX_READY_IDS = 100
_WAIT = re.compile(r"(\d+(?:\.\d+)?)(ms|s)?")


class MemoryBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """One memory to be written; without `id` one is made. Times are ISO 8601 or epoch milliseconds."""

    id: str | None = None
    ns: str | None = None
    content: str | None = None
    author: str | None = None
    source_system: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str | None = None
    tags: list[str] | str | None = None
    timestamp: str | int | None = None
    importance: float | None = None
    expires_at: str | int | None = None
    metadata: dict[str, Any] | None = None


class WriteBody(MemoryBody, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """One memory, or several as `{"memories": [...]}`."""

    memories: list[MemoryBody] | None = None


class AcceptedMemory(msgspec.Struct, rename="camel"):
    """The event is on the stream; `entry` is its version, to be asked for at `/memory/ready`."""

    id: str
    ns: str
    entry: str
    status: str = "accepted"


class AcceptedMemories(msgspec.Struct, rename="camel"):
    """Answer to several memories, in their order."""

    accepted: list[AcceptedMemory]


class ReadinessList(msgspec.Struct, rename="camel"):
    """Answer for several ids, in their order."""

    memories: list[Readiness]


@post(
    "/memory/write",
    status_code=202,
    summary="Write one memory or many",
    before_request=refuse_encoded,
    responses=documented(400, 403, 413, 415, 429, 503),
)
async def write_memories(data: WriteBody, service: Service) -> AcceptedMemory | AcceptedMemories:
    """Accept whole memories: a write replaces the memory of that id. All are checked before any is accepted."""
    producer = service.parts.producer
    if data.memories is None:
        return _accepted(await producer.write(**_fields(data)))
    if any(getattr(data, name) is not None for name in MemoryBody.__struct_fields__):
        raise InvalidEventError("invalid_field", "memories", "stands alone: give one memory, or a list of them")
    if not data.memories:
        raise InvalidEventError("invalid_field", "memories", "is empty; give at least one memory")
    if (count := len(data.memories)) > (limit := service.settings.max_memories):
        raise InvalidEventError("too_large", "memories", f"has {count} memories; at most {limit} are accepted")
    accepted = await producer.write_many([_fields(body) for body in data.memories])
    return AcceptedMemories([_accepted(one) for one in accepted])


@delete(
    "/memory/{memory_id:path}",
    status_code=202,
    summary="Delete a memory",
    before_request=refuse_unknown,
    responses=documented(400, 403, 503),
)
async def delete_memory(
    request: Request[Any, Any, Any],
    memory_id: MemoryId,  # noqa: ARG001 - for OpenAPI; `memory_id_of` has it as it was sent
    service: Service,
    ns: Namespace = DEFAULT_NAMESPACE,
) -> AcceptedMemory:
    """Accept the deletion of a memory, whether it exists or not."""
    return _accepted(await service.parts.producer.delete(memory_id_of(request), ns=ns))


@delete(
    ["/memory/write", "/memory/search", "/memory/search/why", "/memory/list", "/memory/ready"],
    status_code=202,
    include_in_schema=False,
    before_request=refuse_unknown,
)
async def delete_namesake(
    request: Request[Any, Any, Any], service: Service, ns: Namespace = DEFAULT_NAMESPACE
) -> AcceptedMemory:
    """Accept the deletion of a memory whose id is the name of a route."""
    return _accepted(await service.parts.producer.delete(memory_id_of(request), ns=ns))


@get(
    "/memory/{memory_id:path}",
    summary="Get a stored memory",
    before_request=refuse_unknown,
    responses=documented(400, 404, 503),
)
async def get_memory(
    request: Request[Any, Any, Any],
    memory_id: MemoryId,  # noqa: ARG001 - for OpenAPI; `memory_id_of` has it as it was sent
    service: Service,
    ns: Namespace = DEFAULT_NAMESPACE,
) -> StoredMemory:
    """Give the newest applied version of a memory; 404 when there is none."""
    name = memory_id_of(request)
    (stored,) = await fetch_documents(service.parts.database, parse_namespace(ns), [name])
    with reading("the stored memory"):
        memory = None if "content" not in stored or _expired(stored) else StoredMemory.from_stored(name, stored)
    if memory is None:
        raise NotFoundException("no such memory in this namespace")
    return memory


@get(
    "/memory/ready",
    summary="Ask whether memories can be found yet",
    before_request=refuse_unknown,
    responses=documented(400, 503),
)
async def ready(
    service: Service,
    memory_id: Annotated[
        list[str], Parameter(query="id", description=f"Id of a memory; may be given up to {MAX_READY_IDS} times.")
    ],
    entry: Annotated[
        list[str] | None,
        Parameter(description="Entry id that a write or delete was answered with: is it, or a later one, applied?"),
    ] = None,
    ns: Namespace = DEFAULT_NAMESPACE,
    wait: Annotated[
        str, Parameter(description="Hold the answer back until all are ready, deleted or failed: 2s, 500ms.")
    ] = "0s",
) -> Response[Readiness | ReadinessList]:
    """Answer per memory, and per entry where `entry` is given as often as `id`; waits up to `wait` (2s, 500ms)."""
    if not 1 <= len(memory_id) <= MAX_READY_IDS:
        raise InvalidQueryError("id", f"is given {len(memory_id)} times; 1 to {MAX_READY_IDS} are answered")
    entries: list[str | None] = [None] * len(memory_id) if entry is None else [*entry]
    if len(entries) != len(memory_id):
        raise InvalidQueryError("entry", f"is given {len(entries)} times for {len(memory_id)} ids; give one for each")
    for one in entries:
        if one is not None:
            parse_entry(one)
    asked = [(parse_id(name), one) for name, one in zip(memory_id, entries, strict=True)]
    wait_s = _wait_seconds(wait, service.settings.max_wait_ms / 1000)
    answers = await service.parts.readiness.ready(parse_namespace(ns), asked, wait_s)
    return Response(answers[0] if len(answers) == 1 else ReadinessList(answers))


def _accepted(one: Accepted) -> AcceptedMemory:
    return AcceptedMemory(one.id, one.ns, one.entry)


def _fields(body: MemoryBody) -> dict[str, Any]:
    return {name: value for name in MemoryBody.__struct_fields__ if (value := getattr(body, name)) is not None}


def _expired(stored: dict[str, str]) -> bool:
    return int(stored.get("expires_at", 2**62)) <= time.time_ns() // 10**6


def _wait_seconds(text: str, most_s: float) -> float:
    found = _WAIT.fullmatch(text.strip())
    if found is None:
        raise InvalidQueryError("wait", "must be a duration like 2s or 500ms")
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return min(seconds, most_s)
