"""What a job is tied to: the key "qd" of its payload, which dispatch/ writes and the worker reads when the job ends.

    {"unique": "shop.charge:order:42", "chain": [["mail", 0, "{...}"]], "batch": "6f1c..."}

Nothing of it is needed to run the job. Links are whole payloads as text, made (and signed) when the job was sent: a string
is the one JSON value that every program between here and there leaves as it is.

A payload as it was read: its keys, and what they mean. Every shape since Laravel 5.5 is read.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qd.errors import Malformed

LONGEST_TIME = 100 * 365 * 86400.0  # seconds: what is longer overflows on the server
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_TIME)]


class ChainedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that is sent later, on the connection of the one it is tied to. delay: seconds from then."""

    queue: str
    delay: Seconds
    payload: str


class Relations(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The names in it are of plain_name: they stand in the payload as in the keys, whoever writes its JSON again."""

    chain: tuple[ChainedJob, ...] = ()  # what follows when it has succeeded, the next first
    catch: tuple[ChainedJob, ...] = ()  # what is sent when it, or what follows, has failed for good
    batch: str | None = None  # the batch that counts it
    after: str | None = None  # the batch that it is a callback of
    result: Seconds | None = None  # seconds for which its result is kept
    until: Literal["start", "done"] = "done"  # when the lock below is freed
    hold: Seconds | None = None  # seconds for which it is held at most, from when the job is due; None: HOLD
    unique: str | None = None  # the name of the lock that keeps others of its kind away; its owner is the job's uuid
    key: str | None = None  # "ISSUE NAME", under which it can be moved and cancelled while it waits (keyspace/keyed.py)


HOLD = 86400.0
LONGEST_ID = 200  # characters of a name
_ODD = re.compile(rb"[^A-Za-z0-9_.:@-]")


def plain_name(text: str) -> str:
    """`text` in letters that need no escape in JSON nor in a key: others as %2F. A long one ends in its hash instead."""
    name = _ODD.sub(lambda odd: b"%%%02X" % odd[0][0], text.encode("utf-8", "surrogatepass")).decode()
    if len(name) <= LONGEST_ID:
        return name
    from hashlib import sha256  # seldom needed

    return f"{name[:130]}:{sha256(name.encode()).hexdigest()}"


def key_of(id: str, name: str) -> str:
    """What a job says of the name it waits under, of its first issue."""
    return f"00000.{id[:16]} {name}"


def written(ties: Relations) -> bytes:
    """As it stands in a payload, with the comma before it; nothing at all for a job that is tied to nothing."""
    text = msgspec.json.encode(ties)
    return b"" if text == b"{}" else b',"qd":' + text


OBJECT_JOB = r"Illuminate\Queue\CallQueuedHandler@call"  # serialized PHP: only PHP can run it
NO_DATA = b'""'  # what Laravel sends when a job has no data

LIMIT = 1 << 53  # integers beyond are not exact in Lua, nor in JavaScript
LONGEST = 100 * 365 * 86400.0  # seconds a backoff is at most: what is longer would overflow somewhere
Count = Annotated[int, Meta(ge=0, le=LIMIT)]
Whole = Annotated[int, Meta(ge=-LIMIT, le=LIMIT)]
NOTHING = msgspec.Raw()
FAILURES = re.compile(rb'"([1-9]\d{0,8}) (\d{1,12}\.\d{3})"')


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
    qd: Relations | None = None  # what the end of this job does to others
    # qd's own, beside attempts; see unit.py
    crashes: Count = 0
    exceptions: Count = 0
    held: Count = 0
    rsv: str | None = None
    failures: msgspec.Raw = NOTHING  # see retried.py; as saved
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
    def failed_before(self) -> tuple[int, float | None]:
        """How often it has failed permanently and was retried, and when first (unix seconds). (0, None): never, or
        unknown."""
        match = FAILURES.fullmatch(bytes(self.failures))
        return (int(match[1]), float(match[2])) if match else (0, None)

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
    return min(float(match[1]), LONGEST) if match else 0.0


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
