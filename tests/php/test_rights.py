"""The users of docs/how-to/acl.md for Laravel: its real classes can do all of their work, and nothing is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.php.laravel import PREFIX, Laravel
from tests.support.pages import ROOT
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "how-to" / "acl.md").read_text()
USERS = {line.split()[2]: line.split()[3:] for line in PAGE.splitlines() if line.startswith("ACL SETUSER laravel-")}
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("laravel_database_*")]


@pytest.fixture
def laravel_as(server: Server, redis: Client, tmp_path: Path) -> Iterator[Callable[..., Laravel]]:
    """laravel_as("producer"): an application that logs in as the user laravel-producer of the page."""
    made = list[Laravel]()
    for name, rules in USERS.items():
        redis.call("ACL", "SETUSER", name, *rules)
    redis.call("ACL", "LOG", "RESET")

    def make(kind: str, **settings: str) -> Laravel:
        (tmp_path / kind).mkdir()
        user = {"RIG_USER": f"laravel-{kind}", "RIG_PASSWORD": f"{kind.upper()}-PASSWORD", **settings}
        made.append(Laravel(server, tmp_path / kind, **user))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for name in USERS:
        redis.call("ACL", "DELUSER", name)


def refused(redis: Client) -> list[str]:
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in redis.call("ACL", "LOG", 100)]
    return [f"{entry[b'username'].decode()}: {entry[b'object'].decode()}" for entry in entries]


@pytest.mark.parametrize("block_for", ["", "1"])
def test_a_producer_and_a_worker_of_laravel_can_do_all_of_their_work(
    laravel_as: Callable[..., Laravel], redis: Client, block_for: str
) -> None:
    """Push, delay, migrate, run, release, fail, and look for queue:restart."""
    producer, php = laravel_as("producer"), laravel_as("worker", RIG_BLOCK_FOR=block_for)
    producer.push({"name": "podcasts.transcode", "queue": "python"}, {"name": "x", "queue": "python", "delay": 60})
    assert [
        redis.call(*what) for what in (("LLEN", f"{PREFIX}queues:python"), ("ZCARD", f"{PREFIX}queues:python:delayed"))
    ] == [1, 1]
    notes = {"name": "shared.note", "data": {"n": 1}, "queue": "php"}
    php.push(notes, {**notes, "delay": 1}, {"name": "shared.again", "queue": "php"}, {"name": "nobody", "queue": "php"})
    worker = php.worker("php", tries=3)
    php.wait_ran(2, name="shared.note")
    worker.wait_line("failed nobody")
    eventually(lambda: not redis.call("ZCARD", f"{PREFIX}queues:php:reserved"), what="no reserved job")
    worker.sweep()
    redis.call("ACL", "SETUSER", "laravel-producer", "~laravel_database_laravel_cache:illuminate:queue:*", "+set")
    producer.cache(restart=True)
    assert refused(redis) == []


def test_the_users_of_laravel_can_do_no_more(server: Server, laravel_as: Callable[..., Laravel]) -> None:
    queue = f"{PREFIX}queues:"
    forbidden = {
        "producer": f"lpop {queue}python|rpush {queue}php 1|lrange {queue}python 0 -1|get {PREFIX}qd:down|scan 0",
        "worker": f"lpop {queue}python|rpush {queue}python 1|del {queue}php|set {PREFIX}qd:down 1|flushdb|scan 0",
    }
    laravel_as("producer")
    with server.client() as client:
        for kind, lines in forbidden.items():
            client.call("AUTH", f"laravel-{kind}", f"{kind.upper()}-PASSWORD")
            for line in lines.split("|"):
                with pytest.raises(Exception, match="NOPERM"):
                    client.call(*line.split())


def test_the_page_has_both_users() -> None:
    assert [*USERS] == ["laravel-producer", "laravel-worker"]
    assert all(re.match(r"~laravel_database_|[+>-]|reset|on", word) for rules in USERS.values() for word in rules)
