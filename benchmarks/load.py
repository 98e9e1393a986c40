"""The documents and questions that everything is measured with."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec
import rjieba

from jiyi.analysis import Analyzer

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
DATA = Path(os.environ.pop("JIYI_BENCH_DATA", ROOT.parent / "shared" / "data"))
"""The folder with `make_load.py`. The variable goes: jiyi refuses those that look like its settings and are none."""
_UNSAFE = re.compile(r"[^a-z0-9\u0080-\U0010ffff]")


class Question(NamedTuple):
    """A question in each form that an engine needs; making them is analysis and not part of a search's time."""

    text: str
    terms: list[str]
    """Terms of jiyi's analysis."""
    words: list[str]
    """The same, in letters that no tokenizer splits; see `one_word`."""
    plain: list[str]
    """Words as they stand in the text, for an engine with an analysis of its own."""


class Load(NamedTuple):
    """Memories for the index, further ones to be written beside it, and questions."""

    memories: list[dict[str, Any]]
    further: list[dict[str, Any]]
    questions: list[Question]
    source: str


def one_word(term: str) -> str:
    """Write a term so that a tokenizer which splits at ASCII punctuation gives it back as one word."""
    return _UNSAFE.sub(lambda found: f"_{ord(found[0]):02x}", term)


def plain_words(text: str) -> list[str]:
    """Give the distinct words of a text in their order, cut by the segmenter, neither stemmed nor filtered."""
    return list(dict.fromkeys(word for cut in rjieba.cut(text.lower()) for word in re.findall(r"[^\W_]+", cut)))


def tokens_of(analyzer: Analyzer, memory: dict[str, Any]) -> list[str]:
    """Give the terms of a memory as often as they occur: what every engine with our analysis indexes."""
    return [term for term, frequency in analyzer.terms(memory["content"]).items() for _ in range(frequency)]


async def load(documents: int, further: int, questions: int) -> Load:
    """Read real documents and questions; without the data, variations of the example memories."""
    generator = DATA / "make_load.py"
    if generator.exists():
        memories = [msgspec.json.decode(line) for line in await _generate(generator, documents + further)]
        texts = [line.decode() for line in await _generate(generator, questions, "--queries")]
        source = "real texts, Chinese and English"
    else:
        memories, texts = _varied(documents + further, questions)
        source = "variations of the example memories (the real texts are absent): they repeat words more than texts do"
    analyzer = Analyzer()
    asked = [question_of(analyzer, text) for text in texts]
    return Load(memories[:documents], memories[documents:], [one for one in asked if one.terms], source)


def question_of(analyzer: Analyzer, text: str) -> Question:
    """Prepare a question for every engine."""
    terms = list(analyzer.query_terms(text))
    return Question(text, terms, [one_word(term) for term in terms], plain_words(text))


def spread(memories: Sequence[dict[str, Any]], namespaces: int) -> list[dict[str, Any]]:
    """Give the same memories, spread evenly over so many namespaces."""
    return [{**memory, "ns": f"load-{i % namespaces}"} for i, memory in enumerate(memories)]


async def _generate(generator: Path, count: int, *options: str) -> list[bytes]:
    command = [sys.executable, str(generator), "-n", str(count), *options]
    # In a session of its own a Ctrl-C does not reach it, but ends us, and so it.
    finished = await anyio.run_process(command, stderr=None, start_new_session=True)
    return finished.stdout.splitlines()


def _varied(documents: int, questions: int) -> tuple[list[dict[str, Any]], list[str]]:
    source = [json.loads(line) for line in (ROOT / "examples" / "memories.jsonl").read_text().splitlines()]
    chance = random.Random(1)
    memories = [
        {**chance.choice(source), "id": f"bench-{i}",
         "content": "\n".join(chance.choice(source)["content"] for _ in range(2)) + f"\n{i}"}
        for i in range(documents)
    ]  # fmt: skip
    texts = [json.loads(line)["query"] for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
    return memories, [chance.choice(texts) for _ in range(questions)]
