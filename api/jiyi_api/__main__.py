"""`python -m jiyi_api`: the reader process, configured by `JIYI_*` variables."""

from __future__ import annotations

import signal
import sys

import uvicorn

from jiyi.errors import JiyiError
from jiyi.logs import configure
from jiyi.settings import Settings
from jiyi_api.app import create_app
from jiyi_api.descriptors import most_clients
from jiyi_api.receipt import receipt_within

EX_CONFIG = 78
"""Exit status that tells a supervisor that starting again will not help (sysexits.h)."""


def main() -> int:
    """Serve until SIGTERM or SIGINT; gives the exit status."""
    try:
        settings = Settings.from_environment()
        configure(settings)
    except JiyiError as error:
        sys.stderr.write(f"jiyi api: {error}\n")
        return EX_CONFIG
    # uvicorn raises the signal that stopped it once more when everything is closed; an orderly stop is status 0.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(settings),
        host=settings.api_host,
        port=settings.api_port,
        loop="uvloop",
        http=receipt_within(settings.receive_timeout_ms, most_clients()),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, settings.drain_ms // 1000),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
