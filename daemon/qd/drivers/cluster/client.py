"""A client of a cluster: one connection to each server; each command goes to the server that has its key.

    call, call_many, exchange    grouped by server and written to all servers before any reply is read
    SCAN                         over all servers, one after the other
    MOVED, ASK                   followed: a server that redirects has executed nothing, so nothing runs twice
    TRYAGAIN                     retried for a while: a slot is moving from one server to another
    an unreachable server        ConnectionLost for its keys only

A command without a key goes to the server that has the ticks of the schedule, whose clock all hosts share. keyspace.py
decides which calls a script becomes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qd.drivers.base import Patience
from qd.drivers.cluster.nodes import Names, Node, Nodes, slot_of
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Script, checked
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.protocol import evalsha, is_unknown, packed, with_refusals, with_text
from qd.drivers.types import LateAnswer
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

ROUNDS = 16  # redirections that one call follows
PATIENCE = 1.0  # maximum seconds to wait for a slot that is moving
STEP = (0.001, 0.05)  # seconds between two tries, the first and the longest pause
TORN = "attempted to access a non local key"  # the slot of a key moved to another server during the step

Sent = dict[int, tuple[int, tuple[bytes, ...]]]
"""Index of an item -> its slot, and the commands to send: ASKING comes before a command that an ASK has redirected."""


class Item(NamedTuple):
    """A packed command and its slot. script: the script that it calls by hash."""

    slot: int
    command: bytes
    script: Script | None = None


def is_redirection(error: Exception) -> bool:
    text = str(error)
    return text.startswith(("MOVED ", "ASK ")) or "TRYAGAIN" in text or TORN in text


Called = tuple[str, tuple[str, ...], tuple[Arg, ...]]
"""A script call that was collected instead of sent: name, keys and arguments."""

KEYLESS = ("TIME", "PING", "ACL", "CLIENT", "INFO", "CONFIG", "SCRIPT", "CLUSTER", "EVAL")


class BeatState:
    """What a keeper remembers between beats. The keys of the dicts are addresses of servers, but of `cursors`."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}  # since when a server has answered without interruption (monotonic)
        self.stamps: dict[str, float] = {}  # its clock at the last beat
        self.now = 0.0  # the shared clock at the last beat
        self.control: tuple[Any, Any] = (b"", b"")  # restart and down, as last read
        self.cursors: dict[str, str] = {}
        self.late_answers: list[LateAnswer] = []  # see taken_late_answers
        self.away: dict[str, str] = {}  # servers that did not answer the last beat -> error

    def until(self, place: str, until: float, lease: float) -> float:
        """The last moment of that server's clock at which leases may be reclaimed there, 0 for never."""
        since = self.since.get(place)
        if not until or since is None or time.monotonic() - since < lease / 3 + 2:
            return 0.0
        return self.stamps[place] + until - self.now

    def taken_late_answers(self) -> tuple[LateAnswer, ...]:
        """Answers left by workers that this connection has executed since the last call."""
        late_answers, self.late_answers = tuple(self.late_answers), []
        return late_answers

    def note_reply(self, place: str, stamp: float | None, gap: float) -> None:
        """stamp: server time, None if it did not answer. gap: a longer pause between two beats is an interruption (0:
        unknown)."""
        if stamp is None:
            self.since.pop(place, None)
            return
        if gap and stamp - self.stamps.get(place, stamp) > gap:
            self.since.pop(place, None)
        self.since.setdefault(place, time.monotonic())
        self.stamps[place] = stamp


class ClusterClient(Patience):
    """Belongs to one thread of one process. prefix: of all names."""

    def __init__(
        self, url: str, prefix: str = "", *, name: str = "", connect_timeout: float = 5.0, timeout: float = 5.0
    ) -> None:
        self.names = Names(prefix)
        self._name = name
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.nodes = Nodes(url, self.open)
        self.clock = self.names.slot(prefix + keys.TICKS)
        self.beat_state = BeatState()
        self.skips = False  # True: SCAN skips unreachable servers, for callers that only read
        self.left: list[Called] | None = None  # a list: collect answers here instead of sending them

    def open(self, url: str) -> RedisConnection:
        made = RedisConnection(url, name=self._name, connect_timeout=self.connect_timeout, timeout=self.timeout)
        if self.about is not None:
            made.on_progress(self.about)
        return made

    def away(self) -> dict[str, str]:
        """Nodes that do not answer, each with its error, while others do. Empty if all answer, or none."""
        try:
            nodes = self.nodes.primaries()
        except (ConnectionLost, ServerRefused):
            return {}
        found = {node.place: node.why for node in nodes if node.resting}
        return found if len(found) < len(nodes) else {}

    def vacates(self, record: str) -> bool:
        """Whether an effect can free the places in this record later. Not for a borrowed record, where all is one slot."""
        return not self.names.is_borrowed(record)

    @property
    def place(self) -> str:
        return f"cluster {self.nodes.place}"

    @property
    def stranger(self) -> str:
        return f"a server of the cluster at {self.nodes.place} does not reply as Redis does"

    # -- for each of its connections

    def on_progress(self, call: Callable[[float], None]) -> None:
        super().on_progress(call)
        for node in self.nodes:
            node.connection.on_progress(call)

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        for node in self.nodes:
            node.connection.patience(connect, answer)

    def close(self) -> None:
        for node in self.nodes:
            node.connection.close()

    # -- commands

    def call(self, *args: Arg) -> Any:
        command = str(args[0]).upper()
        if command == "SCAN":
            return self._scan(args)
        if command == "MGET":
            return self._get_each(args[1:])
        return self.send(self._item(args))

    def _get_each(self, names: Sequence[Arg]) -> list[bytes | None]:
        """MGET, but with one call per key, since the keys may be in several slots."""
        replies = self.call_many([("GET", name) for name in names])
        mistyped = [isinstance(reply, Exception) and "WRONGTYPE" in str(reply) for reply in replies]
        return checked([None if wrong else reply for wrong, reply in zip(mistyped, replies, strict=True)])

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Raises ConnectionLost if a server is unreachable; the others have executed their commands."""
        items = list[Item]()
        for command in commands:
            item = self._item(command)
            if items and command[0] == "TIME":
                item = Item(items[-1].slot, item.command)  # the clock of the previous command's server
            items.append(item)
        return whole(self.exchange(items))

    def _scan(self, args: Sequence[Arg]) -> list[Any]:
        """SCAN over all servers, one after the other. Returns the next cursor, b"0" at the end, and the caller's names. The
        cursor includes the index of the server: `2:1234`."""
        number, _, cursor = text_of(args[1]).rpartition(":")
        place = int(number or 0)
        nodes = sorted(self.nodes.primaries(), key=lambda node: node.place)
        if place >= len(nodes):
            return [b"0", []]
        try:
            following, names = nodes[place].ready().call(args[0], cursor, *args[2:])
        except ConnectionLost as error:
            nodes[place].note_error(error)
            if not self.skips:
                raise
            following, names = b"0", []
        original = [self.names.original(name.decode("utf-8", "surrogateescape")) for name in names]
        if following == b"0":
            place += 1
        found = [name.encode("utf-8", "surrogateescape") for name in original if name is not None]
        return [b"0" if place >= len(nodes) else b"%d:%b" % (place, following), found]

    def _item(self, args: Sequence[Arg]) -> Item:
        """args: with the caller's names. If there are several keys (BLPOP), the first one decides the slot."""
        command = str(args[0]).upper()
        if command in KEYLESS:
            return Item(self.clock, packed(args))
        real, slot = self.names.placed(args[1].decode() if isinstance(args[1], bytes) else str(args[1]))
        return Item(slot, packed((args[0], real, *args[2:])))

    # -- packed commands, with real names of keys

    def at(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Item:
        """A script whose keys are all in one slot."""
        return Item(slot_of(names[0]), evalsha(script, names, args), script)

    def plain(self, command: str, name: str, *args: Arg) -> Item:
        """A command on one key."""
        return Item(slot_of(name), packed((command, name, *args)))

    def pop(self, name: str, seconds: float) -> bool:
        real, slot = self.names.placed(name)
        for _ in range(ROUNDS):
            node = self.nodes.of(slot)
            try:
                return node.ready().pop(real, seconds)
            except ServerRefused as error:
                if not str(error).startswith("MOVED "):
                    raise
                self.nodes.note_moved(slot, self.nodes.at(str(error).split(" ")[2], node.place))
        return False

    # -- to the servers

    def send(self, item: Item) -> Any:
        """One command. Raises an error reply."""
        return self.evaluate(*item)

    def evaluate(self, slot: int, command: bytes, script: Script | None = None) -> Any:
        """One packed command, the fast way: usually the server has the slot and knows the script."""
        node = self.nodes.of(slot)
        connection = node.connection
        try:
            if not connection.connected:
                node.ready()
            connection.send(command)
            return connection.receive()
        except ServerRefused as error:
            if not (is_unknown(error) or is_redirection(error)):
                raise
        except ServerBusy as error:
            if not is_redirection(error):
                self.nodes.stale = True
                raise
        except ConnectionLost as error:
            self.nodes.stale = True
            node.note_error(error)
            raise
        (reply,) = self.exchange([Item(slot, command, script)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def exchange(self, items: Sequence[Item]) -> list[Any]:
        """All replies. Errors, also those of unreachable servers, are exceptions in the list."""
        replies: list[Any] = [None] * len(items)
        pending: Sent = {place: (item.slot, (item.command,)) for place, item in enumerate(items)}
        targets = dict[int, Node]()
        until, pause = time.monotonic() + min(PATIENCE, self.timeout), STEP[0]
        for _ in range(ROUNDS):
            self._round(pending, targets, replies)
            again, waits = self._again(items, replies, pending, targets)
            if not again or (waits and time.monotonic() > until):
                break
            if waits:
                time.sleep(pause)
                pause = min(STEP[1], pause * 2)
            pending = again
        for place, reply in enumerate(replies):
            if isinstance(reply, ServerRefused) and is_redirection(reply):
                where = f"slot {items[place].slot} of the cluster at {self.nodes.place}"
                replies[place] = ServerBusy(f"{where} is moving to another server: {reply}")
        return [with_refusals(reply) for reply in replies]

    def _round(self, pending: Sent, targets: dict[int, Node], replies: list[Any]) -> None:
        """Write to all servers, then read from all. targets: the server of each item; an item with ASKING keeps its own."""
        groups: dict[Node, list[int]] = {}
        for place, (slot, commands) in pending.items():
            try:
                if len(commands) == 1:
                    targets[place] = self.nodes.of(slot)
                groups.setdefault(targets[place], []).append(place)
            except (ConnectionLost, ServerRefused) as error:
                replies[place] = error
        written = []
        for node, places in groups.items():
            try:
                node.ready().write_all([part for place in places for part in pending[place][1]])
                written.append(node)
            except (ConnectionLost, ServerRefused) as error:
                self._broke(node, places, replies, error)
        for node in written:
            try:
                for place in groups[node]:
                    replies[place] = node.connection.read_all(len(pending[place][1]))[-1]
            except ConnectionLost as error:
                at = groups[node].index(place)
                self._broke(node, groups[node][at:], replies, error)

    def _broke(self, node: Node, places: Sequence[int], replies: list[Any], error: Exception) -> None:
        self.nodes.stale = True
        node.note_error(error)
        for place in places:
            replies[place] = error

    def _again(
        self, items: Sequence[Item], replies: list[Any], sent: Sent, targets: dict[int, Node]
    ) -> tuple[Sent, bool]:
        """The items that no server has executed and that must be sent again, and whether to wait first."""
        again: Sent = {}
        waits = False
        for place, (slot, commands) in sent.items():
            reply, item = replies[place], items[place]
            if not isinstance(reply, ServerRefused | ServerBusy):
                continue
            if is_unknown(reply) and item.script is not None:
                again[place] = slot, (*commands[:-1], with_text(item.script, commands[-1]))
            elif str(reply).startswith("MOVED "):
                self.nodes.note_moved(slot, self.nodes.at(str(reply).split(" ")[2], targets[place].place))
                again[place] = slot, commands[-1:]
            elif str(reply).startswith("ASK "):
                targets[place] = self.nodes.at(str(reply).split(" ")[2], targets[place].place)
                again[place] = slot, (packed(("ASKING",)), commands[-1])
            elif "TRYAGAIN" in str(reply):
                again[place], waits = (slot, commands[-1:]), True
            elif isinstance(reply, ServerBusy):
                self.nodes.stale = True  # it is a replica now, or separated from the others
            elif TORN in str(reply):
                replies[place] = ConnectionLost(f"a slot moved to another server in the middle of a step: {reply}")
        return again, waits


def text_of(value: Arg) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def whole(replies: list[Any]) -> list[Any]:
    """Raises ConnectionLost if a server was unreachable, so that a caller cannot mistake the other replies for all."""
    for reply in replies:
        if isinstance(reply, ConnectionLost) and not isinstance(reply, ServerBusy):
            raise reply
    return replies
