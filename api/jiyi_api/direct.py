"""Searches by GET on a short way: what the framework does for a request costs more than the search itself.

Only a search that is right in every respect takes it. Whatever is wrong, also with the answer, is left to the route in
`search`, which has the same parameters and knows how to say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl

import msgspec

from jiyi import metrics
from jiyi_api.parameters import NULL
from jiyi_api.queries import SearchRequest
from jiyi_api.search import FAILURE, PATH, search

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

    from jiyi_api.service import Service

_LISTS = {field.encode_name for field in msgspec.structs.fields(SearchRequest) if list[str] in get_args(field.type)}
_encode = msgspec.json.Encoder().encode


def search_directly(app: ASGIApp, service: Service) -> ASGIApp:
    """Wrap an application: right searches by GET are answered here, everything else by `app`."""
    answered = metrics.HTTP_REQUESTS.labels(PATH, "200")

    async def directly(scope: Scope, receive: Receive, send: Send) -> None:
        request = _request(scope)
        if request is None:
            await app(scope, receive, send)
            return
        try:
            body = _encode(await search(request, service))
        except Exception as error:  # noqa: BLE001 - the route raises it anew, and has an answer for every kind
            scope[FAILURE] = error  # type: ignore[literal-required] # a place of our own
            await app(scope, receive, send)
            return
        answered.inc()
        length = b"%d" % len(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return directly


def _request(scope: Any) -> SearchRequest | None:
    """Read a search; None for everything that is none, and for one that is wrong."""
    if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "GET":
        return None
    given: dict[str, Any] = {}
    try:
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        return None
    for name, value in pairs:
        if name in _LISTS:
            given.setdefault(name, []).append(value)
        elif name in given or value.lower() == NULL:  # a number that is null would count as not given
            return None
        else:
            given[name] = value
    try:
        return msgspec.convert(given, SearchRequest, strict=False)
    except msgspec.ValidationError:
        return None
