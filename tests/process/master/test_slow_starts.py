"""Workers that do not stay, and processes that cannot be had: tried again ever more slowly, one line a step."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.payloads import push
from tests.support.processes import QD, Procs, control_group
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.waiting import BROUGHT, eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

LEAVING = (
    JOBS
    + """
from qd import events

@app.on(events.Looping)
def look(event: events.Looping) -> None:
    if not Path("mended").exists():
        os._exit(7)
"""
)


def test_workers_that_die_again_and_again_before_any_job_are_replaced_ever_more_slowly(
    project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=LEAVING)
    witness = Witness(shop)
    shop.allowed.add("mended")
    work = shop.work("-w", "1")
    work.wait_line(r"worker.crash_loop .*deaths=2 retry_in=0.200", BROUGHT)
    work.wait_line(r"worker.crash_loop .*deaths=3 retry_in=0.400", BROUGHT)
    (shop.root / "mended").touch()
    push(redis, "quick")
    witness.wait("quick")
    start = len(work.lines)
    (shop.root / "mended").unlink()  # and the count begins anew
    work.wait_line(r"worker.crash_loop .*deaths=2 retry_in=0.200", start=start)
    work.stop()


@pytest.mark.parametrize("preload", [True, False], ids=["template", "no template"])
def test_without_processes_to_be_had_those_that_are_there_serve(
    project: MakeProject, redis: Client, preload: bool
) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    with control_group("pids", f"qd-test-{os.getpid()}") as pids:
        with pids.joined():
            work = shop.work("-w", "2", *([] if preload else ["--no-preload"]))
        work.wait_line("master.ready")
        between = int(preload)  # a process between template and worker, which can be had: the worker itself cannot
        stay = 4 + int(
            preload
        )  # master, keeper, two workers; a template. Who forked the last worker may still be ending
        eventually(lambda: len(work.children("waiting on")) == 2 and len(work.children("keeper")) == 1, what="titles")
        eventually(lambda: len(pids.pids) == stay, what="only those that stay")
        pids.limit("pids.max", "pids.max", stay + between)
        for _ in range(6):
            work.signal(signal.SIGTTIN)
        work.wait_line("worker.fork_failed .*workers=2 retry_in=1.000")
        push(redis, "quick", count=20)
        witness.wait("quick", 20)
        pids.limit("pids.max", "pids.max", "max")
        eventually(lambda: len(work.children("waiting on")) == work_of(work.lines), 20, what="all that are wanted")
        work.stop()


def test_a_start_without_a_process_to_be_had_is_tried_again(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    push(redis, "quick")
    with control_group("pids", f"qd-test-{os.getpid()}") as pids:
        pids.limit("pids.max", "pids.max", 1)
        inside = ["sh", "-c", f'echo $$ > {pids.folder}/cgroup.procs && exec "$@"', "sh", *QD]
        work = Procs([*inside, "work", "-w", "1"], cwd=shop.root, env=shop.env())
        shop.started.append(work)
        work.wait_line("template.fork_failed .*retry_in=1.000")
        pids.limit("pids.max", "pids.max", "max")
        work.wait_line("master.ready", 20)
        witness.wait("quick")
        work.stop()


def work_of(lines: list[str]) -> int:
    """How many workers are wanted, as the log says it."""
    return max((int(line.rpartition("workers=")[2]) for line in lines if "master.resized" in line), default=0)
