"""A cluster as one keyspace: a connection to each server, and every command sent to the one that has its key.

    call, call_many, run, run_many     grouped by server, written to all of them before any reply is read
    MOVED, ASK                         followed: a server that redirects has run nothing, so nothing is repeated
    TRYAGAIN                           again for a while: a slot is on its way from one server to another
    a server away                      ConnectionLost for what stands there, and for nothing else

A step (keyspace/scripts) whose keys stand in several slots is no single step here: steps.py has its parts. What has no
key is asked of the server that has the ticks: its clock is the one that all hosts share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qd.connectors.cluster import answers, scanning, steps
from qd.connectors.cluster.beating import Beating
from qd.connectors.cluster.exchange import ROUNDS, Exchange, Item, is_redirection
from qd.connectors.cluster.names import Names, slot_of
from qd.connectors.cluster.nodes import Node, Nodes
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Call, Replies, Script
from qd.connectors.patience import Patience
from qd.connectors.redis.speech import evalsha, is_unknown, packed
from qd.connectors.redis.wire import Wire
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

KEYLESS = ("TIME", "PING", "ACL", "CLIENT", "INFO", "CONFIG", "MULTI", "EXEC", "SCRIPT", "CLUSTER", "EVAL")
SEVERAL = ("MGET", "DEL", "UNLINK", "EXISTS")  # all of their arguments are keys


class ClusterWire(Patience):
    """prefix: what all names begin with. Belongs to one thread of one process."""

    def __init__(
        self, url: str, prefix: str = "", *, name: str = "", connect_timeout: float = 5.0, timeout: float = 5.0
    ) -> None:
        self.names = Names(prefix)
        self._name = name
        self._connect_timeout, self._timeout = connect_timeout, timeout
        self._about: Callable[[float], None] | None = None
        self.nodes = Nodes(url, self._wire)
        self._exchange = Exchange(self.nodes)
        self.clock = self.names.slot(prefix + keys.TICKS)
        self.beating = Beating()
        self.skips = False  # SCAN passes over nodes that are away: for those who only look
        self.left: list[answers.Called] | None = None  # answers collected, not sent

    def _wire(self, url: str) -> Wire:
        made = Wire(url, name=self._name, connect_timeout=self._connect_timeout, timeout=self._timeout)
        made.about = self._about
        return made

    def opened(self, place: str) -> Wire:
        """Another connection to this server."""
        return self._wire(self.nodes.seeds.url(place))

    def away(self) -> dict[str, str]:
        """Nodes that did not answer just now, each with what is wrong, while others do. Empty if all answer, or none."""
        try:
            nodes = self.nodes.primaries()
        except (ConnectionLost, ServerRefused):
            return {}
        found = {node.place: node.why for node in nodes if node.resting}
        return found if len(found) < len(nodes) else {}

    def vacates(self, record: str) -> bool:
        """Whether an effect can free the places in this record later. Those of another connection stand in one slot."""
        return not self.names.is_borrowed(record)

    # -- as each of its connections is

    @property
    def place(self) -> str:
        return f"cluster {self.nodes.place}"

    @property
    def stranger(self) -> str:
        return f"a server of the cluster at {self.nodes.place} answers what no Redis answers"

    @property
    def timeout(self) -> float:
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.patience(self._connect_timeout, seconds)

    @property
    def connect_timeout(self) -> float:
        return self._connect_timeout

    @connect_timeout.setter
    def connect_timeout(self, seconds: float) -> None:
        self.patience(seconds, self._timeout)

    @property
    def about(self) -> Callable[[float], None] | None:
        return self._about

    @about.setter
    def about(self, told: Callable[[float], None] | None) -> None:
        self._about = told
        for node in self.nodes:
            node.wire.about = told

    def patience(self, connect: float, answer: float) -> None:
        self._connect_timeout, self._timeout = connect, answer
        for node in self.nodes:
            node.wire.patience(connect, answer)

    def close(self) -> None:
        for node in self.nodes:
            node.wire.close()

    # -- commands

    def call(self, *args: Arg) -> Any:
        command = str(args[0]).upper()
        if command == "SCAN":
            return scanning.scanned(self, args)
        if command in SEVERAL and len(args) > 2:
            return self._of_several(command, args[1:])
        return self.sent(self._item(args))

    def _of_several(self, command: str, names: Sequence[Arg]) -> Any:
        """One call for each key, for they stand in several slots."""
        single = "GET" if command == "MGET" else command
        replies = self.call_many([(single, name) for name in names])
        for reply in replies:
            if isinstance(reply, Exception) and not (single == "GET" and "WRONGTYPE" in str(reply)):
                raise reply
        if single == "GET":  # as MGET: what is no string is not there
            return [None if isinstance(reply, Exception) else reply for reply in replies]
        return sum(replies)

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Raises ConnectionLost where one of the servers is away; the commands for the others have been run then."""
        if any(command[0] == "MULTI" for command in commands):
            return self._as_one(commands)
        items = list[Item]()
        for command in commands:
            item = self._item(command)
            if items and command[0] == "TIME":
                item = Item(items[-1].slot, item.command)  # of the server that was asked before it
            items.append(item)
        return whole(self.exchange(items))

    def _as_one(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """MULTI ... EXEC on keys of one slot: one after the other, on one connection."""
        slot = next(self.names.slot(str(command[1])) for command in commands if str(command[0]) not in KEYLESS)
        raw = b"".join([self._item(command).command for command in commands])
        for _ in range(ROUNDS):
            node = self.nodes.of(slot)
            replies = node.ready().exchange([raw], len(commands))
            if not (isinstance(replies[-1], Exception) and self._redirected(replies, slot, node)):
                return replies
        raise ServerBusy(f"slot {slot} of the cluster at {self.nodes.place} is on its way to another server")

    def _redirected(self, replies: Sequence[Any], slot: int, node: Node) -> bool:
        for reply in replies:
            word, _, rest = str(reply).partition(" ")
            if isinstance(reply, ServerRefused) and word == "MOVED":
                self.nodes.moved(slot, self.nodes.at(rest.split(" ")[1], node.place))
                return True
        return False

    def _item(self, args: Sequence[Arg]) -> Item:
        """args: with names as everybody says them. Of several keys (BLPOP) the first one tells the slot."""
        command = str(args[0]).upper()
        if command in KEYLESS:
            return Item(self.clock, packed(args))
        real, slot = self.names.placed(args[1].decode() if isinstance(args[1], bytes) else str(args[1]))
        return Item(slot, packed((args[0], real, *args[2:])))

    # -- steps

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        return steps.run(self, script, names, args)

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        return whole(steps.run_many(self, calls)) if calls else []

    def begin_many(self, calls: Sequence[Call]) -> Replies:
        replies = self.run_many(calls)
        return lambda: replies

    def at(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Item:
        """A step whose keys stand in one slot. names: as they are called there."""
        return self.packed(slot_of(names[0]), script, names, args)

    def packed(self, slot: int, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Item:
        return Item(slot, evalsha(script, names, args), script)

    def plain(self, command: str, name: str, *args: Arg) -> Item:
        """A command on a key, as it is called there."""
        return Item(slot_of(name), packed((command, name, *args)))

    def clock_item(self) -> Item:
        return Item(self.clock, packed(("TIME",)))

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        real, slot = self.names.placed(name)
        for _ in range(ROUNDS):
            node = self.nodes.of(slot)
            try:
                return node.ready().pop(real, seconds, wake)
            except ServerRefused as error:
                if not self._redirected([error], slot, node):
                    raise
        return False

    # -- to the servers

    def sent(self, item: Item) -> Any:
        """One command. Raises what was refused."""
        return self.evaluate(*item)

    def evaluate(self, slot: int, command: bytes, script: Script | None = None) -> Any:
        """One packed command, the fast way: as a rule the server has the slot and knows the script."""
        node = self.nodes.of(slot)
        wire = node.wire
        try:
            if not wire.connected:
                node.ready()
            wire.send(command)
            return wire.receive()
        except ServerRefused as error:
            if not (is_unknown(error) or is_redirection(error)):
                raise
        except ServerBusy as error:
            if not is_redirection(error):
                self.nodes.stale = True
                raise
        except ConnectionLost as error:
            self.nodes.stale = True
            node.broke(error)
            raise
        (reply,) = self.exchange([Item(slot, command, script)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def exchange(self, items: Sequence[Item]) -> list[Any]:
        """All replies; what was refused, and what a server that is away was asked, as exceptions in their places."""
        return self._exchange.run(items, self._timeout)


def whole(replies: list[Any]) -> list[Any]:
    """Raises ConnectionLost where a server was away: of the rest nobody may think that it is all."""
    for reply in replies:
        if isinstance(reply, ConnectionLost) and not isinstance(reply, ServerBusy):
            raise reply
    return replies
