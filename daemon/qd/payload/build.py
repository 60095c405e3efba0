"""A payload as it is pushed. Keys, order and escapes are those of Laravel 13 (Queue/Queue.php and Queue/RedisQueue.php,
createPayload).

A payload with holes: what is the same in every payload of a plan is written once. route.py fills it in.

payload.make stays the only one that knows the keys: from the second payload on, what it made once is cut at the five
values that stand nowhere else in it, and filled with others.

What a job is called: a version 4 uuid, and an id of 32 letters and digits, as Laravel's. Both are made of random bytes,
which the kernel is asked for each time: a forked child must not repeat its parent's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring as quoted
from math import ceil
from struct import Struct
from typing import Any, NamedTuple

from qd.errors import ArgumentError
from qd.payload.format import LIMIT, LONGEST, NO_DATA, Payload, Relations, written

_HEAD = (
    '{"uuid":%s,"displayName":%s,"job":%s,"maxTries":%s,"maxExceptions":%s,"failOnTimeout":%s,"backoff":%s,"timeout":%s,'
    '%s"data":'
)
_OWN = frozenset(Payload.__struct_fields__)
OWN_KEYS = _OWN | {"tags"}


def make(
    job: str,
    data: bytes,
    *,
    uuid: str | None = None,
    id: str | None = None,
    display: str | None = None,
    max_tries: int | None = None,
    max_exceptions: int | None = None,
    fail_on_timeout: bool = False,
    backoff: Sequence[float] | None = None,
    timeout: float | None = None,
    retry_until: float | None = None,
    delete_when_missing: bool | None = None,
    created_at: int,
    extra: Mapping[str, object] | None = None,
) -> bytes:
    """The bytes that are pushed. `data` is JSON text and stands in them as it is; None is "not said".

    `timeout` and `retry_until` travel as whole seconds, rounded up: PHP reads no others. `extra` (tags, ...) stands
    where Laravel's hooks put theirs. `delay` is always null: Laravel 13 takes it for a backoff. Raises ArgumentError.
    """
    if not job:
        raise ArgumentError("a job needs a name")
    head = _HEAD % (
        quoted(uuid or new_uuid()),
        quoted(display or job.partition("@")[0]),
        quoted(job),
        _whole(max_tries),
        _whole(max_exceptions),
        "true" if fail_on_timeout else "false",
        _waits(backoff),
        _whole(timeout),
        ("" if retry_until is None else f'"retryUntil":{_whole(retry_until)},')
        + ("" if delete_when_missing is None else f'"deleteWhenMissingModels":{str(delete_when_missing).lower()},'),
    )
    tail = f',"createdAt":{created_at}{_more(extra)},"id":{quoted(id or new_id())},"attempts":0,"delay":null}}'
    return _bytes(head) + (data or NO_DATA) + _bytes(tail)


_BEHIND = len(',"id":""' + ',"attempts":0,"delay":null}')


def tied(body: bytes, id: str, ties: Relations) -> bytes:
    """The payload `body`, which `make` has made with this id, with what it is tied to in front of that."""
    at = len(body) - len(id) - _BEHIND
    return body[:at] + written(ties) + body[at:]


def added(body: bytes, id: str, more: Mapping[str, object]) -> bytes:
    """The same with keys of the app's there. Raises ArgumentError."""
    at = len(body) - len(id) - _BEHIND
    return body[:at] + _bytes(_more(more)) + body[at:]


def _whole(number: float | None) -> str:
    if number is None:
        return "null"
    if not -LIMIT <= number <= LIMIT:
        raise ArgumentError(f"{number} is too large a number for a payload")
    return str(ceil(number))


def _waits(backoff: Sequence[float] | None) -> str:
    return f'"{",".join([_plain(wait) for wait in backoff])}"' if backoff else "null"


def _plain(number: float) -> str:
    """A wait as PHP and `backoffs` read it: no exponent, no more than milliseconds."""
    if not 0 <= number <= LONGEST:
        raise ArgumentError(f"a backoff of {number} seconds cannot be (a number of seconds, 0 or more)")
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _more(extra: Mapping[str, object] | None) -> str:
    if not extra:
        return ""
    if taken := _OWN.intersection(extra):
        raise ArgumentError(f"the payload key '{min(taken)}' is taken; name the extra one otherwise")
    try:
        return "," + json.dumps(extra, ensure_ascii=False, separators=(",", ":"), allow_nan=False)[1:-1]
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"the extra payload keys {', '.join(extra)} are no JSON: {error}") from None


def _bytes(text: str) -> bytes:
    """As json_encode with JSON_UNESCAPED_UNICODE writes it: the slash escaped, and the two line ends of JavaScript."""
    if "/" in text:
        text = text.replace("/", "\\/")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{error.object[error.start : error.end]!r} in a payload cannot be sent: no Unicode"
        ) from None
    if b"\xe2\x80" in encoded:
        encoded = encoded.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return encoded


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
