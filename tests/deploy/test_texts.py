"""The texts in deploy/: they are valid, and name what exists."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

import jiyi
from jiyi.settings import PREFIX, Settings

from .files import COMMANDS, DEAD_COMMANDS, DEPLOY, KUBERNETES, KUSTOMIZATIONS, ROOT, TEXTS, YAMLS, name_of


@pytest.mark.parametrize("path", YAMLS, ids=name_of)
def test_yaml_is_parseable_and_has_no_repeated_keys(path):
    """A repeated key silently replaces the first one."""

    class Strict(yaml.SafeLoader):
        pass

    def construct(loader, node):
        own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(own) == len(set(own)), f"{path.name}, line {node.start_mark.line + 1}: {own}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct)
    assert list(yaml.load_all(path.read_text(), Strict))


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_named_settings_exist(path):
    """Comments, alerts and instructions name only settings of the code."""
    named = set(re.findall(rf"\b{PREFIX}[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
    assert named <= set(Settings().to_environment())


def test_named_commands_exist():
    """Instructions name only commands of the command line."""
    named = {found for path in TEXTS for found in re.findall(r"`jiyi ([a-z]+)(?: ([a-z]+))?[^`\n]*`", path.read_text())}
    assert len(named) > 5
    assert {command for command, _ in named} <= COMMANDS
    assert {second for command, second in named if command == "dead"} <= DEAD_COMMANDS


def test_own_image_carries_the_version_of_the_package():
    tags = {tag for path in TEXTS for tag in re.findall(r"\bjiyi:(\d[\w.]*)", path.read_text())}
    tags |= {str(image["newTag"]) for image in KUSTOMIZATIONS[KUBERNETES]["images"] if image["name"] == "jiyi"}
    assert tags == {jiyi.__version__}


def test_paths_in_the_readme_exist():
    text = (DEPLOY / "README.md").read_text()
    paths = set(re.findall(r"[\w/.]+\.(?:yaml|yml|json|conf|env)\b|deploy/[\w/]+", text)) - {"/etc/valkey/redis.conf"}
    missing = {path for path in paths if not any((base / path).exists() for base in (ROOT, DEPLOY, KUBERNETES))}
    assert len(paths) > 5
    assert missing == set()


def test_code_blocks_of_the_readme_are_shell():
    """Every quoted command line can be split, and the commands after the image exist."""
    blocks = re.findall(r"```sh\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    runs = [words for words in (shlex.split(line, comments=True) for line in lines) if words[:2] == ["docker", "run"]]
    assert {words[words.index(f"jiyi:{jiyi.__version__}") + 1] for words in runs} == {
        "api",
        "worker",
        "check",
    } & COMMANDS
