"""tantivy: a search library in Rust by its Python binding, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.engines import TOP, AbsentError, InProcess
from benchmarks.load import one_word
from benchmarks.peers import why_absent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question

_WRITER_BYTES = 256_000_000


class Tantivy(InProcess):
    """An index in memory of our terms, frequencies without positions; k1 = 1.2 and b = 0.75 are built in.

    It counts no matches here, so that it may skip documents that cannot be among the best ten.
    """

    name = "tantivy"

    def __init__(self, tokens: Sequence[list[str]]) -> None:
        try:
            import tantivy  # noqa: PLC0415 - a peer may be absent
        except ImportError as error:
            raise AbsentError(why_absent("tantivy")) from error
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("terms", stored=False, tokenizer_name="words", index_option="freq")
        builder.add_integer_field("place", stored=True)
        self._schema = builder.build()
        index = tantivy.Index(self._schema)
        index.register_tokenizer("words", tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build())
        writer = index.writer(_WRITER_BYTES, 1)
        for place, terms in enumerate(tokens):
            writer.add_document(tantivy.Document(terms=" ".join(map(one_word, terms)), place=place))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher = index.searcher()
        self._library = tantivy

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Build the query out of terms and run it; documents are called by their address."""
        query, should = self._library.Query, self._library.Occur.Should
        any_of = query.boolean_query(
            [(should, query.term_query(self._schema, "terms", word)) for word in question.words]
        )
        return [(address, score) for score, address in self._searcher.search(any_of, TOP, count=False).hits]

    async def places(self, question: Question, found: Sequence[tuple[Any, float]]) -> list[int]:  # noqa: ARG002
        """Read the places that are stored with the documents."""
        return [self._searcher.doc(address)["place"][0] for address, _ in found]
