"""The protocol as a state machine: whatever happens in whatever order, no job is lost, doubled or counted wrongly.

QD_TEST_RUNS=5000 for a night: each run is up to thirty things that happen.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.machine import Machine
from tests.support.server import Server


@pytest.mark.xdist_group("invariants")
def test_no_order_of_events_loses_or_doubles_a_job(server: Server):
    machine = Machine.at(server.socket)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=int(os.environ.get("QD_TEST_RUNS", "150")),
                stateful_step_count=30,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        machine.close()
