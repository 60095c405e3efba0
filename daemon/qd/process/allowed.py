"""Which queues are worked on in maintenance mode. The keeper tells it on the scoreboard, workers read it before each job.

H.DOWN   0 no maintenance   1 no queue is worked on   else a digest of the set, and H.ALLOWED on: a digest of each name

Names and not places in a list: workers of a new configuration may have other queues than the keeper of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from qd.process.scoreboard import H, Scoreboard

MOST = 16  # queues that can be allowed
NOTHING = 1


def digest(name: str) -> int:
    """Never 0 or 1."""
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big") | 2


def tell(board: Scoreboard, down: bool, names: Iterable[str]) -> None:
    """The keeper's word. Names beyond MOST are left out."""
    held = sorted(set(names))[:MOST]
    word = 0 if not down else digest("\0".join(held)) if held else NOTHING
    if board.header(H.DOWN) == word:
        return
    if word > NOTHING:
        board.set_header(H.DOWN, NOTHING)  # who looks meanwhile takes nothing
        for at, name in enumerate(held + [""] * (MOST - len(held))):
            board.words[H.ALLOWED + at] = digest(name) if name else 0
    board.set_header(H.DOWN, word)


def read(board: Scoreboard, down: int) -> frozenset[int]:
    """The digests of the queues that are worked on under this H.DOWN. Empty also when it was changed meanwhile."""
    if down <= NOTHING:
        return frozenset()
    held = frozenset(board.words[H.ALLOWED : H.ALLOWED + MOST].tolist())
    return held - {0} if board.header(H.DOWN) == down else frozenset()
