"""A payload as it is pushed. Keys, order and escapes are those of Laravel 13 (Queue/Queue.php and Queue/RedisQueue.php,
createPayload)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quoted
from math import ceil

from qd.errors import ArgumentError
from qd.payload.names import new_id, new_uuid
from qd.payload.reading import LIMIT, LONGEST, NO_DATA, Payload
from qd.ties import Ties, written

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


def tied(body: bytes, id: str, ties: Ties) -> bytes:
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
