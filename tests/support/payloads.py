"""Payloads as other programs write them: pushed to a queue, stored as failed jobs, malformed in every way."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qd import Qd
from qd.config.settings import ConnectionSettings
from qd.drivers.types import Outgoing
from qd.payload.build import make
from tests.support.fakes import settings
from tests.support.redis import Client


@contextmanager
def producer(url: str) -> Iterator[Qd]:
    """An app that sends its jobs to this server."""
    made = Qd()
    made.settings = settings(redis=ConnectionSettings("redis", url=url))
    yield made
    made.connections.close()


def push_many(queue: Any, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
    """Send (queue, payload, delay) over this connector, in one call."""
    queue.post([Outgoing(name, payload, delay or 0.0) for name, payload, delay in jobs])


def push(redis: Client, job: str, *, count: int = 1, queue: str = "default", **data: object) -> None:
    """Push `count` jobs of this name with these arguments, ready now."""
    raw = [make(job, json.dumps(data).encode(), created_at=int(time.time())) for _ in range(count)]
    push_raw(redis, *raw, queue=queue)


def push_raw(redis: Client, *payloads: bytes, queue: str = "default") -> None:
    """Push these payloads, ready now, with one token each."""
    for at in range(0, len(payloads), 1000):
        some = payloads[at : at + 1000]
        redis.call("RPUSH", f"queues:{queue}", *some)
        redis.call("RPUSH", f"queues:{queue}:notify", *["1"] * len(some))


def failed(redis: Client, queue: str = "default") -> list[tuple[dict[str, Any], bytes]]:
    """The contents of the failed store: each record, and the stored bytes of its payload."""
    found = []
    for value in redis.call("HVALS", f"queues:{queue}:failed"):
        record, _, raw = value.partition(b"\n")
        found.append((json.loads(record), raw))
    return found


def push_laravel(
    redis: Client, job: str, data: dict[str, object] | None = None, queue: str = "default", **more: object
) -> None:
    """Push a string job as Laravel does; `more`: fields of the payload."""
    payload: dict[str, object] = {"uuid": f"u-{job}", "displayName": job, "job": job, "maxTries": None}
    payload |= {"maxExceptions": None, "failOnTimeout": False, "backoff": None, "timeout": None, "data": data or {}}
    payload |= {"id": f"id-{job}", "attempts": 0, "delay": None} | more
    push_raw(redis, json.dumps(payload).encode(), queue=queue)


def store_failed_job(
    redis: Client, id: str, *, queue: str = "mail", at: float | None = None, raw: bytes | None = None, **fields: Any
) -> bytes:
    """Store a failed job with this id. at: default now; fields: they replace the default ones. Returns its payload."""
    at = time.time() if at is None else at
    job = fields.get("job", "mail.welcome")
    if raw is None:
        raw = make(job, json.dumps({"to": id}).encode(), uuid=f"uuid-{id}", id=f"job-{id}", created_at=int(at))
        raw = raw.replace(b'"attempts":0', b'"attempts":3,"rsv":"T.0.1.-"')
    line: dict[str, Any] = {"id": id, "uuid": f"uuid-{id}", "queue": queue, "job": job, "error": "ValueError"}
    line |= {"reason": "no such user", "attempts": 3, "crashes": 0, "failed_at": round(at, 3), "trace": None} | fields
    redis.call("HSET", f"queues:{queue}:failed", id, json.dumps(line).encode() + b"\n" + raw)
    redis.call("ZADD", f"queues:{queue}:failed_at", repr(at), id)
    return raw


VALID = (
    b'{"uuid":"0b7f7c9e-1a52-4c0e-9d8e-3b1a5b1f0c11","displayName":"mail.welcome","job":"mail.welcome","maxTries":3,'
    b'"maxExceptions":null,"failOnTimeout":false,"backoff":"1,5","timeout":30,"data":{"to":"a@b.c","n":[1,{"attempts":7}]},'
    b'"createdAt":1795225685,"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0,"delay":null}'
)


def hostile(cut_every: int = 1) -> list[tuple[str, bytes]]:
    """All hostile payloads, as (name, bytes), with unique names. One is cut at every byte, or at fewer for a slow test."""
    return malformed(cut_every) + odd()


def malformed(cut_every: int = 1) -> list[tuple[str, bytes]]:
    """Invalid payloads: not JSON, not an object, no job, or a field of the wrong type."""
    return [*_not_json(), *_cut(cut_every), *_no_object(), *_wrong_types()]


def _not_json() -> list[tuple[str, bytes]]:
    return [
        ("empty", b""),
        ("blank", b" \r\n\t "),
        ("a word", b"hello"),
        ("bytes of no text", bytes(range(256))),
        ("only a NUL", b"\0"),
        ("a pickle", b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."),
        ("a PHP object", b'O:6:"RigJob":1:{s:4:"mode";s:2:"ok";}'),
        ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV\xcaJ,N-Q\xb2R\xca"),
        ("a BOM in front", b"\xef\xbb\xbf" + VALID),
        ("UTF-16", VALID.decode().encode("utf-16")),
        ("UTF-32", VALID.decode().encode("utf-32-le")),
        ("two of them", VALID + VALID),
        ("two lines", VALID + b"\n" + VALID),
        ("a NUL behind", VALID + b"\0"),
        ("a NUL in front", b"\0" + VALID),
        ("a word behind", VALID + b" x"),
        ("one brace too many", VALID + b"}"),
        ("single quotes", VALID.replace(b'"', b"'")),
        ("keys without quotes", b'{job:"x",data:{},attempts:0}'),
        ("a comma at the end", VALID[:-1] + b",}"),
        ("a comma at the front", b"{," + VALID[1:]),
        ("a comment", VALID[:-1] + b"/* done */}"),
        ("no colon", b'{"job" "x"}'),
        ("NaN in data", _data(b"NaN")),
        ("infinity in data", _data(b"[-Infinity]")),
        ("undefined in data", _data(b"undefined")),
        ("a hexadecimal number", _data(b"0x1F")),
        ("a number with a leading zero", _data(b"[01]")),
        ("a number with a plus", _data(b"+1")),
        ("a number that ends in its point", _data(b"[1.]")),
        ("a NUL in a text of data", _data(b'"a\0b"')),
        ("a line end in a text of data", _data(b'"a\nb"')),
        ("an unknown escape", _data(rb'"\x41"')),
        ("half an escape", _data(rb'"\u12"')),
        ("a lone surrogate in data", _data(rb'"\ud800"')),
        ("surrogates the wrong way round", _data(rb'"\udc00\ud800"')),
        ("a lone surrogate as the job", b'{"job":"\\ud800","data":{},"attempts":0}'),
        ("no UTF-8 in the job", b'{"job":"\xff\xfe","data":{},"attempts":0}'),
        ("no UTF-8 in the id", b'{"job":"x","id":"\xc3","data":{},"attempts":0}'),
        ("data ends too early", _data(b'{"to":')),
        ("brackets crossed in data", _data(b'{"to":[1}]')),
        # Since Python 3.14 the size of the stack limits recursion: such a payload is read. max_depth refuses it in workers.
        *([("100,000 deep", _data(b"[" * 100_000 + b"]" * 100_000))] if sys.version_info < (3, 14) else []),
        ("100,000 brackets, none closed", b"[" * 100_000),
    ]


def _cut(every: int) -> list[tuple[str, bytes]]:
    return [(f"cut at byte {n}", VALID[:n]) for n in range(1, len(VALID), every)]


def _no_object() -> list[tuple[str, bytes]]:
    return [
        ("a number", b"7"),
        ("a huge number", b"9" * 5000),
        ("null", b"null"),
        ("true", b"true"),
        ("a text", b'"mail.welcome"'),
        ("a text that holds one", b'"' + VALID.replace(b'"', b'\\"') + b'"'),
        ("a list", b'["job","x"]'),
        ("a list of one", b"[" + VALID + b"]"),
        ("no keys", b"{}"),
        ("no job", b'{"data":{},"attempts":0}'),
        ("a job only inside data", b'{"data":{"job":"x"},"attempts":0}'),
    ]


# One field of a valid payload, and values that are invalid for it.
WRONG: list[tuple[str, list[bytes]]] = [
    ("job", [b"null", b"7", b'""', b"[]", b'{"x":1}', b"true"]),
    ("attempts", [b'"3"', b'""', b"-1", b"1e309", b"1.5", b"1.0", b"1e3", b"null", b"true", b"[]", b"{}"]),
    ("attempts", [b"9007199254740993", b"18446744073709551616", b"9" * 400, b"9" * 5000]),
    ("maxTries", [b'"3"', b"1.5", b"-1", b"false", b"[3]", b"1e309", b"9" * 5000]),
    ("timeout", [b'"30"', b"0.5", b"true", b"{}", b"1e309", b"9" * 5000]),
    ("backoff", [b"1.5", b"true", b"[1,5]", b"{}", b"1e309", b"9" * 5000]),
    ("delay", [b"1.5", b"true", b"[1,5]"]),
    ("maxExceptions", [b'"2"', b"{}"]),
    ("failOnTimeout", [b'"yes"', b"1"]),
    ("retryUntil", [b'"tomorrow"', b"1e309", b"[]"]),
    ("uuid", [b"7", b"{}"]),
    ("id", [b"7", b"[]"]),
    ("displayName", [b"7", b"[]"]),
    ("rsv", [b"7", b"{}"]),
    ("crashes", [b'"1"', b"-1"]),
    ("exceptions", [b"{}", b"0.5"]),
    ("held", [b'"now"', b"-5"]),
    ("qd", [b'{"result":1e30}', b'{"result":-1}', b'{"result":1e309}', b'{"hold":1e30}', b'{"unique":"x","hold":-1}']),
    ("qd", [b'{"chain":[["q",1e30,"{}"]]}', b'{"catch":[["q",-1,"{}"]]}', b"[]", b'"x"']),
]


def _wrong_types() -> list[tuple[str, bytes]]:
    found = []
    for field, values in WRONG:
        for value in values:
            # Before and after the valid one: of duplicate keys the last one counts.
            shown = f"{field} is {value[:20].decode()}{f' and {len(value) - 20} more' if len(value) > 20 else ''}"
            key = b'"%b":%b' % (field.encode(), value)
            found.append((f"{shown}, at the end", VALID[:-1] + b"," + key + b"}"))
            if field != "job":
                found.append((shown, b'{%b,"job":"mail.welcome","data":{"to":"a@b.c"}}' % key))
    return found


def odd() -> list[tuple[str, bytes]]:
    """Unusual payloads, which some readers accept."""
    return [
        ("1,100 deep", _data(b"[" * 1100 + b"]" * 1100)),
        ("600 objects deep", _data(b'{"a":' * 600 + b"1" + b"}" * 600)),
        ("the same key twice", VALID[:-1] + b',"job":"mail.welcome","attempts":0}'),
        ("a thousand equal keys", VALID[:-1] + b',"job":"mail.welcome"' * 1000 + b"}"),
        ("keys of ours that others wrote", VALID[:-1] + b',"crashes":2,"rsv":"not a mark"}'),
        ("a mark of another program", VALID[:-1] + b',"rsv":"AAAAAAAAAA.1.1.0"}'),
        ("a huge integer in data", _data(b'{"n":' + b"9" * 5000 + b"}")),
        ("a number beyond floats in data", _data(b'{"n":1e309}')),
        ("no UTF-8 in data", _data(b'{"to":"\xff\xfe"}')),
        ("no UTF-8 in a key", VALID[:-1] + b',"\xff":1}'),
        ("an overlong slash in data", _data(b'{"to":"\xc0\xaf"}')),
        ("a surrogate in UTF-8 in data", _data(b'{"to":"\xed\xa0\x80"}')),
        ("controls in the job", rb'{"job":"a\u0000\u001b[31m\r\nb","data":{},"attempts":0}'),
        ("a long job", b'{"job":"' + b"x" * 100_000 + b'","data":{},"attempts":0}'),
        ("a job called __proto__", b'{"job":"__proto__","data":{},"attempts":0}'),
        ("a job that is a path", rb'{"job":"..\/..\/etc\/passwd","data":{},"attempts":0}'),
        ("a job that is a call", b'{"job":"os.system","data":"id","attempts":0}'),
        ("negative timeout", VALID[:-1] + b',"timeout":-1}'),
        ("a backoff of words", VALID[:-1] + b',"backoff":"soon,never,1e999,-5,"}'),
        ("a backoff of 100 KB", VALID[:-1] + b',"backoff":"' + b"1," * 50_000 + b'1"}'),
        ("attempts written in data only", b'{"job":"mail.welcome","data":{"attempts":5}}'),
        ("attempts inside a text", rb'{"job":"mail.welcome","data":"\"attempts\":5}","attempts":0}'),
        ("spaces everywhere", b' {\n "job" : "mail.welcome" ,\t"data" : { } , "attempts" : 0 }\r\n '),
        ("the most attempts", VALID[:-1] + b',"attempts":9007199254740992}'),
        ("nothing but a job", b'{"job":"mail.welcome"}'),
        ("a million bytes of data", _data(b'"' + b"x" * 1_000_000 + b'"')),
        ("a hundred thousand keys", b'{"job":"x"' + b"".join(b',"k%d":%d' % (i, i) for i in range(100_000)) + b"}"),
    ]


def _data(value: bytes) -> bytes:
    """A payload that is valid except for its data."""
    return b'{"uuid":"u","displayName":"mail.welcome","job":"mail.welcome","data":%b,"id":"i","attempts":0}' % value
