"""qd locks: who holds which lock or limit, on every kind of keyspace; and a release that cannot take the lock of another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from qd import Qd
from qd.cli import locks
from qd.drivers.keyspace import keys
from qd.drivers.redis_driver import opened
from qd.store import base
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease, Mutex, Places
from tests.cli.conftest import Run, document, done, elsewhere
from tests.cli.test_peek import page
from tests.support.redis import Client
from tests.support.servers.redis import Server

pytestmark = pytest.mark.leaves("qd:*")


@pytest.fixture
def store(redis: Client, server: Server) -> KeyspaceStore:
    return KeyspaceStore(opened(server.url, name="test", patience=5.0))


def four(store: KeyspaceStore) -> None:
    """One lock of each kind; the limit has two holders."""
    mutex = Mutex("report", "app-1/4711/aa")
    mutex.take(store, 30, stay=False)
    Mutex("report", "app-2/9/bb").take(store, 30, stay=True)
    for number in (1, 2):
        Places(keys.slots("api"), 2, 60).take(store, f"u-{number}", f"m{number}")
    Places(keys.lock("sync:7"), 1, 60).take(store, "u-3", "m3")
    store.put(keys.unique("mail:ada"), b"u-4 id-4", 90)


def test_the_page_shows_what_it_prints(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyspaceStore, "now", lambda store: 1e9)
    redis.call("SET", "qd:mutex:{report}", "app-1/4711/aa", "PX", 27_900)
    redis.call("SET", "qd:mutex:{report}:fence", int((1e9 - 182) * 1e6))
    redis.call("ZADD", "qd:mutex:{report}:line", 1, "app-2/9/bb")
    redis.call("HSET", "qd:slots:api", "0b7f7c9e-1a52-4c0e-9d8e", f"{int(1e9 + 3600)}000 m1")
    redis.call("HSET", "qd:lock:import.rows", "5d3c2b1a-7f6e-4d5c-8b4a", f"{int(1e9 + 3580)}000 m2")
    redis.call("SET", "qd:unique:mail.welcome", "9a8b7c6d-5e4f-4a3b-9c2d id", "PX", 86_399_000)
    assert page("qd locks") == done(qd("locks"))


def held_by(qd: Run, *words: str) -> list[tuple[str, str, str]]:
    return [(each["kind"], each["name"], each["holder"]) for each in document(qd("locks", *words, "--json"))["locks"]]


def test_each_kind_is_shown_with_its_holder(qd: Run, store: KeyspaceStore) -> None:
    four(store)
    assert held_by(qd) == [
        ("lock", "report", "process 4711 on app-1"),
        ("limit", "api", "job u-1"),
        ("limit", "api", "job u-2"),
        ("overlap", "sync:7", "job u-3"),
        ("unique", "mail:ada", "job u-4"),
    ]
    lock, *others = document(qd("locks", "--json"))["locks"]
    assert lock["waiting"] == 1
    assert 0 <= lock["held_s"] <= 30
    assert [0 < each["left_s"] <= 90 and each["held_s"] is None for each in others] == [True] * 4
    head, *lines = done(qd("locks")).splitlines()
    assert re.split(r"  +", head) == ["kind", "name", "held by", "waiting", "for", "expires in"]
    assert len(lines) == 5


@pytest.mark.parametrize(("prefix", "names"), [("re", ["report"]), ("sync:", ["sync:7"]), ("nothing", []), ("*", [])])
def test_a_prefix_selects_names(qd: Run, store: KeyspaceStore, prefix: str, names: list[str]) -> None:
    four(store)
    assert [name for _, name, _ in held_by(qd, prefix)] == names
    assert [name for _, name, _ in held_by(qd, "list", prefix)] == names
    if not names:
        assert qd("locks", prefix).stderr == "0 of 0 locks shown\n"


def test_a_long_search_says_that_it_was_cut_and_a_whole_name_is_still_found(
    qd: Run, redis: Client, store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "STEP", 1)
    monkeypatch.setattr(locks, "MOST", 1)
    four(store)
    for number in range(200):
        redis.call("SET", f"qd:job:{number}", "x")
    assert qd("locks").stderr.endswith(", among the first 1 keys of the server\n")
    assert document(qd("locks", "--json"))["cut"]
    assert held_by(qd, "report") == [("lock", "report", "process 4711 on app-1")]


def test_at_most_limit_names_are_read(qd: Run, redis: Client) -> None:
    for number in range(5):
        redis.call("SET", f"qd:unique:n{number}", "u")
    result = qd("locks", "--limit", "2")
    assert (result.stdout.count("\n"), result.stderr) == (3, "2 of 5 locks shown\n")


def test_a_released_lock_goes_to_the_first_in_line(qd: Run, store: KeyspaceStore, redis: Client) -> None:
    four(store)
    assert done(qd("locks", "release", "report", "--yes")) == "released report, which process 4711 on app-1 held\n"
    assert redis.call("GET", "qd:mutex:{report}") == b"app-2/9/bb"
    (event,) = [json.loads(line) for line in done(qd("events", "--json")).splitlines()]
    assert event["what"] == "locks release"
    assert event["object"]["holder"] == "process 4711 on app-1"


@pytest.mark.parametrize("name", ["api", "sync:7", "mail:ada"])
def test_locks_of_jobs_are_released(qd: Run, store: KeyspaceStore, name: str) -> None:
    four(store)
    assert qd("locks", "release", name, "--yes").exit_code == 0
    assert name not in [each for _, each, _ in held_by(qd)]
    assert len({each for _, each, _ in held_by(qd)}) == 3


def test_a_release_asks_for_the_name_and_changes_nothing_without_a_terminal(qd: Run, store: KeyspaceStore) -> None:
    four(store)
    refused = qd("locks", "release", "report")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "process 4711 on app-1, which goes on" in refused.stderr
    assert qd("locks", "release", "report", typed="no\n").exit_code == 2
    assert len(held_by(qd)) == 5
    assert qd("locks", "release", "report", typed="report\n").exit_code == 0


def test_a_lock_that_changed_its_holder_meanwhile_stays(
    qd: Run, redis: Client, store: KeyspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    four(store)
    read = locks.read

    def late(*given: object) -> object:
        found = list(read(*given))  # type: ignore[arg-type]
        redis.call("SET", f"qd:{key}", "app-3/1/cc")
        return found

    monkeypatch.setattr(locks, "read", late)
    for name, key, who in (
        ("report", "mutex:{report}", "process 4711 on app-1"),
        ("mail:ada", "unique:mail:ada", "job u-4"),
    ):
        result = qd("locks", "release", name, "--yes")
        assert (result.exit_code, result.stderr) == (1, f"{who} does not hold {name} any more\n")
        assert redis.call("GET", f"qd:{key}") == b"app-3/1/cc"


def test_what_nobody_holds_is_not_released_and_two_kinds_need_a_choice(qd: Run, store: KeyspaceStore) -> None:
    assert qd("locks", "release", "report", "--yes").exit_code == 1
    for key in (keys.mutex("both"), keys.unique("both")):
        Lease(key, "app-1/1/a", 60).take(store)
    refused = qd("locks", "release", "both", "--yes")
    assert (refused.exit_code, "lock and unique are called both" in refused.stderr) == (2, True)
    assert qd("locks", "release", "both", "--kind", "unique", "--yes").exit_code == 0
    assert [kind for kind, *_ in held_by(qd)] == ["lock"]


def test_names_and_holders_cannot_write_to_the_terminal(qd: Run, redis: Client) -> None:
    odd = "a\x1b[2J\u202eb😀"
    redis.call("SET", f"qd:unique:{odd}", odd)
    redis.call("SET", "qd:mutex:{../x}", b"\xff\x00")
    redis.call("HSET", "qd:slots:odd", odd, "no number", "u-1", "9999999999999 x")
    redis.call("LPUSH", "qd:unique:list", "x")
    output = done(qd("locks"))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output)
    assert "../x" in output
    assert held_by(qd, "odd") == [("limit", "odd", "job u-1")]
    assert qd("locks", "release", odd, "--yes").exit_code == 0
    assert redis.call("EXISTS", f"qd:unique:{odd}") == 0


@pytest.mark.parametrize("kind", ["sqlite", "cluster", "beanstalkd"])
def test_locks_of_other_connections_are_shown_and_released(
    qd: Run, configured: Callable[[str], None], request: pytest.FixtureRequest, kind: str
) -> None:
    elsewhere(qd, configured, request, kind)
    app = Qd()
    lock = app.lock("report", ttl=60)
    assert lock.acquire(blocking=False)
    store = KeyspaceStore(*app.connections.get("other").kept)
    Places(keys.slots("api"), 2, 60).take(store, "u-1", "m1")
    store.put(keys.unique("mail"), b"u-4", 90)
    assert [name for _, name, _ in held_by(qd)] == ["report", "api", "mail"]
    for name in ("report", "api", "mail"):
        assert qd("locks", "release", name, "--yes").exit_code == 0
    assert held_by(qd) == []
    assert not lock.locked()
