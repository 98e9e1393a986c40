"""Structured logs: an event name and key/values. Memory ids appear only as `id_hash`, content never."""

from __future__ import annotations

import logging
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer

if TYPE_CHECKING:
    from jiyi.settings import Settings


def configure(settings: Settings, **context: Any) -> None:
    """Set up structlog for this process, on standard error; `context` is bound to every line."""
    # Tracebacks come without the variables of their frames: these hold the memories that were worked on.
    rendering: list[Any] = [
        structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]
    if settings.log_format == "console":
        plain = structlog.dev.plain_traceback
        rendering = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)


def get_logger() -> Any:
    """Give the logger of this process."""
    return structlog.get_logger()


def id_hash(ns: str, memory_id: str | None) -> str | None:
    """Eight hex digits that let two log lines be matched without naming the memory."""
    if memory_id is None:
        return None
    return blake2b(f"{ns}\0{memory_id}".encode(), digest_size=4).hexdigest()
