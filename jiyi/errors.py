"""Every error that jiyi raises on purpose.

Workers decide between retry and dead letter by these types, never by message text.

* JiyiError
    * SettingsError                 a `JIYI_*` variable is wrong; start again with the value that it names
    * ServerNotFoundError           no Redis or Valkey to be had; the message names the three ways
    * ServerStartError              the embedded server did not come up; the message carries its last log lines
    * DataDirectoryInUseError       another process serves this data directory
    * UnsafeServerError             the server would lose or evict index keys; change its configuration
    * InvalidEventError             the event can never be applied; it belongs into the dead-letter stream
    * InvalidQueryError             a search request is wrong; the message names the parameter
    * AnalyzerMismatchError         a namespace was indexed with another analyzer; run `jiyi reindex`
    * UnavailableError              Redis or the reader is away for now; `code` says in which way; try again
    * BacklogFullError              workers are too far behind; nothing was written; try again later, or let it wait
    * NotConfirmedError             accepted, but not confirmed as durable in time; it may or may not survive a crash
    * CorruptIndexError             a stored value is not what its key promises; run `jiyi check`
    * ApiError                      the reader answered with an error (raised by the client)
    * SourceError                   what `jiyi ingest` shall read cannot be read; the message names it and says why
"""

from __future__ import annotations


class JiyiError(Exception):
    """Base of all errors of this package."""


class SettingsError(JiyiError):
    """A setting is wrong. The message names the variable, the value's kind and what would be right."""


class ServerNotFoundError(JiyiError):
    """There is no Redis or Valkey server to talk to and none to start."""


class ServerStartError(JiyiError):
    """The embedded server did not start."""


class DataDirectoryInUseError(JiyiError):
    """Another process already serves this data directory."""


class UnsafeServerError(JiyiError):
    """The server's configuration would damage the index (an eviction policy other than `noeviction`)."""


class InvalidEventError(JiyiError):
    """An event that can never be applied.

    `field` names the offending field (empty when the event as a whole is wrong), `code` is a short
    stable word for programs and metrics, the message is for people and holds no memory content.
    """

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.code = code
        self.field = field


class InvalidQueryError(JiyiError):
    """A search request is wrong; `field` names the parameter."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class AnalyzerMismatchError(JiyiError):
    """A namespace was indexed with another analyzer than ours; mixing them would falsify every score."""

    def __init__(self, namespace: str, stored: str, ours: str) -> None:
        super().__init__(
            f"namespace {namespace!r} was indexed with analyzer {stored}, this process runs {ours}. "
            "Start it with the settings of the index, or change the index: jiyi reindex"
        )
        self.namespace = namespace
        self.stored = stored
        self.ours = ours


class UnavailableError(JiyiError):
    """Redis, or the reader, cannot answer right now; `retry_after_s` says when to ask again.

    `code` is a stable word for programs and metrics: `connection` and `timeout` (after these the outcome of a write
    is unknown), `loading`, `busy`, `oom`, `readonly`, `misconf`, `noperm`, `noreplicas`, `cluster`, `conflict`,
    `not_confirmed`, `starting`.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0, *, code: str = "connection") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code


class BacklogFullError(JiyiError):
    """More events wait for the workers than `JIYI_MAX_BACKLOG`; nothing was written. Ask again in `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotConfirmedError(JiyiError):
    """The events are on the stream (`entries`), but the server did not confirm in time that they are durable."""

    def __init__(self, message: str, entries: tuple[str, ...]) -> None:
        super().__init__(message)
        self.entries = entries


class CorruptIndexError(JiyiError):
    """A key of the index holds something else than its layout promises."""


class ApiError(JiyiError):
    """The reader refused a request; `status` is the HTTP status, `code` the word of the error body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SourceError(JiyiError):
    """A source of memories cannot be read at all; the message names it and says why."""
