"""The command line `jiyi`. It starts the services as processes by module name and imports neither."""

from __future__ import annotations

import sys

_NEEDED = {"typer", "rich", "structlog", "numpy", "prometheus_client", "click"}


def main() -> None:
    """Entry point of the console script; says what to install where the server's dependencies are missing."""
    try:
        from jiyi.cli.app import app  # noqa: PLC0415 - `pip install jiyi` has the script without its dependencies
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        sys.exit(
            f'jiyi: the command line needs {error.name}, which comes with the server: pip install "jiyi[server]"\n'
            "The producer and the client work without it: from jiyi import Producer, Client"
        )
    app()
