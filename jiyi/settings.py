"""The settings of every process, read from `JIYI_*` variables once, at the entry point."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from jiyi.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "JIYI_"
_MOST_NICE = 19


def default_data_dir() -> Path:
    """Where the embedded server keeps its data: `$XDG_DATA_HOME/jiyi`, by default `~/.local/share/jiyi`."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "jiyi"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, immutable. Field `x` is read from `JIYI_X`; the comment behind each is its documentation.

    `_ms` are milliseconds and `_bytes` bytes. Only `Settings.from_environment` reads the environment.
    """

    redis_url: str = ""  # redis://, rediss:// or unix:// URL; empty: the command line finds that of `jiyi up`
    data_dir: Path = msgspec.field(default_factory=default_data_dir)  # where `jiyi up` keeps its server's data
    redis_port: int = 0  # loopback TCP port of the embedded server besides its unix socket; 0: socket only
    stream: str = "stream:memory:write"  # the stream that producers append to
    group: str = "jiyi"  # the consumer group of the workers
    segmenter: Literal["rjieba", "jieba"] = "rjieba"  # Chinese segmenter; jieba is the slower reference
    han_bigrams: bool = True  # also index Han characters and pairs, so that unknown words are found
    user_dictionary: str = ""  # file of words that the segmenter does not know; see "Word files"
    stop_words: str = ""  # file of words to be passed over, or not any more
    synonyms: str = ""  # file of words that questions ask for as well
    batch: int = 64  # entries that a worker reads from the stream at once
    block_ms: int = 2000  # how long a worker waits for new entries before it looks around
    claim_idle_ms: int = 30_000  # an entry pending for this long is taken over; more than document_timeout_ms
    sweep_ms: int = 5_000  # how often workers look for such entries and trim what is done
    max_deliveries: int = 5  # an entry delivered more often goes to the dead letters
    document_timeout_ms: int = 10_000  # a worker that analyses one memory for longer ends itself and starts anew
    max_backlog: int = 250_000  # entries on the stream from which on producers are refused or wait; 0: no limit
    confirm: Literal["accepted", "fsync", "replicated"] = "accepted"  # what a write waits for, beyond the stream
    confirm_ms: int = 1_000  # how long it waits for that
    drain_ms: int = 10_000  # how long a stopping process may finish what it holds
    worker_nice: int = 10  # niceness of workers, 0 to 19: on a busy machine the server and the readers go first
    max_content_bytes: int = 65_536  # largest content of one memory, in UTF-8
    max_terms: int = 10_000  # most distinct terms of one memory
    max_query_bytes: int = 4_096  # longest question, in UTF-8
    max_request_bytes: int = 8_388_608  # largest HTTP body
    receive_timeout_ms: int = 30_000  # how long an HTTP request may take to arrive
    max_memories: int = 1_000  # most memories in one HTTP write
    max_limit: int = 100  # most hits of one search
    max_wait_ms: int = 30_000  # longest wait that /memory/ready grants
    max_pool: int = 50  # connections of one process to Redis
    redis_timeout_ms: int = 5_000  # how long to wait for an answer of Redis
    cache_bytes: int = 268_435_456  # decoded postings that a reader keeps
    document_cache_bytes: int = 67_108_864  # memories that a reader keeps
    kernel: Literal["auto", "numba", "numpy"] = "auto"  # what ranks; numpy, slower, is what auto falls back on
    api_host: str = "127.0.0.1"  # address that the reader listens on
    api_port: int = 8700  # port that the reader listens on
    api_url: str = "http://127.0.0.1:8700"  # where the command line and the client find the reader
    metrics_port: int = 0  # port on which workers serve /metrics; 0: none
    log_format: Literal["console", "json"] = "json"  # how log lines look
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # least level that is logged

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read `JIYI_*` variables; `overrides` that are not None come from the command line and win.

        Raises `SettingsError` for a value of the wrong kind, out of range, and for a `JIYI_*` name that is
        no setting (a misspelt one would otherwise be ignored in silence).
        """
        environment = os.environ if environment is None else environment
        kinds = get_type_hints(cls)
        values: dict[str, Any] = {}
        for name, raw in environment.items():
            if not name.startswith(PREFIX) or name.startswith("JIYI_TEST_"):
                continue
            field = name.removeprefix(PREFIX).lower()
            if field not in kinds:
                nearest = get_close_matches(field, kinds, n=1)
                hint = f"did you mean {PREFIX}{nearest[0].upper()}? All" if nearest else "all"
                raise SettingsError(f"{name} is not a setting of jiyi; {hint} settings are listed in docs/reference.md")
            values[field] = _convert(name, kinds[field], raw)
        values.update({name: value for name, value in overrides.items() if value is not None})
        settings = cls(**values)
        settings.validate()
        return settings

    def validate(self) -> None:
        """Raise `SettingsError` where a number is out of its range or two settings contradict each other."""
        may_be_zero = {"redis_port", "metrics_port", "max_backlog", "worker_nice"}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                least = 0 if name in may_be_zero else 1
                if value < least:
                    raise SettingsError(f"{PREFIX}{name.upper()} is {value}; it must be at least {least}")
        for name in ("redis_port", "api_port", "metrics_port"):
            if getattr(self, name) > 65_535:  # noqa: PLR2004 - the largest TCP port
                raise SettingsError(f"{PREFIX}{name.upper()} is {getattr(self, name)}; a port is at most 65535")
        if self.worker_nice > _MOST_NICE:
            raise SettingsError(f"{PREFIX}WORKER_NICE is {self.worker_nice}; niceness is at most {_MOST_NICE}")
        if self.confirm != "accepted" and self.confirm_ms >= self.redis_timeout_ms:
            raise SettingsError(
                f"{PREFIX}CONFIRM_MS is {self.confirm_ms}; it must be below {PREFIX}REDIS_TIMEOUT_MS "
                f"({self.redis_timeout_ms}), or the connection gives up before the server has answered"
            )
        if self.claim_idle_ms <= self.document_timeout_ms:
            raise SettingsError(
                f"{PREFIX}CLAIM_IDLE_MS is {self.claim_idle_ms}; it must be above {PREFIX}DOCUMENT_TIMEOUT_MS "
                f"({self.document_timeout_ms}), or a memory is taken over, and counted as failed, while it is analysed"
            )
        if "}" in self.stream and not re.match(r"[^{]*\{[^}]+\}", self.stream):
            raise SettingsError(
                f"{PREFIX}STREAM is {self.stream!r}; a brace must be part of a hash tag like {{events}}"
            )

    def to_environment(self) -> dict[str, str]:
        """Give the variables that make a child process build these same settings."""
        values = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            values[PREFIX + name.upper()] = ("1" if value else "0") if isinstance(value, bool) else str(value)
        return values


def _convert(name: str, kind: Any, raw: str) -> Any:
    if get_origin(kind) is Literal:
        if raw not in get_args(kind):
            raise SettingsError(f"{name} is {raw!r}; it must be one of {', '.join(get_args(kind))}")
        return raw
    if kind is bool:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if raw.lower() not in known:
            raise SettingsError(f"{name} is {raw!r}; it must be 1 or 0")
        return known[raw.lower()]
    if kind is int:
        try:
            return int(raw)
        except ValueError:
            raise SettingsError(f"{name} is {raw!r}; it must be a whole number") from None
    return kind(raw)
