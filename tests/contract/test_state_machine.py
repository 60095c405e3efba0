"""The protocol as a state machine: in any order of events, no job is lost, doubled or counted wrongly.

QD_TEST_RUNS: the number of runs of up to thirty events; the long test (`make soak`) has 5,000 runs of up to eighty.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.machine import Machine
from tests.support.servers.redis import Server


@pytest.mark.fault(
    "32",
    "a model of the queue's protocol beside the real one: three workers, a keeper, killed masters, a PHP worker",
    "each job in one place, counted right, with one owner; a question whose answer changes meanwhile is answered right",
)
@pytest.mark.xdist_group("invariants")
@pytest.mark.parametrize(
    ("runs", "steps"),
    [
        pytest.param(int(os.environ.get("QD_TEST_RUNS", "200")), 30, id="30 steps"),
        pytest.param(int(os.environ.get("QD_TEST_RUNS", "5000")), 80, id="80 steps", marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_loses_or_doubles_a_job(server: Server, runs: int, steps: int):
    machine = Machine.at(server.socket)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=runs,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        machine.close()
