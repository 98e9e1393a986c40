"""jiyi (记忆): the memory service for LLM agents that runs on plain Redis or Valkey.

`Producer` writes memories, `Client` finds them; `SyncProducer` and `SyncClient` do the same without asyncio.
Each is imported when it is first asked for, so `import jiyi` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jiyi import errors
    from jiyi.client import Client
    from jiyi.errors import (
        ApiError,
        BacklogFullError,
        InvalidEventError,
        InvalidQueryError,
        JiyiError,
        NotConfirmedError,
        ServerNotFoundError,
        SettingsError,
        UnavailableError,
    )
    from jiyi.producer import Producer
    from jiyi.sync_client import SyncClient
    from jiyi.sync_producer import SyncProducer

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "BacklogFullError",
    "Client",
    "InvalidEventError",
    "InvalidQueryError",
    "JiyiError",
    "NotConfirmedError",
    "Producer",
    "ServerNotFoundError",
    "SettingsError",
    "SyncClient",
    "SyncProducer",
    "UnavailableError",
    "__version__",
    "errors",
]

_CLASSES = {
    "Client": "client",
    "SyncClient": "sync_client",
    "Producer": "producer",
    "SyncProducer": "sync_producer",
}
"""Where a name lives that is no error."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'jiyi' has no attribute {name!r}")
    if name == "errors":
        return import_module("jiyi.errors")
    value = getattr(import_module(f"jiyi.{_CLASSES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
