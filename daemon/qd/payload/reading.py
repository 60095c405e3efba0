"""A payload as it was read: its keys, and what they mean. Every shape since Laravel 5.5 is read."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from typing import Annotated

import msgspec
from msgspec import Meta

from qd.errors import Malformed
from qd.ties import Ties

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
    qd: Ties | None = None  # what the end of this job does to others
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
