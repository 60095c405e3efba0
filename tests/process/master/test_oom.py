"""The kernel's out-of-memory killer takes the worker, and is distinguished from any other SIGKILL."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from qd.master import postmortem
from tests.support.payloads import failed, push
from tests.support.processes import control_group, titled
from tests.support.project import MakeProject
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
LIMIT = 220_000_000

HUNGRY = (
    JOBS
    + """
@app.job("hungry")
def hungry() -> None:
    note("hungry")
    eaten = [b"x" * 10_000_000 for _ in range(100)]
    note("full", len(eaten))
"""
)


@FAILED
def test_twenty_times_it_is_the_worker_and_the_record_says_why(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=HUNGRY)
    witness = Witness(shop)
    with control_group("memory", f"qd-test-{os.getpid()}") as memory:
        memory.limit("memory.limit_in_bytes", "memory.max", LIMIT)
        with memory.joined():
            work = shop.work("-w", "1", "--max-crashes", "20")
        work.wait_line("master.ready")

        def others_running() -> set[int]:
            return {p.pid for p in work.session() if "qd: worker" not in titled(p)}

        others = eventually(lambda: len(others_running()) == 3 and others_running(), what="master, template, keeper")
        push(redis, "hungry")
        work.wait_line("job.failed .*job=hungry", 120)
        assert len(witness.starting("hungry")) == 20
        assert not witness.starting("full")
        how = r'how="signal 9 \(SIGKILL\), out of memory \(the kernel\)" peak=\d+M'
        work.wait_line(rf"worker\.died .*{how} job=hungry", count=20)  # of the master, and the line before of another
        assert others <= {p.pid for p in work.session()}
        ((record, _),) = failed(redis)
        how = r"ended with signal 9 \(SIGKILL\), out of memory \(the kernel\), peak memory [12]\d\dM"
        assert re.search(how, record["reason"])
        push(redis, "quick")
        witness.wait("quick")
        work.stop()


@pytest.mark.leaves("queues:*:deaths")
def test_a_plain_kill_is_not_blamed_on_memory_and_the_note_has_all_of_it(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    work = shop.work("-w", "1")
    push(redis, "lasts")
    os.kill(int(witness.wait("start")[0].split()[2]), signal.SIGKILL)
    line = work.wait_line("worker.died").string
    assert "memory" not in line
    (text,) = eventually(lambda: [*redis.hash("queues:default:deaths").values()], what="the note")
    note = json.loads(text)
    death = note["death"]
    assert note["told"].startswith("its worker ended with signal 9 (SIGKILL), peak memory ")
    assert 0 < death.pop("took") < 20
    assert 10_000_000 < death.pop("peak") < 500_000_000
    assert death == {"verdict": "crash", "signal": "SIGKILL", "exit": None, "oom": False, "stack": None}
    witness.go()
    witness.wait("end")
    work.stop()


def test_what_the_counter_says_is_claimed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(postmortem, "places", lambda: iter([tmp_path / "none", counter]))
    kills = postmortem.OomKills()
    assert kills.killed(9) is False
    counter.write_text("oom_kill 3\n")
    kills.look()
    assert kills.killed(11) is False
    assert kills.killed(9) is True
    assert kills.killed(9) is False
    monkeypatch.setattr(postmortem, "places", lambda: iter([tmp_path / "none"]))
    assert postmortem.OomKills().killed(9) is None


def test_kills_counted_long_before_are_not_attributed_to_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, at = tmp_path / "memory.events", [100.0]
    counter.write_text("oom_kill 2\n")
    monkeypatch.setattr(postmortem, "places", lambda: iter([counter]))
    monkeypatch.setattr(postmortem, "time", SimpleNamespace(monotonic=lambda: at[0]))
    kills = postmortem.OomKills()
    counter.write_text("oom_kill 3\n")
    kills.look()
    at[0] += postmortem.LATELY
    assert kills.killed(9) is False
