"""A project whose jobs write the ledger, and the ledger."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from qd import Qd
from tests.support.ledger import JOBS, Ledger
from tests.support.project import MakeProject, Project, Start, ready
from tests.support.redis import Client


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS)


@pytest.fixture
def ledger(shop: Project, redis: Client) -> Ledger:
    return Ledger(shop, redis)


@pytest.fixture
def start(shop: Project) -> Start:
    """start(*arguments, workers=1): a `qd work` of the shop whose workers are ready."""
    return partial(ready, shop)


@pytest.fixture
def step(app: Qd) -> Any:
    """The job `step` of test_batches_and_chains.SHOP, declared in the app of the test file."""

    @app.job("step", tries=1)
    def step(run: int, name: str, fails: bool = False) -> None: ...

    return step
