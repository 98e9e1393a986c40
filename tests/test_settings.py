"""Settings: read once, checked, and the same in every child."""

from __future__ import annotations

from pathlib import Path

import pytest

from jiyi.errors import SettingsError
from jiyi.settings import Settings


def test_values_are_read_by_kind():
    settings = Settings.from_environment(
        {
            "JIYI_BATCH": "16",
            "JIYI_HAN_BIGRAMS": "yes",
            "JIYI_DATA_DIR": "/tmp/x",
            "JIYI_SEGMENTER": "jieba",
            "PATH": "/",
        }
    )
    assert (settings.batch, settings.han_bigrams, settings.data_dir, settings.segmenter) == (
        16,
        True,
        Path("/tmp/x"),
        "jieba",
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("JIYI_BATCH", "many", "whole number"),
        ("JIYI_BATCH", "0", "at least 1"),
        ("JIYI_API_PORT", "70000", "at most 65535"),
        ("JIYI_WORKER_NICE", "20", "at most 19"),
        ("JIYI_WORKER_NICE", "-1", "at least 0"),
        ("JIYI_HAN_BIGRAMS", "perhaps", "1 or 0"),
        ("JIYI_SEGMENTER", "thulac", "rjieba, jieba"),
        ("JIYI_BACH", "16", r"not a setting .* did you mean JIYI_BATCH\? .* docs/reference\.md"),
        ("JIYI_REDISURL", "x", r"did you mean JIYI_REDIS_URL\?"),
        ("JIYI_XYZZY", "16", r"not a setting of jiyi; all settings are listed in docs/reference\.md"),
    ],
)
def test_a_wrong_value_names_its_variable_and_what_is_right(name, value, told):
    with pytest.raises(SettingsError, match=told) as caught:
        Settings.from_environment({name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("idle_ms", "timeout_ms"), [("10000", None), ("5000", None), (None, "30000"), ("7", "8"), ("1", "1")]
)
def test_no_entry_may_be_taken_over_while_its_memory_is_analysed(idle_ms, timeout_ms):
    given = {"JIYI_CLAIM_IDLE_MS": idle_ms, "JIYI_DOCUMENT_TIMEOUT_MS": timeout_ms}
    with pytest.raises(SettingsError, match=r"JIYI_CLAIM_IDLE_MS is \d+; .* above JIYI_DOCUMENT_TIMEOUT_MS \(\d+\)"):
        Settings.from_environment({name: value for name, value in given.items() if value is not None})


def test_an_entry_may_be_taken_over_right_after_the_analysis_of_its_memory_is_given_up():
    Settings.from_environment({"JIYI_CLAIM_IDLE_MS": "10001"})
    Settings.from_environment({"JIYI_CLAIM_IDLE_MS": "300", "JIYI_DOCUMENT_TIMEOUT_MS": "299"})


def test_the_command_line_wins():
    assert Settings.from_environment({"JIYI_API_PORT": "9000"}, api_port=9001).api_port == 9001
    assert Settings.from_environment({"JIYI_API_PORT": "9000"}, api_port=None).api_port == 9000


def test_a_child_builds_the_same_settings():
    settings = Settings(batch=7, han_bigrams=True, redis_url="unix:///x.sock?db=0", log_level="debug")
    assert Settings.from_environment(settings.to_environment()) == settings
