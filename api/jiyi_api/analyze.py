"""Routes that show what the analysis makes of a text: what a writer will be found by, and what a question asks for."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import msgspec
from litestar import get, post
from litestar.params import Parameter

from jiyi.analysis import TooManyTerms
from jiyi.errors import InvalidQueryError
from jiyi_api.failures import documented
from jiyi_api.parameters import refuse_encoded, refuse_unknown
from jiyi_api.service import Service

PATH = "/analyze"


class AnalyzeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A text to be analysed, and whether as a question, too."""

    text: str
    question: bool = False


class AnalyzedToken(msgspec.Struct):
    """A token: the term that is indexed, the rule that made it, and the piece of the text that it stands for."""

    term: str
    rule: str
    source: str


class AskedTerm(msgspec.Struct, rename="camel", omit_defaults=True):
    """A term that a question asks for: what it counts, the rule by which, and for which word or phrase if a synonym."""

    term: str
    rule: str
    weight: float
    synonym_of: str | None = None


class AnalyzedText(msgspec.Struct, omit_defaults=True):
    """The tokens of a text in order; `length` is their number, `analyzer` the fingerprint of what made them.

    `question` has the terms that it asks for as a question, where that was wanted.
    """

    tokens: list[AnalyzedToken]
    length: int
    analyzer: str
    question: list[AskedTerm] | None = None


async def _analyze(text: str, service: Service, *, question: bool) -> AnalyzedText:
    most = service.settings.max_content_bytes
    if (size := len(text.encode(errors="replace"))) > most:
        raise InvalidQueryError("text", f"has {size} bytes; at most {most} are analysed")
    analyzer = service.parts.analyzer
    tokens = await anyio.to_thread.run_sync(analyzer.explain, text)  # a long text takes long
    asked = None
    if question:
        try:
            asked = [AskedTerm(*term) for term in await anyio.to_thread.run_sync(analyzer.explain_question, text)]
        except TooManyTerms as error:
            raise InvalidQueryError("text", str(error)) from None
    return AnalyzedText([AnalyzedToken(*token) for token in tokens], len(tokens), analyzer.fingerprint, asked)


@post(
    PATH,
    status_code=200,
    summary="Analyse a text (JSON)",
    before_request=refuse_encoded,
    responses=documented(400, 403, 413, 415, 503),
)
async def analyze_body(data: AnalyzeRequest, service: Service) -> AnalyzedText:
    """Show the tokens of a text of any length that a memory may have, and which rule made each."""
    return await _analyze(data.text, service, question=data.question)


@get(PATH, summary="Analyse a text", before_request=refuse_unknown, responses=documented(400, 503))
async def analyze_query(
    service: Service,
    text: Annotated[str, Parameter(description="The text, as it is written or asked.")] = "",
    question: Annotated[bool, Parameter(description="Also what it asks for as a question, with weights.")] = False,
) -> AnalyzedText:
    """Show the tokens of a text, and which rule made each."""
    return await _analyze(text, service, question=question)
