"""`python -m jiyi_api`: the reader process, configured by `JIYI_*` variables.

With `--fd N` it takes connections from the listening socket that it has inherited under this number, beside others.
"""

from __future__ import annotations

import signal
import socket
import sys

import uvicorn

from jiyi.errors import JiyiError, SettingsError
from jiyi.logs import configure
from jiyi.settings import Settings
from jiyi_api.app import create_app
from jiyi_api.descriptors import most_clients
from jiyi_api.receipt import receipt_within

EX_CONFIG = 78
"""Exit status that tells a supervisor that starting again will not help (sysexits.h)."""
_PATIENCE_S = 20.0
"""How long a reader beside others may take to start before it takes connections all the same."""
EX_UNAVAILABLE = 69
"""Exit status of a reader that could not begin to listen (sysexits.h)."""


def main() -> int:
    """Serve until SIGTERM or SIGINT; gives the exit status."""
    try:
        settings = Settings.from_environment()
        configure(settings)
        sockets = _inherited(sys.argv[1:])
        # Beside others a reader does not take what they could answer sooner.
        app = create_app(settings, patience_s=_PATIENCE_S if sockets else 0.0)
    except JiyiError as error:
        sys.stderr.write(f"jiyi api: {error}\n")
        return EX_CONFIG
    # uvicorn raises the signal that stopped it once more when everything is closed; an orderly stop is status 0.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: sys.exit(0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
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
    )
    server.run(sockets=sockets)
    return 0 if server.started else EX_UNAVAILABLE


def _inherited(arguments: list[str]) -> list[socket.socket] | None:
    match arguments:
        case ["--fd", number]:
            return [socket.socket(fileno=int(number))]
        case []:
            return None
        case _:
            raise SettingsError("python -m jiyi_api takes no arguments but --fd N; its settings are JIYI_* variables")


if __name__ == "__main__":
    sys.exit(main())
