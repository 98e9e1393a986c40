"""Memories for the chaos: real Chinese and English sentences, each marked so that it can be told from all others."""

from __future__ import annotations

import re
import string
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from random import Random

SOURCE = Path(__file__).parent.parent / "examples" / "memories.jsonl"
DEADLY = "此文致命 this-text-kills"
ENDLESS = "此文无尽 this-text-never-ends"

MARK = re.compile(r"\bq[a-z]{11}q\b")
"""What marks a content; nothing else looks like it."""
_AUTHORS = ("张伟", "李娜", "Priya Raman", "Tom Becker", "王磊")
_KINDS = ("fact", "task", "decision", "preference")
_TAGS = ("redis", "事故", "pay-gateway", "发布", "k8s", "客户")
_LONG = 0.01
"""Share of memories that are long: analysed in a thread, applied in a call of their own."""


class Texts:
    """Makes contents and questions out of the sentences of the example memories."""

    def __init__(self, random: Random) -> None:
        self._random = random
        lines = SOURCE.read_bytes().splitlines()
        contents: list[str] = [msgspec.json.decode(line)["content"] for line in lines]
        pieces = {piece.strip() for content in contents for piece in re.split(r"[。；！？;!?\n]|\. ", content)}
        self._pieces = sorted(piece for piece in pieces if len(piece) > 1 and any(map(str.isalnum, piece)))

    def content(self, poison: str = "") -> str:
        """Make a content that nobody has made before."""
        count = 400 if self._random.random() < _LONG else self._random.randint(1, 5)
        pieces = [self._random.choice(self._pieces) for _ in range(count)]
        mark = "q" + "".join(self._random.choices(string.ascii_lowercase, k=11)) + "q"
        pieces.insert(self._random.randint(0, count), " ".join(filter(None, (mark, poison))))
        return "。".join(pieces)

    def question(self) -> str:
        """Make a question that finds something, most of the time."""
        piece = self._random.choice(self._pieces)
        start = self._random.randint(0, max(0, len(piece) - 12))
        part = piece[start : start + 12].strip()
        return part if any(map(str.isalnum, part)) else piece


def mark_of(content: str) -> str:
    """Give the word that no other content has."""
    found = MARK.search(content)
    assert found is not None
    return found[0]


def attributes_of(content: str) -> dict[str, Any]:
    """Give the other fields of a memory, which follow from its content: a mixture of two versions would show."""
    chosen = blake2b(content.encode(), digest_size=8).digest()
    return {
        "author": _AUTHORS[chosen[0] % len(_AUTHORS)],
        "kind": _KINDS[chosen[1] % len(_KINDS)],
        "session_id": mark_of(content),
        "tags": sorted({_TAGS[chosen[2] % len(_TAGS)], _TAGS[chosen[3] % len(_TAGS)]}),
        "importance": chosen[4] / 255,
        "metadata": {"mark": mark_of(content), "字": chosen[5]},
    }
