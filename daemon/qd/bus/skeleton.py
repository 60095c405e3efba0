"""A payload with holes: what is the same in every payload of a plan is written once. route.py fills it in.

payload.make stays the only one that knows the keys: from the second payload on, what it made once is cut at the five
values that stand nowhere else in it, and filled with others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from qd.payload import new_pair


class Mould(NamedTuple):
    """What stands around uuid, data and id in the payloads of one second. moment: created_at and retry_until."""

    moment: tuple[int, int | None]
    head: bytes
    before_data: bytes
    before_id: bytes
    tail: bytes


class Skeleton:
    """`make` is payload.make with everything given but the arguments of `filled`. expires: there is a retryUntil."""

    def __init__(self, make: Callable[..., bytes], expires: bool) -> None:
        self._make = make
        self._expires = expires
        self._used = False
        self._pieces: list[bytes] = []
        self._mould: Mould | None = None

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
        mould = self._mould
        if mould is None or mould.moment != (created_at, retry_until):
            mould = self._mould = self._moulded(created_at, retry_until)
        _, head, before_data, before_id, tail = mould
        return b"".join((head, uuid.encode(), before_data, data, before_id, id.encode(), tail))

    def _moulded(self, created_at: int, retry_until: int | None) -> Mould:
        pieces = self._pieces or self._cut()
        if retry_until is None:
            head, before_data, before_created, before_id, tail = pieces
        else:
            head, before_until, before_data, before_created, before_id, tail = pieces
            before_data = b"%b%d%b" % (before_until, retry_until, before_data)
        before_id = b"%b%d%b" % (before_created, created_at, before_id)
        return Mould((created_at, retry_until), head, before_data, before_id, tail)

    def _cut(self) -> list[bytes]:
        (uuid, id), data = new_pair(), os.urandom(16).hex()
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
