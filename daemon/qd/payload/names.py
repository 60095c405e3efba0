"""What a job is called: a version 4 uuid, and an id of 32 letters and digits, as Laravel's. Both are made of random bytes,
which the kernel is asked for each time: a forked child must not repeat its parent's."""

from __future__ import annotations

import os
from struct import Struct

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = bytes(
    _ALPHABET[i % 62] for i in range(256)
)  # 190 bits in 32 of them; the small bias costs none worth counting
_VARIANT = bytes(0x80 | i & 0x3F for i in range(256))
_FIELDS = Struct("8s4sx3s4s12s")  # of a uuid in hex; the x is where the version goes
UUID, ID = 16, 32  # random bytes for each


def new_uuid() -> str:
    return _uuid(os.urandom(UUID))


def new_id() -> str:
    return _id(os.urandom(ID))


def new_pair() -> tuple[str, str]:
    """The uuid and the id of a job."""
    noise = os.urandom(UUID + ID)
    return _uuid(noise[:UUID]), _id(noise[UUID:])


def new_pairs(count: int) -> tuple[list[str], list[str]]:
    """The uuids and the ids of many: one question to the kernel, and some of the work done for all of them together."""
    noise = os.urandom((UUID + ID) * count)
    return _uuids(noise[: UUID * count]), _ids(noise[UUID * count :])


def _uuid(noise: bytes) -> str:
    hexes = noise.hex()
    return f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-{'89ab'[noise[8] >> 4 & 3]}{hexes[17:20]}-{hexes[20:]}"


def _id(noise: bytes) -> str:
    return noise.translate(_LETTERS).decode()


def _uuids(noise: bytes) -> list[str]:
    mixed = bytearray(noise)
    mixed[8::UUID] = mixed[8::UUID].translate(_VARIANT)
    return [(b"%b-%b-4%b-%b-%b" % each).decode() for each in _FIELDS.iter_unpack(mixed.hex().encode())]


def _ids(noise: bytes) -> list[str]:
    letters = _id(noise)
    return [letters[at : at + ID] for at in range(0, len(letters), ID)]
