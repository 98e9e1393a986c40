"""Routes of dead letters: list, show, replay, drop. Those of another namespace are like those that never were."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.exceptions import NotFoundException
from litestar.params import Parameter

from jiyi import dead_letters
from jiyi.dead_letters import DeadLetter
from jiyi.errors import BacklogFullError, InvalidQueryError
from jiyi.events import parse_letter
from jiyi.letter_views import LetterFacts, LetterView
from jiyi.memories import DEFAULT_NAMESPACE, parse_namespace
from jiyi_api.failures import documented
from jiyi_api.parameters import Namespace, refuse_body, refuse_unknown
from jiyi_api.service import Parts, Service

MAX_LETTERS = 100
"""Most letters of one answer, and of one step of replaying or dropping them all."""
_PAGE = 10
"""Letters that are read at once: their events come with them, and each may be as large as somebody made it."""
_ABSENT = "no such dead letter in this namespace"

LetterId = Annotated[str, Parameter(description="Id of the dead letter, as the list shows it.")]
StepLimit = Annotated[int, Parameter(description=f"Most letters of this step, 1 to {MAX_LETTERS}.")]
Until = Annotated[
    str | None,
    Parameter(description="Only letters up to this one; by default the newest. Give back what the step before said."),
]


class LetterList(msgspec.Struct, rename="camel"):
    """Letters, oldest first. `next` is to be given as `after` for those that follow, and null when there are none."""

    letters: list[LetterFacts]
    next: str | None


class ReplayedLetter(msgspec.Struct, rename="camel"):
    """The event of a letter is on the stream again as `entry`; it keeps the version that it had."""

    letter: str
    ns: str
    id: str | None
    entry: str
    status: str = "accepted"


class DroppedLetter(msgspec.Struct, rename="camel"):
    """A letter that is gone for good."""

    letter: str
    ns: str
    id: str | None
    status: str = "dropped"


class LetterStep(msgspec.Struct, rename="camel"):
    """One step over all letters of a namespace: how many it was, and whether more remain up to `until`."""

    count: int
    more: bool
    until: str | None


@get("/dead", summary="List dead letters", before_request=refuse_unknown, responses=documented(400, 503))
async def list_dead_letters(
    service: Service,
    ns: Namespace = DEFAULT_NAMESPACE,
    limit: Annotated[int, Parameter(description=f"Most letters, 1 to {MAX_LETTERS}.")] = 20,
    after: Annotated[str | None, Parameter(description="Only letters after this one: the `next` before.")] = None,
) -> LetterList:
    """Give the events of a namespace that could not be applied, oldest first, without their contents."""
    parse_namespace(ns)
    _check(limit)
    start = None if after is None else parse_letter(after, "after")
    found: list[LetterFacts] = []
    async with aclosing(dead_letters.letters(service.parts.database, ns, after=start, page=_PAGE)) as letters:
        async for letter in letters:
            if len(found) == limit:
                return LetterList(found, next=found[-1].letter)
            found.append(LetterFacts.of(letter))
    return LetterList(found, next=None)


@get(
    "/dead/{letter:str}",
    summary="Show a dead letter",
    before_request=refuse_unknown,
    responses=documented(400, 404, 503),
)
async def get_dead_letter(service: Service, letter: LetterId, ns: Namespace = DEFAULT_NAMESPACE) -> LetterView:
    """Give one dead letter with the fields of its event, and so with the content of the memory."""
    return LetterView.of(await _found(service.parts, ns, letter))


@post(
    "/dead/{letter:str}/replay",
    status_code=202,
    summary="Replay a dead letter",
    before_request=refuse_body,
    responses=documented(400, 403, 404, 429, 503),
)
async def replay_dead_letter(service: Service, letter: LetterId, ns: Namespace = DEFAULT_NAMESPACE) -> ReplayedLetter:
    """Put the event on the stream again under its original version, so that it cannot undo what was written later.

    Should it fail again, it comes back as a new letter. `/memory/ready` says `failed` until workers have processed it.
    """
    parts = service.parts
    found = await _found(parts, ns, letter)
    entry = await parts.replays.replay(found)
    if entry is None:  # somebody else was faster
        raise NotFoundException(_ABSENT)
    return ReplayedLetter(found.letter, ns, found.id, entry)


@post(
    "/dead/replay",
    status_code=202,
    summary="Replay all dead letters of a namespace, step by step",
    before_request=refuse_body,
    responses=documented(400, 403, 429, 503),
)
async def replay_dead_letters(
    service: Service, ns: Namespace = DEFAULT_NAMESPACE, limit: StepLimit = MAX_LETTERS, until: Until = None
) -> LetterStep:
    """Replay the oldest letters. While `more`, ask again with the same `until`: what fails again comes after it.

    What no worker has filed (`foreign`) stays. A step ends early where the stream has no room for more.
    """
    parts = service.parts

    async def replay(letter: DeadLetter) -> bool | None:
        return None if letter.is_foreign else bool(await parts.replays.replay(letter))

    return await _step(parts, ns, limit, until, replay)


@delete(
    "/dead/{letter:str}",
    status_code=200,
    summary="Drop a dead letter",
    before_request=refuse_body,
    responses=documented(400, 403, 404, 503),
)
async def drop_dead_letter(service: Service, letter: LetterId, ns: Namespace = DEFAULT_NAMESPACE) -> DroppedLetter:
    """Remove a dead letter for good; its memory is no longer called failed."""
    parts = service.parts
    found = await _found(parts, ns, letter)
    if not await dead_letters.drop(parts.database, found):
        raise NotFoundException(_ABSENT)
    return DroppedLetter(found.letter, ns, found.id)


@delete(
    "/dead",
    status_code=200,
    summary="Drop all dead letters of a namespace, step by step",
    before_request=refuse_body,
    responses=documented(400, 403, 503),
)
async def drop_dead_letters(
    service: Service,
    ns: Namespace = DEFAULT_NAMESPACE,
    all: Annotated[bool, Parameter(description="Must be true: all letters are meant.")] = False,  # noqa: A002
    limit: StepLimit = MAX_LETTERS,
    until: Until = None,
) -> LetterStep:
    """Drop the oldest letters for good. While `more`, ask again with the same `until`: those that came later stay."""
    if not all:
        raise InvalidQueryError("all", "must be true, and means every letter here; a single one is at /dead/{letter}")
    parts = service.parts

    async def drop(letter: DeadLetter) -> bool:
        return await dead_letters.drop(parts.database, letter)

    return await _step(parts, ns, limit, until, drop)


async def _found(parts: Parts, ns: str, letter: str) -> DeadLetter:
    found = await dead_letters.find(parts.database, parse_namespace(ns), parse_letter(letter))
    if found is None:
        raise NotFoundException(_ABSENT)
    return found


async def _step(
    parts: Parts, ns: str, limit: int, until: str | None, act: Callable[[DeadLetter], Awaitable[bool | None]]
) -> LetterStep:
    """Do something with the oldest letters up to `until`, at most `limit` of them; None says that one was passed by."""
    parse_namespace(ns)
    _check(limit)
    last = await dead_letters.newest(parts.database, ns) if until is None else parse_letter(until, "until")
    step = LetterStep(0, more=False, until=last)
    if last is None:
        return step
    seen = 0
    async with aclosing(dead_letters.letters(parts.database, ns, until=last, page=_PAGE)) as letters:
        async for letter in letters:
            if seen == limit:
                step.more = True
                break
            try:
                done = await act(letter)
            except BacklogFullError:
                if not step.count:
                    raise
                step.more = True
                break
            if done is not None:
                seen += 1
                step.count += done
    return step


def _check(limit: int) -> None:
    if not 1 <= limit <= MAX_LETTERS:
        raise InvalidQueryError("limit", f"is {limit}; it must be 1 to {MAX_LETTERS}")
