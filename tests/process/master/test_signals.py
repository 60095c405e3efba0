"""Every row of the signal tables: the real signal to a real `qd work`, to a child, and to all of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from tests.support.processes import QD, Procs, waiting
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
STOPPED = pytest.mark.fault(
    "17 ways",
    "TERM in a job, a burst of signals, a second TERM, a job that swallows its interruption",
    "the running job ends; at the second TERM it is handed back with its attempt restored; exit code 0",
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS + LASTS)


def looks_again(work: Procs) -> None:
    """The master has come round: what it was asked for before is done."""
    start = len(work.lines)
    work.signal(signal.SIGUSR1)
    work.wait_line("master.state", start=start)


def send_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # replaced in between
            process.send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_stop_signals_end_an_idle_program_at_once_with_exit_0(shop: Project, number: signal.Signals) -> None:
    work = ready(shop, "--sleep", "60", workers=2)
    waiting(work, 2)
    work.stop(number, code=0)  # an idle wait is ended by the signal
    assert work.matches(f"master.stopping.*{number.name}")
    assert work.matches("master.stopped.*handed_back=0 exit=0")


@STOPPED
@pytest.mark.modes("1", "prefetch", why="a second job would run at the same time")
def test_term_finishes_the_current_job_and_takes_no_other(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "lasts", "--count", "2")
    witness.wait("start")
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping")
    looks_again(work)
    witness.go()
    work.ends_clean()
    assert len(witness.starting("start")) == len(witness.starting("end")) == 1
    shop.qd("clear", "default", "--yes")


@STOPPED
def test_a_burst_of_stop_signals_is_one(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "slow", "seconds=2")
    witness.wait("start")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        work.signal(number)
    work.ends_clean(code=0)
    assert witness.starting("end")


@STOPPED
def test_a_second_term_hands_the_job_back_soon_with_its_attempt_restored(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    shop.qd("dispatch", "slow", "seconds=60")
    witness.wait("start")
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping")
    time.sleep(1.1)  # wait out the second in which two signals count as one
    work.stop(signal.SIGTERM)  # the first one would wait for 25 s
    assert not witness.starting("end")
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")
    assert '"attempts":0' in payload
    assert work.matches("master.stopped.*handed_back=1 exit=0")
    shop.qd("clear", "default", "--yes")


@STOPPED
def test_a_second_term_ends_a_job_that_swallows_the_interruption(project: MakeProject, redis: Client) -> None:
    shop = project(
        jobs="""
        @app.job("deaf")
        def deaf() -> None:
            print("started", flush=True)
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
        """
    )
    work = ready(shop)
    shop.qd("dispatch", "deaf")
    eventually(lambda: "started" in work.output)
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping")
    time.sleep(1.1)  # wait out the second in which two signals count as one
    work.stop(signal.SIGTERM)
    assert work.matches("worker.ended.*signal 9.*stop deadline")
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")
    assert '"attempts":0' in payload
    shop.qd("clear", "default", "--yes")


SLOWLY = """
import runpy, sys, time
from qd.master.children import Worker
drain = Worker.drain
Worker.drain = lambda worker: (time.sleep(0.5), drain(worker))
sys.argv = ["qd", "work", "-w", "1"]
runpy.run_module("qd", run_name="__main__")
"""


def test_once_it_says_that_it_stops_no_worker_takes_another_job(shop: Project, witness: Witness) -> None:
    shop.jobs(JOBS + '@app.job("held")\ndef held_until_go() -> None:\n    note("held")\n    held()\n')
    shop.allowed.add("go")
    shop.qd("dispatch", "held")
    shop.qd("dispatch", "quick")
    work = Procs([QD[0], "-c", SLOWLY], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    witness.wait("held")
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping .*running=1")
    (shop.root / "go").touch()
    work.ends_clean()
    assert not witness.starting("quick")
    shop.qd("clear", "default", "--yes")


@STOPPED
def test_a_signal_after_the_last_line_changes_nothing(shop: Project) -> None:
    work = ready(shop)
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopped")
    while work.process.poll() is None:
        work.signal(signal.SIGTERM)
        work.signal(signal.SIGHUP)
    work.ends_clean(code=0)


def test_usr2_pauses_and_cont_resumes_and_both_set_rather_than_toggle(shop: Project, witness: Witness) -> None:
    work = ready(shop, workers=2)
    work.signal(signal.SIGUSR2)
    work.signal(signal.SIGUSR2)
    eventually(lambda: len(work.children("paused")) == 2, what="paused workers titled so")
    work.wait_line("master.paused")
    shop.qd("dispatch", "quick")
    eventually(
        lambda: shop.qd("status", "--json").stdout.count('"state": "idle"') == 2, what="a report with two idle workers"
    )
    assert not witness.lines
    work.signal(signal.SIGCONT)
    work.signal(signal.SIGCONT)
    witness.wait("quick")
    work.stop()


def test_usr2_lets_the_current_job_finish(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "lasts", "--count", "2")
    witness.wait("start")
    work.signal(signal.SIGUSR2)
    work.wait_line("master.paused")
    looks_again(work)
    witness.go()
    witness.wait("end")
    eventually(lambda: work.children("worker 0 paused"))
    assert len(witness.starting("start")) == 1
    work.signal(signal.SIGCONT)
    witness.wait("end", 2)
    work.stop()


def test_cont_after_term_changes_nothing(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "lasts", "--count", "2")
    witness.wait("start")
    work.signal(signal.SIGUSR2)
    work.signal(signal.SIGTERM)
    work.signal(signal.SIGCONT)
    work.wait_line("master.stopping")
    looks_again(work)
    witness.go()
    work.ends_clean(code=0)
    assert len(witness.starting("start")) == 1
    shop.qd("clear", "default", "--yes")


def test_a_worker_started_while_the_master_is_paused_starts_paused(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    work.signal(signal.SIGUSR2)
    eventually(lambda: work.children("worker 0 paused"))
    work.signal(signal.SIGTTIN)
    eventually(lambda: len(work.children(" paused")) >= 2, what="two paused workers")
    shop.qd("dispatch", "quick")
    assert not witness.lines
    work.signal(signal.SIGCONT)
    witness.wait("quick")
    work.stop()


def test_ttin_and_ttou_change_the_number_of_workers(shop: Project) -> None:
    work = ready(shop)
    work.signal(signal.SIGTTIN)
    waiting(work, 2)
    work.signal(signal.SIGTTOU)
    waiting(work, 1)
    work.signal(signal.SIGTTOU)  # never below one
    work.wait_line("master.resized", count=3)
    waiting(work, 1)
    work.stop()


def test_usr1_writes_state_and_all_stacks(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "lasts")
    witness.wait("start")
    work.signal(signal.SIGUSR1)
    work.wait_line("worker.state.*state=busy.*job=lasts")
    work.wait_line(r"in lasts$")
    work.wait_line("master.state workers=1")
    witness.go()
    witness.wait("end")
    work.stop()


def test_term_to_a_child_finishes_its_job_and_it_is_replaced(shop: Project, witness: Witness) -> None:
    work = ready(shop)
    shop.qd("dispatch", "slow", "seconds=2")
    pid = int(witness.wait("start")[0].split()[2])
    os.kill(pid, signal.SIGTERM)
    witness.wait("end")
    eventually(lambda: pid not in [p.pid for p in waiting(work)], what="another worker")
    shop.qd("dispatch", "quick")
    witness.wait("quick")
    work.stop()


def test_usr2_and_cont_to_a_child_pause_and_resume_it_alone(shop: Project) -> None:
    work = ready(shop, workers=2)
    one, _ = waiting(work, 2)
    one.send_signal(signal.SIGUSR2)
    eventually(lambda: len(work.children(" paused")) == 1)
    waiting(work, 1)
    one.send_signal(signal.SIGCONT)
    waiting(work, 2)
    work.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH])
def test_other_signals_to_a_child_do_nothing(shop: Project, witness: Witness, number: signal.Signals) -> None:
    work = ready(shop)
    (worker,) = waiting(work)
    worker.send_signal(number)
    shop.qd("dispatch", "quick")
    assert witness.wait("quick")[0].split()[2] == str(worker.pid)
    work.stop()


def test_usr1_to_a_stuck_child_dumps_its_stack(project: MakeProject) -> None:
    shop = project(
        jobs="""
        @app.job("stuck")
        def stuck() -> None:
            print("started", os.getpid(), flush=True)
            sum(range(10**12))
        """
    )
    work = ready(shop, "--stop-timeout", "1")
    shop.qd("dispatch", "stuck")
    pid = int(str(eventually(lambda: work.output and work.output[0])).split()[1])
    os.kill(pid, signal.SIGUSR1)
    work.wait_line(r'^  File ".*jobs.py", line \d+ in stuck')  # the stack of a killed job is indented further
    work.stop()
    shop.qd("clear", "default", "--yes")


def test_the_whole_group_at_once(shop: Project, witness: Witness) -> None:
    """As `systemctl kill` does with its default: USR2, CONT, HUP to every process, then TERM and CONT."""
    work = ready(shop, workers=2)
    eventually(lambda: len(work.children()) == 4, what="template, keeper, two workers; who forked them may be ending")
    everyone = [psutil.Process(work.pid), *work.children()]
    for number in (signal.SIGUSR2, signal.SIGCONT, signal.SIGHUP):
        send_all(everyone, number)
    work.wait_line("master.reloaded")
    shop.qd("dispatch", "slow", "seconds=2")
    witness.wait("start")
    for number in (signal.SIGTERM, signal.SIGCONT):
        send_all([psutil.Process(work.pid), *work.children()], number)
    work.ends_clean(code=0)
    assert witness.starting("end")


def test_children_are_in_groups_of_their_own_and_never_run_the_masters_handlers(shop: Project) -> None:
    work = ready(shop, workers=2)
    for child in work.children("qd: worker"):
        assert os.getpgid(child.pid) == child.pid
        child.send_signal(signal.SIGTTIN)  # the master's handler would add a worker
    waiting(work, 2)
    assert not work.matches("master.resized")
    work.stop()


def test_children_die_with_their_master(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, workers=2)
    shop.qd("dispatch", "slow", "seconds=60")
    witness.wait("start")
    work.kill()
    eventually(lambda: not work.session(), 20, what="no orphan")
    redis.call("FLUSHALL")


def test_titles_and_client_names_show_what_each_process_does(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, workers=2)
    waiting(work, 2)

    def names() -> list[str]:
        listed = str(redis.call("CLIENT", "LIST")).replace("\\n", " ").split()
        return sorted({word.removeprefix("name=") for word in listed if word.startswith("name=qd")})

    expected = ["qd:default:keeper", "qd:default:worker:0", "qd:default:worker:1"]
    eventually(lambda: names() == expected, what="a named connection of each process")
    shop.qd("dispatch", "lasts")
    witness.wait("start")
    eventually(lambda: work.children("lasts since "))
    assert work.children("qd: keeper")
    assert work.children("qd: template")
    eventually(lambda: "2 workers, 1 busy" in " ".join(psutil.Process(work.pid).cmdline()))
    witness.go()
    witness.wait("end")
    work.stop()


def test_ten_thousand_mixed_signals_harm_nothing(shop: Project) -> None:
    work = ready(shop, workers=2)
    harmless = (signal.SIGUSR2, signal.SIGCHLD, signal.SIGWINCH, signal.SIGALRM, signal.SIGCONT)
    for number in range(10_000):
        work.signal(harmless[number % len(harmless)])
    work.signal(signal.SIGCONT)
    waiting(work, 2)
    work.stop()
