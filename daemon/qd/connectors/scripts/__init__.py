"""The steps of qd as .lua files, read once a process. A Redis server runs them itself (redis/wire.py), for a database
they are run beside it (database/keyspace.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd.connectors.keyspace.base import Arg, Keyspace

EFFECTS = ("due.lua", "keep.lua", "batch.lua", "places.lua", "effects.lua")
PARTS = {  # every other script is its own file
    "turn": ("unit.lua", "pick.lua", "failed.lua", "tied.lua", "turn.lua"),
    "batch_add": ("due.lua", "batch.lua", "batch_add.lua"),
    **{f"keyed_{each}": ("due.lua", "keyed.lua", f"keyed_{each}.lua") for each in ("send", "cancel", "move", "due")},
    "later": ("due.lua", "later.lua"),
    "unique": ("due.lua", "single.lua", "unique.lua"),
    "tick": ("due.lua", "keyed.lua", "single.lua", "tick.lua"),
    "once": ("due.lua", "keyed.lua", "batch.lua", "once.lua"),
    **{each: ("due.lua", f"{each}.lua") for each in ("once_over", "ends_left", "report", "tick_apart")},
    **{each: ("due.lua", "batch.lua", f"{each}.lua") for each in ("counted", "batch_aside", "send_apart")},
    "retry_apart": ("due.lua", "failed.lua", "retry_apart.lua"),
    "apart": (*EFFECTS, "apart.lua"),
    "ack": (*EFFECTS, "ack.lua"),
    "release": (*EFFECTS, "release.lua"),
    "drop": (*EFFECTS, "drop.lua"),
    "ended": (*EFFECTS, "ended.lua"),
    "buried": (*EFFECTS, "failed.lua", "buried.lua"),
    "taken": ("tied.lua", "taken.lua"),
    "bury": (*EFFECTS, "failed.lua", "bury.lua"),
    "retry": ("due.lua", "batch.lua", "failed.lua", "retry.lua"),
    "aged": ("failed.lua", "aged.lua"),
    "forget": ("failed.lua", "forget.lua"),
    "adopt": ("failed.lua", "adopt.lua"),
    "lock_take": ("line.lua", "lock_take.lua"),
    "lock_give": ("line.lua", "lock_give.lua"),
    # Where another server keeps the jobs: the answers as they are, and what becomes of the parcel a job came in.
    "parcel_turn": ("unit.lua", "failed.lua", "tied.lua", "parcel.lua", "parcel_turn.lua"),
    "parcel_ack": ("parcel.lua", *EFFECTS, "parcel_open.lua", "ack.lua", "parcel_close.lua"),
    "parcel_release": ("parcel.lua", *EFFECTS, "parcel_open.lua", "release.lua", "parcel_close.lua"),
    "parcel_bury": ("parcel.lua", *EFFECTS, "failed.lua", "parcel_open.lua", "bury.lua", "parcel_close.lua"),
    "parcel_keep": (*EFFECTS, "parcel_keep.lua"),
    "parcel_reclaim": ("parcel.lua", "parcel_reclaim.lua"),
    "outbox": ("tied.lua", "came_through.lua", "outbox.lua"),
    "outbox_leave": ("came_through.lua", "outbox_leave.lua"),
    **{each: ("places.lua", f"{each}.lua") for each in ("hold", "hold_note", "unhold")},
    "admit": ("window.lua", "admit.lua"),
    "admit_left": ("window.lua", "admit_left.lua"),
}


class Script:
    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, space: Keyspace, keys: Sequence[str], *args: Arg) -> Any:
        return space.run(self, keys, args)


@cache
def script(name: str) -> Script:
    folder = Path(__file__).parent
    return Script(name, "\n".join([(folder / part).read_text() for part in PARTS.get(name, (f"{name}.lua",))]))
