"""Redis under three real sentinels: a primary, two replicas, and failovers in about two seconds."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

import hiredis

from tests.support.programs import redis_server
from tests.support.redis import Client
from tests.support.servers.redis import KEEPS, Server, free_port
from tests.support.servers.running import Running, Started
from tests.support.waiting import eventually

SERVICE = "qd"  # the name under which sentinels know the primary
DOWN_AFTER = (
    10_000  # ms without an answer until a sentinel considers a server dead; a busy server may get no CPU for a while
)
QUICK = 1000  # the same while a server is dead
GIVE_UP = 4000  # ms after which a failed failover is retried


class Watcher(Running):
    """One sentinel. It is configured with the others and the replicas, because discovery takes seconds."""

    name = "redis-sentinel"

    def __init__(self) -> None:
        super().__init__()
        self.id = uuid.uuid4().hex + "0" * 8
        self.port = free_port()

    def write(self, primary: Server, replicas: list[Server], others: list[Watcher]) -> None:
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", f"unixsocket {self.folder / 's.sock'}"]
        lines += [f"sentinel myid {self.id}", f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}"]
        lines += [f"sentinel failover-timeout {SERVICE} {GIVE_UP}"]
        lines += [f"sentinel known-replica {SERVICE} 127.0.0.1 {each.port}" for each in replicas]
        lines += [f"sentinel known-sentinel {SERVICE} 127.0.0.1 {each.port} {each.id}" for each in others]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def config(self) -> Path:
        return self.folder / "sentinel.conf"

    def command(self) -> list[str]:
        return [str(redis_server()), str(self.config), "--sentinel"]

    def answers(self) -> bool:
        with self.client() as client:
            return bool(client.text("PING") == "PONG")

    def client(self) -> Client:
        return Client(str(self.folder / "s.sock"))

    def start(self) -> Self:
        """Disable the TILT mode, in which it would do nothing for half a minute after the machine was suspended."""
        super().start()
        with self.client() as client, suppress(hiredis.ReplyError):  # older versions have no such setting
            client.call("SENTINEL", "DEBUG", "tilt-trigger", 3_600_000)
        return self

    def primary_port(self) -> int:
        with self.client() as client:
            return int(client.text("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def sees(self) -> tuple[str, int, int]:
        """The flags of the primary, the number of its live replicas, and of the other live sentinels."""
        with self.client() as client:
            reply = client.text("SENTINEL", "MASTER", SERVICE)
            facts = dict(zip(reply[::2], reply[1::2], strict=True))
            counts = [
                sum("down" not in flags and "disconnected" not in flags for flags in flags_of(client, word))
                for word in ("REPLICAS", "SENTINELS")
            ]
        return facts["flags"], counts[0], counts[1]


class Sentinel(Started):
    """nodes: the three servers, in any role. service: the name of the primary. Processes of each kind can be killed."""

    service = SERVICE

    def __init__(self, *options: str) -> None:
        self.nodes = [Server(*KEEPS, "--repl-diskless-sync-delay", "0", *options) for _ in range(3)]
        self.watchers: list[Watcher] = []

    @property
    def addresses(self) -> list[str]:
        """The addresses of the sentinels."""
        return [f"127.0.0.1:{each.port}" for each in self.watchers]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(self.addresses)}/{SERVICE}/0"

    def start(self) -> Self:
        first, *others = self.nodes
        first.start()
        for other in others:
            other.start("--replicaof", "127.0.0.1", str(first.port))
        self.watchers = [Watcher() for _ in range(3)]
        for each in self.watchers:
            each.write(first, others, [other for other in self.watchers if other is not each])
        for each in self.watchers:
            each.start()
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until the sentinels see each other and all servers, and the replicas are in sync."""
        eventually(self._at_ease, 120, what="sentinels at ease")
        eventually(lambda: followers(self.primary) == 2, 60, what="replicas that follow")

    def _at_ease(self) -> bool:
        seen = [each.sees() for each in self.watchers]
        assert seen == [("master", 2, 2)] * len(seen), seen
        return True

    @property
    def primary(self) -> Server:
        """The primary, once all sentinels agree on it and it has that role."""
        return eventually(lambda: self._agreed() or None, 60, what="one primary for all sentinels")

    def failover(self, *, back: bool = True) -> Server:
        """SIGKILL the primary. Returns the new one once all sentinels agree. back: restart the old one as a replica."""
        old = self.primary
        self._down_after(QUICK)
        try:
            old.kill()
            new = eventually(lambda: self._agreed(old), 120, what="another primary for all sentinels")
        finally:
            self._down_after(DOWN_AFTER)
        if back:
            self.bring_back(old)
        return new

    def bring_back(self, node: Server, *, as_replica: bool = True) -> None:
        """Restart it. as_replica=False: it considers itself the primary, as after a partition, until corrected."""
        node.start(*(("--replicaof", "127.0.0.1", str(self.primary.port)) if as_replica else ()))
        if as_replica:
            self.settled()

    def _down_after(self, ms: int) -> None:
        for each in self.watchers:
            with each.client() as client:
                client.call("SENTINEL", "SET", SERVICE, "down-after-milliseconds", ms)

    def _agreed(self, but: Server | None = None) -> Server | None:
        ports = {each.primary_port() for each in self.watchers}
        found = [node for node in self.nodes if {node.port} == ports and node is not but and node.process]
        return found[0] if found and role(found[0]) == "master" else None

    def empty(self) -> None:
        with self.primary.client() as client:
            client.call("FLUSHALL")

    def stop(self) -> None:
        for watcher in self.watchers:
            watcher.stop()
        for node in self.nodes:
            node.stop()


def flags_of(client: Client, what: str) -> list[str]:
    found = [dict(zip(each[::2], each[1::2], strict=True)) for each in client.text("SENTINEL", what, SERVICE)]
    return [each["flags"] for each in found]


def role(node: Server) -> str:
    with node.client() as client:
        return str(client.text("ROLE")[0])


def followers(node: Server) -> int:
    """The number of replicas that are in sync and connected."""
    with node.client() as client:
        return sum("state=online" in line for line in client.text("INFO", "replication").splitlines())
