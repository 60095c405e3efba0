"""A worker is killed at lines of qd between the end of a step's function and the end of its job: row 72."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]
EVERY = 43  # lines from one kill to the next, unless every line is requested

# The app counts the lines of qd that all threads of its worker run once `armed`, and kills it at the n-th.
STEPS = (
    JOBS
    + """
import asyncio, signal, sys, threading
import qd

HOME = str(Path(qd.__file__).parent) + os.sep
count = armed = 0

def trace(frame, event, arg):
    global count
    if not frame.f_code.co_filename.startswith(HOME):
        return None
    if event == "line" and armed:
        count += 1
        if count == armed:
            Path("hit.new").write_text(f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}")
            os.rename("hit.new", "hit")
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

def arm():
    global count, armed
    try:
        at = int(Path("line").read_text())
        os.unlink("line")
    except FileNotFoundError:
        return
    count, armed = 0, at

threading.settrace(trace)
sys.settrace(trace)

def recorded(name):
    space, prefix = app._services.connection("").kept
    return space.call("HEXISTS", f"{prefix}qd:job:{current_job().id}:steps", name)

def ran(run: int, name: str) -> tuple[int, str]:
    note(f"{run}.", "ran", name, recorded(name))
    arm()
    return run, name

async def aran(run: int, name: str) -> tuple[int, str]:
    return await asyncio.to_thread(ran, run, name)

@app.job("stepped", tries=1)
def stepped(run: int) -> None:
    for name in ("one", "two"):
        value = current_job().step(name, ran, run, name)
        note(f"{run}.", "returned", name, value == (run, name))
    note(f"{run}.", "end")

@app.job("astepped", tries=1)
async def astepped(run: int) -> None:
    for name in ("one", "two"):
        value = await current_job().step(name, aran, run, name)
        note(f"{run}.", "returned", name, value == (run, name))
    note(f"{run}.", "end")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    made = project(jobs=STEPS)
    made.allowed |= {"hit", "line"}
    return made


def idle(redis: Client) -> bool:
    """Whether no job waits or runs, and no steps are left."""
    waits = redis.call("EXISTS", *[f"queues:default{kind}" for kind in ("", ":reserved", ":delayed", ":suspects")])
    return not waits and not redis.text("KEYS", "qd:job:*")


def over(witness: Witness, redis: Client, number: int) -> bool:
    return bool(witness.starting(f"{number}. end")) and idle(redis)


def check(lines: list[str], line: str) -> None:
    """One run: nothing ran that was recorded, and nothing that was recorded is lost."""
    assert lines[-1] == "end", f"killed at {line}: {lines}"
    for name in ("one", "two"):
        runs = [n for n, text in enumerate(lines) if text.startswith(f"ran {name}")]
        back = [n for n, text in enumerate(lines) if text.startswith(f"returned {name}")]
        assert 1 <= len(runs) <= 2, f"killed at {line}: {lines}"
        assert {lines[n] for n in runs} == {f"ran {name} 0"}, f"killed at {line}, and ran again: {lines}"
        assert runs[-1] < back[0], f"killed at {line}, and ran again: {lines}"
        assert {lines[n] for n in back} == {f"returned {name} True"}, f"killed at {line}: {lines}"


@pytest.mark.fault(
    "72",
    "kill -9 at lines of qd between the end of a step's function and the end of its job",
    "no step runs again once it is recorded, none is lost, the job ends once, and no key is left",
)
@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("job", ["stepped", "astepped"])
def test_a_killed_worker_runs_no_recorded_step_again(
    job: str, every: int, shop: Project, redis: Client, figures: Figures
) -> None:
    witness, hit, killed, number = Witness(shop), shop.root / "hit", list[str](), 1
    work = shop.work("-w", "1", "--max-crashes", "5")
    work.wait_line("master.ready")
    while True:
        (shop.root / "line").write_text(str(number))
        push(redis, job, run=number)
        eventually(partial(over, witness, redis, number), 20, what=f"the end of run {number}")
        line = hit.read_text() if hit.exists() else ""
        check([text.partition(" ")[2] for text in witness.starting(f"{number}. ")], line)
        if not line:
            break
        killed.append(line)
        hit.unlink()
        number += every
    work.stop()
    figures.add(kills=len(killed), lines=len(set(killed)))
    assert len(set(killed)) > 10
    assert not work.matches("job.failed|lease_lost")
