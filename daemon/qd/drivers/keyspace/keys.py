"""Every key qd writes. Only this file builds key names; the connection's prefix is added to each.

On a cluster the keys of a queue, of a batch and of the ticks have braces (cluster/nodes.py). A queue has three more keys
there, a batch and the ticks one each: cluster/deferred.py.
"""
# docs/reference/keys.md has one line for each: its type, what is in it, who deletes it and what bounds it.

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from qd.options.kinds import QUEUE_SUFFIXES

RESTART = "qd:restart"
DOWN = "qd:down"
MASTERS = "qd:masters"
CANCEL = "qd:cancel"
EVENTS = "qd:events"
ALERTS = "qd:alerts"
ALERTS_BY = "qd:alerts:by"
FLEET = "qd:fleet"
TICKS = "qd:ticks"
OUTBOX = "qd:outbox"
OF = "\x1f"
FENCE = ":turn"  # ending of a field of the owners that is no owner
SCHEDULE_LAST = "qd:schedule:last"
SCHEDULE_SKIPPED = "qd:schedule:skipped"
SCHEDULE_PAUSED = "qd:schedule:paused"


def is_queue(name: str) -> bool:
    """Whether no key of a queue of this name belongs to another queue."""
    return not name.endswith(QUEUE_SUFFIXES)


def _of(start: str, ending: str = "") -> Callable[[str | int], str]:
    def key(name: str | int) -> str:
        return f"{start}{name}{ending}"

    return key


ready = _of("queues:")
(
    delayed, reserved, notify, owners, paused, failed, failed_at, deaths, keyed, taken, holding, ended, sending, sender,
    elsewhere, resent, suspects,
) = map(partial(_of, "queues:"), QUEUE_SUFFIXES)  # fmt: skip

TYPES: Mapping[Callable[[str | int], str], bytes] = {
    ready: b"list", suspects: b"list", notify: b"list", delayed: b"zset", reserved: b"zset", owners: b"hash",
    failed: b"hash", failed_at: b"zset",
}  # fmt: skip
"""Of the keys of a queue that workers, keepers and commands read."""
SHARED_TYPES: Mapping[str, bytes] = {
    MASTERS: b"hash", RESTART: b"string", DOWN: b"string", FLEET: b"hash", CANCEL: b"hash", TICKS: b"hash",
    EVENTS: b"list",
}  # fmt: skip


# On a cluster only: next to the key of a queue, a batch or the ticks (`ends`), and next to a ready list.
ends = _of("", ":ends")
seen_ids = _of("", ":seen")
cancelled = _of("", ":cancel")
ON_CLUSTER = (ends(""), seen_ids(""), cancelled(""))
"""Endings of keys that exist on a cluster only."""

unique = _of("qd:unique:")
kept = _of("qd:job:")  # the stored result of a job
stream = _of("qd:job:", ":events")
steps = _of("qd:job:", ":steps")
batch = _of("qd:batch:")
batch_pending = _of("qd:batch:", ":pending")
batch_failed = _of("qd:batch:", ":failed")
lock = _of("qd:lock:")
slots = _of("qd:slots:")
places_of = _of("qd:places:")  # names of the locks and slots that a job holds
errors = _of("qd:errors:")
rest = _of("qd:rest:")
overlap = _of("qd:overlap:")

# The braces keep the keys of the statistics, of a rate and of an app.lock in one slot of a cluster.
STATS_TOTAL = "qd:{stats}:total"
STATS_NUMBERS = "qd:{stats}:numbers"
stats_hour = _of("qd:{stats}:h:")
stats_minute = _of("qd:{stats}:m:")
stats_depths = _of("qd:{stats}:q:")  # of a minute
starts = _of("qd:rate:{", "}:starts")
turns = _of("qd:rate:{", "}:turns")
due = _of("qd:rate:{", "}:due")
mutex = _of("qd:mutex:{", "}")
fence = _of("qd:mutex:{", "}:fence")
line = _of("qd:mutex:{", "}:line")
seen = _of("qd:mutex:{", "}:seen")


def wake(name: str, waiter: str) -> str:
    return f"{mutex(name)}:wake:{waiter}"


def kept_text(queue: str, id: str) -> str:
    return f"qd:message:{queue}:{id}"


def of_host(host: str, entry: str) -> str:
    """The name of an on_every_host entry on one host, in qd:ticks and qd:overlap. Names of entries do not contain OF."""
    return f"{host}{OF}{entry}"


def entry_of_host(name: str) -> str:
    """The entry that `of_host` was given; "" for another name."""
    return name.partition(OF)[2]


def host_of(name: str) -> str:
    """The host that `of_host` was given; "" for another name."""
    return name.partition(OF)[0] if OF in name else ""
