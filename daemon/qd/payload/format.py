"""Reads payloads: every shape since Laravel 5.5, and qd's own key "qd", the relations of a job. Limits size and nesting.

    {"unique": "shop.charge:order:42", "chain": [["mail", 0, "{...}"]], "batch": "6f1c..."}

dispatch/ writes the relations, and the worker reads them when the job ends; running the job needs none of them. Chained
jobs are whole payloads as text, made (and signed) at dispatch, because strings are the only JSON values that every program
on the way leaves unchanged.
"""

from __future__ import annotations

import re
import sys
from array import array
from binascii import a2b_base64, b2a_base64
from itertools import accumulate
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qd.errors import ArgumentError, Malformed

LONGEST_TIME = 100 * 365 * 86400.0  # seconds: longer times overflow on the server and in a timer
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_TIME)]


class ChainedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job to send later, on the connection of the job that has it as a relation. delay: seconds from then."""

    queue: str
    delay: Seconds
    payload: str


class Relations(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What the end of a job does to others. Names are results of plain_name: any JSON encoder leaves them unchanged."""

    chain: tuple[ChainedJob, ...] = ()  # the jobs that follow its success, the next one first
    catch: tuple[ChainedJob, ...] = ()  # the jobs to send when it, or a job of its chain, fails permanently
    batch: str | None = None  # the batch that counts it
    after: str | None = None  # the batch whose callback it is
    result: Seconds | None = None  # seconds for which its result is kept
    until: Literal["start", "done"] = "done"  # when the lock `unique` is freed
    hold: Seconds | None = None  # the longest time the lock is held, from when the job is due; None: HOLD
    unique: str | None = None  # the name of its lock; the owner is the job's uuid
    key: str | None = None  # "ISSUE NAME", to move or cancel it while it waits (keyspace/sending.py)
    takes: str | None = None  # "UUID NAME": it lacks its argument NAME, the result of that job (build.py)

    @property
    def passes(self) -> bool:
        """Whether the next job of the chain takes the result. Behind the key "qd" its payload has plain values only."""
        return bool(self.chain) and '"takes":' in self.chain[0].payload.rpartition(',"qd":')[2]


HOLD = 86400.0  # seconds a unique lock is held at most by default
LONGEST_NAME = 200  # characters
# Of a job whose name has a backslash.
OF_PHP = (
    "it is a PHP class: if PHP workers serve this queue, stop serving it with qd; else move the job to one of theirs"
)
_ODD = re.compile(rb"[^A-Za-z0-9_.:@-]")


def plain_name(text: str) -> str:
    """`text` in characters that need no escape in JSON or keys; others become %2F. A long name ends in its hash."""
    name = _ODD.sub(lambda odd: b"%%%02X" % odd[0][0], text.encode("utf-8", "surrogatepass")).decode()
    if len(name) <= LONGEST_NAME:
        return name
    from hashlib import sha256  # rarely needed

    return f"{name[:130]}:{sha256(name.encode()).hexdigest()}"


def key_of(id: str, name: str) -> str:
    """The relation `key` of a job, in its first issue."""
    return f"00000.{id[:16]} {name}"


OBJECT_JOB = r"Illuminate\Queue\CallQueuedHandler@call"  # serialized PHP: only PHP can run it
NO_DATA = b'""'  # what Laravel sends for a job without data

LIMIT = 1 << 53  # larger integers are not exact in Lua and JavaScript
Count = Annotated[int, Meta(ge=0, le=LIMIT)]
Whole = Annotated[int, Meta(ge=-LIMIT, le=LIMIT)]
NOTHING = msgspec.Raw()
FAILURES = re.compile(rb'"([1-9]\d{0,8}) (\d{1,12}\.\d{3})"')


class Payload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A payload; the field names are its keys. Unknown keys are in the bytes only."""

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
    job_version: Annotated[int, Meta(ge=1, le=LIMIT)] = 1  # of data: jobs/versions.py
    data: msgspec.Raw = msgspec.Raw(NO_DATA)
    createdAt: float | None = None
    due_ms: object = None  # build.py: with_due
    jitter: object = None  # of using(): what differs from the declaration
    sig: str | None = None  # signing.py
    attempts: Count = 0
    qd: Relations | None = None
    # qd's own, next to attempts: reservation.py
    crashes: Count = 0
    exceptions: Count = 0
    held: Count = 0
    rsv: str | None = None
    failures: msgspec.Raw = NOTHING  # build.py
    saved: msgspec.Raw = NOTHING  # the last checkpoint; no value of it makes a payload malformed

    @property
    def display(self) -> str:
        """The name for people."""
        return self.displayName or self.job.partition("@")[0]

    @property
    def is_laravel_object(self) -> bool:
        return self.job == OBJECT_JOB

    @property
    def has_limits(self) -> bool:
        """Whether the payload itself sets tries, timeouts or retries."""
        none = self.maxTries is self.timeout is self.backoff is self.delay is self.maxExceptions is self.jitter is None
        return not none or bool(self.failOnTimeout or self.retryUntil or self.timeoutAt)

    @property
    def backoffs(self) -> tuple[float, ...] | None:
        """Seconds to wait after the first, second, ... attempt; None if the payload sets none. Before Laravel 8 the key
        was `delay`. In 13 `delay` is the delay of the push, and is used as backoff without one."""
        text = self.delay if self.backoff is None else self.backoff
        return None if text is None else tuple([_seconds(part) for part in str(text).split(",")])

    @property
    def own_jitter(self) -> float | None:
        """None: it sets none, or another program has put something else there."""
        found = self.jitter
        return None if found is None or not isinstance(found, int | float) or not 0 <= found <= 1 else found

    @property
    def deadline(self) -> float | None:
        """Unix seconds after which the job is not retried, or None. Before Laravel 8 the key was `timeoutAt`."""
        return (self.timeoutAt if self.retryUntil is None else self.retryUntil) or None

    @property
    def failed_before(self) -> tuple[int, float | None]:
        """How often the job has failed permanently and was retried, and when first (unix seconds); (0, None) if never or
        unknown."""
        match = FAILURES.fullmatch(bytes(self.failures))
        return (int(match[1]), float(match[2])) if match else (0, None)

    @property
    def checkpoint(self) -> bytes | None:
        """The JSON text of the last checkpoint, None without one that qd has written."""
        raw = bytes(self.saved)
        if raw[:1] != b'"':
            return None
        try:
            text = raw[1:-1].translate(_FROM_URL)
            return a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
        except ValueError:
            return None


_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def base64url(text: bytes) -> bytes:
    """Without padding: only letters, digits, - and _, which JSON encoders leave unchanged and no key of qd contains."""
    return b2a_base64(text, newline=False).rstrip(b"=").translate(_TO_URL)


_NUMBER = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?)")


def _seconds(part: str) -> float:
    """The number at the start of the text, as PHP reads it, else 0. Never negative."""
    match = _NUMBER.match(part)
    return min(float(match[1]), LONGEST_TIME) if match else 0.0


UNREADABLE = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
_decode = msgspec.json.Decoder(Payload).decode
_decode_pairs = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# "Expected `int`, got `str` - at `$.attempts`" -> "attempts: expected int, got str"
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


def read(raw: bytes) -> Payload:
    """The payload in `raw`. Raises Malformed, and no other error, whatever the bytes are. `data` is checked to be JSON
    only; it refers to `raw`, without a copy."""
    try:
        return _decode(raw)
    except UNREADABLE as error:
        raise Malformed(_reason(error)) from None


def readable(payload: bytes) -> Payload | None:
    """None: it is malformed."""
    try:
        return read(payload)
    except Malformed:
        return None


def pairs_of(raw: bytes) -> dict[str, bytes]:
    """The top-level keys of a JSON object with the bytes of their values; of equal keys the last one counts. Raises
    Malformed, also if a key is not UTF-8."""
    try:
        return {key: bytes(value) for key, value in _decode_pairs(raw).items()}
    except UNREADABLE as error:
        raise Malformed(_reason(error)) from None


class _Tagged(msgspec.Struct, gc=False):
    tags: tuple[str, ...] = ()


_decode_tags = msgspec.json.Decoder(_Tagged).decode


def tags_of(raw: bytes) -> tuple[str, ...]:
    """The tags of a payload; () if another program has put something else there."""
    try:
        return _decode_tags(raw).tags
    except UNREADABLE:
        return ()


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep to read"
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


# -- limits: checked before sending, and by the worker before decoding (the reserve script has checked the size). 0: none

_OPEN, _CLOSE = b"[{", b"]}"
_OTHER = bytes(set(range(256)) - set(_OPEN + _CLOSE + b'"'))
_STRING = re.compile(rb'"[^"]*"?')
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")  # as signed bytes: one level down, one level up


def harmless(max_payload: int, max_depth: int) -> int:
    """A payload of up to this many bytes needs no check: it is not too large, and too short for that many brackets."""
    return min(max_payload or sys.maxsize, 2 * max_depth or sys.maxsize)


def check(payload: bytes, job: str | None, max_payload: int, max_depth: int, data: bytes = b"") -> None:
    """Raises ArgumentError naming the limit, the job and the excess. job: None for a raw payload. data: its arguments; the
    message names the largest one."""
    if max_payload and len(payload) > max_payload:
        most = f"more than max_payload = {max_payload}"
        way = "store large data elsewhere and send a reference, or raise max_payload for producers and workers"
        raise ArgumentError(f"{_title(job)} has {len(payload)} bytes{_largest(data)}, {most}: {way}")
    if too_deep(payload, max_depth):
        way = "flatten it, or raise max_depth for producers and workers (PHP reads 512)"
        raise ArgumentError(f"{_title(job)} is nested {depth(payload)} deep, more than max_depth = {max_depth}: {way}")


def _title(job: str | None) -> str:
    return f"a payload of job '{job}'" if job else "this raw payload"


def _largest(data: bytes) -> str:
    """The largest of several arguments, for the message: " (the argument 'text' 1048578 of them)"."""
    try:
        found = pairs_of(data)
    except Malformed:  # data of a raw job
        return ""
    if len(found) < 2:
        return ""
    name, value = max(found.items(), key=lambda item: len(item[1]))
    return f" (the argument {name[:80]!r} {len(value)} of them)"


def too_deep(payload: bytes, most: int) -> bool:
    """Whether it is nested deeper than `most`. Most payloads are too short for that, or have too few brackets."""
    if not most or len(payload) <= 2 * most or payload.count(b"{") + payload.count(b"[") <= most:
        return False
    return depth(payload) > most


def depth(payload: bytes) -> int:
    """The nesting depth as PHP counts it: `{"a":[]}` is 2. Brackets inside strings do not count. Time and memory are
    linear in the payload, whatever the bytes are; the result for invalid JSON is arbitrary."""
    bare = payload.replace(rb"\\", b"").replace(rb"\"", b"")  # now each quote begins or ends a string
    bare = bare.translate(None, _OTHER).replace(b'""', b"")
    steps = array("b", _STRING.sub(b"", bare).translate(_STEPS))
    return max(accumulate(steps, initial=0))
