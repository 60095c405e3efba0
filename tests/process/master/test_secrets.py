"""Passwords and keys are never shown, and no text from outside moves a cursor or forges a log line."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from qd.payload.build import make
from qd.process import proc
from tests.support.payloads import failed, push, push_raw
from tests.support.processes import Procs, titled
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

FAILED = pytest.mark.leaves(
    "queues:*:failed", "queues:*:failed_at", "queues:*:deaths", "queues:*:delayed", "queues:*:notify"
)
PASSWORD = 'hunter-2/with:"all@kinds"?'
QUOTED = quote(PASSWORD, safe="")
KEY = "key-0123456789-of-the-shop"
CACHE = "cache-password-77"
HIDDEN = re.compile("|".join(map(re.escape, ["hunter-2", "0123456789-of-the", CACHE])))

SHOP = (
    JOBS
    + """
import logging, traceback
from qd import Job

settings = app.settings
URL = settings.connections["redis"].url
KEYS = list(settings.signing.keys)
from urllib.parse import unquote
PASSWORD = unquote(URL.split("//:")[1].split("@")[0])
WORDS = [URL, PASSWORD, repr(PASSWORD), KEYS[0], f"redis://:{PASSWORD}@other/1", repr(settings), repr(app)]

@app.job("tells", tries=2, backoff=0.01)
def tells(n: int) -> None:
    logging.warning("connected to %s with %r", WORDS[n % len(WORDS)], KEYS)
    local = WORDS[n % len(WORDS)]
    try:
        raise KeyError(local)
    except KeyError:
        logging.exception("cause")
    raise ValueError(f"no answer from {local}, again: {local}\\n{local}")

@app.job("fails")
def fails(n: int) -> None:
    current_job().fail(f"no answer from {WORDS[n % len(WORDS)]}")

@app.job("dies", tries=1)
def dies() -> None:
    note("dies", os.getpid())
    os.kill(os.getpid(), 11)

@app.job("leaves", tries=1)
def leaves() -> None:
    raise SystemExit(3)
"""
)


@pytest.fixture
def locked(server: Server, redis: Client) -> Iterator[Server]:
    redis.call("CONFIG", "SET", "requirepass", PASSWORD)
    yield server
    redis.call("CONFIG", "SET", "requirepass", "")


@pytest.fixture
def shop(locked: Server, project: MakeProject, tmp_path: Path) -> Project:
    key = tmp_path / "key"
    key.write_text(KEY)
    config = f'[signing]\nkeys = ["k1:file:{key}", "k2:{KEY}-second"]\n'
    config += f'[laravel]\ncache_url = "unix://:{CACHE}@{locked.socket}?db=1"\ncache_prefix = "c:"\n'
    return project(jobs=SHOP, config=config, url=f"unix://:{QUOTED}@{locked.socket}")


def everything(redis: Client) -> str:
    """Each key of the server with what it holds, but the payloads as they were pushed."""
    found = []
    for key in redis.text("KEYS", "*"):
        kind = redis.text("TYPE", key)
        read = {"hash": ("HGETALL", key), "list": ("LRANGE", key, 0, -1), "zset": ("ZRANGE", key, 0, -1)}
        found.append(f"{key} {redis.call(*read.get(kind, ('GET', key)))!r}")
    return "\n".join(found)


def shown_by_ps(work: Procs) -> str:
    """Titles and arguments of each process of this `qd work`."""
    found = []
    for process in work.session():
        try:
            found.append(f"{process.name()} {Path(f'/proc/{process.pid}/cmdline').read_bytes()!r}")
        except (OSError, psutil.Error):
            continue
    return "\n".join(found)


SHOWING = [
    ["status"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["status", "--json"],
    ["declared"],
    ["health"],
    ["doctor"],
]


@FAILED
@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
@pytest.mark.modes("1", "prefetch", why="the title of a worker with several jobs names none")
def test_no_secret_is_seen_in_log_titles_errors_failed_store_or_any_key(
    shop: Project, redis: Client, format: str
) -> None:
    witness = Witness(shop)
    sent = shop.python(
        "import jobs\nfor n in range(len(jobs.WORDS)):\n    jobs.tells.dispatch(n); jobs.fails.dispatch(n)\n"
        "jobs.dies.dispatch(); jobs.leaves.dispatch()"
    )
    work = shop.work("-w", "2", "--max-crashes", "1", "--log-level", "debug", "--log-format", format)
    witness.wait("dies")
    eventually(
        lambda: not redis.call("EXISTS", "queues:default", "queues:default:reserved", "queues:default:delayed"), 20
    )
    work.signal(signal.SIGUSR1)
    work.wait_line("master.state")
    seen = shown_by_ps(work)
    for words in SHOWING if format == "text" else ():  # what they say has nothing to do with the log's format
        done = shop.qd(*words)
        seen += done.stdout + done.stderr
    eventually(lambda: redis.call("HLEN", "queues:default:failed") == 16)
    seen += everything(redis)
    work.stop()
    assert len(failed(redis)) == 16
    text = "\n".join([*work.all_lines, *work.output, seen, sent.stdout, sent.stderr])
    assert not [line for line in text.splitlines() if HIDDEN.search(line)]
    assert "***" in text


@pytest.mark.usefixtures("clean_redis")
def test_a_refused_configuration_shows_no_secret(shop: Project, redis: Client) -> None:
    tries = {
        f'[signing]\nkeys = ["{KEY}"]\n': 78,
        f'[signing]\nkeys = ["a b:{KEY}"]\n': 78,
        f'[signing]\nkey = ["a:{KEY}"]\n': 78,
        f'[signing]\nkeys = ["a:{KEY}"\n': 78,
        f'[laravel]\ncache_url = "http://:{CACHE}@h"\n': 78,
    }
    for config, code in tries.items():
        shop.config(config)
        for words in (["work"], ["config", "check"], ["config", "show"]):
            done = shop.qd(*words)
            assert done.returncode == code, done.stderr
            assert not HIDDEN.search(done.stdout + done.stderr)
    shop.config()
    done = shop.qd("status", QD_REDIS_URL=f"redis://:{QUOTED}@127.0.0.1:1")
    assert done.returncode == 69
    assert not HIDDEN.search(done.stdout + done.stderr)


def test_a_wrong_password_is_not_shown_either(locked: Server, project: MakeProject) -> None:
    shop = project(jobs=JOBS, url=f"unix://:hunter-2-is-wrong@{locked.socket}")
    work = shop.work("-w", "1")
    work.ends_clean(code=78)
    work.wait_line("connection.refused .*WRONGPASS")
    assert not HIDDEN.search("\n".join(work.all_lines))


# -- texts that want to be more than text

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
HOSTILE = {
    "ansi": "\x1b[31mred\x1b[2J\x1b]0;title\x07",
    "lines": "a\r\nb\n2026-01-01 00:00:00.000+00:00 INFO  master[1] master.stopped exit=0",
    "controls": "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "line separators": "a\u2028b\u2029c\x85d",
    "bidi": "a\u202egnp.exe\u2066x\u2069\u200f",
    "zero width": "a\u200bb\ufeffc",
    "quotes": 'a" error="b\' key=value \\',
    "surrogates": "a\ud800b",
}
TEXTS = (
    JOBS
    + f"""
import logging
HOSTILE = {HOSTILE!r}

@app.job("raises")
def raises(which: str) -> None:
    logging.warning("it says %s", HOSTILE[which])
    logging.getLogger(HOSTILE[which]).warning("who?")
    raise type(HOSTILE["quotes"], (ValueError,), {{}})(HOSTILE[which])

@app.job("named \\u202e \\x1b[31m here")
def named() -> None:
    note("named")
    held()
"""
)


RED = "\x1b[31m\u202e"
COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["health"],
    ["doctor"],
    ["declared"],
    ["declared", "--json"],
    ["pause", RED],
    ["resume", RED],
]
COMMANDS += [
    ["clear", RED, "--yes"],
    ["dispatch", RED, "n=1"],
    ["run", RED],
    ["work", RED],
    ["work", "--pool", RED],
    ["config", RED],
]
COMMANDS += [
    ["status", "-c", RED],
    ["declared", "--app", RED],
    ["status", "--config", RED],
    [RED],
    ["restart", "--wait", RED],
]


@FAILED
@pytest.mark.leaves("queues:*", "qd:masters")
@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
@pytest.mark.modes("1", "prefetch", why="the title of a worker with several jobs names none")
def test_no_text_of_a_payload_or_an_error_forges_a_line_or_reaches_the_terminal(
    project: MakeProject, redis: Client, format: str
) -> None:
    shop = project(jobs=TEXTS)
    witness = Witness(shop)
    push(redis, "named \u202e \x1b[31m here")
    for name, text in HOSTILE.items():
        push(redis, "raises", which=name)
        if name != "surrogates":
            push(redis, text, n=text)
            push_raw(redis, make(text, b'{"n":1}', id=text, uuid=text, display=text, created_at=1))
            report = {
                "token": text,
                "host": text,
                "pid": 1,
                "booted_at": 1,
                "pool": text,
                "queues": [text],
                "state": text,
            }
            report |= {
                "version": text,
                "connection": "redis",
                "workers": [{"slot": 1, "job": text, "queue": text, "state": text}],
            }
            report["seen_at"] = 9e9
            redis.call("HSET", "qd:masters", text, json.dumps(report))
            redis.call("RPUSH", f"queues:{text}", b"{}")
            redis.call("SET", f"queues:{text}:paused", json.dumps({"by": text, "reason": text}))
    work = shop.work("-w", "2", "--log-format", format, "--log-level", "debug")
    witness.wait("named")
    titles = {titled(work.child("here since"))}
    witness.go()
    work.wait_line("job.failed", count=len(HOSTILE), seconds=20)
    before = work.all_lines[:]  # the stacks that USR1 asks for are written by Python's fault handler
    work.signal(signal.SIGUSR1)
    work.wait_line("master.state")
    outputs = [shop.qd(*words) for words in COMMANDS] if format == "text" else []
    titles |= {titled(process) for process in work.session()}
    work.stop()
    for line in [*work.all_lines, *titles]:
        assert not CONTROL.search(line), repr(line)
    for line in before if format == "json" else []:
        assert isinstance(json.loads(line), dict)
    for done in outputs:
        for line in (done.stdout + done.stderr).split("\n"):
            assert not CONTROL.search(line), repr(line)
    assert not work.matches(r"^2026-01-01")


@pytest.mark.usefixtures("clean_redis")
def test_running_as_root_is_logged_in_one_line(project: MakeProject) -> None:
    """As information in a container, where that is usual."""
    shop = project(jobs=JOBS)
    for container in {proc.in_container(), True}:
        work = shop.work_off(**({"container": "podman"} if container else {}))
        warnings = [line for line in work.all_lines if "master.is_root" in line]
        assert len(warnings) == (os.geteuid() == 0)
        for line in warnings:
            level = "INFO" if container else "WARN"
            assert re.search(rf"{level}.* master.is_root hint=.*user= in supervisord, User= in systemd", line)
