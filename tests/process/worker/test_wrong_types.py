"""A key of a wrong type in one queue: the others go on, one line names the key and the fix, and nothing needs a restart."""

from __future__ import annotations

import re

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, ready
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
FIX = r"error=\"{key} is a string and not a \w+; delete or rename it, or change `prefix`\""


@pytest.mark.parametrize("key", ["queues:mail", "queues:mail:reserved", "queues:mail:delayed"])
@pytest.mark.parametrize("options", ["", "--prefetch 1", "--concurrency 3"], ids=["default", "one", "several"])
def test_a_key_of_a_wrong_type_stops_its_queue_only(
    project: MakeProject, redis: Client, key: str, options: str
) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = ready(shop, "mail", "images", *options.split(), "--sleep", "30")
    push(redis, "quick", n=1, queue="mail")
    witness.wait("quick 1 ")
    redis.call("SET", key, "x")
    if key.endswith(":reserved"):
        push(redis, "quick", n=2, queue="mail")
    work.wait_line(f"queue.unusable queue=mail {FIX.format(key=key)}")
    for n in (3, 4):
        push(redis, "quick", n=n, queue="images")
        witness.wait(f"quick {n} ")
    redis.call("DEL", key)
    push(redis, "quick", n=5, queue="mail")
    witness.wait("quick 5 ")
    work.wait_line("queue.usable queue=mail")
    assert len(work.matches("queue.unusable")) == 1
    assert not work.matches("redis.away")
    assert not work.matches("redis.refused")
    work.stop()
    assert re.search("master.stopped .*exit=0", work.tail())
