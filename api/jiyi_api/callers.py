"""Who may ask for more than an answer: not the pages of other sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.exceptions import PermissionDeniedException

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

_HARMLESS = {"GET", "HEAD", "OPTIONS"}


async def refuse_other_sites(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """Raise `PermissionDeniedException` for what a page of another site makes a browser send; a guard of all routes.

    Such a page reads no answer, for want of CORS headers. But anything that it posts would be carried out, on a reader
    that is reached from this browser alone. Browsers say so to HTTPS and to the machine that they run on (Fetch
    Metadata, https://www.w3.org/TR/fetch-metadata/); pages of other ports of this machine are of the same site.
    """
    if connection.scope.get("method") not in _HARMLESS and connection.headers.get("sec-fetch-site") == "cross-site":
        raise PermissionDeniedException(
            "Sec-Fetch-Site: says that a page of another site asks; let your own server ask the reader"
        )
