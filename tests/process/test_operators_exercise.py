"""What an operator asks at night of a system that is broken at random: each answer of a command names the cause.

The queues, jobs, hosts, errors and numbers are chosen anew in each run; the seed is in the output of a run that fails.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cli.conftest import report
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually

NAMES = ("mail", "pdf", "hooks", "images", "orders", "search", "sync", "audit", "stock", "video")
ERRORS = ("ValueError", "KeyError", "ConnectionError", "TimeoutError", "ZeroDivisionError")
JOBS = """
@app.job("{wrong}")
def wrong(n: int) -> None:
    time.sleep(0.5)

@app.job("{fine}")
def fine(n: int) -> None: ...

@app.job("{hanging}", timeout=600)
def hanging() -> None:
    while not Path("go").exists():
        time.sleep(0.02)

@app.job("{poison}")
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.job("{failing}", tries=1)
def failing(n: int) -> None:
    raise {error}(str(n))
"""


@dataclass
class Broken:
    """The causes. backlog, paused, unserved, hangs, fails: queues. counts: of jobs by name in the backlog."""

    seed: int
    shop: Project
    work: Procs
    wrong: str
    fine: str
    hanging: str
    poison: str
    failing: str
    error: str
    failed: int
    backlog: str
    paused: str
    unserved: str
    hangs: str
    fails: str
    dead: str
    reason: str
    counts: dict[str, int]
    ids: dict[str, str] = field(default_factory=dict)

    def ask(self, *words: str, code: int = 0) -> Any:
        """The document that a command prints."""
        done = self.shop.qd(*words, "--json", QD_ACTOR="night-shift")
        assert done.returncode == code, (self.seed, words, done.stdout, done.stderr)
        return json.loads(done.stdout)


@pytest.fixture
def broken(project: MakeProject, redis: Client) -> Iterator[Broken]:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print("seed", seed)
    queues, jobs = chance.sample(NAMES, 5), [f"{chance.choice(NAMES)}.{word}" for word in chance.sample(NAMES, 5)]
    names = dict(zip(("wrong", "fine", "hanging", "poison", "failing"), jobs, strict=True))
    places = dict(zip(("backlog", "paused", "unserved", "hangs", "fails"), queues, strict=True))
    counts = {names["wrong"]: chance.randrange(100, 300), names["fine"]: chance.randrange(5, 20)}
    causes = {"error": chance.choice(ERRORS), "failed": chance.randrange(2, 9), "dead": f"app-{chance.randrange(9)}"}
    shop = project(jobs="import signal\n" + JOBS.format(**names, error=causes["error"]))
    shop.allowed |= {"go"}
    # The backlog is served last, so that the rest of the system is as broken as it will be while it waits.
    served = [places["hangs"], places["fails"], places["paused"], places["backlog"]]
    reason = f"ticket {chance.randrange(1000)}"
    work = shop.work("-w", "2", *served)
    work.wait_line("master.ready")
    made = Broken(seed, shop, work, **names, **places, **causes, reason=reason, counts=counts)  # type: ignore[arg-type]
    breaks(made, redis, chance)
    yield made
    (shop.root / "go").touch()
    work.stop(seconds=40)


def breaks(system: Broken, redis: Client, chance: random.Random) -> None:
    def send(queue: str, *words: str) -> str:
        return str(system.ask("dispatch", *words, "--queue", queue)["ids"][0])

    system.ask("pause", system.paused, "--reason", system.reason)
    system.ids["paused"] = send(system.paused, system.fine, "n=1")
    system.ids["unserved"] = send(system.unserved, system.fine, "n=1")
    system.ids["delayed"] = send(system.backlog, system.fine, "n=1", "--delay", "3h")
    system.ids["hanging"] = send(system.hangs, system.hanging)
    for n in range(system.failed):
        send(system.fails, system.failing, f"n={n}")
    system.ids["poison"] = send(system.fails, system.poison)
    order = [name for name, count in system.counts.items() for _ in range(count)]
    chance.shuffle(order)
    old = int(time.time()) - 7200
    half = len(order) // 2
    for n, name in enumerate(order):
        payload = {"uuid": f"u{n}", "displayName": name, "job": name, "data": {"n": n}, "attempts": 0, "id": f"id{n}"}
        payload["createdAt"] = old if n < half else old + 7000
        redis.call("RPUSH", f"queues:{system.backlog}", json.dumps(payload, separators=(",", ":")))
    minute = int(float(redis.text("TIME")[0]) // 60)
    for back in range(1, 5):
        ready = len(order) - 20 * back
        redis.call("HSET", f"qd:{{stats}}:q:{minute - back}", f"redis\x1f{system.backlog}", f"1 {ready} 0 0 0 60")
    gone = float(redis.text("TIME")[0]) - 60
    report(redis, "D3ad", host=system.dead, pool="web", seen_at=gone, booted_at=gone - 600, queues=[system.unserved])


@pytest.mark.leaves("queues:*", "qd:masters", "qd:fleet", "qd:*")
def test_each_question_of_the_night_is_answered_with_the_cause(broken: Broken, redis: Client) -> None:
    eventually(lambda: failures(broken).get((broken.failing, broken.error)) == broken.failed, what="the failed jobs")
    eventually(lambda: any(job == broken.poison for job, _ in failures(broken)), 40, what="the end of the poison job")

    # 1 Is it broken?
    reasons = broken.ask("health", code=1)["reasons"]
    assert {"silent-master"} <= {each["kind"] for each in reasons}
    assert any(broken.dead in each["text"] for each in reasons)
    # 2 Since when, and is it getting worse?
    # Sizes are written every ten seconds.
    growing: Callable[[], bool] = lambda: queue_of(broken, broken.backlog)["rates"]["growth_per_min"] > 0  # noqa: E731
    eventually(growing, 25, what="the growth in the statistics")
    assert queue_of(broken, broken.backlog)["oldest_age_s"] > 100
    # 3 What are the jobs that wait?
    counted = {row["job"]: row["count"] for row in broken.ask("peek", broken.backlog, "--count-by", "job")["counts"]}
    assert max(counted, key=lambda job: counted[job]) == broken.wrong
    # 4 Which job hangs?
    eventually(lambda: hanging(broken) == [broken.hangs], what="the hanging job in the status")
    assert broken.ask("why", broken.ids["hanging"])["cause"] == "running"
    # 5 What changed?
    done = broken.shop.qd("events", "--json", "--since", "1h").stdout.splitlines()
    events = [json.loads(line) for line in done]
    assert [e["reason"] for e in events if e["what"] == "pause"] == [broken.reason]
    assert "master started" in {e["what"] for e in events}
    # 6 What fails?
    assert failures(broken)[broken.failing, broken.error] == broken.failed
    # 7 Stop one kind of job; 8 stop one host
    broken.ask("pause", "--job", broken.wrong)
    eventually(
        lambda: broken.work.matches(f"job.released .*job={broken.wrong}"), what="a job of the paused name put back"
    )
    host = next(master["host"] for master in broken.ask("status")["masters"] if not master["silent"])
    broken.ask("pause", "--host", host)
    eventually(lambda: state_of(broken, host) == "paused", what="a paused host")
    broken.ask("resume", "--host", host)
    eventually(lambda: state_of(broken, host) == "running", what="a host that works again")
    broken.ask("resume", "--job", broken.wrong)
    # 9 More hands
    broken.ask("scale", "default", "3")
    eventually(lambda: workers_of(broken, host) == 3, what="a third worker")
    # 10 Skip the backlog
    old = broken.ask("move", broken.backlog, "--to", "later", "--older-than", "1h", "--dry-run")["would"]
    assert 0 < old <= sum(broken.counts.values()) // 2
    moved = broken.ask("move", broken.backlog, "--to", "later", "--older-than", "1h", "--yes")["done"]
    later = queue_of(broken, "later")  # those that were put back by the pause are delayed
    assert moved == later["ready"] + later["delayed"]
    # 11 Replay gently
    words = ("failed", "retry", "--all", "--job", broken.failing, "--rate", "50")
    assert broken.ask(*words, "--dry-run")["would"] == broken.failed
    # 12 Why does this job not run?
    causes = {
        what: broken.ask("why", broken.ids[what])["cause"] for what in ("paused", "unserved", "delayed", "poison")
    }
    assert causes == {"paused": "paused", "unserved": "no-worker", "delayed": "delayed", "poison": "failed"}
    # 13 Tell me when it is empty
    assert broken.ask("wait", "nothing", "--empty")["empty"] is True
    assert broken.ask("wait", broken.paused, "--empty", "--timeout", "0.1s", code=1)["ready"] == 1
    # 14 What did I do?
    mine = [json.loads(line) for line in broken.shop.qd("events", "--json").stdout.splitlines()]
    did = [event["what"] for event in mine if event["actor"] == "night-shift"]
    assert did == ["pause", "pause", "pause", "resume", "resume", "scale", "move"]


def queue_of(system: Broken, name: str) -> Any:
    (queue,) = system.ask("queues", name)["queues"]
    return queue


def failures(system: Broken) -> dict[tuple[str, str], int]:
    return {(row["job"], row["error"]): row["count"] for row in system.ask("failed", "summary")["groups"]}


def hanging(system: Broken) -> list[str]:
    """The queues of the workers that run the hanging job."""
    workers = [worker for master in system.ask("status")["masters"] for worker in master["workers"]]
    return [worker["queue"] for worker in workers if worker["job"] == system.hanging]


def living(system: Broken, host: str) -> Any:
    return next(m for m in system.ask("status")["masters"] if m["host"] == host and not m["silent"])


def state_of(system: Broken, host: str) -> str:
    return str(living(system, host)["state"])


def workers_of(system: Broken, host: str) -> int:
    return len(living(system, host)["workers"])
