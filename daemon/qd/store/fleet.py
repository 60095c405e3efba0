"""Orders of operators for a part of the fleet: the hash qd:fleet of the control connection.

    pause:job:NAME     no worker runs this job        pause:host:H, pause:pool:P   workers there take no job
    restart:host:H, restart:pool:P                    as qd:restart, for masters there
    scale:POOL                                        how many workers each of its masters has

`qd pause`, `resume`, `restart` and `scale` write here. Keepers read it with each report, `qd status` and `qd why` too.
Pauses and restarts have the values of controls.py. A pause that is over and a restart of yesterday stay until
the next order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, get_args

from qd.drivers.keyspace import keys
from qd.store.base import Store
from qd.store.controls import Pause, Restart, new_pause, read_pause, read_restart, restart_text
from qd.store.schedule import over

OLD = 86400.0  # seconds after which every master has seen a restart or scale
MOST = 10  # paused jobs, which the scoreboard has room for
Kind = Literal["job", "host", "pool"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Target(NamedTuple):
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Scale(NamedTuple):
    """at: unix seconds by the store's clock."""

    workers: int
    at: float


@dataclass(frozen=True)
class Fleet:
    pauses: Mapping[Target, Pause] = field(default_factory=dict)
    restarts: Mapping[Target, Restart] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)

    def jobs(self) -> list[str]:
        """The paused jobs."""
        return sorted(target.name for target in self.pauses if target.kind == "job")[:MOST]


def read(store: Store, now: float | None = None) -> Fleet:
    """now: by the store's clock, which is read if it is not given."""
    fields = store.fields(keys.FLEET)
    return read_fields(fields, store.now() if now is None and fields else now or 0.0)


def read_fields(fields: Mapping[str, bytes], now: float) -> Fleet:
    pauses, restarts, scales = dict[Target, Pause](), dict[Target, Restart](), dict[str, Scale]()
    for name, raw in sorted(fields.items()):
        what, _, rest = name.partition(":")
        kind, _, of = rest.partition(":")
        target = next((Target(each, of) for each in KINDS if each == kind), None)
        if what == "scale":
            workers, _, at = raw.decode("utf-8", "replace").partition(" ")
            stamp = read_restart(at.encode())
            if workers.isdecimal() and stamp is not None:
                scales[rest] = Scale(int(workers), stamp.at)
        elif what == "pause" and target is not None:
            note = read_pause(raw)
            if not over(note, now):
                pauses[target] = note
        elif what == "restart" and target is not None and (stamp := read_restart(raw)) is not None:
            restarts[target] = stamp
    return Fleet(pauses, restarts, scales)


def pause(store: Store, target: Target, *, by: str, reason: str = "", seconds: float | None = None) -> Pause:
    """Obeyed from the next beat of each keeper on, within about a second."""
    note = new_pause(store, by, reason, seconds)
    _put(store, f"pause:{target.kind}:{target.name}", json.dumps(asdict(note)))
    return note


def resume(store: Store, target: Target) -> Pause | None:
    """Returns the pause; None: it was not paused."""
    (raw,) = store.step("hash_take", [keys.FLEET], f"pause:{target.kind}:{target.name}")
    return None if raw is None else read_pause(raw)


def restart(store: Store, target: Target, *, rolling: bool = False) -> Restart:
    stamp = Restart(round(store.now(), 6), rolling)
    _put(store, f"restart:{target.kind}:{target.name}", restart_text(stamp))
    return stamp


def scale(store: Store, pool: str, workers: int) -> None:
    _put(store, f"scale:{pool}", f"{workers} {restart_text(Restart(round(store.now(), 6)))}")


def _put(store: Store, name: str, value: str) -> None:
    """Also deletes what is over."""
    fields, now = store.fields(keys.FLEET), store.now()
    known = read_fields(fields, now)
    kept = {f"pause:{kind}:{of}" for kind, of in known.pauses}
    kept |= {f"restart:{kind}:{of}" for (kind, of), stamp in known.restarts.items() if now - stamp.at < OLD}
    kept |= {f"scale:{pool}" for pool, scale in known.scales.items() if now - scale.at < OLD}
    if gone := [each for each in fields if each not in kept and each != name]:
        store.step("hash_take", [keys.FLEET], *gone)
    store.step("hash_put", [keys.FLEET], name, value)
