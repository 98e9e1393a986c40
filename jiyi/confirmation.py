"""Confirmation of writes: what `JIYI_CONFIRM` makes a producer wait for, and what the server's answers mean.

The command goes out behind the appends on their own connection: the server then answers when everything that this
connection has written so far is on disk (WAITAOF), or has reached a replica (WAIT).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jiyi.errors import NotConfirmedError, SettingsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.exceptions import ResponseError

    from jiyi.settings import Settings

Command = tuple[str | int, ...]


def command(settings: Settings) -> Command | None:
    """Give the command that waits, None where acceptance is enough."""
    if settings.confirm == "fsync":
        return "WAITAOF", 1, 0, settings.confirm_ms
    if settings.confirm == "replicated":
        return "WAIT", 1, settings.confirm_ms
    return None


def refuse(settings: Settings, error: ResponseError) -> SettingsError | UnavailableError:
    """Make the error for a server that cannot confirm in this way, from its answer to the command."""
    if "replica instances" in str(error):  # it was the primary until now
        return UnavailableError(
            "Redis cannot do it now: it is a replica; writes go to the primary", 2.0, code="readonly"
        )
    why = "its append-only file is off (CONFIG SET appendonly yes)"
    if "unknown command" in str(error):
        why = "it does not know WAITAOF, which came with Redis 7.2; Valkey has it"
    return SettingsError(f"JIYI_CONFIRM is {settings.confirm}, but the server cannot confirm that: {why}")


def is_confirmed(reply: Any) -> bool:
    """Whether the server's answer confirms."""
    reached = reply[0] if isinstance(reply, list) else reply
    return bool(reached >= 1)


def require(settings: Settings, reply: Any, entries: Sequence[str]) -> None:
    """Raise `NotConfirmedError` unless the server's answer confirms."""
    if isinstance(reply, Exception) or not is_confirmed(reply):
        what = "written to disk" if settings.confirm == "fsync" else "copied to a replica"
        raise NotConfirmedError(
            f"{len(entries)} events are on the stream, but the server did not confirm within {settings.confirm_ms} ms "
            f"that they are {what}. Ask for their readiness, or write them again: that is harmless",
            tuple(entries),
        )
