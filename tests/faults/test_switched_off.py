"""Tests that cannot fail prove nothing: each mechanism is switched off, and the test that is named for it must fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SWITCHES = ROOT / "tests/support/switches"


class Named(NamedTuple):
    description: str  # of the mechanism, for the page
    test: str
    fails_with: str  # part of the output of the failing test


MECHANISMS = {
    "renewal": Named(
        "the keeper renews the leases of live workers",
        "faults/test_mechanisms.py::test_a_lease_is_renewed_as_long_as_its_worker_lives[sleep]",
        "assert 2 == 1",
    ),
    "reclaim only when long connected": Named(
        "only a keeper that has been connected for a while treats leases as expired",
        "faults/test_mechanisms.py::test_no_lease_is_reclaimed_right_after_an_outage",
        "match='lease'",
    ),
    "owner mark": Named(
        "a reservation in Redis names its owner",
        "process/master/test_deaths.py::test_kill_9_in_a_job_costs_a_crash_and_no_attempt_and_the_job_runs_again",
        "2 x 'start' in the witness file",
    ),
    "read before pop": Named(
        "a payload is read and reserved before it is removed from the list",
        "contract/redis/test_refusals.py::test_a_key_of_the_wrong_type_loses_no_job[reserved]",
        "'id2'",
    ),
    "ask after a broken call": Named(
        "a worker whose call broke queries what it holds before it reserves another job",
        "faults/test_network.py::test_a_swallowed_reply_is_detected_and_its_job_found[reserve]",
        "start 1 of job",
    ),
    "one job a worker": Named(
        "a late call reserves no second job for a worker that holds one",
        "faults/test_network.py::test_a_late_call_reserves_nothing[2]",
        "assert 2 <= 1",
    ),
    "end with the master": Named(
        "the kernel ends workers when their master dies",
        "process/master/test_deaths.py"
        "::test_a_killed_master_leaves_no_worker_and_the_next_gives_back_its_jobs[sleep-the master]",
        "no orphan",
    ),
    "jitter": Named(
        "a random share is added to each backoff, also to that of a job killed for its timeout",
        "process/worker/test_timeouts.py::test_a_killed_job_waits_for_its_backoff_and_a_jitter",
        "came back together: [0.3, 0.3, 0.3]",
    ),
    "hard kill": Named(
        "a job over its timeout is killed from outside",
        "process/worker/test_timeouts.py::test_a_job_that_no_exception_reaches_is_killed_on_time_and_its_stack_is_logged[mutex]",
        "no stuck worker",
    ),
    "end of the group": Named(
        "processes that a job started in its session end with it",
        "process/master/test_deaths.py::test_what_a_killed_job_has_started_goes_with_it",
        "no subprocess left",
    ),
    "end of what left the group": Named(
        "if the job is killed, so are its processes in new sessions, before the job runs again",
        "process/master/test_leftovers.py"
        "::test_what_a_killed_job_started_in_another_session_is_gone_before_it_runs_again[kill -9]",
        "again 2",
    ),
    "pid namespace": Named(
        "a master in another container is not looked up by pids of this one",
        "process/master/test_containers.py::test_a_master_in_a_container_and_one_outside_leave_each_other_s_jobs_alone"
        "[the container's job]",
        "assert 2 == 1",
    ),
    "signs of life": Named(
        "a worker without a heartbeat between two jobs is killed and replaced",
        "process/master/test_heartbeats.py::test_a_worker_that_is_stuck_between_two_jobs_is_killed_and_its_stack_is_logged",
        "stopped answering",
    ),
    "a slower and slower start": Named(
        "workers that keep dying before any job are replaced ever more slowly",
        "process/master/test_starts.py"
        "::test_workers_that_die_again_and_again_before_any_job_are_replaced_ever_more_slowly",
        "worker.crash_loop",
    ),
    "hand-back": Named(
        "a job ended by the stop timeout keeps its attempt",
        "faults/test_mechanisms.py::test_a_job_ended_at_the_stop_timeout_is_handed_back_with_its_attempt",
        '"attempts":0',
    ),
    "worker first for the OOM killer": Named(
        "the kernel, out of memory, kills a worker and not the master",
        "faults/test_mechanisms.py::test_the_kernel_prefers_to_kill_a_worker_over_the_master",
        "assert False",
    ),
    "a lock is its job's": Named(
        "the job of a killed worker gets its lock again, and no other job does",
        "process/worker/test_middleware_locks.py::test_a_killed_job_has_its_own_lock_again",
        "2 x 'killed 1'",
    ),
    "a window that slides": Named(
        "a rate holds in any window, wherever it starts",
        "process/worker/test_middleware_locks.py::test_never_over_the_rate_in_any_window_of_the_servers_clock",
        ">= (0.5 - 1e-06)",
    ),
    "put back at no cost": Named(
        "a job released by middleware keeps its attempt",
        "process/worker/test_middleware.py::test_a_release_by_middleware_costs_no_attempt_and_says_why",
        "attempt 1",
    ),
    "recall": Named(
        "a worker starts no prefetched job that the keeper takes back",
        "unit/worker/test_prefetch.py::test_no_interleaving_runs_a_job_twice_or_loses_one",
        "assert lost == []",
    ),
    "fence": Named(
        "a turn of several jobs that arrives late does nothing",
        "contract/keyspace/test_lanes.py::test_a_turn_that_comes_after_held_lanes_does_nothing[redis by unix socket]",
        "== [-2]",
    ),
    "proof": Named(
        "a finished job of a dead worker is acked by proof",
        "contract/keeper/test_dead_lanes.py::test_a_crash_counts_against_the_running_job_only[redis by unix socket]",
        "assert [",
    ),
    "suspects": Named(
        "a crash is counted only against a job that ran alone",
        "contract/keyspace/test_lanes.py::test_a_worker_takes_a_suspect_by_itself_and_before_others[redis by unix socket]",
        "(1, 1)",
    ),
    "renewal of lanes": Named(
        "the keeper renews the leases of all jobs of a worker",
        "faults/test_mechanisms.py::test_the_leases_of_all_jobs_of_a_worker_are_renewed",
        "match='lease'",
    ),
    "events once": Named(
        "a call that is repeated appends no event twice",
        "contract/keyspace/test_streams.py::test_a_repeated_call_appends_nothing_twice[redis]",
        "assert 2 == 0",
    ),
    "events before the end": Named(
        "the events of a job are on the server before its end is",
        "process/producer/test_streams.py::test_the_last_events_of_many_jobs_are_there_when_they_have_ended",
        "assert",
    ),
    "record of steps": Named(
        "the result of a durable step is on the server before step() returns",
        "faults/test_durable_steps.py::test_a_killed_worker_runs_no_recorded_step_again[stepped-43]",
        "and ran again",
    ),
}


def run(switched_off: str, tests: list[str], folder: Path) -> tuple[int, str]:
    """Run pytest in a new process with that mechanism switched off. Returns its exit code and output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"SWITCHED_OFF": switched_off, "PYTHONPATH": os.pathsep.join(map(str, [SWITCHES, ROOT, ROOT / "daemon"]))}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # qd's own plugin would import qd before the switches are applied
    named = [str(ROOT / "tests" / test) for test in tests]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "xdist.plugin",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}",
            "--modes=1",
            "--show-capture=no",
            *named,
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_the_mechanism_its_test_fails(mechanism: str, tmp_path: Path) -> None:
    code, output = run(mechanism, [MECHANISMS[mechanism].test], tmp_path / "inner")
    assert code == 1, output
    assert "1 failed" in output, output
    assert MECHANISMS[mechanism].fails_with in output, output


QUICK = ("read before pop", "end with the master", "hand-back", "put back at no cost")


@pytest.mark.parametrize(
    "mechanisms",
    [pytest.param(QUICK, id="four of them"), pytest.param((*MECHANISMS,), id="all", marks=pytest.mark.slow)],
)
def test_with_all_mechanisms_the_tests_pass(mechanisms: tuple[str, ...], tmp_path: Path) -> None:
    """This shows that the tests fail because of the mechanism, not because of the way they run here."""
    code, output = run("nothing", [MECHANISMS[name].test for name in mechanisms], tmp_path / "inner")
    assert code == 0, output
    assert f"{len(mechanisms)} passed" in output, output


def test_the_page_names_all_mechanisms() -> None:
    page = (ROOT / "docs/explanation/reliability.md").read_text()
    for named in MECHANISMS.values():
        name = named.test.partition("[")[0].replace("::", ": ")
        assert f"| {named.description} | `{name}` |" in page
