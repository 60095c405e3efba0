"""The users of docs/how-to/acl.md, created as shown: each can do all of its work, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qd
from tests.cli.conftest import report
from tests.support.pages import ROOT
from tests.support.payloads import failed, push, store_failed_job
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

PAGE = (ROOT / "docs" / "how-to" / "acl.md").read_text()
USERS = {line.split()[2]: line.split()[3:] for line in PAGE.splitlines() if line.startswith("ACL SETUSER qd-")}


def added(task: str, cell: int = 1) -> list[str]:
    """The rights in the row of the page that begins with this task."""
    (row,) = re.findall(rf"^\| {re.escape(task)}.*\|$", PAGE, re.MULTILINE)
    found: list[str] = re.findall(r"`([~+].*?)`", str(row).split(" | ")[cell])
    return found[0].split()


KINDS = ("producer", "worker", "looker", "operator")
STATES = ("ready", "delayed", "reserved")
pytestmark = pytest.mark.usefixtures("clean_redis")
LEFT = pytest.mark.leaves("queues:*", "qd:*")

SHOP = (
    JOBS
    + LASTS
    + """
@app.job("dies", tries=3)
def dies() -> None:
    note("dies", current_job().attempt)
    os.kill(os.getpid(), 9)

@app.job("again", tries=3, backoff=0.05)
def again() -> None:
    note("again", current_job().attempt)
    current_job().checkpoint({"attempt": current_job().attempt})
    if current_job().attempt < 2:
        raise ValueError("once more")
    quick.dispatch(99)
"""
)


def test_the_page_has_the_four_users():
    assert list(USERS) == [f"qd-{kind}" for kind in KINDS]


def test_the_worker_user_has_the_rights_of_the_scripts():
    folder = Path(qd.__file__).parent / "drivers" / "keyspace" / "scripts"
    operators = (
        "clear.lua",
        "find.lua",
        "retry.lua",
        "forget.lua",
        "stop.lua",
        "drop.lua",
        "adopt.lua",
        "take_value.lua",
    )
    elsewhere = (
        "ends_left.lua",
        "outbox.lua",
        "delivery_turn.lua",
    )  # for a cluster, and for the control connection of beanstalkd and SQS, as on the page
    texts = [path.read_text() for path in folder.glob("*.lua") if path.name not in (*operators, *elsewhere)]
    called = {word.lower() for text in texts for word in re.findall(r"redis\.p?call\('(\w+)'", text)}
    assert len(called) > 15
    called.remove("set")  # for unique jobs and locks, as on the page
    assert called <= {rule[1:] for rule in USERS["qd-worker"] if rule.startswith("+")}


@pytest.fixture
def url(server: Server, redis: Client) -> Iterator[Callable[[str], str]]:
    """url("worker"): the server's url for the user qd-worker of the page."""
    for name, rules in USERS.items():
        redis.call("ACL", "SETUSER", name, *rules)
    redis.call("ACL", "LOG", "RESET")
    yield lambda kind: f"unix://qd-{kind}:{kind.upper()}-PASSWORD@{server.socket}"
    for name in USERS:
        redis.call("ACL", "DELUSER", name)


@pytest.fixture
def refused(redis: Client) -> Callable[[], set[str]]:
    """The commands that the server has rejected, except for setting the connection's name, which is optional."""

    def read() -> set[str]:
        entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in redis.call("ACL", "LOG", 100)]
        return {entry[b"object"].decode() for entry in entries} - {"client", "client|setname"}

    return read


@pytest.fixture
def shop(url: Callable[[str], str], project: Callable[..., Project]) -> Project:
    return project(jobs=SHOP, url=url("worker"))


def env(url: Callable[[str], str], kind: str) -> dict[str, Any]:
    return {"QD_REDIS_URL": url(kind)}


SEND = """
from jobs import again, app, boom, dies, quick
quick.dispatch(1)
quick.using(delay=0.2).dispatch(2)
app.dispatch(*[quick.bind(n) for n in range(3, 6)], again.bind(), boom.bind(), dies.bind())
app.queue("default").push("nobody.knows", {"n": 1})
app.queue("default").push_raw(b"not JSON")
"""


@LEFT
def test_worker_and_producer_can_do_all_of_their_work(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    """Push, delay, bulk, reserve, ack, retry, fail, crash, an unknown name, no payload, pause, restart, hand-back."""
    witness = Witness(shop)
    operator = env(url, "operator")
    work = shop.work("-w", "2", "--max-crashes", "1", "--unroutable-ttl", "1s", "--stop-timeout", "0.5s")
    work.wait_line("master.ready")
    shop.python(SEND, **env(url, "producer"))
    witness.wait("quick 99", seconds=20)
    for n in range(1, 6):
        witness.wait(f"quick {n}")
    eventually(lambda: redis.call("HLEN", "queues:default:failed") == 4, 20, what="boom, dies, nobody.knows, not JSON")
    assert {record["error"] for record, _ in failed(redis)} == {
        "ValueError",
        "AttemptsExceeded",
        "UnknownJob",
        "Malformed",
    }
    assert shop.qd("pause", "default", **operator).returncode == 0
    shop.python("from jobs import quick\nquick.dispatch(7)", **env(url, "producer"))
    eventually(lambda: len(work.children("waiting on")) == 2, 20)
    assert not witness.starting("quick 7")
    assert shop.qd("resume", "default", **operator).returncode == 0
    witness.wait("quick 7")
    push(redis, "slow", seconds=60)
    witness.wait("start")
    assert shop.qd("restart", **operator).returncode == 0
    work.ends_clean()
    assert redis.call("LLEN", "queues:default") == 1
    assert not refused()


@LEFT
def test_a_new_master_can_settle_the_jobs_of_a_dead_one(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    witness = Witness(shop)
    shop.python("from jobs import lasts\nlasts.dispatch(1)", **env(url, "producer"))
    work = shop.work("-w", "1")
    witness.wait("start")
    work.kill()
    again = shop.work("-w", "1")
    again.wait_line("job.requeued .*its master died")
    witness.go()
    witness.wait("end")
    eventually(lambda: not redis.call("EXISTS", "queues:default:reserved"))
    again.stop()
    assert not refused()


BATCH = "from jobs import app, quick\napp.batch(*[quick.bind(n) for n in range(3)]).dispatch()"


@pytest.mark.parametrize("workers", ["0", "2"])
@LEFT
def test_a_worker_without_a_needed_right_reserves_no_job_until_it_has_it(
    shop: Project, server: Server, redis: Client, workers: str
) -> None:
    witness, lacks = Witness(shop), ("sadd", "srem", "scard", "hincrby")
    work = shop.work("-w", workers)
    eventually(lambda: redis.call("HLEN", "qd:masters"), 20, what="the report of its keeper")
    redis.call("ACL", "SETUSER", "qd-worker", *(f"-{word}" for word in lacks))
    redis.call("CLIENT", "KILL", "USER", "qd-worker")
    work.wait_line('redis.refused user=qd-worker missing="HINCRBY SADD SCARD SREM" .*qd doctor')
    shop.python(BATCH, QD_REDIS_URL=server.url)
    eventually(lambda: tried(redis, "sadd") >= 3, 20, what="the third try")
    assert (witness.lines, redis.call("LLEN", "queues:default")) == ([], 3)
    assert not redis.call("KEYS", "queues:default:r*")
    assert len(work.matches("redis.refused")) == 1
    redis.call("ACL", "SETUSER", "qd-worker", *(f"+{word}" for word in lacks))
    witness.wait("quick", 3)
    work.wait_line("redis.granted user=qd-worker")
    work.stop()
    assert len(work.matches("redis.away")) == 1  # when its connection was closed
    assert len(witness.lines) == 3


def tried(redis: Client, command: str) -> int:
    """How often the server has rejected the command."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in redis.call("ACL", "LOG", 100)]
    return sum(int(entry[b"count"]) for entry in entries if entry[b"object"] == command.encode())


@LEFT
def test_the_read_only_user_and_the_operator_can_run_their_commands(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    shop.python("from jobs import quick\nquick.using(delay=60).dispatch(1)\nquick.dispatch(2)", **env(url, "producer"))
    looker, operator = env(url, "looker"), env(url, "operator")
    report(
        redis, seen_at=float(redis.text("TIME")[0]) + 600
    )  # without a report they check whether the server accepts writes
    assert shop.qd("status", **looker).returncode == 0
    assert shop.qd("health", **looker).returncode in (0, 1)
    for words in (
        ["down"],
        ["up"],
        ["pause", "default", "--for", "1m"],
        ["resume", "default"],
        ["dispatch", "quick", "n=3"],
    ):
        done = shop.qd(*words, **operator)
        assert done.returncode == 0, (words, done.stderr)
    assert shop.qd("restart", **operator).returncode == 0
    assert shop.qd("clear", "default", "--yes", **operator).returncode == 0
    store_failed_job(redis, "T.0.1.1", queue="default")
    store_failed_job(redis, "T.0.2.1", queue="default")
    assert shop.qd("failed", "list", **looker).returncode == 0
    assert shop.qd("failed", "summary", **looker).returncode == 0
    redis.call("HSET", "qd:batch:b", "total", 1, "created_at", 1)
    redis.call("SET", "qd:mutex:{report}", "app-1/1/a")
    redis.call("HSET", "qd:slots:api", "u-1", "9999999999999 m1")
    for words in (["batch", "list"], ["batch", "show", "b"], ["locks"], ["locks", "report"]):
        assert shop.qd(*words, **looker).returncode == 0, words
    for words in (["queues"], ["wait", "none", "--empty"], *(["peek", "default", "--state", each] for each in STATES)):
        assert shop.qd(*words, **looker).returncode == 0, words
    assert shop.qd("failed", "show", "T.0.1", **looker).returncode == 0
    assert not refused()
    redis.call("ACL", "SETUSER", "qd-operator", *added("`qd failed retry` and `forget`"))
    assert shop.qd("failed", "retry", "T.0.1.1", **operator).returncode == 0
    assert shop.qd("failed", "forget", "T.0.2.1", **operator).returncode == 0
    assert not refused()
    redis.call("ACL", "SETUSER", "qd-operator", *added("`qd schedule pause` and `resume`"))
    assert shop.qd("schedule", "pause", **operator).returncode == 0
    assert shop.qd("schedule", "list", **looker).stdout.startswith("all entries are paused by ")
    assert shop.qd("schedule", "resume", **operator).returncode == 0
    for order in (["pause", "--job", "quick"], ["resume", "--job", "quick"], ["restart", "--pool", "mail"]):
        assert shop.qd(*order, **operator).returncode == 0
    assert not refused()


@LEFT
def test_who_may_look_work_and_scan_can_move_and_promote_jobs(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    more = added("`qd why`, `qd promote`, `qd move`, `qd cancel -q`", cell=2)
    rights = [
        each for user in ("looker", "worker") for each in re.findall(rf"qd-{user} reset .*-@all (.*)", PAGE)[0].split()
    ]
    redis.call("ACL", "SETUSER", "qd-worker", *rights, *more)
    worker = env(url, "worker")
    id, later = shop.python(
        "from jobs import quick\nprint(quick.dispatch(1).id, quick.using(delay=60).dispatch(2).id)", **worker
    ).stdout.split()
    assert shop.qd("why", id, **worker).stdout.startswith("no-worker")
    assert shop.qd("promote", later, **worker).returncode == 0
    assert shop.qd("move", "default", "--to", "low", "--yes", **worker).stdout == "2 jobs moved from default to low\n"
    assert shop.qd("cancel", "-q", "low", "--job", "quick", "--yes", **worker).returncode == 0
    assert not refused()


@LEFT
def test_worker_and_operator_can_retry_failed_jobs_of_a_batch(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    Witness(shop)
    batch = "app.batch(boom.using(result_ttl=60).bind())"
    id = shop.python(f"from jobs import app, boom\nprint({batch}.dispatch().id)").stdout.strip()
    shop.work_off()
    result = shop.python(f"from jobs import app\nprint(app.batch_of({id!r}).retry_failed())")
    assert result.stdout == "1\n"
    shop.work_off()
    for task in ("`qd failed retry` and `forget`", "`qd batch retry`"):
        redis.call("ACL", "SETUSER", "qd-operator", *added(task))
    assert shop.qd("batch", "retry", id, **env(url, "operator")).returncode == 0
    shop.work_off()
    assert shop.qd("failed", "retry", "--all", **env(url, "operator")).returncode == 0
    assert not refused()


@LEFT
def test_an_operator_with_these_rights_can_cancel_batches_and_release_locks(
    shop: Project, url: Callable[[str], str], refused: Callable[[], set[str]], redis: Client
) -> None:
    operator = env(url, "operator")
    redis.call("ACL", "SETUSER", "qd-operator", *added("`qd batch cancel`"))
    redis.call("HSET", "qd:batch:b", "total", 1, "created_at", 1)
    assert shop.qd("batch", "cancel", "b", **operator).returncode == 0
    of_locks = [right for right in added("uses [`app.lock`") if right.startswith("+")]
    redis.call("ACL", "SETUSER", "qd-operator", *of_locks, *added("`qd locks release`"))
    redis.call("SET", "qd:mutex:{report}", "app-1/1/a")
    redis.call("SET", "qd:unique:mail", "u-1")
    redis.call("HSET", "qd:slots:api", "u-1", "9999999999999 m1")
    for name in ("report", "mail", "api"):
        result = shop.qd("locks", "release", name, "--yes", **operator)
        assert (result.returncode, result.stderr) == (0, ""), name
    assert not refused()


FORBIDDEN = {
    "producer": (
        "get qd:down",
        "rpush qd:x 1",
        "rpush queues:other 1",
        "lrange queues:default 0 -1",
        "lpop queues:default",
        "zadd queues:default:reserved 1 x",
        "zrem queues:default:reserved x",
        "hdel queues:default:owners a/1",
        "hgetall queues:default:failed",
        "hset queues:default:failed a b",
    ),
    "worker": ("set qd:down x", "del queues:default", "rename queues:default x", "rpush other 1", "scan 0"),
    "looker": ("set qd:down x", "lpop queues:default", "rpush queues:default 1", "hdel qd:masters a", "eval return 0"),
    "operator": ("lpop queues:default", "zrem queues:default:reserved x", "hdel queues:default:owners a"),
}
ALL = """flushdb|flushall|keys *|config get *|shutdown nosave|acl list|monitor|client list|info|script flush|swapdb 0 1
replicaof no one|save|publish a b|subscribe a|module list""".replace("\n", "|").split("|")


@pytest.mark.parametrize("kind", KINDS)
@LEFT
def test_no_user_can_do_more(kind: str, server: Server, url: Callable[[str], str], redis: Client) -> None:
    push(redis, "quick")
    redis.call("ZADD", "queues:default:reserved", 1, "x")
    redis.call("HSET", "queues:default:owners", "a/1", "x")
    before = {key: redis.call("DUMP", key) for key in redis.call("KEYS", "*")}
    with server.client() as client:
        client.call("AUTH", f"qd-{kind}", f"{kind.upper()}-PASSWORD")
        for line in [*ALL, *FORBIDDEN[kind]]:
            if line == "info" and kind in ("looker", "operator"):
                continue  # `qd health`: is its memory full?
            with pytest.raises(Exception, match="NOPERM"):
                client.call(*line.upper().split() if line in ALL else line.split())
        if kind != "looker":  # also inside a script
            for line in FORBIDDEN[kind]:
                words = line.split()
                call = f"return redis.call('{words[0]}', {', '.join(repr(word) for word in words[1:])})"
                with pytest.raises(Exception, match=r"NOPERM|can't run this command|can't access|[Nn]o permissions"):
                    client.call("EVAL", call, 0)
    assert {key: redis.call("DUMP", key) for key in redis.call("KEYS", "*")} == before
