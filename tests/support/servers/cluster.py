"""A real Redis Cluster: three primaries on this machine, with a third of the slots each."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Self

from tests.support.redis import Client
from tests.support.servers.redis import KEEPS, Server, free_port
from tests.support.servers.running import Started
from tests.support.waiting import eventually

SLOTS = 16384
SHARES = ((0, 5460), (5461, 10922), (10923, SLOTS - 1))
# A node keeps serving its slots while another one is dead, or has no CPU, for some seconds of a test.
OPTIONS = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "60000")


class Cluster(Started):
    """nodes: the servers. Each can be killed and restarted, and finds the others by its saved configuration."""

    def __init__(self, *options: str) -> None:
        self.nodes = [Server(*OPTIONS, *KEEPS, *options) for _ in SHARES]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(self.addresses)}"

    def start(self) -> Self:
        for node in self.nodes:
            node.port = node.port or free_port()
            node.start()
        for node, (first, last) in zip(self.nodes, SHARES, strict=True):
            with node.client() as client:
                if b"cluster_slots_assigned:0" in client.call("CLUSTER", "INFO"):
                    client.call("CLUSTER", "ADDSLOTS", *range(first, last + 1))
                for other in self.nodes:
                    client.call("CLUSTER", "MEET", "127.0.0.1", other.port)
        self.settled()
        return self

    def whole(self) -> None:
        """Start or continue the nodes that a failed test left dead or suspended, and wait until all are settled."""
        for node in self.nodes:
            if node.process is None:
                node.start()
            else:
                node.process.send_signal(signal.SIGCONT)
        self.settled()

    def settled(self) -> None:
        """Wait until each node knows the others and all slots. A failed handshake takes a minute to expire."""
        eventually(lambda: all(map(knows_all, self.nodes)), 180, what="a cluster that is ok")

    def node_of(self, key: str) -> Server:
        """The server that stores `key`."""
        with self.nodes[0].client() as client:
            slot = client.call("CLUSTER", "KEYSLOT", key)
        return next(node for node, (_, last) in zip(self.nodes, SHARES, strict=True) if slot <= last)

    def clients(self) -> list[Client]:
        """One client per node; the caller closes them."""
        return [node.client() for node in self.nodes]

    def keys(self) -> list[str]:
        """The keys of all nodes."""
        found = []
        for node in self.nodes:
            with node.client() as client:
                found += client.keys()
        return sorted(found)

    def empty(self) -> None:
        for node in self.nodes:
            with node.client() as client:
                client.call("FLUSHALL")

    def moves(self, slot: int, to: Server, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Move every key of a slot, and then the slot, as redis-cli --cluster reshard does. meanwhile: called while the
        slot is migrating."""
        ids = [self._id(node) for node in self.nodes]
        target, source = ids[self.nodes.index(to)], next(node for node in self.nodes if self._has(node, slot))
        self._ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[self.nodes.index(source)])
        self._ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        while keys := self._ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            self._ask(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        meanwhile()
        while keys := self._ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            self._ask(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, source, *self.nodes):
            self._ask(node, "CLUSTER", "SETSLOT", slot, "NODE", target)
        eventually(lambda: len({self._known(node) for node in self.nodes}) == 1, 30, what="nodes that agree")

    def _known(self, node: Server) -> str:
        """Which node owns which slots since which epoch, according to this node. The next move must have a newer epoch."""
        lines = self._ask(node, "CLUSTER", "NODES").decode().replace("myself,", "").splitlines()
        return "\n".join(sorted(" ".join((words := line.split())[:1] + words[6:7] + words[8:]) for line in lines))

    def _has(self, node: Server, slot: int) -> bool:
        found = self._ask(node, "CLUSTER", "SLOTS")
        own = [each for each in found if each[2][1] == node.port]
        return any(each[0] <= slot <= each[1] for each in own)

    def _id(self, node: Server) -> str:
        return str(self._ask(node, "CLUSTER", "MYID").decode())

    def _ask(self, node: Server, *words: object) -> Any:
        with node.client() as client:
            return client.call(*words)

    def forget_errors(self) -> None:
        for node in self.nodes:
            self._ask(node, "CONFIG", "RESETSTAT")

    def errors(self) -> str:
        """Errors returned by the nodes since then, by kind."""
        return "".join([self._ask(node, "INFO", "errorstats").decode() for node in self.nodes])

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def knows_all(node: Server) -> bool:
    with node.client() as client:
        state = client.text("CLUSTER", "INFO")
        linked = [line.split()[7] for line in client.text("CLUSTER", "NODES").splitlines()]
    return (
        "cluster_state:ok" in state and f"cluster_slots_ok:{SLOTS}" in state and linked == ["connected"] * len(SHARES)
    )
