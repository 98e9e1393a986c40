"""Judged sets: documents, and questions with the ids of the documents that answer them, as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jiyi.errors import InvalidEventError, SourceError
from jiyi.importers import BadLine, read_jsonl
from jiyi.memories import DEFAULT_NAMESPACE, from_camel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class JudgedQuery(msgspec.Struct, frozen=True):
    """A question and the ids of the memories that answer it, all in the namespace `ns`."""

    id: str
    query: str
    relevant: frozenset[str]
    ns: str


class JudgedSet(msgspec.Struct, frozen=True):
    """Documents as fields of memories, each with its `ns`, and questions about them."""

    documents: list[dict[str, Any]]
    queries: list[JudgedQuery]


class _Query(msgspec.Struct):
    """A line of the file of questions; further fields are ignored."""

    id: str
    query: str
    relevant: list[str]
    user_id: str | None = None


def read_judged(documents: str | Path, queries: str | Path) -> JudgedSet:
    """Read two files of JSON lines, gzipped or not.

    A document has `id` and `content`, and may have the other fields of a memory. A question has `id`, `query` and
    `relevant`, a list of ids; without any it is left out. Where questions have a `user_id`, each user is a namespace
    of its own, to which the documents of that `user_id` belong; else all documents are in one namespace.

    Raises `SourceError` for a file that cannot be read, for a bad line, and for an id that no document of the
    question's namespace has.
    """
    asked = [_query(queries, number, fields) for number, fields in _lines(queries)]
    by_user = any(query.user_id is not None for query in asked)
    rows = [_document(documents, number, fields, by_user) for number, fields in _lines(documents)]
    known = {(row["ns"], row["id"]) for row in rows}
    judged = [
        JudgedQuery(query.id, query.query, frozenset(query.relevant), _namespace(query.user_id if by_user else None))
        for query in asked
        if query.relevant
    ]
    for query in judged:
        if missing := next((one for one in query.relevant if (query.ns, one) not in known), None):
            raise SourceError(f"{queries}: question {query.id!r} asks for {missing!r}, which is no document there")
    if not judged:
        raise SourceError(f"{queries} has no question with relevant documents")
    return JudgedSet(rows, judged)


def _lines(source: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with read_jsonl(source) as lines:
        for line in lines:
            if isinstance(line, BadLine):
                raise SourceError(f"{source}, line {line.number}: {line.reason}")
            yield line.number, line.fields


def _query(source: str | Path, number: int, fields: dict[str, Any]) -> _Query:
    try:
        return msgspec.convert(fields, _Query)
    except msgspec.ValidationError as error:
        raise SourceError(f"{source}, line {number}: {error}") from None


def _document(source: str | Path, number: int, fields: dict[str, Any], by_user: bool) -> dict[str, Any]:
    try:
        row = from_camel(fields)
    except InvalidEventError as error:
        raise SourceError(f"{source}, line {number}: {error}") from None
    if not isinstance(row.get("id"), str):
        raise SourceError(f"{source}, line {number}: id: is missing or no text")
    return {**row, "ns": _namespace(row.get("user_id") if by_user else None)}


def _namespace(user_id: str | None) -> str:
    return DEFAULT_NAMESPACE if user_id is None else user_id
