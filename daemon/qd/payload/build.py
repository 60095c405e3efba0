"""Writes payloads. Keys, order and escapes are those of Laravel 13 (createPayload in Queue/Queue.php and RedisQueue.php).

make()              one payload
PayloadTemplate     many payloads of one plan: what make() wrote once, cut at the five values that change
new_uuid, new_id    a version 4 uuid; an id of 32 letters and digits. Random bytes come from the kernel each time,
                    because a forked child must not repeat its parent's
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
from qd.payload.format import LIMIT, LONGEST_TIME, NO_DATA, Payload, Relations, relations_text

_HEAD = (
    '{"uuid":%s,"displayName":%s,"job":%s,"maxTries":%s,"maxExceptions":%s,"failOnTimeout":%s,"backoff":%s,"timeout":%s,'
    '%s"data":'
)
_TAIL_LENGTH = len(',"id":""' + ',"attempts":0,"delay":null}')  # without the id
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
    """The bytes to push. `data` is JSON text, included unchanged. None omits a value or writes null, as Laravel does.

    `timeout` and `retry_until` are rounded up to whole seconds, because PHP reads no fractions. `extra` (tags, ...) goes
    where Laravel's hooks put theirs. `delay` is always null: Laravel 13 reads it as a backoff. Raises ArgumentError.
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


DUE, DUE_LENGTH = b'{"due_ms":', len('{"due_ms":1795851000123,')


def with_due(body: bytes, due_at: float) -> bytes:
    """The payload `body` with the moment (unix seconds) from which it waits, in ms, as the first key. `createdAt` has whole
    seconds."""
    return b'{"due_ms":%d,%b' % (1000 * due_at, body[1:])


def without_due(body: bytes) -> bytes:
    """For a payload that is sent later, by another program."""
    return b"{" + body[DUE_LENGTH:] if body.startswith(DUE) else body


def with_relations(body: bytes, id: str, relations: Relations) -> bytes:
    """The payload `body` that `make` made with this id, with its relations."""
    at = len(body) - len(id) - _TAIL_LENGTH
    return body[:at] + relations_text(relations) + body[at:]


def with_extra(body: bytes, id: str, extra: Mapping[str, object]) -> bytes:
    """The payload `body` that `make` made with this id, with additional keys. Raises ArgumentError."""
    at = len(body) - len(id) - _TAIL_LENGTH
    return body[:at] + _bytes(_more(extra)) + body[at:]


def _whole(number: float | None) -> str:
    if number is None:
        return "null"
    if not -LIMIT <= number <= LIMIT:
        raise ArgumentError(f"the number {number} is too large for a payload")
    return str(ceil(number))


def _waits(backoff: Sequence[float] | None) -> str:
    return f'"{",".join([_plain(wait) for wait in backoff])}"' if backoff else "null"


def _plain(number: float) -> str:
    """A wait as PHP and `Payload.backoffs` read it: no exponent, at most milliseconds."""
    if not 0 <= number <= LONGEST_TIME:
        raise ArgumentError(f"a backoff of {number} seconds is invalid (use a number of seconds, 0 or more)")
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _more(extra: Mapping[str, object] | None) -> str:
    if not extra:
        return ""
    if taken := _OWN.intersection(extra):
        raise ArgumentError(f"the payload key '{min(taken)}' is reserved; rename the additional key")
    try:
        return "," + json.dumps(extra, ensure_ascii=False, separators=(",", ":"), allow_nan=False)[1:-1]
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"the additional payload keys {', '.join(extra)} are not JSON: {error}") from None


def _bytes(text: str) -> bytes:
    """Encode as json_encode does with JSON_UNESCAPED_UNICODE: escapes the slash and the two line ends of JavaScript."""
    if "/" in text:
        text = text.replace("/", "\\/")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        invalid = error.object[error.start : error.end]
        raise ArgumentError(f"{invalid!r} in a payload cannot be sent: not Unicode") from None
    if b"\xe2\x80" in encoded:
        encoded = encoded.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return encoded


class Pieces(NamedTuple):
    """The bytes around uuid, data and id in the payloads of one second. moment: created_at and retry_until."""

    moment: tuple[int, int | None]
    head: bytes
    before_data: bytes
    before_id: bytes
    tail: bytes


class PayloadTemplate:
    """Payloads of one plan. make: payload.make without the arguments of `filled`; expires: payloads have a retryUntil."""

    def __init__(self, make: Callable[..., bytes], expires: bool) -> None:
        self._make = make
        self._expires = expires
        self._used = False
        self._cuts: list[bytes] = []
        self._pieces: Pieces | None = None

    def filled(
        self, data: bytes, uuid: str, id: str, created_at: int, retry_until: int | None, display: str | None = None
    ) -> bytes:
        """A payload. retry_until: not None exactly if `expires`. display: its own display name."""
        if display is not None:
            own: dict[str, Any] = {"uuid": uuid, "id": id, "created_at": created_at, "retry_until": retry_until}
            return self._make(data=data, display=display, **own)
        if not self._used:  # most plans of .using(...) send only once
            self._used = True
            return self._make(data=data, uuid=uuid, id=id, created_at=created_at, retry_until=retry_until)
        pieces = self._pieces
        if pieces is None or pieces.moment != (created_at, retry_until):
            head, *until, before_data, before_created, before_id, tail = self._cuts or self._cut()
            if retry_until is not None:
                before_data = b"%b%d%b" % (until[0], retry_until, before_data)
            before_id = b"%b%d%b" % (before_created, created_at, before_id)
            pieces = self._pieces = Pieces((created_at, retry_until), head, before_data, before_id, tail)
        _, head, before_data, before_id, tail = pieces
        return b"".join((head, uuid.encode(), before_data, data, before_id, id.encode(), tail))

    def _cut(self) -> list[bytes]:
        """Make a payload with random values and cut it at them."""
        (uuid, id), data = new_pair(), os.urandom(16).hex()
        created, until = 10**15 + int.from_bytes(os.urandom(5)), 2 * 10**15 + int.from_bytes(os.urandom(5))
        expires = until if self._expires else None
        rest = self._make(data=data.encode(), uuid=uuid, id=id, created_at=created, retry_until=expires)
        cuts = []
        for value in (uuid, until, data, created, id) if self._expires else (uuid, data, created, id):
            piece, _, rest = rest.partition(str(value).encode())
            cuts.append(piece)
        self._cuts = [*cuts, rest]  # in one step: other threads read it
        return self._cuts


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = bytes(_ALPHABET[i % 62] for i in range(256))  # 190 bits in 32 letters; the bias is negligible
_VARIANT = bytes(0x80 | i & 0x3F for i in range(256))
_FIELDS = Struct("8s4sx3s4s12s")  # of a uuid in hex; x is the version's place
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
    """The uuids and ids of many jobs: one read from the kernel, and part of the work is done for all at once."""
    noise = os.urandom((UUID + ID) * count)
    mixed, letters = bytearray(noise[: UUID * count]), _id(noise[UUID * count :])
    mixed[8::UUID] = mixed[8::UUID].translate(_VARIANT)
    uuids = [(b"%b-%b-4%b-%b-%b" % each).decode() for each in _FIELDS.iter_unpack(mixed.hex().encode())]
    return uuids, [letters[at : at + ID] for at in range(0, len(letters), ID)]


def _uuid(noise: bytes) -> str:
    hexes = noise.hex()
    return f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-{'89ab'[noise[8] >> 4 & 3]}{hexes[17:20]}-{hexes[20:]}"


def _id(noise: bytes) -> str:
    return noise.translate(_LETTERS).decode()
