"""The planted defects: one file each, a unified diff below comments that say what it breaks and who notices."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
_FIELD = re.compile(r"# (Defect|Breaks|Caught by|More lines): (.+)")


class PatchError(Exception):
    """A patch that cannot be read, or does not fit the code any more: the code has moved on, the patch must follow."""


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """One defect. `tests` are the test files, or single tests in them, that are expected to notice it."""

    name: str
    path: Path
    defect: str
    breaks: str
    tests: tuple[str, ...]
    more_lines: str  # why it changes more than one line, "" when it does not
    files: tuple[str, ...]
    removed: int
    added: int

    def apply(self, folder: Path) -> None:
        """Change the files below a folder. Raises `PatchError`, and then has changed nothing."""
        self._git_apply(folder)

    def check(self, folder: Path) -> None:
        """Raise `PatchError` unless `apply` would succeed."""
        self._git_apply(folder, "--check")

    def _git_apply(self, folder: Path, *options: str) -> None:
        # Not even a repository around the folder may have a say.
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
        command = ["git", "apply", *options, str(self.path.resolve())]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if done.returncode:
            raise PatchError(f"{self.path.name} does not apply: the code has moved on\n{done.stderr.strip()}")


def read_patch(path: Path) -> Patch:
    """Read a patch file. Raises `PatchError` when its comments are not complete."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    fields, diff = _fields(lines[:start]), lines[start:]
    missing = [name for name in ("Defect", "Breaks", "Caught by") if name not in fields]
    if missing:
        raise PatchError(f"{path.name} does not say: {', '.join(missing)}")
    return Patch(
        name=path.stem,
        path=path,
        defect=fields["Defect"],
        breaks=fields["Breaks"],
        tests=tuple(fields["Caught by"].split()),
        more_lines=fields.get("More lines", ""),
        files=tuple(line[6:] for line in diff if line.startswith("+++ b/")),
        removed=sum(line.startswith("-") and not line.startswith("--- ") for line in diff),
        added=sum(line.startswith("+") and not line.startswith("+++ ") for line in diff),
    )


def read_patches(folder: Path = FOLDER) -> list[Patch]:
    """Read all patches of a folder, by name."""
    return [read_patch(path) for path in sorted(folder.glob("*.patch"))]


def _fields(comments: list[str]) -> dict[str, str]:
    """Read `# Name: value` lines; `#   more` goes on with the value before."""
    fields: dict[str, str] = {}
    name = ""
    for line in comments:
        if found := _FIELD.fullmatch(line):
            name = found[1]
            fields[name] = found[2]
        elif line.startswith("#  ") and name:
            fields[name] += " " + line[1:].strip()
    return fields
