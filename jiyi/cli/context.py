"""What every command needs: settings with a known server, output for people and programs, errors that help."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager, contextmanager
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import anyio
import msgspec
import typer
from rich.console import Console

from jiyi.analysis import Analyzer
from jiyi.connections import connect
from jiyi.data_directory import find_running
from jiyi.errors import ApiError, JiyiError, ServerNotFoundError, UnavailableError
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from jiyi.connections import Database

Result = TypeVar("Result")

console = Console(highlight=False, emoji=False)
messages = Console(stderr=True, highlight=False, emoji=False)
"""Progress and hints go to standard error, so that results can be piped."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells expect it: 128 and the number of SIGINT."""

_PASSING = {"loading", "busy", "conflict", "starting", "unavailable"}
"""Codes of what goes by without anybody's doing; `unavailable` is what a reader calls all of them."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Namespace = Annotated[str, typer.Option("--ns", help="Namespace: the wall between users, and the unit of statistics.")]
AllNamespaces = Annotated[list[str] | None, typer.Option("--ns", help="Only this namespace; may be given again.")]


def flowing(function: Callable[..., Any]) -> str:
    """The docstring as help: each paragraph one line, for the terminal to break where it ends itself."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (getdoc(function) or "").split("\n\n"))


def settings_with_server(**overrides: Any) -> Settings:
    """Settings whose `redis_url` is set: from the environment, else the server that `jiyi up` runs."""
    settings = Settings.from_environment(**overrides)
    if settings.redis_url:
        return settings
    if url := find_running(settings.data_dir):
        return msgspec.structs.replace(settings, redis_url=url)
    raise ServerNotFoundError(
        f"nothing runs on {settings.data_dir}, and JIYI_REDIS_URL is not set. Start everything with: jiyi up"
    )


def open_analyzer(settings: Settings) -> Analyzer:
    """The analyzer that workers and readers with these settings have; says what its user dictionary cannot do."""
    analyzer = Analyzer.from_settings(settings)
    if told := str(analyzer.check_dictionary()):
        messages.print(f"[yellow]{_escaped(told)}[/]", soft_wrap=True)
    return analyzer


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[Database]:
    """A client for the length of a command."""
    client = await connect(settings)
    try:
        yield client
    finally:
        await client.aclose()


def run(function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
    """Run an asynchronous function to its end, or until Ctrl-C; then raises `KeyboardInterrupt`.

    By itself the event loop cancels what runs once, and on Python 3.11 `asyncio.wait_for` forgets it when that is the
    moment in which what it waits for is there. A cancelled scope cancels until it has been left.
    """

    async def interruptible() -> Result:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            loop.add_signal_handler(signal.SIGINT, scope.cancel)
            return await function(*arguments)
        raise KeyboardInterrupt

    return anyio.run(interruptible)


def print_json(value: Any) -> None:
    """Print JSON on one line, Chinese as it is."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(value), ensure_ascii=False) + "\n")


@contextmanager
def friendly_errors(so_far: Callable[[], str] = str) -> Iterator[None]:
    """Turn our errors into one line and exit status 1 (`INTERRUPTED` after Ctrl-C); `so_far` says what was done."""
    told, status = "", 1
    try:
        yield
    except* ApiError as group:
        told = f"the reader refused: {_first(group)}"
    except* UnavailableError as group:
        told = f"{_first(group)}{_what_to_do(_first(group))}"
    except* JiyiError as group:
        told = str(_first(group))
    except* KeyboardInterrupt:
        told, status = "stopped", INTERRUPTED
    if told:
        fail(so_far() + told, status)


def _what_to_do(error: BaseException) -> str:
    """What helps. Who says that it cannot answer now is running; other messages say themselves what to do."""
    code = error.code if isinstance(error, UnavailableError) else ""
    if code in {"connection", "timeout"}:
        return ". Is it running? Start everything with: jiyi up"
    return ". Try again in a moment" if code in _PASSING else ""


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def fail(message: str, status: int = 1) -> NoReturn:
    """Print a message for people on standard error and leave."""
    messages.print(f"[bold red]jiyi:[/] {_escaped(message)}", soft_wrap=True)
    raise typer.Exit(status)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
