"""`jiyi worker --processes N` with workers whose analyzer meets its master in certain texts."""

import sys

import anyio

from jiyi.analysis import Analyzer
from jiyi.cli import services
from jiyi.settings import Settings
from jiyi_workers.__main__ import main


def supervise(processes):
    child = services._child

    def poisoned(*arguments):
        made = child(*arguments)
        return type(made)(made.name, [sys.executable, __file__], made.env, made.stop_timeout_s)

    services._child = poisoned
    return anyio.run(services._workers, Settings.from_environment(), processes)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(supervise(int(sys.argv[1])))
    from nursery import poisoned

    Analyzer.terms = poisoned
    sys.exit(main())
