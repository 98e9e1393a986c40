"""Judges every answer of a reader at once, against the books of what was sent."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from faults.ledger import digest_of
from faults.texts import attributes_of
from jiyi.events import parse_entry
from jiyi.scoring import idf, saturation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.findings import Findings
    from faults.ledger import Key, Ledger
    from faults.server import ChaosServer
    from jiyi.analysis import Analyzer
    from jiyi.answers import Hit, Readiness, SearchResult, StoredMemory

TOLERANCE = 1e-9
Version = tuple[int, int]
_NONE: Version = (0, 0)


class Seen:
    """What had been answered when a question was sent: later answers must not be older."""

    def __init__(self, floors: dict[Key, Version], lives: int) -> None:
        self.floors, self.lives = floors, lives


class Witness:
    """Holds that every answer is whole, of the right namespace, right in its numbers, and never older than the last.

    Answers of one server history only grow: after a restart of the server the count begins anew.
    """

    def __init__(
        self, ledger: Ledger, server: ChaosServer, analyzer: Analyzer, ids: Sequence[str], findings: Findings
    ) -> None:
        self.answers = 0
        self._ledger, self._server, self._analyzer, self._findings = ledger, server, analyzer, findings
        self._most = len(ids)
        self._floors: dict[Key, Version] = {}
        self._lives = server.lives

    def before(self) -> Seen:
        """Call before a question is sent, and give the result back with the answer."""
        if self._lives != self._server.lives:
            self._floors, self._lives = {}, self._server.lives
        return Seen(dict(self._floors), self._lives)

    def same_history(self, seen: Seen) -> bool:
        """Whether the server that was asked is still the same process."""
        return seen.lives == self._server.lives

    def settled(self, key: Key, version: Version) -> bool:
        """Whether nothing can have displaced this version of a memory: no later event, none whose fate is open."""
        newest = self._ledger.newest(key)
        return not self._ledger.open(key) and (newest is None or newest.version <= version)

    def readiness(self, ns: str, answer: Readiness, seen: Seen) -> None:
        """Take in an answer of `/memory/ready`."""
        if answer.state in {"ready", "deleted"} and answer.entry is not None:
            self._grow((ns, answer.id), parse_entry(answer.entry), seen, answer.state)

    def memory(self, ns: str, memory: StoredMemory, seen: Seen) -> None:
        """Judge a memory that was given back: one whole version of what was written under this very name."""
        self.answers += 1
        key, digest = (ns, memory.id), digest_of(memory.content)
        event = None if memory.entry is None else self._ledger.at(memory.entry)
        if event is not None:
            right = event.key == key and event.digest == digest
        else:  # its sender does not know yet, or never will
            right = any(event.digest == digest for event in self._ledger.open(key))
        if not right:
            self._findings.violate(
                "content", f"{key} entry {memory.entry} has a content that was not written there: {memory.content!r}"
            )
            return
        for name, value in attributes_of(memory.content).items():
            found: Any = getattr(memory, name)
            if (list(found) if name == "tags" else found) != value:
                self._findings.violate("mixture", f"{key} entry {memory.entry}: {name} is {found!r}, not {value!r}")
        assert memory.entry is not None
        self._grow(key, parse_entry(memory.entry), seen, "found")

    def result(self, ns: str, question: str, result: SearchResult, seen: Seen) -> None:
        """Judge the answer to a search that asked for an explanation."""
        self.answers += 1
        for hit in result.hits:
            self.memory(ns, hit, seen)
            self._numbers(ns, question, hit)
        ids = [hit.id for hit in result.hits]
        if len(set(ids)) < len(ids):
            self._findings.violate("search", f"{ns}: a memory twice: {ids}")
        if any(one.score < other.score for one, other in pairwise(result.hits)):
            self._findings.violate("search", f"{ns}: not in order: {[hit.score for hit in result.hits]}")
        if not len(result.hits) <= result.total <= result.index.docs <= self._most:
            self._findings.violate(
                "search", f"{ns}: {len(result.hits)} hits of {result.total} matches of {result.index.docs} documents"
            )

    def _grow(self, key: Key, version: Version, seen: Seen, how: str) -> None:
        if not self.same_history(seen):
            return
        if version < (floor := seen.floors.get(key, _NONE)):
            self._findings.violate("older", f"{key}: {how} in version {version}, after an answer with {floor}")
        self._floors[key] = max(self._floors.get(key, _NONE), version)

    def _numbers(self, ns: str, question: str, hit: Hit) -> None:
        """Compute the hit's score anew from its content."""
        terms = self._analyzer.terms(hit.content)
        explanation = hit.explanation
        assert explanation is not None
        expected = {term: terms[term] for term in self._analyzer.query_terms(question) if term in terms}
        found = {matched.term: matched.tf for matched in hit.matched_terms}
        if found != expected or explanation.length != sum(terms.values()):
            self._findings.violate(
                "terms", f"{(ns, hit.id)} entry {hit.entry}: {found} of {explanation.length}, not {expected}"
            )
        score = sum(
            matched.weight
            * idf(explanation.docs, matched.df)
            * saturation(matched.tf, explanation.length, explanation.avgdl, explanation.k1, explanation.b)
            for matched in hit.matched_terms
        )
        if not math.isfinite(hit.score) or not math.isclose(score, hit.score, rel_tol=TOLERANCE):
            self._findings.violate("score", f"{(ns, hit.id)} entry {hit.entry}: {hit.score}, not {score}")
