"""A payload with holes: what is the same in every payload of a plan is written once. route.py fills it in.

payload.make stays the only one that knows the keys: from the second payload on, what it made once is cut at the five
values that stand nowhere else in it, and filled with others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from qd.payload import new_id, new_uuid

SEED = 48  # random bytes that a payload's uuid and id are made of


class Skeleton:
    """`make` is payload.make with everything given but the arguments of `filled`. expires: there is a retryUntil."""

    def __init__(self, make: Callable[..., bytes], expires: bool) -> None:
        self._make = make
        self._expires = expires
        self._used = False
        self._pieces: list[bytes] = []

    def filled(
        self, data: bytes, uuid: str, id: str, created_at: int, retry_until: int | None, display: str | None = None
    ) -> bytes:
        """A payload. retry_until is given exactly where `expires`. display: a name for people of its own."""
        if display is not None:
            own: dict[str, Any] = {"uuid": uuid, "id": id, "created_at": created_at, "retry_until": retry_until}
            return self._make(data=data, display=display, **own)
        if not self._used:  # most plans of .using(...) send once
            self._used = True
            return self._make(data=data, uuid=uuid, id=id, created_at=created_at, retry_until=retry_until)
        pieces = self._pieces or self._cut()
        if retry_until is None:
            head, before_data, before_created, before_id, tail = pieces
        else:
            head, before_until, before_data, before_created, before_id, tail = pieces
            before_data = b"%b%d%b" % (before_until, retry_until, before_data)
        return b"%b%b%b%b%b%d%b%b%b" % (
            head, uuid.encode(), before_data, data, before_created, created_at, before_id, id.encode(), tail
        )  # fmt: skip

    def _cut(self) -> list[bytes]:
        uuid, id, data = new_uuid(os.urandom(SEED)), new_id(os.urandom(SEED)), os.urandom(16).hex()
        created, until = 10**15 + int.from_bytes(os.urandom(5)), 2 * 10**15 + int.from_bytes(os.urandom(5))
        pieces = []
        rest = self._make(
            data=data.encode(), uuid=uuid, id=id, created_at=created, retry_until=until if self._expires else None
        )
        for value in (uuid, until, data, created, id) if self._expires else (uuid, data, created, id):
            piece, _, rest = rest.partition(str(value).encode())
            pieces.append(piece)
        self._pieces = [*pieces, rest]  # in one step: other threads read it
        return self._pieces
