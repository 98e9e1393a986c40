"""Query parameters and ids, exactly as they were sent: nothing is ignored and nothing is tidied up."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import Parameter, ParameterKwarg

from jiyi.errors import InvalidEventError, InvalidQueryError
from jiyi.memories import parse_id

if TYPE_CHECKING:
    from litestar import Request
    from litestar.handlers import BaseRouteHandler
    from litestar.typing import FieldDefinition

Namespace = Annotated[
    str, Parameter(description="Namespace: the wall between users, and the unit of statistics. Compared byte by byte.")
]
MemoryId = Annotated[str, Parameter(description="Id of the memory, percent-encoded; taken byte for byte.")]

_MEMORY_PATH = b"/memory/"
NULL = "null"
_NO_PARAMETERS = {"service", "request", "data", "memory_id", "letter"}


class UnknownParameterError(InvalidQueryError):
    """A query parameter that a route does not have; `field` is its name as it was sent."""


class _Parameter(NamedTuple):
    """What a route takes for a parameter: several values, or a number that may be left out."""

    is_list: bool
    is_optional_number: bool


async def refuse_unknown(request: Request[Any, Any, Any]) -> None:
    """Raise `InvalidQueryError` for a query parameter that the route does not have, or has once and is given twice.

    A misspelt `userid=` would otherwise search the memories of all users, a misspelt `ns=` delete elsewhere. Of two
    `ns=` a gateway before us may have checked the other one. Also refused are bytes that are no UTF-8, which would be
    taken for another name, and `null` for a number, which would count as not given.

    A coroutine, for the framework would run a function in a thread.
    """
    known = _known(request.route_handler)
    for name, values in request.query_params.dict().items():
        if name not in known:
            shown = ascii(name[:40]).strip("'") or "''"
            raise UnknownParameterError(shown, f"is no parameter here; known are {', '.join(sorted(known)) or 'none'}")
        if len(values) > 1 and not known[name].is_list:
            raise InvalidQueryError(name, f"is given {len(values)} times; give it once")
        if known[name].is_optional_number and values[0].lower() == NULL:
            raise InvalidQueryError(name, "must be a number; leave it out for none")
    _refuse_broken(request.scope["query_string"])


async def refuse_encoded(request: Request[Any, Any, Any]) -> None:
    """Raise 415 for a body that is compressed, before it is read, and `InvalidQueryError` as `refuse_unknown`.

    Nothing here unpacks it: a small body could become a huge one.
    """
    await refuse_unknown(request)
    codings = request.headers.getall("content-encoding", [])
    if any(coding.strip().lower() not in {"", "identity"} for coding in codings):
        raise HTTPException(
            "Content-Encoding: bodies are read as they come; send JSON without compression",
            status_code=415,
            headers={"Accept-Encoding": "identity"},
        )


async def refuse_body(request: Request[Any, Any, Any]) -> None:
    """Raise `InvalidQueryError` for unknown parameters (see `refuse_unknown`) and for a body, which nobody would read.

    A namespace that is sent in it would otherwise count as not given.
    """
    await refuse_unknown(request)
    if await request.body():
        raise InvalidQueryError("body", "is not read here; say it in the query, like ?ns=")


def _refuse_broken(query: bytes) -> None:
    """Raise `InvalidQueryError` for the first parameter that is not UTF-8."""
    for pair in query.split(b"&") if b"%" in query else ():
        name, _, value = pair.partition(b"=")
        try:
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError:
            raise InvalidQueryError(name.decode("latin-1"), "is not UTF-8; percent-encode the bytes of UTF-8") from None


@cache
def _known(handler: BaseRouteHandler) -> dict[str, _Parameter]:
    """Give the parameters that a route has, its dependencies' among them."""
    dependencies = handler.resolve_dependencies()
    signatures, found = [handler.parsed_fn_signature], {}
    while signatures:
        for name, field in signatures.pop().parameters.items():
            if name in dependencies:
                signatures.append(dependencies[name].parsed_fn_signature)
            elif (sent_name := _sent_name(name, field)) not in _NO_PARAMETERS:
                found[sent_name] = _Parameter(
                    is_list=field.is_subclass_of(list) or field.has_inner_subclass_of(list),
                    is_optional_number=field.is_optional and not field.has_inner_subclass_of((str, list)),
                )
    return found


def _sent_name(name: str, field: FieldDefinition) -> str:
    return (isinstance(field.kwarg_definition, ParameterKwarg) and field.kwarg_definition.query) or name


def memory_id_of(request: Request[Any, Any, Any]) -> str:
    """Give the id at the end of the path, percent-decoded once and otherwise byte for byte.

    The framework's own path parameter has lost slashes at either end and doubled ones: `a/` would delete `a`.
    """
    path = request.scope["raw_path"]
    if not path.startswith(_MEMORY_PATH):
        raise NotFoundException("memories are at /memory/{id}")
    try:
        return parse_id(unquote_to_bytes(path.removeprefix(_MEMORY_PATH)).decode())
    except UnicodeDecodeError:
        raise InvalidEventError("not_utf8", "id", "is not UTF-8") from None
