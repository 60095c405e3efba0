"""Writes payloads. Keys, order and escapes are those of Laravel 13 (createPayload in Queue/Queue.php and RedisQueue.php).

make()              one payload
PayloadTemplate     many payloads of one plan: what make() wrote once, cut at the five values that change
new_uuid, new_id    a version 4 uuid; an id of 32 letters and digits. Random bytes come from the kernel each time,
                    because a forked child must not repeat its parent's

A payload that is sent later or again is rewritten. Every other value keeps its bytes, and every key its place.

sent_again(failed payload), as pushed and as if pushed now:
    attempts     0, without the keys that a reserve wrote next to it (reservation.py); the checkpoint stays
    createdAt    now, also due_ms; retryUntil moves with it, so that the job has as much time again
    failures     "COUNT FIRST": how often it has failed permanently, and when first (unix seconds)
chained_payload(job of a chain, batch or catch), when its turn has come:
    createdAt    now, and retryUntil moves with it; due_ms, now or after its delay
    qd           the jobs that follow it
    data         the result of the job before it, as the argument that `qd.takes` names, and a new signature
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring as quoted
from math import ceil
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from qd.errors import ArgumentError, SignatureRefused
from qd.payload.format import FAILURES, LIMIT, LONGEST_TIME, NO_DATA, ChainedJob, Payload, Relations, pairs_of, read
from qd.payload.signing import Signing

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
    jitter: float | None = None,
    timeout: float | None = None,
    retry_until: float | None = None,
    delete_when_missing: bool | None = None,
    version: int = 1,
    created_at: int,
    extra: Mapping[str, object] | None = None,
) -> bytes:
    """The bytes to push. `data` is JSON text, included unchanged. None omits a value or writes null, as Laravel does.
    `timeout` and `retry_until` are rounded up to whole seconds, because PHP reads no fractions. `extra` (tags, ...) goes
    where Laravel's hooks put theirs. `delay` is always null: Laravel 13 reads it as a backoff. Raises ArgumentError."""
    if not job:
        raise ArgumentError("a job needs a name")
    head = _HEAD % (
        quoted(uuid or new_uuid()),
        quoted(display or job.partition("@")[0]),
        quoted(job),
        _whole(max_tries),
        _whole(max_exceptions),
        "true" if fail_on_timeout else "false",
        f'"{",".join([_plain(wait) for wait in backoff])}"' if backoff else "null",
        _whole(timeout),
        ("" if retry_until is None else f'"retryUntil":{_whole(retry_until)},')
        + ("" if jitter is None else f'"jitter":{_plain(jitter)},')
        + ("" if delete_when_missing is None else f'"deleteWhenMissingModels":{str(delete_when_missing).lower()},')
        + ("" if version == 1 else f'"job_version":{version},'),
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


def relations_text(relations: Relations) -> bytes:
    """The relations as part of a payload, after a comma; empty for a job without relations."""
    text = msgspec.json.encode(relations)
    return b"" if text == b"{}" else b',"qd":' + text


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


def id_in_batch(batch: str, place: int) -> str:
    """The id of the job in this place of a batch: so a batch knows the ids of its jobs without a list of them."""
    from hashlib import sha256  # only batches need it

    return _id(sha256(f"{batch} {place}".encode()).digest())


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


_RESERVED = ("crashes", "exceptions", "held", "rsv")
_UNTIL = re.compile(rb'"retryUntil":(\d+)')
_CREATED = re.compile(rb',"createdAt":(\d+)')
_RELATIONS, _ID, _DATA = b',"qd":', b',"id":', b'"data":'


def sent_again(raw: bytes, now: float, failed_at: float | None = None) -> bytes:
    """`raw` as it goes back to its queue. now, failed_at: unix seconds. Raises Malformed if the job can never run."""
    payload = read(raw)
    # timeoutAt: before Laravel 8, without a createdAt. retryUntil without createdAt: its length is unknown
    times = {"timeoutAt": b"null", "retryUntil": b"null"}
    if payload.createdAt is not None:
        times |= {"createdAt": b"%d" % now, "due_ms": b"%d" % (1000 * now)}
        if payload.retryUntil:
            length = min(max(0.0, payload.retryUntil - payload.createdAt), LONGEST_TIME)
            times["retryUntil"] = b"%d" % -(-(now + length) // 1)
    count, first = payload.failed_before
    failures = b""
    if failed_at is not None and (count or not bytes(payload.failures)):  # else the key is another program's
        failures = b'"%d %.3f"' % (count + 1, failed_at if first is None else first)
    return _unreserved(raw, times, failures)


def as_pushed(raw: bytes) -> bytes:
    """`raw` without what reserves and retries have written; its times stay. Raises Malformed."""
    read(raw)
    return _unreserved(raw, {})


def _unreserved(raw: bytes, times: dict[str, bytes], failures: bytes = b"") -> bytes:
    """times: the new values of keys that exist. failures: the new value of this key, which is then the first one."""
    pairs = pairs_of(raw)
    new = {key: value for key, value in ({"attempts": b"0"} | times).items() if key in pairs}
    kept = {key: value for key, value in (pairs | new).items() if key not in _RESERVED}
    if FAILURES.fullmatch(kept.get("failures", b"")):
        del kept["failures"]
    if failures:
        kept = {"failures": failures, **kept}
    return raw if kept == pairs else object_of(kept)


def object_of(pairs: Mapping[str, bytes]) -> bytes:
    """The JSON object with these keys; each value keeps its bytes."""
    return b"{%b}" % b",".join([b"%b:%b" % (msgspec.json.encode(key), value) for key, value in pairs.items()])


Links = tuple[ChainedJob, ...]
Passed = tuple[str, bytes, Signing | None]  # the uuid of a job, its result as JSON, and what signs the next one


def with_argument(data: bytes, name: str, value: bytes) -> bytes:
    """The JSON object `data` with one more entry, in front. The others keep their bytes."""
    return b"{%b:%b%b" % (msgspec.json.encode(name), value, b"," + data[1:] if data[:2] == b'{"' else b"}")


def with_result(text: bytes, payload: Payload, passed: Passed) -> bytes:
    """The payload with the argument that it `takes`. Unchanged, for its worker to report, if that is the result of another
    job, or if its signature does not match: a worker must not sign what no producer has sent."""
    uuid, value, signing = passed
    before, _, name = ((payload.qd and payload.qd.takes) or "").partition(" ")
    if before != uuid:
        return text
    at, data = text.index(_DATA) + len(_DATA), bytes(payload.data)
    whole = with_argument(data, name, value)
    body = text[:at] + whole + text[at + len(data) :]
    if payload.sig is None or signing is None:
        return body
    try:
        signing.check(payload)
    except SignatureRefused:
        return text
    body = b"{" + body.removeprefix(b'{"sig":"%b",' % payload.sig.encode())
    return signing.signed(body, payload.uuid or "", payload.id or "", payload.job, whole, version=payload.job_version)


def chained_payload(
    link: ChainedJob, now: float, rest: Links = (), catch: Links = (), passed: Passed | None = None
) -> bytes:
    """The payload of `link` to send now, followed by `rest`. Text that is not a payload is sent unchanged: the worker that
    reserves it reports the error."""
    text = link.payload.encode()
    try:
        payload, more = read(text), dict[str, object]()
        if passed is not None and payload.qd is not None and payload.qd.takes is not None:
            whole = with_result(text, payload, passed)
            if whole is not text:
                text, payload, more = whole, read(whole), {"takes": None}
        later = int(now) - int(payload.createdAt or now)
        for start, end in reversed(time_positions(text, payload)):
            text = b"%b%d%b" % (text[:start], int(text[start:end]) + later, text[end:])
        if rest or catch:
            more |= {"chain": rest, "catch": catch}
        if more:
            text = with_more_relations(text, payload, **more)
        return text if payload.createdAt is None else with_due(text, now + link.delay)
    except ValueError:
        return text


def time_positions(text: bytes, payload: Payload) -> list[tuple[int, int]]:
    """The (start, end) of its times, in order: retryUntil before the arguments, createdAt right after them."""
    data = text.find(_DATA)
    found = [_UNTIL.search(text, 0, data), _CREATED.match(text, data + len(_DATA) + len(payload.data))]
    return [match.span(1) for match in found if match is not None]


def with_more_relations(text: bytes, payload: Payload, **more: object) -> bytes:
    """The payload with `more` relations. Only plain values follow its id, so the last "id" is its own."""
    relations = msgspec.structs.replace(payload.qd or Relations(), **more)
    at = text.rindex(_ID)
    start = at if payload.qd is None else text.rindex(_RELATIONS, 0, at)
    return text[:start] + relations_text(relations) + text[at:]
