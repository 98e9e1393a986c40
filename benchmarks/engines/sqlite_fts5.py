"""SQLite FTS5: a full-text table in memory, in this process."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from benchmarks.engines import TOP, AbsentError, InProcess
from benchmarks.load import one_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question


class SqliteFts5(InProcess):
    """A table without content and with our terms; its bm25() has k1 = 1.2 and b = 0.75 built in."""

    name = "sqlite_fts5"

    def __init__(self, tokens: Sequence[list[str]]) -> None:
        self._database = sqlite3.connect(":memory:")
        try:
            self._database.execute(
                "CREATE VIRTUAL TABLE memories USING fts5(terms, content='', tokenize='ascii tokenchars _')"
            )
        except sqlite3.OperationalError as error:
            raise AbsentError(f"this SQLite: {error}") from error
        rows = ((place, " ".join(map(one_word, terms))) for place, terms in enumerate(tokens))
        self._database.executemany("INSERT INTO memories (rowid, terms) VALUES (?, ?)", rows)
        self._database.execute("INSERT INTO memories (memories) VALUES ('optimize')")
        self._database.commit()

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Match any of the words, ordered by rank."""
        words = " OR ".join(f'"{word}"' for word in question.words)
        rows = self._database.execute(
            "SELECT rowid, rank FROM memories WHERE memories MATCH ? ORDER BY rank LIMIT ?", (words, TOP)
        )
        return [(place, -rank) for place, rank in rows]

    async def close(self) -> None:
        """Close the database."""
        self._database.close()
