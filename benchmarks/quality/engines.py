"""jiyi and its peers as a user of Chinese and English texts would set them up; each finds the ids of a judged set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import redis

from benchmarks.engines import AbsentError
from benchmarks.engines.redisearch import STOP_WORDS, locate
from benchmarks.load import plain_words
from benchmarks.peers import why_absent
from benchmarks.processes import module_server
from jiyi.evaluation.evaluate import ask_all, write_all
from jiyi.evaluation.measures import DEPTH
from jiyi.evaluation.service import private_service
from jiyi.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jiyi.evaluation import JudgedSet

    Found: TypeAlias = list[list[str]]
    Search: TypeAlias = Callable[[str], Sequence[int]]
    Build: TypeAlias = Callable[[Sequence[str]], Search]
    """Make of texts what answers a question with the places of those that fit, best first."""

_BATCH = 500


def ask_jiyi(judged: JudgedSet) -> Found:
    """Ask jiyi itself, from an empty server on."""
    with private_service(Settings()) as service:
        write_all(service, judged)
        return ask_all(service, judged.queries)


def ask_each(judged: JudgedSet, build: Build) -> Found:
    """Ask an engine that is built of a list of texts, one for each namespace."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in judged.documents:
        rows.setdefault(row["ns"], []).append(row)
    engines = {ns: build([row["content"] for row in documents]) for ns, documents in rows.items()}
    return [
        [rows[query.ns][place]["id"] for place in engines[query.ns](query.query)[:DEPTH]] for query in judged.queries
    ]


def jieba_words(text: str) -> list[str]:
    """Cut as most do it: jieba's words, lower case, without white space and punctuation."""
    import jieba  # noqa: PLC0415 - takes a second

    return [word for word in jieba.lcut(text.lower()) if re.search(r"\w", word)]


def whitespace_words(text: str) -> list[str]:
    """Cut at everything that is no letter or digit, lower case."""
    return re.findall(r"\w+", text.lower())


def rank_bm25(texts: Sequence[str]) -> Search:
    """Build rank_bm25's `BM25Okapi` over jieba's words."""
    try:
        from rank_bm25 import BM25Okapi  # noqa: PLC0415 - a peer may be absent
    except ImportError as error:
        raise AbsentError(why_absent("rank-bm25")) from error
    index = BM25Okapi([jieba_words(text) for text in texts])

    def search(question: str) -> list[int]:
        scores = index.get_scores(jieba_words(question))
        return [int(place) for place in scores.argsort(kind="stable")[::-1][:DEPTH] if scores[place] > 0]

    return search


def bm25s(cut: Callable[[str], list[str]]) -> Build:
    """Give what builds bm25s, with its own defaults, over words cut in this way."""
    try:
        import bm25s as package  # noqa: PLC0415 - a peer may be absent
    except ImportError as error:
        raise AbsentError(why_absent("bm25s")) from error

    def build(texts: Sequence[str]) -> Search:
        index = package.BM25()
        index.index([cut(text) for text in texts], show_progress=False)

        def search(question: str) -> list[int]:
            words = [word for word in cut(question) if word in index.vocab_dict]
            if not words:
                return []
            places, scores = index.retrieve([words], k=min(DEPTH, len(texts)), show_progress=False, n_threads=0)
            return [int(place) for place, score in zip(places[0], scores[0], strict=True) if score > 0]

        return search

    return build


async def ask_redisearch(judged: JudgedSet) -> Found:
    """Ask RediSearch with its Chinese analysis, for any of the words of a question."""
    async with module_server(*locate()) as path:
        return await anyio.to_thread.run_sync(lambda: ask_each(judged, _redisearch(path)))


def _redisearch(path: str) -> Build:
    client: Any = redis.Redis(unix_socket_path=path, protocol=2)
    built = 0

    def build(texts: Sequence[str]) -> Search:
        nonlocal built
        built += 1
        name, prefix = f"i{built}", f"{built}:"
        client.execute_command(
            "FT.CREATE", name, "ON", "HASH", "PREFIX", 1, prefix, "LANGUAGE", "chinese", "SCHEMA", "content", "TEXT"
        )
        client.execute_command("FT.CONFIG", "SET", "TIMEOUT", 0)
        for at in range(0, len(texts), _BATCH):
            pipeline = client.pipeline(transaction=False)
            for place, text in enumerate(texts[at : at + _BATCH], at):
                pipeline.hset(f"{prefix}{place}", "content", text)
            pipeline.execute()

        def search(question: str) -> list[int]:
            words = [word for word in plain_words(question) if word not in STOP_WORDS]
            if not words:
                return []
            reply = client.execute_command(
                "FT.SEARCH", name, "|".join(words), "NOCONTENT", "SCORER", "BM25STD", "LANGUAGE", "chinese", "VERBATIM",
                "LIMIT", 0, DEPTH, "DIALECT", 2,
            )  # fmt: skip
            return [int(key.decode().removeprefix(prefix)) for key in reply[1:]]

        return search

    return build


ENGINES: dict[str, Callable[[JudgedSet], Found]] = {
    "jiyi": ask_jiyi,
    "rank_bm25_jieba": lambda judged: ask_each(judged, rank_bm25),
    "bm25s_jieba": lambda judged: ask_each(judged, bm25s(jieba_words)),
    "bm25s_whitespace": lambda judged: ask_each(judged, bm25s(whitespace_words)),
    "redisearch_chinese": lambda judged: anyio.run(ask_redisearch, judged),
}
