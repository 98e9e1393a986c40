"""Options that several commands have: filters, and all that a search may be told. Each is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

Given = dict[str, Any]
"""The options of a table that were given, by the names that the client has for them."""
Command = Callable[..., None]
Namespaces = Annotated[
    list[str] | None, typer.Option("--ns", help="Namespace, the wall between users; given again: these together.")
]


def _filter(told: str, *names: str) -> Any:
    return typer.Option(*names, help=told, rich_help_panel="Filters (all must hold)")


def _ranking(told: str, metavar: str | None = None) -> Any:
    return typer.Option(help=told, metavar=metavar, rich_help_panel="Matching and ranking")


def _time(told: str, metavar: str | None = None) -> Any:
    return typer.Option(help=told, metavar=metavar, rich_help_panel="Time")


class FilterOptions:
    """Which memories are looked at."""

    author: Annotated[list[str] | None, _filter("Only by this author; may be given again, as those below.")]
    source_system: Annotated[list[str] | None, _filter("Only from this system.")]
    user_id: Annotated[list[str] | None, _filter("Only of this user.")]
    session_id: Annotated[list[str] | None, _filter("Only of this session.")]
    kind: Annotated[list[str] | None, _filter("Only of this kind.")]
    tags: Annotated[list[str] | None, _filter("Only with any of these tags.", "--tag")]
    tags_all: Annotated[list[str] | None, _filter("Only with all of these tags.", "--tag-all")]
    tags_none: Annotated[list[str] | None, _filter("Only with none of these tags.", "--tag-none")]
    since: Annotated[str | None, _filter("Only from this time on (ISO 8601, UTC).")]
    until: Annotated[str | None, _filter("Only before this time (ISO 8601, UTC).")]
    min_importance: Annotated[float | None, _filter("Only of at least this importance, 0 to 1.")]


class SearchOptions(FilterOptions):
    """Besides, how a search goes about it."""

    match: Annotated[str | None, _ranking("Any word, all words, or those with all first.", "any|all|auto")]
    rank: Annotated[str | None, _ranking("By BM25, or by relevance, importance and freshness.", "bm25|memory")]
    ranking: Annotated[
        str | None, _ranking('For --rank memory: {"weights": …, "halfLifeDays": …, "kinds": …}.', "JSON")
    ]
    min_score: Annotated[float | None, _ranking("Only hits of at least this score.")]
    collapse: Annotated[str | None, _ranking("Fold near duplicates (near), or hits of the same author, kind, …", "BY")]
    per_session: Annotated[int | None, _ranking("At most so many hits of one session.")]
    k1: Annotated[float | None, _ranking("BM25: how soon repetition stops counting.")]
    b: Annotated[float | None, _ranking("BM25: how much long memories are held back, 0 to 1.")]
    time_words: Annotated[str | None, _time("What last week in the question does.", "boost|filter|off")]
    at: Annotated[str | None, _time("When it is asked, for last week and for ages; default now (ISO 8601, UTC).")]
    tz: Annotated[str | None, _time("Time zone of the time words, like Asia/Shanghai; default UTC.", "ZONE")]
    snippet: Annotated[int | None, typer.Option(help="Width of the passage that is shown, in characters.")]


def taking(table: type) -> Callable[[Command], Command]:
    """Give a command the options of a table besides its own; it gets those that were given as `given`."""
    options = get_type_hints(table, include_extras=True)

    def decorate(command: Command) -> Command:
        def run(**arguments: Any) -> None:
            taken = {name: arguments.pop(name) for name in options}
            command(**arguments, given={name: one for name, one in taken.items() if one is not None and one != []})

        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "given"
        ]
        others = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in options.items()
        ]
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__annotations__ = {one.name: one.annotation for one in (*own, *others)} | {"return": None}
        run.__signature__ = inspect.Signature([*own, *others])  # type: ignore[attr-defined] # which typer reads
        return run

    return decorate


def where(ns: list[str] | None) -> Given:
    """Give the namespaces that were named as the client takes them: one, several, or neither."""
    if not ns:
        return {}
    return {"ns": ns[0]} if len(ns) == 1 else {"namespaces": ns}


def named(given: Given) -> Given:
    """Give the options with the names of labels as Python has them: source-system is source_system."""
    return given | ({"collapse": given["collapse"].replace("-", "_")} if "collapse" in given else {})
