"""Words of a deployment, from the file to the answer: dictionary, stop words and synonyms."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from api.conftest import Index, running_reader
from jiyi.analysis import Analyzer
from jiyi.check import check_namespace
from jiyi.client import SyncClient
from jiyi.errors import AnalyzerMismatchError
from jiyi.reindex import reindex_namespace
from jiyi.settings import Settings

pytestmark = pytest.mark.anyio

SYNONYMS = "redis => redis-server, valkey\n住房公积金, 公积金\n"


@pytest.fixture
def deployed(settings, tmp_path):
    """Settings of a deployment that has all three files."""
    files = {"user_dictionary": "云计算平台\nApple Macbook\n", "stop_words": "please\n", "synonyms": SYNONYMS}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return msgspec.structs.replace(settings, **{name: str(tmp_path / name) for name in files})


async def test_a_reader_answers_with_its_words(database, deployed, tmp_path):
    index = Index(database, Analyzer.from_settings(deployed))
    await index.write("m1", "valkey answers slowly, please look")
    await index.write("m2", "redis restarts")
    await index.write("m3", "云计算平台的公积金")
    with running_reader(deployed, tmp_path / "log") as reader:
        hits = reader.search("Redis please")["hits"]
        assert [hit["id"] for hit in hits] == ["m2", "m1"]
        assert [(part["term"], part.get("synonymOf")) for hit in hits for part in hit["matchedTerms"]] == [
            ("redi", None), ("valkey", "redis"),
        ]  # fmt: skip
        assert hits[1]["matchedTerms"][0]["weight"] == 0.4
        for hit in hits:
            assert hit["score"] == sum(part["score"] for part in hit["matchedTerms"])
        assert "synonymOf" not in hits[0]["matchedTerms"][0]
        assert "云计算平台" in [part["term"] for part in reader.search("云计算平台")["hits"][0]["matchedTerms"]]
        asked = reader.get("/analyze", text="redis 云计算平台", question="true").body["question"]
        assert {"term": "valkey", "rule": "word", "weight": 0.4, "synonymOf": "redis"} in asked
        assert {"term": "云计算平台", "rule": "dictionary", "weight": 1.0} in asked
        assert reader.post("/analyze", {"text": "redis 云计算平台", "question": True}).body["question"] == asked
        assert "question" not in reader.get("/analyze", text="redis").body
        with SyncClient(f"http://127.0.0.1:{reader.port}") as client:
            (term,) = client.search("redis").hits[1].matched_terms
            assert (term.term, term.synonym_of) == ("valkey", "redis")
        told = [line for line in (tmp_path / "log").read_text().splitlines() if '"event": "user_dictionary"' in line]
        assert len(told) == 1
        assert "1 of 2 words of JIYI_USER_DICTIONARY are found by their parts only: Apple Macbook" in told[0]


async def test_another_dictionary_is_refused_until_the_index_is_analysed_again(database, settings, deployed, tmp_path):
    index = Index(database, Analyzer.from_settings(settings))
    await index.write("m1", "云计算平台上线")
    await index.write("m2", "计算云平台 please")
    new = Analyzer.from_settings(deployed)
    with pytest.raises(AnalyzerMismatchError, match="jiyi reindex"):
        await Index(database, new).write("m3", "云计算平台")
    with running_reader(deployed, tmp_path / "log") as reader:
        reader.may_fail = True
        assert reader.get("/memory/search", q="云计算平台").error[1] == "analyzer_mismatch"
        done = await reindex_namespace(database, "default", new)
        assert (done.documents, done.failed) == (2, ())
        first, second = reader.search("云计算平台")["hits"]
        assert first["id"] == "m1"
        assert "云计算平台" in [part["term"] for part in first["matchedTerms"]]
        assert "云计算平台" not in [part["term"] for part in second["matchedTerms"]]
        assert reader.found("please") == []
        assert (await check_namespace(database, "default")).problems == []
    with pytest.raises(AnalyzerMismatchError):
        await index.write("m3", "云计算平台")


async def test_a_worker_says_which_words_it_cannot_find_whole(database, deployed):
    variables = deployed.to_environment() | {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", "jiyi_workers"]
    told = []
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "worker_started":
                break
        process.terminate()
    words = [line["message"] for line in told if line["event"] == "user_dictionary"]
    assert len(words) == 1
    assert words[0].startswith("1 of 2 words of JIYI_USER_DICTIONARY are found by their parts only: Apple Macbook.")


@pytest.mark.parametrize("module", ["jiyi_api", "jiyi_workers"])
def test_a_service_with_a_wrong_file_does_not_start(module, redis_url, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("云计算 many\n云计算 5 N\n", encoding="utf-8")
    variables = Settings(redis_url=redis_url, user_dictionary=str(path)).to_environment()
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=variables | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 78
    said = (done.stdout + done.stderr).decode()
    assert f"JIYI_USER_DICTIONARY: {path}, line 2: " in said
    assert "Traceback" not in said


def test_the_command_shows_what_a_question_asks_for(deployed):
    command = [sys.executable, "-m", "jiyi", "analyze", "--question", "redis 云计算平台"]
    variables = deployed.to_environment() | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([*command, "--json"], env=variables, capture_output=True, check=True)
    asked = json.loads(done.stdout)["question"]
    assert {"term": "valkey", "rule": "word", "weight": 0.4, "synonymOf": "redis"} in asked
    assert {"term": "redi", "rule": "word", "weight": 1.0, "synonymOf": None} in asked
    assert b"1 of 2 words of JIYI_USER_DICTIONARY" in done.stderr
    table = subprocess.run(command, env=variables, capture_output=True, check=True, text=True).stdout
    assert ["valkey", "word", "0.4", "redis"] in [line.split() for line in table.splitlines()]
