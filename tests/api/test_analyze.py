"""`/analyze` and `jiyi analyze`: the tokens of a text, as the index and the questions get them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from jiyi.analysis import Analyzer

pytestmark = pytest.mark.anyio

TEXT = "旋轉 Redis 7.2 的超时：ERR_CONN_RESET"


def expected(analyzer):
    return [dict(zip(("term", "rule", "source"), token, strict=True)) for token in analyzer.explain(TEXT)]


async def test_a_text_is_shown_as_the_index_gets_it(reader, settings):
    analyzer = Analyzer(settings.segmenter, settings.han_bigrams, settings.max_terms)
    told = {"tokens": expected(analyzer), "length": len(expected(analyzer)), "analyzer": analyzer.fingerprint}
    assert reader.get("/analyze", text=TEXT).body == told
    assert reader.post("/analyze", {"text": TEXT}).body == told
    assert reader.get("/analyze").body == {**told, "tokens": [], "length": 0}


async def test_what_cannot_be_analysed_is_refused_by_name(reader, settings):
    too_long = "x" * (settings.max_content_bytes + 1)
    assert reader.post("/analyze", {"text": too_long}).error[:2] == (400, "invalid_query")
    assert "text" in reader.post("/analyze", {"text": too_long}).error[2]
    assert reader.get("/analyze", txt="x").error[:2] == (400, "invalid_query")
    assert reader.post("/analyze", {"text": "x", "q": "y"}).error[0] == 400


def test_the_command_shows_the_same():
    command = [sys.executable, "-m", "jiyi", "analyze", TEXT]
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert told["tokens"] == expected(Analyzer())
    table = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    for token in told["tokens"]:
        assert any(line.split() == list(token.values()) for line in table.splitlines()), token
    assert f"{len(told['tokens'])} tokens" in table


def test_the_command_reads_standard_input():
    command = [sys.executable, "-m", "jiyi", "analyze", "-", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True, input=TEXT.encode()).stdout)
    assert told["tokens"] == expected(Analyzer())
