"""A program that was started with more descriptors than select(2) can take works, keeps its leases, and logs."""

from __future__ import annotations

import sys
import time

import pytest

from qd.payload.build import make
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.witness import Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

MANY = """
import os, resource, sys

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
while True:
    fd = os.dup(0)
    os.set_inheritable(fd, True)
    if fd > 1100:
        break
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_more_descriptors_than_select_takes(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1", within=[sys.executable, "-c", MANY])
    work.wait_line("master.ready")
    redis.call(
        "ZADD", "queues:default:delayed", int(time.time()), make("quick", b"{}", created_at=0)
    )  # the keeper moves it
    witness.wait("quick")
    work.wait_line("job.done")  # said by the worker
    work.stop()
    assert not work.matches("keeper.died|WARN|ERROR")
