"""failed() and listeners are user code: whatever they do to their worker, the job is stored once and does not run again."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]

HOOKED = (
    JOBS
    + """
import signal
from qd import Job, events

def leave(how):
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit": os._exit(0)
    if how == "sys.exit": sys.exit()
    if how == "stuck": sum(range(10**12))
    if how == "asleep": time.sleep(60)
    if how == "raises": raise ValueError("in failed()")

@app.job("mined", timeout=1, tries=1)
class Mined(Job[None]):
    first: str
    then: str

    def handle(self) -> None:
        note("run", os.getpid())
        leave(self.first)

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)
        leave(self.then)

@app.on(events.JobTimedOut)
def timed_out(event: events.JobTimedOut) -> None:
    note("timed out", event.job.name, event.job.attempt)

@app.on(events.JobCrashed)
def crashed(event: events.JobCrashed) -> None:
    note("crashed", event.crashes)
    if Path("mine").exists():
        leave("kill")

@app.job("twice", timeout=1, tries=2)
def twice() -> None:
    note("run", current_job().attempt)
    if current_job().attempt == 1:
        leave("stuck")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=HOOKED)


# How the job fails -> how often it runs until then.
FIRST = {"raises": 1, "asleep": 1, "stuck": 1, "exit": 3}


@pytest.mark.parametrize("then", ["kill", "exit", "stuck"])
@pytest.mark.parametrize("first", FIRST)
def test_hooks_that_end_their_worker_are_left_out_by_the_next_and_the_job_does_not_run_again(
    shop: Project, witness: Witness, redis: Client, first: str, then: str
) -> None:
    work = ready(shop)
    push(redis, "mined", first=first, then=then)
    push(redis, "quick")
    work.wait_line("job.failed .*job=mined .*its worker died in failed")
    witness.wait("quick")
    work.stop()
    assert len(witness.starting("run")) == FIRST[first]
    assert len(witness.starting("failed")) == 1
    ((record, _),) = failed(redis)
    assert record["attempts"] == 1
    death = record["death"]
    assert death["verdict"] == ("timeout" if then == "stuck" else "crash")
    assert (death["signal"], death["exit"]) == ((None, 0) if "exit" in then else ("SIGKILL", None))
    assert death["peak"] > 1_000_000
    assert ("in leave" in (death["stack"] or "")) is (then == "stuck")


@pytest.mark.parametrize("then", ["asleep", "raises", "sys.exit"])
def test_hooks_have_a_time_of_their_own_and_what_they_raise_changes_nothing(
    shop: Project, witness: Witness, redis: Client, then: str
) -> None:
    work = ready(shop)
    push(redis, "mined", first="raises", then=then)
    work.wait_line("job.failed .*job=mined .*ValueError: in failed")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    assert work.matches("failed.* or a listener raised")
    assert len(witness.starting("run")) == len(witness.starting("failed")) == 1
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("ValueError", 1)
    assert "death" not in record


def test_a_listener_of_the_crash_that_kills_the_judging_worker_is_left_out_by_the_next(
    shop: Project, witness: Witness, redis: Client
) -> None:
    (shop.root / "mine").touch()
    shop.allowed.add("mine")
    work = ready(shop)
    push(redis, "mined", first="kill", then="")
    work.wait_line("job.failed .*job=mined")
    work.stop()
    assert len(witness.starting("run")) == 3
    assert witness.starting("crashed") == ["crashed 3"]


@pytest.mark.parametrize("first", ["stuck", "asleep"])
def test_listeners_get_a_timeout_once_even_if_the_job_was_killed_for_it(
    shop: Project, witness: Witness, redis: Client, first: str
) -> None:
    work = ready(shop)
    push(redis, "mined", first=first, then="")
    work.wait_line("job.failed .*job=mined")
    work.stop()
    assert witness.starting("timed out") == ["timed out mined 1"]
    ((record, _),) = failed(redis)
    assert record["attempts"] == 1
    assert ("death" in record) is (first == "stuck")


def test_listeners_get_the_timeout_of_a_killed_attempt_before_the_next_attempt(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    push(redis, "twice")
    work.wait_line("job.done .*job=twice")
    work.stop()
    assert witness.lines == ["run 1", "timed out twice 1", "run 2"]


@pytest.mark.parametrize("first", ["kill", "exit", "sys.exit"])
def test_the_record_of_a_crash_says_how_its_worker_ended(
    shop: Project, witness: Witness, redis: Client, first: str
) -> None:
    work = ready(shop)
    push(redis, "mined", first=first, then="")
    work.wait_line("job.failed .*job=mined")
    work.stop()
    ((record, _),) = failed(redis)
    death = record["death"]
    assert (death["verdict"], death["signal"], death["exit"]) == (
        ("crash", "SIGKILL", None) if first == "kill" else ("crash", None, 0)
    )
    assert death["oom"] is False
    words = "SIGKILL" if first == "kill" else "left with exit code 0 in the middle of a job"
    assert words in record["reason"]
    assert len(work.matches(rf"worker\.died .*{words}")) == 3
    assert witness.starting("failed") == ["failed AttemptsExceeded"]
