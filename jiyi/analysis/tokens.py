"""Tokens: what the analysis of a text yields, and the limit it may run into."""

from typing import Literal, NamedTuple, TypeAlias

# The longest term in code points; longer ones are dropped, their parts stay. A longer term is a hash or encoded data
# that nobody types, and every term is a name in Redis.
MAX_TERM_LENGTH = 64

Rule: TypeAlias = Literal[
    "url", "compound", "version", "word", "camel", "literal", "quantity", "number", "unit", "date", "month",
    "han", "dictionary", "bigram", "character", "stop",
]  # fmt: skip


class Token(NamedTuple):
    """One occurrence of a term, the rule that made it, and the piece of the normalised text that it stands for.

    The rules: `url` a whole URL; `compound` chunks with their connectors (err_conn_reset); `version` a version without
    its v; `word` an English word, stemmed; `camel` a part of a camelCase word; `literal` letters and digits as they
    are; `quantity` a number with its unit, `number` and `unit` its parts, or a number that was written with commas;
    `date` a day and `month` its month; `han` a word found by the segmenter, and `dictionary` one that stands in the
    user dictionary; `bigram` two Han characters, and `character` one, that it does not call a word; `stop` a stop word,
    kept only where a text consists of nothing else.
    """

    term: str
    rule: Rule
    source: str


class QuestionTerm(NamedTuple):
    """A term of a question: what it counts, and the rule that made it.

    `synonym_of` is the word or phrase of the question for which a synonym was added; None for what was asked.
    """

    term: str
    rule: Rule
    weight: float
    synonym_of: str | None = None


class Place(NamedTuple):
    """A stretch of a text from which the analysis makes `term`: code points from `start` up to `end`."""

    start: int
    end: int
    term: str


class TooManyTerms(ValueError):  # noqa: N818  the name says what is wrong; "Error" would add nothing
    """A text has more distinct terms than the analyzer's limit; it cannot be indexed as one document.

    Split the text or raise `max_terms`. `terms` is the number of distinct terms, `limit` the number allowed.
    """

    def __init__(self, terms: int, limit: int) -> None:
        super().__init__(f"the text has {terms} distinct terms, at most {limit} are allowed")
        self.terms = terms
        self.limit = limit

    def __reduce__(self) -> tuple[type["TooManyTerms"], tuple[int, int]]:
        """Keep both numbers when the error crosses a process border."""
        return type(self), (self.terms, self.limit)
