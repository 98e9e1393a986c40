"""File descriptors: every connection takes one, and clients must not take those that Redis is asked through."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress


def most_clients() -> int:
    """Raise the limit of this process as far as it may, and give half of it: the number of clients that is served.

    Of the other half a part is for the connections to Redis and for ourselves, a part for telling the clients that are
    too many so: a server that is not able to accept a connection cannot refuse it either, and turns in a circle.
    """
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS takes no unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit = hard
    return sys.maxsize // 2 if limit == resource.RLIM_INFINITY else limit // 2
