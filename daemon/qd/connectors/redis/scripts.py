"""The .lua files beside this one, read once a process, and how they are called.

A script is sent by its hash. A server that does not know it (SCRIPT FLUSH, a restart, a failover) has not run anything,
so it is sent again with its text, which the server then keeps; that is the only repetition in this folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from qd.connectors.redis.wire import Arg, Wire, packed, packed_items
from qd.errors import ServerRefused

EFFECTS = ("due.lua", "keep.lua", "batch.lua", "effects.lua")
PARTS = {  # every other script is its own file
    "turn": ("unit.lua", "pick.lua", "failed.lua", "tied.lua", "turn.lua"),
    "batch_add": ("due.lua", "batch.lua", "batch_add.lua"),
    **{f"keyed_{each}": ("due.lua", "keyed.lua", f"keyed_{each}.lua") for each in ("send", "cancel", "move", "due")},
    "later": ("due.lua", "later.lua"),
    "unique": ("due.lua", "single.lua", "unique.lua"),
    "tick": ("due.lua", "keyed.lua", "single.lua", "tick.lua"),
    "ack": (*EFFECTS, "ack.lua"),
    "release": (*EFFECTS, "release.lua"),
    "drop": (*EFFECTS, "drop.lua"),
    "bury": (*EFFECTS, "failed.lua", "bury.lua"),
    "retry": ("failed.lua", "retry.lua"),
    "aged": ("failed.lua", "aged.lua"),
    "forget": ("failed.lua", "forget.lua"),
    "adopt": ("failed.lua", "adopt.lua"),
    "lock_take": ("line.lua", "lock_take.lua"),
    "lock_give": ("line.lua", "lock_give.lua"),
    "admit": ("window.lua", "admit.lua"),
    "admit_left": ("window.lua", "admit_left.lua"),
}


class Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.by_hash = packed_items(("EVALSHA", self.sha))
        self.by_text = packed_items(("EVAL", text))

    def call(self, wire: Wire, keys: Sequence[str], *args: Arg) -> Any:
        return self.send(wire, packed(("EVALSHA", self.sha, len(keys), *keys, *args)))

    def send(self, wire: Wire, command: bytes) -> Any:
        """Send a packed EVALSHA of this script, with its text when the server does not have it."""
        wire.send(command)
        try:
            return wire.receive()
        except ServerRefused as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        wire.send(command.replace(self.by_hash, self.by_text, 1))
        return wire.receive()


@cache
def script(name: str) -> Script:
    folder = Path(__file__).parent
    return Script("\n".join([(folder / part).read_text() for part in PARTS.get(name, (f"{name}.lua",))]))
