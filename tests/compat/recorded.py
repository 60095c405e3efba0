"""What a release of qd has left on its servers: the app that made it, and how it is written to files and read back.

golden/qd-VERSION/ has, from record.py:
    payloads/KIND.json     a payload of each kind, byte for byte
    redis.json             every key of a Redis: type, value, time to live
    sqlite.sql, postgres.sql    dumps of databases with qd's tables
    failed-STORE.sql       Laravel's table failed_jobs beside each of the three
    beanstalkd.json, sqs.json    the bodies in these brokers
    facts.json             when it was recorded, and the ids in it

It is restored as if two hours had passed: whatever waited for its time is due, and leases have ended.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.redis import Client

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(path.name.removeprefix("qd-") for path in GOLDEN.glob("qd-*"))
LATER = 7200.0  # seconds
KEYS = {
    "QD_SIGNING_KEYS": "2026a:a-secret-of-the-tests",
    "QD_SIGNING_REQUIRE": "false",
    "QD_ENCRYPTION_KEYS": "2026a:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
}

# Both the recording and the tests run this app. While the file `broken` exists, jobs fail, die and hang.
JOBS = """
import os, time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from qd import Backoff, Job, Qd, current_job

app = Qd()
YEARS = 20 * 365 * 86400


def note(*words: object) -> None:
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)


def broken() -> bool:
    return Path("broken").exists()


@app.job("plain")
def plain(name: str, day: str = "") -> None:
    note("plain", name)


@app.job("report")
class Report(Job[None]):
    month: int
    lines: list[str] = field(default_factory=list[str])

    def handle(self) -> None:
        note("report", self.month, *self.lines)


@dataclass
class Invoice:
    order: int


def invoice(command: Invoice) -> None:
    note("invoice", command.order)


app.map(Invoice, invoice, "invoice")


@app.job("load")
def load(url: str) -> str:
    return "film of " + url


@app.job("store")
def store(film: str, seconds: int) -> None:
    note("store", film, seconds)


@app.job("charge", unique="order:{order}", unique_for=YEARS)
def charge(order: int) -> None:
    note("charge", order)


@app.job("remind")
def remind(order: int) -> None:
    note("remind", order)


@app.job(
    "tuned", tries=7, timeout=77, backoff=[1, 5.5], jitter=0.25, max_exceptions=4, retry_for=YEARS, fail_on_timeout=True,
    tags=("a", "b/c"), display_name="Tuned {name}", result_ttl=YEARS, delete_when_missing=True,
)
def tuned(name: str) -> None:
    job = current_job()
    note("tuned", name, job.timeout, *job.tags)


@app.job("secret", encrypted=True)
def secret(card: str) -> None:
    note("secret", card)


def from_v1(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data.pop("name").partition(" ")
    return {**data, "first": first, "last": last}


if os.environ.get("LETTERS") == "1":

    @app.job("letters")
    def old_letters(name: str) -> None: ...

else:

    @app.job("letters", version=2, upgrade={1: from_v1})
    def letters(first: str, last: str) -> None:
        note("letters", last, first)


@app.job("kept", result_ttl=YEARS)
def kept(n: int) -> int:
    current_job().progress(40, "scaling", of=3)
    current_job().emit({"token": n})
    return n * 2


@app.job("boom", tries=2)
def boom(name: str) -> None:
    if broken():
        raise ValueError("no such order")
    note("boom", name)


@app.job("dies")
def dies(name: str) -> None:
    if broken():
        os.kill(os.getpid(), 9)
    note("dies", name)


@app.job("resumes", tries=3, backoff=3600, jitter=0)
def resumes(name: str) -> None:
    job = current_job()
    total = job.step("total", price)
    if job.saved:
        note("resumed", name, job.attempt, job.saved, total)
        return
    job.checkpoint({"page": 5})
    raise ValueError("later")


def price() -> int:
    note("price")
    return 42


@app.job("part")
def part(name: str, fails: bool = False) -> None:
    if fails and broken():
        raise ValueError("not this part")
    note("part", name)


@app.job("after")
def after(what: str) -> None:
    note("after", what, app.current_batch().total)


@app.job("hang", timeout=600)
def hang(name: str) -> None:
    note("hang", name)
    while broken():
        time.sleep(0.05)


app.schedule(plain.bind("new year"), cron="0 0 1 1 *")
"""

# kind of payload -> how it is sent, to the queue of this name
KINDS = {
    "plain": 'plain.using(queue="plain").dispatch("ada", day="ü/✓")',
    "class": 'Report(month=7, lines=["x", "y"]).using(queue="class").dispatch()',
    "command": 'app.dispatch(app.bind(Invoice(12)).using(queue="command"))',
    "chain": 'app.chain(plain.bind("one"), plain.bind("two"), catch=plain.bind("never")).using(queue="chain").dispatch()',
    "chain-results": 'app.chain(load.bind("x"), store.link(8), pass_results=True).using(queue="chain-results").dispatch()',
    "batch": 'app.batch(part.bind("alone"), then=after.bind("never")).using(queue="batch").dispatch()',
    "unique": 'charge.using(queue="unique").dispatch(1)',
    "keyed": 'remind.using(queue="keyed", key="order:1").dispatch(1)',
    "options": 'tuned.using(queue="options").dispatch("x")',
    "own-options": 'plain.using(queue="own-options", tries=9, timeout=88, backoff=Backoff(2, 3), jitter=0.5)'
    '.dispatch("own")',
    "signed": 'plain.using(queue="signed").dispatch("signed")',
    "encrypted": 'secret.using(queue="encrypted").dispatch("4111")',
    "versioned": 'letters.using(queue="versioned").dispatch("Ada", "Byron")',
    "version-1": 'old_letters.using(queue="version-1").dispatch("Grace Hopper")',
    "by-name": 'app.queue("by-name").push("plain", {"name": "by name"})',
}  # fmt: skip
WITH: dict[str, dict[str, str]] = {"signed": KEYS, "encrypted": KEYS, "version-1": {"LETTERS": "1"}}
"""Variables that the producer of a kind has."""
DONE = {
    "plain": ["plain ada"],
    "class": ["report 7 x y"],
    "command": ["invoice 12"],
    "chain": ["plain one", "plain two"],
    "chain-results": ["store film of x 8"],
    "batch": ["part alone"],  # the key of the batch is not restored with it
    "unique": ["charge 1"],
    "keyed": [],  # it waits under its key, which is not restored with it: the job was cancelled
    "options": ["tuned x 77 a b/c"],
    "own-options": ["plain own"],
    "signed": ["plain signed"],
    "encrypted": ["secret 4111"],
    "versioned": ["letters Byron Ada"],
    "version-1": ["letters Hopper Grace"],
    "by-name": ["plain by name"],
}
"""What its jobs note."""

# Sent while a worker runs. Prints the ids.
BUSY = """
import json
from jobs import *

late = {"delay": 3600}
ids = {
    "kept": kept.dispatch(21).id,
    "charge": charge.using(**late).dispatch(42).id,
    "boom": boom.dispatch("b").id,
    "dies": dies.dispatch("d").id,
    "resumes": resumes.dispatch("r").id,
    "hang": hang.dispatch("h").id,
}
ids["good"] = app.batch(
    part.bind("a"), part.using(**late).bind("b"), then=after.bind("then"), name="good").dispatch().id
ids["bad"] = app.batch(
    part.bind("c", True), part.using(**late).bind("d"), catch=after.bind("catch"), finally_=after.bind("finally"),
    name="bad",
).dispatch().id
app.chain(plain.bind("first"), plain.using(**late).bind("second"), plain.bind("third")).dispatch()
plain.using(**late).dispatch("late")
remind.using(key="order:42", **late).dispatch(42)
remind.using(key="order:43", **late).dispatch(43)
assert app.lock("deploy", ttl=YEARS).acquire()
assert app.limiter("api", 2, per=YEARS).try_acquire()
print(json.dumps(ids))
"""
# Sent when all processes of qd are dead.
READY = """
from jobs import *

plain.dispatch("ready")
Report(month=3).dispatch()
app.send(Invoice(5))
app.chain(plain.bind("4th"), plain.bind("5th")).dispatch()
app.batch(part.bind("e"), finally_=after.bind("ready")).dispatch()
plain.using(queue="paused").dispatch("paused")
"""
MEANWHILE = {"part a", "after catch 2", "plain first", "price", "hang h"}
"""What the jobs have noted before the recording."""
LEFT = {
    "charge 42", "resumed r 2 {'page': 5} 42", "hang h", "part b", "after then 2", "part d", "after finally 2",
    "plain second", "plain third", "plain late", "remind 42", "remind 43", "plain ready", "report 3", "invoice 5",
    "plain 4th", "plain 5th", "part e", "after ready 1",
}  # fmt: skip
"""What the jobs of the recording note when a worker has finished them, each once."""
CONFIG = """retry_after = 5

[worker]
max_crashes = 2

[failed]
database = "sqlite:///failed.sqlite"
keep = "7300d"
"""


# -- Redis


KEYED = re.compile(r"^(\d{5}\.\w{16} )([\d.]+) ")  # issue, and when it is due


def dump_redis(redis: Client) -> dict[str, Any]:
    reads = {
        "list": ("LRANGE", 0, -1),
        "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
        "hash": ("HGETALL",),
        "set": ("SMEMBERS",),
    }
    found = {}
    names = redis.keys()
    for key in names:
        kind = redis.text("TYPE", key)
        command, *more = reads.get(kind, ("GET",))
        value = _text(redis.call(command, key, *more))
        found[key] = {"type": kind, "ttl_ms": redis.call("PTTL", key), "value": value}
    return found


def restore_redis(redis: Client, dump: dict[str, Any], recorded_at: float) -> None:
    shift = float(redis.text("TIME")[0]) - LATER - recorded_at
    writes = {"list": "RPUSH", "hash": "HSET", "set": "SADD", "string": "SET"}
    for key, entry in dump.items():
        value = entry["value"]
        if entry["type"] == "zset":
            timed = key.startswith("queues:") and key.endswith((":delayed", ":reserved", ":failed_at"))
            for member, score in zip(value[::2], value[1::2], strict=True):
                redis.call("ZADD", key, float(score) + (shift if timed and float(score) > 0 else 0), _bytes(member))
        else:
            if key.endswith(":keyed"):
                value = [KEYED.sub(lambda found: f"{found[1]}{float(found[2]) + shift:.3f} ", each) for each in value]
            redis.call(writes[entry["type"]], key, *map(_bytes, value if isinstance(value, list) else [value]))
        if entry["ttl_ms"] > 0:
            redis.call("PEXPIRE", key, entry["ttl_ms"])


def _text(value: Any) -> Any:
    return [_text(each) for each in value] if isinstance(value, list) else value.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# -- databases


def dump_sqlite(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def restore_sqlite(path: Path, dump: str, recorded_at: float) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(dump)
        for statement in later(time.time() - LATER - recorded_at) if "CREATE TABLE qd_reserved" in dump else ():
            connection.execute(statement)
    connection.close()


def dump_postgres(pg_dump: str, folder: Path, port: int, user: str, database: str) -> str:
    words = [
        pg_dump,
        "-h",
        str(folder),
        "-p",
        str(port),
        "-U",
        user,
        "-d",
        database,
        "--inserts",
        "--no-owner",
        "--no-comments",
    ]
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith(("--", "\\"))]
    return "\n".join(lines) + "\n"


def restore_postgres(psql: str, url: str, dump: str, recorded_at: float) -> None:
    words = [psql, "-q", "-v", "ON_ERROR_STOP=1", "-d", url.replace("postgresql+psycopg", "postgresql")]
    shift = time.time() - LATER - recorded_at
    text = dump + "SET search_path = public;\n" + "".join(f"{each};\n" for each in later(shift))
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def later(shift: float) -> list[str]:
    """Statements that move the times of all jobs in a database."""
    whole = int(shift)
    return [
        f"UPDATE jobs SET available_at = available_at + {whole}, reserved_at = reserved_at + {whole}",
        f"UPDATE qd_reserved SET leased_until = leased_until + {whole}000000, reserved_at = reserved_at + {whole}",
    ]


def facts(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"qd-{release}" / "facts.json").read_text())
    return found


def golden(release: str, name: str) -> str:
    return (GOLDEN / f"qd-{release}" / name).read_text()


def witnessed(root: Path) -> list[str]:
    path = root / "witness"
    return path.read_text().splitlines() if path.exists() else []
