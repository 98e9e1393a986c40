"""A cluster of three primaries, one of which has a replica."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from conftest import free_port, wait_until

from servers.processes import OwnServer, impatient

SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


class Cluster:
    """Nodes 0 to 2 are the primaries of the thirds of the slots; `replica` is that of `doomed`."""

    def __init__(self, folder, nodes, replica, owner):
        self.nodes, self.replica, self.owner = nodes, replica, owner
        self.settings = impatient(nodes[owner - 1].url, folder)

    @property
    def doomed(self):
        return self.nodes[self.owner]

    async def formed(self):
        """Wait until everybody knows everybody and all slots are served, then until the replica follows its primary."""

        async def whole():
            infos = [node.command("CLUSTER", "INFO") for node in (*self.nodes, self.replica)]
            return all(b"cluster_known_nodes:4" in info and b"cluster_state:ok" in info for info in infos)

        async def follows():
            return self.replica.command("INFO", "replication").get("master_link_status") == "up"

        await wait_until(whole, "the cluster has formed")
        self.replica.command("CLUSTER", "REPLICATE", self.doomed.command("CLUSTER", "MYID"))
        await wait_until(follows, "the replica follows")
        await wait_until(whole, "the cluster knows that")

    async def in_sync(self):
        async def equal():
            ours, theirs = (server.command("INFO", "replication") for server in (self.doomed, self.replica))
            return theirs["slave_repl_offset"] == ours["master_repl_offset"]

        await wait_until(equal, "the replica is in sync")

    async def failed_over(self):
        """Wait until the replica is a primary."""

        async def promoted():
            return self.replica.command("INFO", "replication")["role"] == "master"

        await wait_until(promoted, "the replica has taken over")

    async def returned(self):
        """Wait until the old primary, started again, is a replica that has caught up."""

        async def follows():
            info = self.doomed.command("INFO", "replication")
            return info["role"] == "slave" and info["master_link_status"] == "up"

        await wait_until(follows, "the old primary has become a replica")


@contextmanager
def running_cluster(folder, key):
    """A cluster in which the owner of a key has a replica; call `formed` before use."""
    with ExitStack() as stack:
        servers = []
        for i in range(4):
            servers.append(OwnServer(folder / f"node{i}", *_options()))
            stack.callback(servers[-1].stop)
        *nodes, replica = servers
        for node, (first, last) in zip(nodes, SLOTS, strict=True):
            node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in servers[1:]:
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", server.port, server.options[-1])
        slot = nodes[0].command("CLUSTER", "KEYSLOT", key)
        owner = next(i for i, (first, last) in enumerate(SLOTS) if first <= slot <= last)
        yield Cluster(folder, nodes, replica, owner)


def _options():
    return (
        "--appendonly", "yes", "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
        "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
        "--cluster-port", str(free_port()),
    )  # fmt: skip
