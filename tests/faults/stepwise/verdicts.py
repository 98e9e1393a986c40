"""What readers must be told, by what the server holds: readiness, scores by BM25's definition, losses, the check."""

from __future__ import annotations

import pytest

from jiyi import keys, scoring
from jiyi.check import Kind, check_namespace
from jiyi.events import parse_entry
from jiyi.streams import EventStream
from jiyi_api.queries import SearchQuery, SearchRequest
from jiyi_api.readiness import ReadinessReader
from jiyi_api.searcher import Searcher
from jiyi_api.snapshots import SnapshotReader

from .steps import WORDS

K1, B = scoring.DEFAULT_K1, scoring.DEFAULT_B
CACHE_BYTES = 2**20


class Verdicts:
    """Asks the readers of the product, and compares. Its own readers live as long as the history."""

    def __init__(self, database, settings, ledger):
        self._database = database
        self._settings = settings
        self._ledger = ledger
        stream = EventStream(database, settings.stream, settings.group)
        self._readiness = ReadinessReader(database, stream, settings.max_content_bytes)
        self._readers = {}

    async def all(self, view, names, analyzer, logs):
        """At the end, when everything has been processed."""
        unsettled = [one for one in self._ledger.carriers.values() if not one.settled and not one.removed]
        assert not unsettled, unsettled
        assert not view.pending
        await self.readiness(view)
        words = sorted({term for word in WORDS for term in analyzer.terms(word)})
        for ns in names:
            await self._check(ns)
            assert await self.scores(view, ns, analyzer, words)
            await self._compare(SnapshotReader(self._database, analyzer.fingerprint, 1), view, ns, analyzer, words)
        await self._losses(logs)
        assert not [line for line in logs if line["event"] in {"apply_refused", "sweep_refused"}]

    async def _check(self, ns):
        report = await check_namespace(self._database, ns, stream=self._settings.stream)
        lost_replays = any(carrier.is_replay and carrier.removed for carrier in self._ledger.of(ns))
        # The mark of a replay that somebody took off the stream is right: its event has failed for good.
        problems = [one for one in report.problems if not (lost_replays and one.kind is Kind.DEAD_LETTER)]
        assert not problems, problems

    async def readiness(self, view):
        """Ask about every memory and every entry."""
        for ns in view.letters:
            asked = []
            for (other, memory_id), carriers in self._ledger.memories.items():
                if other == ns:
                    asked += [(memory_id, None), *((memory_id, carrier.entry) for carrier in carriers)]
            answers = await self._readiness.ready(ns, asked, 0.0)
            for (memory_id, entry), answer in zip(asked, answers, strict=True):
                states = possible_states(self._ledger, view, ns, memory_id, entry)
                assert answer.state in states, f"{ns!r} {memory_id!r} {entry}: {answer} is none of {states}"
                assert answer.ready == (answer.state == "ready")
                if answer.state == "failed" and entry is not None:
                    code = self._ledger.carriers[entry].event.code
                    assert answer.reason.split()[0] in {code, "max_deliveries"}

    async def scores(self, view, ns, analyzer, words):
        """Compare scores, unless the namespace is just being analysed anew; tells whether it did."""
        known = await self._database.hmget(keys.stats_key(ns), "analyzer", "reindex_end")
        if known != [analyzer.fingerprint.encode(), None]:
            return False
        name = analyzer.fingerprint
        reader = self._readers.setdefault(name, SnapshotReader(self._database, name, CACHE_BYTES))
        await self._compare(reader, view, ns, analyzer, words)
        return True

    async def _compare(self, reader, view, ns, analyzer, words):
        """N, mean length, df and the score of every document are those of the survivors alone."""
        documents = survivors(view, ns, analyzer)
        ids = {int(view.stored[ns, memory_id]["doc"]): memory_id for memory_id in documents}
        searcher = Searcher(self._database, None, reader)
        query = SearchQuery.from_request(SearchRequest(q="any", ns=ns, limit=100), self._settings)
        total = sum(sum(terms.values()) for terms in documents.values())
        for word in words:
            ranking = await searcher.rank(query, {word: 1.0}, 100)
            expected = naive_scores(documents, word)
            found = {ids.get(doc, doc): sum(term.score for term in matched) for doc, matched, _ in ranking.hits()}
            assert found == pytest.approx(expected, abs=1e-9), f"{ns!r} {word!r}"
            assert {term.df for term in ranking.terms} <= {len(expected)}
            assert (ranking.total, ranking.size) == (len(expected), len(documents))
            assert ranking.avgdl == pytest.approx(total / len(documents) if documents else 0.0)

    async def _losses(self, logs):
        """What somebody else has removed is counted, and named where it was pending; nothing else is."""
        account = keys.processed_key(self._settings.stream)
        counted = int(await self._database.hget(account, f"{self._settings.group}:lost") or 0)
        named = {line["entry"] for line in logs if line["event"] == "event_lost"}
        removed = {carrier.entry for carrier in self._ledger.carriers.values() if carrier.removed}
        pending = {carrier.entry for carrier in self._ledger.carriers.values() if carrier.lost_pending}
        unread = {carrier.entry for carrier in self._ledger.carriers.values() if carrier.lost_unread}
        assert named <= removed, (named, removed)
        # The answer to a claim is all that ever says which entries are gone.
        assert pending <= named or "XAUTOCLAIM" in self._ledger.unseen, (pending, named)
        assert len(pending | unread) <= counted <= len(removed), (pending, unread, counted, removed)


def possible_states(ledger, view, ns, memory_id, asked=None):
    """States that readiness may answer, at an instant at which nothing moves."""
    stored = view.stored[ns, memory_id]
    version = parse_entry(stored["entry"]) if stored else (-1, 0)
    carriers = ledger.memories[ns, memory_id]
    events = [carrier.event for carrier in carriers]
    dead = [event for event in events if event.version > version and event.is_dead]
    # A mark stays until the event is processed again, and goes with the letter that has set it. Somebody who was away
    # while it was filed may have processed it; once the tombstone is forgotten, nothing else tells.
    processed = any(carrier.possible and carrier.event.ends for carrier in carriers if carrier.event in dead)
    undisturbed = not processed and not any(event.acted_on for event in events)
    if asked is None:
        if undisturbed and any(event.letter for event in dead):
            return {"failed"}
        return {_state(stored), "failed"} if dead else {_state(stored)}
    carrier = ledger.carriers[asked]
    if version >= carrier.number:
        return {_state(stored)}
    if carrier.event in dead:
        newest = carrier.number == carrier.event.version == max(event.version for event in dead)
        return {"failed"} if newest and undisturbed else {"failed", "unknown", "pending"}
    return {"unknown"} if carrier.settled or carrier.removed else {"pending"}


def _state(stored):
    """What a memory's hash alone says."""
    if not stored:
        return "unknown"
    has_expired = 0 < int(stored.get("expires_at", 0)) < 10**12
    return "deleted" if "doc" not in stored or has_expired else "ready"


def survivors(view, ns, analyzer):
    """The documents of a namespace as {id: terms}."""
    return {
        memory_id: analyzer.terms(stored["content"])
        for (other, memory_id), stored in view.stored.items()
        if other == ns and "doc" in stored
    }


def naive_scores(documents, word):
    """BM25 from its definition, over the surviving documents alone."""
    lengths = {name: sum(terms.values()) for name, terms in documents.items()}
    avgdl = sum(lengths.values()) / len(documents) if documents else 0.0
    df = sum(word in terms for terms in documents.values())
    return {
        name: scoring.idf(len(documents), df) * scoring.saturation(terms[word], lengths[name], avgdl, K1, B)
        for name, terms in documents.items()
        if word in terms
    }
