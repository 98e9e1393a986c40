"""The container image."""

from __future__ import annotations

import json
import re

from jiyi.settings import Settings

from .files import ROOT, final_stage, image_environment, instructions


def test_dockerfile_knows_only_real_instructions():
    known = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {instruction for instruction, _ in instructions()} <= known  # no ADD: it fetches URLs


def test_base_images_are_pinned_and_the_same():
    """The virtual environment works only on the interpreter that it was made with."""
    bases = {value.split()[0] for instruction, value in instructions() if instruction == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases.pop())


def test_image_runs_as_a_fixed_user_who_is_not_root():
    stage = final_stage()
    users = [value for instruction, value in stage if instruction == "USER"]
    assert users == ["10001:10001"]
    names = [instruction for instruction, _ in stage]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_kernel_is_compiled_by_the_user_into_a_folder_of_his():
    stage = final_stage()
    compiled = stage.index(("RUN", "python -m jiyi_api.compiled"))
    assert compiled > stage.index(("USER", "10001:10001"))
    folder = image_environment()["NUMBA_CACHE_DIR"]
    assert any(f"--owner 10001 --group 10001 {folder}" in value for name, value in stage[:compiled] if name == "RUN")
    assert (ROOT / "api" / "jiyi_api" / "kernel.py").is_file()


def test_image_starts_the_command_line():
    stage = dict(final_stage())
    assert json.loads(stage["ENTRYPOINT"]) == ["jiyi"]
    assert json.loads(stage["CMD"])
    assert set(stage["EXPOSE"].split()) == {str(Settings().api_port), "9101"}


def test_environment_of_the_image_is_accepted():
    environment = image_environment()
    assert Settings.from_environment(environment).api_host == "0.0.0.0"
    assert environment["PATH"].startswith("/opt/jiyi/bin:")


def test_build_context_is_exactly_what_is_copied():
    copied = {
        word
        for instruction, value in instructions()
        if instruction == "COPY" and not value.startswith("--from")
        for word in value.split()[:-1]
    }
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern[0] == "!"} == copied
    assert all((ROOT / path).exists() for path in copied)


def test_build_context_holds_what_the_wheel_needs():
    build = (ROOT / "pyproject.toml").read_text()
    admitted = (ROOT / ".dockerignore").read_text().splitlines()
    for path in ("jiyi", "workers", "api", "lua", "README.md", "LICENSE"):
        assert path in build
        assert f"!{path}" in admitted
