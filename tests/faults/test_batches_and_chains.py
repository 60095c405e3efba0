"""A worker is killed at lines of qd that it executes while the last jobs of a batch, or the steps of a chain, end.

A callback or step that was sent twice would appear twice with the same count of crashes: one payload is one job, and each
run of it after a kill counts one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qd import Qd
from tests.support.faults import LineKill
from tests.support.payloads import producer
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import Witness

LEFT = ("qd:batch:*", "queues:*:failed*", "queues:*:deaths")
pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves(*LEFT),
    pytest.mark.modes("1", "prefetch", why="it kills at lines of the thread that does everything; row 57 has several"),
]
EVERY = 29  # lines from one kill to the next, unless every line is requested
SHOP = """
import json

def note(*words):
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

@app.job("step", tries=1)
def step(run: int, name: str, fails: bool = False) -> None:
    note(f"{run}.", name, json.loads(current_job().payload).get("crashes", 0))
    if fails:
        raise ValueError("this step does not work")

@app.job("passes", tries=1)
def passes(before: list[str], run: int, name: str) -> list[str]:
    note(f"{run}.", "".join([*before, name]), json.loads(current_job().payload).get("crashes", 0))
    return [*before, name]
"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


@pytest.fixture
def app(server: Server) -> Iterator[Qd]:
    with producer(server.url) as made:
        yield made


@pytest.fixture
def passes(app: Qd) -> Any:
    """The job `passes` of SHOP, declared in the app of the test file."""

    @app.job("passes", tries=1)
    def passes(before: list[str], run: int, name: str) -> list[str]:
        return [*before, name]

    return passes


class Sweep:
    """Sends the same jobs repeatedly, and kills the worker at a later line each time."""

    def __init__(self, shop: Project, redis: Client, every: int) -> None:
        self.kill, self.witness, self.redis, self.every = LineKill(shop), Witness(shop), redis, every
        self.lines: list[str] = []

    def run(self, send: Callable[[int], Callable[[], bool]], names: set[str]) -> None:
        """send(run) sends jobs and returns a predicate for their end. Then checks that each of `names` was sent once."""
        number, work = 1, self.kill.work("--max-crashes", "5")
        while True:
            self.kill.arm(number)
            over = send(number)
            how, line = self.kill.met()
            eventually(over, 20, what=f"the end after a kill at {line}")
            eventually(self._idle, 20, what=f"an empty queue after a kill at {line}")
            self.check(number, names, line)
            if how == "all":
                break
            self.lines.append(line)
            number += self.every
        work.stop()

    def _idle(self) -> bool:
        keys = [f"queues:default{kind}" for kind in ("", ":reserved", ":delayed")]
        return bool(self.redis.call("EXISTS", *keys) == 0)  # in one call: jobs move meanwhile

    def check(self, number: int, names: set[str], line: str) -> None:
        seen = [tuple(text.split()[1:]) for text in self.witness.starting(f"{number}. ")]
        assert {name for name, _ in seen} == names, f"killed at {line}: {seen}"
        assert len(set(seen)) == len(seen), f"killed at {line}, and sent twice: {seen}"


@pytest.fixture(params=[EVERY, pytest.param(1, marks=pytest.mark.slow)])
def sweep(shop: Project, redis: Client, request: pytest.FixtureRequest) -> Sweep:
    """Slow: every line, some thousand kills in ten minutes."""
    return Sweep(shop, redis, request.param)


def report_kills(figures: Figures, sweep: Sweep) -> None:
    figures.add(kills=len(sweep.lines), lines=len(set(sweep.lines)))
    files = {line.split(":")[0] for line in sweep.lines}
    assert {"worker/worker.py", "drivers/redis/connection.py"} <= files, files
    assert len(set(sweep.lines)) > 20


@pytest.mark.fault(
    "42",
    "kill -9 at lines of qd between the last two jobs of a batch and the end of its callbacks",
    "counts exact, then and finally sent once",
)
def test_a_batch_is_counted_exactly_if_its_worker_is_killed_at_any_line(
    app: Qd, step: Any, sweep: Sweep, figures: Figures
) -> None:
    def send(run: int) -> Callable[[], bool]:
        calls = [step.bind(run, "a"), step.bind(run, "b")]
        batch = app.batch(*calls, then=step.bind(run, "then"), finally_=step.bind(run, "finally")).dispatch()

        def over() -> bool:
            state = batch.look()
            assert (state.total, state.failed) == (2, 0)
            return state.pending == 0 and state.finished_at is not None

        return over

    sweep.run(send, {"a", "b", "then", "finally"})
    report_kills(figures, sweep)


@pytest.mark.fault(
    "42a",
    "the same, and the last job fails",
    "it is in the failed store once and in the batch once; catch and finally sent once",
)
def test_a_failure_is_counted_exactly_if_its_worker_is_killed_at_any_line(
    app: Qd, step: Any, sweep: Sweep, figures: Figures, redis: Client
) -> None:
    sent = list[int]()

    def send(run: int) -> Callable[[], bool]:
        sent.append(run)
        callbacks = {"catch": step.bind(run, "catch"), "finally_": step.bind(run, "finally")}
        calls = [step.bind(run, "a"), step.bind(run, "b", True)]
        batch = app.batch(*calls, then=step.bind(run, "then"), **callbacks).dispatch()

        def over() -> bool:
            state = batch.look()
            kept = redis.call("HLEN", "queues:default:failed") == len(sent)
            return kept and (state.pending, state.failed) == (0, 1) and state.finished_at is not None

        return over

    sweep.run(send, {"a", "b", "catch", "finally"})
    assert redis.call("HLEN", "queues:default:failed") == len(sent)
    report_kills(figures, sweep)


@pytest.mark.fault(
    "43",
    "kill -9 at lines of qd between the first step of a chain and its end",
    "each step runs and is sent once",
)
def test_each_step_of_a_chain_is_sent_once_if_its_worker_is_killed_at_any_line(
    app: Qd, step: Any, sweep: Sweep, figures: Figures
) -> None:
    def send(run: int) -> Callable[[], bool]:
        app.chain(step.bind(run, "a"), step.bind(run, "b"), step.bind(run, "c")).dispatch()
        return lambda: len({line.split()[1] for line in sweep.witness.starting(f"{run}. ")}) == 3

    sweep.run(send, {"a", "b", "c"})
    report_kills(figures, sweep)


@pytest.mark.fault(
    "43a",
    "the same, in a chain that passes results",
    "each step is sent once, with the result of the one before it",
)
def test_each_step_gets_the_right_result_if_its_worker_is_killed_at_any_line(
    app: Qd, passes: Any, sweep: Sweep, figures: Figures
) -> None:
    def send(run: int) -> Callable[[], bool]:
        links = (passes.link(run, "b"), passes.link(run, "c"))
        app.chain(passes.bind([], run, "a"), *links, pass_results=True).dispatch()
        return lambda: len({line.split()[1] for line in sweep.witness.starting(f"{run}. ")}) == 3

    sweep.run(send, {"a", "ab", "abc"})
    report_kills(figures, sweep)
