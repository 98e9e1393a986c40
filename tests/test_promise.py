"""Every sentence of the README's promise names the tests that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (CHECKOUT / "docs" / "promise.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
TESTS = {
    name
    for path in (CHECKOUT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def promise():
    """The promise as one line of words, without its first paragraph and what is not promised."""
    readme = (CHECKOUT / "README.md").read_text()
    section = readme.split("## What is promised")[1].split("\n## ")[0]
    promised, rest = section.split("**Not promised**")
    consequence = rest.split("|\n\n")[-1]
    words = " ".join((promised[promised.index("- **Delivery") :] + consequence).split())
    return re.sub(r"- \*\*[\w, ]+\.\*\*", "", words)


def test_every_sentence_is_quoted():
    left = promise()
    for sentence, _ in ROWS:
        left = left.replace(sentence, "")
    assert left.split() == []


@pytest.mark.parametrize(("sentence", "tests"), ROWS[1:], ids=lambda cell: cell[:40])
def test_the_tests_exist(sentence, tests):
    if tests in ("nothing to prove", "tests"):
        return
    for name in tests.split(", "):
        assert name.strip("`") in TESTS
