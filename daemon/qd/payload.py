"""Laravel's JSON payload: made and read. Nothing but this file and unit.py beside it knows its keys.

bus/send.py makes payloads, the worker reads them; the few bytes that change while a job is held are unit.py's. Keys, order
and escapes are those of Laravel 13 (Queue/Queue.php and Queue/RedisQueue.php, createPayload); every shape since 5.5 is
read.
"""

from __future__ import annotations

import json
import os
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quoted
from math import ceil
from typing import Annotated

import msgspec
from msgspec import Meta

from qd.errors import ArgumentError, Malformed
from qd.ties import Ties, written

OBJECT_JOB = r"Illuminate\Queue\CallQueuedHandler@call"  # serialized PHP: only PHP can run it
NO_DATA = b'""'  # what Laravel sends when a job has no data

_LIMIT = 1 << 53  # integers beyond are not exact in Lua, nor in JavaScript
_LONGEST = 100 * 365 * 86400.0  # seconds a backoff is at most: what is longer would overflow somewhere
Count = Annotated[int, Meta(ge=0, le=_LIMIT)]
Whole = Annotated[int, Meta(ge=-_LIMIT, le=_LIMIT)]


NOTHING = msgspec.Raw()


class Payload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A payload as it was read; the names are those on the wire. Unknown keys are in the bytes only."""

    job: Annotated[str, Meta(min_length=1)]
    displayName: str | None = None
    uuid: str | None = None
    id: str | None = None
    maxTries: Count | None = None
    maxExceptions: Count | None = None
    failOnTimeout: bool | None = None
    backoff: str | Whole | None = None
    delay: str | Whole | None = None
    timeout: Whole | None = None
    retryUntil: float | None = None
    deleteWhenMissingModels: bool | None = None
    timeoutAt: float | None = None
    data: msgspec.Raw = msgspec.Raw(NO_DATA)
    createdAt: float | None = None
    sig: str | None = None  # see signing.py
    attempts: Count = 0
    qd: Ties | None = None  # what the end of this job does to others
    # qd's own, beside attempts; see unit.py
    crashes: Count = 0
    exceptions: Count = 0
    held: Count = 0
    rsv: str | None = None
    saved: msgspec.Raw = NOTHING  # the last checkpoint; whatever stands there, it makes no payload malformed

    @property
    def name(self) -> str:
        """The job's name as it was pushed, "@method" included."""
        return self.job

    @property
    def display(self) -> str:
        """What people are shown."""
        return self.displayName or self.job.partition("@")[0]

    @property
    def is_laravel_object(self) -> bool:
        return self.job == OBJECT_JOB

    @property
    def says_limits(self) -> bool:
        """Whether the payload itself says anything of tries, times or retries."""
        return (
            self.maxTries is not None
            or self.timeout is not None
            or self.backoff is not None
            or self.delay is not None
            or self.maxExceptions is not None
            or bool(self.failOnTimeout)
            or bool(self.retryUntil)
            or bool(self.timeoutAt)
        )

    @property
    def backoffs(self) -> tuple[float, ...] | None:
        """Seconds to wait after the first, second, ... attempt; None: the payload does not say.

        Before Laravel 8 the key was `delay`. In 13 `delay` is what the push asked for, and it still counts as the
        backoff where none is given.
        """
        said = self.delay if self.backoff is None else self.backoff
        return None if said is None else tuple([_seconds(part) for part in str(said).split(",")])

    @property
    def deadline(self) -> float | None:
        """Unix seconds after which it is not run again, None: no such moment. Before Laravel 8 it was `timeoutAt`."""
        return (self.timeoutAt if self.retryUntil is None else self.retryUntil) or None

    @property
    def checkpoint(self) -> bytes | None:
        """The JSON text that the job saved last; None: nothing, or nothing that qd has written."""
        if self.saved is NOTHING:
            return None
        raw = bytes(self.saved)
        if raw[:1] != b'"':
            return None
        try:
            return base64url_decoded(raw[1:-1])
        except ValueError:
            return None


_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def base64url(text: bytes) -> bytes:
    """No padding: letters, digits, - and _ only, which no JSON encoder changes and none of our keys can stand in."""
    return b2a_base64(text, newline=False).rstrip(b"=").translate(_TO_URL)


def base64url_decoded(text: bytes) -> bytes:
    """Raises ValueError."""
    return a2b_base64(text.translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True)


_NUMBER = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?)")


def _seconds(part: str) -> float:
    """As PHP reads a number from text: what it begins with, else 0. Never negative."""
    match = _NUMBER.match(part)
    return min(float(match[1]), _LONGEST) if match else 0.0


# -- reading

_decode = msgspec.json.Decoder(Payload).decode
# "Expected `int`, got `str` - at `$.attempts`" -> "attempts: expected int, got str"
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


def read(raw: bytes) -> Payload:
    """The payload in `raw`. Raises Malformed, and only that, whatever the bytes are.

    `data` is not looked into beyond being JSON; it refers to `raw`, no copy is made.
    """
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError) as error:
        raise Malformed(_reason(error)) from None


class _Tagged(msgspec.Struct, gc=False):
    tags: tuple[str, ...] = ()


_decode_tags = msgspec.json.Decoder(_Tagged).decode


def tags_of(raw: bytes) -> tuple[str, ...]:
    """The words a payload was tagged with, () also where another program has put something else there."""
    try:
        return _decode_tags(raw).tags
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        return ()


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep to be read"
    text = str(error)
    if isinstance(error, UnicodeError):
        return f"a text in it is not UTF-8 ({text})"[:300]
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {text.removeprefix('JSON is malformed: ')}"[:300]
    match = _AT.fullmatch(text)
    fact, field = (match[1], match[2]) if match else (text, "")
    if text.startswith("Object missing required field"):
        fact, field = "is missing", text.split("`")[1]
    fact = fact.replace("`", "")
    return f"{field}: {fact[0].lower()}{fact[1:]}" if field else f"{fact[0].lower()}{fact[1:]}"


# -- making

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = bytes(
    _ALPHABET[i % 62] for i in range(256)
)  # 190 bits in 32 of them; the small bias costs none worth counting
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
    seed = os.urandom(48)  # asked of the kernel each time: a forked child must not repeat its parent's
    head = _HEAD % (
        quoted(uuid or new_uuid(seed)),
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
    tail = f',"createdAt":{created_at}{_more(extra)},"id":{quoted(id or new_id(seed))},"attempts":0,"delay":null}}'
    return _bytes(head) + (data or NO_DATA) + _bytes(tail)


_BEHIND = len(',"id":""' + ',"attempts":0,"delay":null}')


def tied(body: bytes, id: str, ties: Ties) -> bytes:
    """The payload `body`, which `make` has made with this id, with what it is tied to in front of that."""
    at = len(body) - len(id) - _BEHIND
    return body[:at] + written(ties) + body[at:]


def added(body: bytes, id: str, more: Mapping[str, object]) -> bytes:
    """The same with keys of the app's there. Raises ArgumentError."""
    at = len(body) - len(id) - _BEHIND
    return body[:at] + _bytes(_more(more)) + body[at:]


def new_uuid(seed: bytes) -> str:
    """A version 4 uuid of the first 16 random bytes."""
    hexes = seed[:16].hex()
    return f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-{'89ab'[seed[8] & 3]}{hexes[17:20]}-{hexes[20:]}"


def new_id(seed: bytes) -> str:
    """32 letters and digits, as Laravel's, of the last 32 random bytes."""
    return seed[-32:].translate(_LETTERS).decode()


def _whole(number: float | None) -> str:
    if number is None:
        return "null"
    if not -_LIMIT <= number <= _LIMIT:
        raise ArgumentError(f"{number} is too large a number for a payload")
    return str(ceil(number))


def _waits(backoff: Sequence[float] | None) -> str:
    return f'"{",".join([_plain(wait) for wait in backoff])}"' if backoff else "null"


def _plain(number: float) -> str:
    """A wait as PHP and `backoffs` read it: no exponent, no more than milliseconds."""
    if not 0 <= number <= _LONGEST:
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
