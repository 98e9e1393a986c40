"""The planted defects fit the code as it is, and whoever plants them can tell a defect that is noticed from one that
is not."""

from __future__ import annotations

import difflib
import re
import subprocess
from pathlib import Path

import anyio
import pytest

from faults.sabotage.copies import ROOT, CopyError
from faults.sabotage.patches import PatchError, read_patch, read_patches
from faults.sabotage.trials import Sabotage, Trial, UnsoundTestsError

PATCHES = read_patches()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_applies_and_says_what_it_is(patch):
    patch.check(ROOT)
    (file,) = patch.files
    assert file.startswith(("jiyi/", "workers/", "api/", "lua/")), "a defect of the product"
    if not patch.more_lines:
        assert (patch.removed, patch.added) in {(1, 1), (1, 0), (0, 1)}, "one line, or a reason for more"
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", patch.name)
    for test in patch.tests:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text()
        assert Path(path).name.startswith("test_")
        assert not name or re.search(rf"^(async )?def {name.partition('[')[0]}\(", source, re.MULTILINE), test


def test_there_are_enough_defects_and_no_two_are_the_same():
    changes = [patch.path.read_text().partition("\n@@")[2] for patch in PATCHES]
    assert len(set(changes)) == len(PATCHES) >= 24


@pytest.mark.parametrize("missing", ["Defect", "Breaks", "Caught by"])
def test_a_patch_that_does_not_say_what_it_is_is_refused(tmp_path, missing):
    lines = ["# Defect: a", "# Breaks: b", "# Caught by: c"]
    path = tmp_path / "x.patch"
    path.write_text("\n".join(line for line in lines if not line.startswith(f"# {missing}")))
    with pytest.raises(PatchError, match=f"does not say: {missing}"):
        read_patch(path)


SOUND = {
    "jiyi/__init__.py": "",
    "jiyi/scripts.py": "from pathlib import Path\n\n\ndef folder():\n    return Path(__file__).parent\n",
    "jiyi/sums.py": "def total(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n",
    "workers/jiyi_workers/__init__.py": "",
    "api/jiyi_api/__init__.py": "",
    "tests/test_sums.py": """
import subprocess, sys
from pathlib import Path

from jiyi.sums import total


def test_total():
    assert total(2, 3) == 5


def test_a_process_of_ours():
    found = subprocess.check_output([sys.executable, "-c", "import jiyi.sums; print(jiyi.sums.total(2, 2))"], cwd="/")
    assert found == b"4\\n"
""",
}


def a_patch(folder, name, old, new, test="tests/test_sums.py", source=SOUND["jiyi/sums.py"]):
    path = folder / f"{name}.patch"
    lines, changed = source.splitlines(keepends=True), source.replace(old, new).splitlines(keepends=True)
    diff = difflib.unified_diff(lines, changed, "a/jiyi/sums.py", "b/jiyi/sums.py", n=1)
    path.write_text(
        f"# Defect: {name}\n# Breaks: arithmetic,\n#   as it is taught\n# Caught by: {test}\n" + "".join(diff)
    )
    return read_patch(path)


@pytest.fixture
def checkout(tmp_path):
    """A repository of very little code."""
    root = tmp_path / "checkout"
    for name, text in SOUND.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


def run(root, *patches, all_tests=False):
    told = []
    sabotage = Sabotage(root, all_tests=all_tests, jobs=2, report=told.append)
    trials = anyio.run(sabotage.run, patches)
    assert {trial.name for trial in told if isinstance(trial, Trial)} == {patch.name for patch in patches}
    assert {name: (root / name).read_text() for name in SOUND} == SOUND, "the checkout is as it was"
    return trials


def test_a_defect_is_caught_or_not_noticed_or_unknown(checkout, tmp_path):
    add, double = "    return a + b", "    return 2 * a"
    caught, in_a_process, unseen, late, broken = run(
        checkout,
        a_patch(tmp_path, "caught", add, "    return a - b"),
        a_patch(tmp_path, "in-a-process", add, "    return a - b", "tests/test_sums.py::test_a_process_of_ours"),
        a_patch(tmp_path, "unseen", double, "    return 3 * a"),
        a_patch(tmp_path, "late", "a * b", "a / b", source="def product(a, b):\n    return a * b\n"),
        a_patch(tmp_path, "broken", add, "    return a +"),
    )
    assert (caught.caught_by, caught.trouble) == (["tests/test_sums.py::test_total"], "")
    assert caught.breaks == "arithmetic, as it is taught"
    assert in_a_process.caught_by == ["tests/test_sums.py::test_a_process_of_ours"]
    assert (unseen.caught_by, unseen.trouble) == ([], "")
    assert (late.caught_by, late.trouble.split("\n")[0]) == (
        [],
        "late.patch does not apply: the code has moved on",
    )
    assert broken.caught_by == []
    assert broken.trouble.startswith("pytest ended with status ")


def test_all_tests_that_notice_a_defect_are_named(checkout, tmp_path):
    (trial,) = run(checkout, a_patch(tmp_path, "caught", "    return a + b", "    return a - b"), all_tests=True)
    assert trial.caught_by == ["tests/test_sums.py::test_total", "tests/test_sums.py::test_a_process_of_ours"]


def test_tests_that_fail_anyway_prove_nothing(checkout, tmp_path):
    (checkout / "tests" / "test_sums.py").write_text("def test_it():\n    assert False\n")
    patch = a_patch(tmp_path, "caught", "    return a + b", "    return a - b")
    with pytest.raises(UnsoundTestsError, match="::test_it"):
        anyio.run(Sabotage(checkout, all_tests=False, jobs=1, report=lambda _: None).run, [patch])


def test_code_from_elsewhere_is_not_tested(checkout):
    """Without its own package the copy would import the one that is installed."""
    (checkout / "workers" / "jiyi_workers" / "__init__.py").unlink()
    with pytest.raises(CopyError):
        anyio.run(Sabotage(checkout, all_tests=False, jobs=1, report=lambda _: None).run, [])
