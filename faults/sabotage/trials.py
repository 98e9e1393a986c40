"""Trials: plant each defect in a copy of its own, run the tests that should notice it, and require a failure."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from faults.sabotage.copies import Copy, CopyError, Run
from faults.sabotage.patches import PatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faults.sabotage.patches import Patch

_LIMIT_S = 300.0
_LIMIT_OF_ALL_S = 3600.0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one defect. Without `caught_by` it was not noticed; `trouble` says what else went wrong."""

    name: str
    defect: str
    breaks: str
    caught_by: list[str]
    seconds: float
    trouble: str = ""


class UnsoundTestsError(Exception):
    """The tests fail without any defect, so that their failures would prove nothing."""


class Sabotage:
    """A series of trials of the checkout at `root`, in copies that are removed at the end.

    With `all_tests` the whole suite runs for every defect, and every test that fails is named; else the tests that
    its patch names, up to the first failure. `report` is called with every trial as it ends.
    """

    def __init__(self, root: Path, *, all_tests: bool, jobs: int, report: Callable[[str | Trial], None]) -> None:
        self._root = root
        self._all_tests = all_tests
        self._jobs = jobs
        self._numbers = count()
        self._slots = anyio.CapacityLimiter(jobs)
        self._report = report

    async def run(self, patches: Sequence[Patch]) -> list[Trial]:
        """Try the patches. Raises `UnsoundTestsError`, and `CopyError` when it would not be the copy that is tested."""
        workspace = Path(tempfile.mkdtemp(prefix="sab-"))
        try:
            sound = Copy(workspace / str(next(self._numbers)))
            sound.fill(self._root)
            await sound.verify()
            await sound.compile()
            await self._require_sound(sound, patches)
            trials: dict[str, Trial] = {}

            async def attempt(patch: Patch) -> None:
                run = await self._run(sound, self._targets(patch), patch)
                trials[patch.name] = _trial(patch, run)
                self._report(trials[patch.name])

            async with anyio.create_task_group() as tasks:
                for patch in patches:
                    tasks.start_soon(attempt, patch)
            return [trials[patch.name] for patch in patches]
        finally:
            shutil.rmtree(workspace, ignore_errors=True)

    async def _require_sound(self, sound: Copy, patches: Sequence[Patch]) -> None:
        targets = dict.fromkeys(target for patch in patches for target in self._targets(patch))
        files = list(dict.fromkeys(_file(target) for target in targets))
        runs: list[Run] = []

        async def run(share: list[str]) -> None:
            runs.append(await self._run(sound, [target for target in targets if _file(target) in share]))

        self._report(f"without any defect, which takes a minute or more: {' '.join(files)}")
        async with anyio.create_task_group() as tasks:
            for number in range(min(self._jobs, len(files))):
                tasks.start_soon(run, files[number :: self._jobs])
        if trouble := [*(test for run in runs for test in run.failed), *(run.trouble for run in runs if run.trouble)]:
            raise UnsoundTestsError(f"without any defect: {' '.join(trouble)}")
        self._report("without any defect: all pass")

    async def _run(self, sound: Copy, targets: list[str], patch: Patch | None = None) -> Run:
        """Run tests in a copy of a copy, with or without a defect in it."""
        async with self._slots:
            copy = Copy(sound.folder.parent / str(next(self._numbers)))
            try:
                await anyio.to_thread.run_sync(copy.fill_like, sound)
                if patch:
                    patch.apply(copy.checkout)
                    copy.forget_compiled(patch.files)
                await copy.verify()
                limit_s = _LIMIT_S if patch and not self._all_tests else _LIMIT_OF_ALL_S
                return await copy.test(targets, first_only=not self._all_tests, limit_s=limit_s)
            except (PatchError, CopyError) as error:
                return Run([], 0.0, str(error))
            finally:
                shutil.rmtree(copy.folder, ignore_errors=True)

    def _targets(self, patch: Patch) -> list[str]:
        return ["tests"] if self._all_tests else list(patch.tests)


def _file(target: str) -> str:
    return target.partition("::")[0]


def _trial(patch: Patch, run: Run) -> Trial:
    return Trial(
        name=patch.name,
        defect=patch.defect,
        breaks=patch.breaks,
        caught_by=run.failed,
        seconds=round(run.seconds, 1),
        trouble=run.trouble,
    )
