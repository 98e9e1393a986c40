"""A primary and its replica behind one address, and a failover that loses what had not reached the replica."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial

from conftest import wait_until

from faults.proxy import serving
from servers.processes import OwnServer, impatient

OPTIONS = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--repl-diskless-load", "swapdb")


class Pair:
    """Two servers, one the replica of the other, and a proxy that leads to the primary of the moment."""

    def __init__(self, folder, proxy, portal, primary, replica):
        self.primary, self.replica = primary, replica
        self.settings = impatient(proxy.url, folder)
        self._proxy, self._portal = proxy, portal

    async def in_sync(self):
        """Wait until the replica has all that the primary has."""

        async def equal():
            ours, theirs = (server.command("INFO", "replication") for server in (self.primary, self.replica))
            return (
                theirs.get("master_link_status") == "up" and theirs["master_repl_offset"] == ours["master_repl_offset"]
            )

        await wait_until(equal, "the replica is in sync")

    def fall_behind(self):
        """From now on nothing reaches the replica."""
        os.kill(self.replica.process.pid, signal.SIGSTOP)
        self.primary.command("CLIENT", "KILL", "TYPE", "replica")

    def promote(self):
        """Make the replica the primary at our address. The old primary lives on, and so do connections to it."""
        os.kill(self.replica.process.pid, signal.SIGCONT)
        self.replica.command("REPLICAOF", "NO", "ONE")
        self._proxy.target = self.replica.url
        self.primary, self.replica = self.replica, self.primary

    def fail_over(self):
        """Kill the primary and promote the replica."""
        self.primary.kill()
        self.promote()

    async def rejoin(self):
        """Have the old primary come back as the replica of the new one, and catch up."""
        self.replica.stop()
        self.replica.start("--replicaof", "127.0.0.1", str(self.primary.port))
        await self.in_sync()

    def cut(self):
        """Cut all connections through our address."""
        self._portal.call(self._proxy.cut)

    def failpoint(self, *match, **options):
        """Arm a fail-point of the proxy."""
        return self._portal.call(partial(self._proxy.failpoint, *match, **options))


@contextmanager
def running_pair(folder):
    primary = OwnServer(folder / "primary", *OPTIONS)
    try:
        replica = OwnServer(folder / "replica", *OPTIONS, "--replicaof", "127.0.0.1", str(primary.port))
        try:
            with serving(primary.url) as (proxy, portal):
                yield Pair(folder, proxy, portal, primary, replica)
        finally:
            replica.stop()
    finally:
        primary.stop()
