"""What a name is called on a cluster, and which slot it stands in.

All keys of a queue stand in one slot: `queues:NAME:delayed` is `queues:{NAME}:delayed` there, as Laravel 13 has it
(Queue/RedisQueue.php), unless NAME has braces of its own with something in them. So do those of a batch, of errors and
their rest, and those of the ticks. Everything else is a slot of its own.
"""

from __future__ import annotations

import re
from binascii import crc_hqx

from qd.connectors.keyspace.keys import ON_CLUSTER
from qd.errors import ServerRefused
from qd.options import BESIDE

SLOTS = 16384
MOST = 10_000  # names that are remembered
_TAGGED = re.compile(r"\{[^}]+\}")
BORROWED = "{qd:at:"  # where another connection keeps its own, all of it in one slot: connectors/manager.py
_GROUPS = (
    re.compile(r"(?P<kind>qd:batch:)(?P<name>[^:]+)(?P<ending>:\w+)?"),
    re.compile(r"(?P<kind>qd:(?:errors|rest):)(?P<name>.+)(?P<ending>)"),
    re.compile(r"(?P<kind>qd:)(?P<name>ticks)(?P<ending>:\w+)?"),
)
_REAL = re.compile(r"(queues:|qd:(?:(?:batch|errors|rest):)?)\{([^{}]+)\}(.*)", re.DOTALL)


def slot_of(key: str | bytes) -> int:
    """As every server reckons it: CRC16 (XMODEM) of the first {...} that is not empty, or of all."""
    raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    start = raw.find(b"{")
    if start >= 0 and (end := raw.find(b"}", start + 1)) > start + 1:
        raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


class Names:
    """Those below `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._known: dict[str, tuple[str, int]] = {}

    def placed(self, name: str) -> tuple[str, int]:
        """What it is called, and its slot. Raises ServerRefused for a queue that cannot stand there."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            real = self._real(name)
            found = self._known[name] = real, slot_of(real)
        return found

    def real(self, name: str) -> str:
        return self.placed(name)[0]

    def slot(self, name: str) -> int:
        return self.placed(name)[1]

    def is_borrowed(self, name: str) -> bool:
        """Whether it is one of another connection's, which stand together in one slot: steps are steps there, and names are
        as they are everywhere."""
        return name.startswith(BORROWED, len(self.prefix))

    def _real(self, name: str) -> str:
        if not name.startswith(self.prefix) or self.is_borrowed(name):
            return name
        return self.prefix + tagged(name[len(self.prefix) :])

    def said(self, real: str) -> str | None:
        """The name of a key that stands there. None: one that only a cluster has."""
        body = real.removeprefix(self.prefix)
        start = real[: len(real) - len(body)]
        found = _REAL.fullmatch(body)
        if found is None or self.is_borrowed(real):
            return None if body.startswith("queues:") and body.endswith(ON_CLUSTER) else real
        kind, name, ending = found.groups()
        if ending in ON_CLUSTER:
            return None
        its_own = kind == "queues:" and ending not in ("", *BESIDE)  # braces of a queue's own name
        return real if its_own else f"{start}{kind}{name}{ending}"


def tagged(name: str) -> str:
    if name.startswith("queues:"):
        return tagged_queue(name)
    for group in _GROUPS:
        found = group.fullmatch(name)
        if found is not None:
            return f"{found['kind']}{{{found['name']}}}{found['ending'] or ''}"
    return name


def tagged_queue(name: str) -> str:
    queue, ending = split(name)
    if _TAGGED.search(queue):
        return name
    if queue.startswith("}"):
        raise ServerRefused(f"queue '{queue}' cannot stand on a cluster: its name begins with a closing brace")
    return f"queues:{{{queue}}}{ending}"


def split(name: str) -> tuple[str, str]:
    """`queues:mail:delayed`: mail, :delayed."""
    body = name.removeprefix("queues:")
    ending = next((each for each in BESIDE if body.endswith(each)), "")
    return body[: len(body) - len(ending)], ending


def ready_name(names: Names, name: str) -> str:
    """The ready list, as it is called there, of the queue that the key `name` is one of."""
    return names.real(f"{names.prefix}queues:{split(name[len(names.prefix) :])[0]}")
