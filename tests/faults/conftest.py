"""A project whose jobs write the ledger, and the ledger."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.project import MakeProject, Project, Start, ready
from tests.support.resp import Client


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
