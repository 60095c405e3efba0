"""A project with the usual jobs, and what they write down. A file with jobs of its own has its own `shop`."""

from __future__ import annotations

import pytest

from tests.support.driven import Drive, Driven
from tests.support.project import MakeProject, Project
from tests.support.witness import JOBS, Witness


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS)


@pytest.fixture
def witness(shop: Project) -> Witness:
    return Witness(shop)


@pytest.fixture
def drive(project: MakeProject) -> Drive:
    """drive(entries, config="") -> a project whose runs a small scheduler starts."""
    return lambda source, config="": Driven(project(), source, config)
