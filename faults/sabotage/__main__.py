"""`python -m faults.sabotage`: plant every defect in turn, and tell which test notices it.

Exit status 0 only if every defect is noticed; 1 if one is not; 2 if that cannot be found out.
"""

from __future__ import annotations

import argparse
import sys
import time

import anyio
import msgspec

from faults.sabotage.copies import ROOT, CopyError
from faults.sabotage.patches import Patch, PatchError, read_patches
from faults.sabotage.trials import Sabotage, Trial, UnsoundTestsError

_NOT_NOTICED, _NOT_KNOWN = 1, 2


def main() -> int:
    """Run the trials that the command line asks for; gives the exit status."""
    options = _options()
    try:
        chosen = _chosen(options.only)
        sabotage = Sabotage(ROOT, all_tests=options.all_tests, jobs=options.jobs, report=_Progress(len(chosen)))
        trials = anyio.run(sabotage.run, chosen)
    except (PatchError, CopyError, UnsoundTestsError) as error:
        sys.stderr.write(f"sabotage: {error}\n")
        return _NOT_KNOWN
    except KeyboardInterrupt:
        sys.stderr.write("sabotage: interrupted\n")
        return _NOT_KNOWN
    if options.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(trials)) + b"\n")
    else:
        sys.stdout.write(_table(trials))
    if any(trial.trouble for trial in trials):
        return _NOT_KNOWN
    return 0 if all(trial.caught_by for trial in trials) else _NOT_NOTICED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults.sabotage", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="try this defect (repeatable)")
    parser.add_argument("--all-tests", action="store_true", help="run the whole suite for each, name all that fail")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="trials at once (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args()


def _chosen(names: list[str]) -> list[Patch]:
    patches = read_patches()
    if unknown := set(names) - {patch.name for patch in patches}:
        raise PatchError(f"there is no patch {', '.join(sorted(unknown))}")
    return [patch for patch in patches if not names or patch.name in names]


class _Progress:
    """Tells what has ended, on standard error."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._started = time.monotonic()

    def __call__(self, news: str | Trial) -> None:
        if isinstance(news, Trial):
            self._done += 1
            news = f"{self._done}/{self._total} {news.name}: {_result(news)}"
        sys.stderr.write(f"[{time.monotonic() - self._started:4.0f} s] {news}\n")
        sys.stderr.flush()


def _result(trial: Trial) -> str:
    if trial.trouble:
        return f"UNKNOWN: {trial.trouble}"
    return " ".join(trial.caught_by) or "NOT NOTICED"


def _table(trials: list[Trial]) -> str:
    rows = [("defect", "caught by", "seconds")]
    rows += [(trial.name, _result(trial).partition("\n")[0], f"{trial.seconds:.1f}") for trial in trials]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{name:{widths[0]}}  {result:{widths[1]}}  {seconds:>{widths[2]}}" for name, result, seconds in rows]
    caught = sum(bool(trial.caught_by) for trial in trials)
    return "\n".join([*lines, "", f"{caught} of {len(trials)} defects are noticed"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
