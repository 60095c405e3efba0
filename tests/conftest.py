"""Fixtures for all tests: one real server per pytest process, empty at the start and the end of each test."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, settings

from qd import redaction
from qd.config.settings import Settings
from qd.drivers.connections import ThreadConnections
from tests.support import modes, reliability, stalls, waiting
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers import beanstalkd as beanstalkds
from tests.support.servers import cluster as clusters
from tests.support.servers import mariadb as mariadbs
from tests.support.servers import postgres as postgreses
from tests.support.servers import sentinel as sentinels
from tests.support.servers import sqs as sqses
from tests.support.servers.redis import KEEPS, Server, Valkey


def pytest_addoption(parser: pytest.Parser) -> None:
    reliability.add_option(parser)
    modes.add_option(parser)
    stalls.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaves(*patterns): Redis keys that the test may leave behind (see clean_redis)")
    config.addinivalue_line("markers", "slow: minutes long, left out unless asked for (-m slow; `make soak`)")
    config.addinivalue_line("markers", "fault(row, what, holds): a row of the table of faults (support/reliability.py)")
    config.addinivalue_line("markers", "modes(*names, why): the only modes of a fault test (support/modes.py)")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # pytest runs in the background of a shell; tests send SIGINT
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The duration of an example is no criterion; the rest are Hypothesis's defaults (in CI: the same examples each time).
    settings.register_profile("steady", settings(), deadline=None, suppress_health_check=list(HealthCheck))
    settings.load_profile("steady")
    page = config.getoption("--reliability")
    config.pluginmanager.register(reliability.Report(Path(page) if page else None))
    config.pluginmanager.register(modes.Modes(config.getoption("--modes")), "modes")
    if seed := config.getoption("--stalls"):
        config.pluginmanager.register(stalls.Stalls(seed))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Ten thousand tests are collected, and kept: the garbage collector looks at them neither now nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept_together(items)
    if not config.getoption("-m"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)


def kept_together(items: list[pytest.Item]) -> None:
    """Keep tests of a group in one process: xdist 3.8 marks groups in the node id, which pytest 9.2 no longer reads."""
    for item in items:
        named = vars(item).get("_nodeid")
        if named and item.nodeid != named:
            item._id = type(item._id).parse(named)


@pytest.fixture(autouse=True)
def unhidden() -> Iterator[None]:
    """Secrets registered by a test are not masked in later tests of this process."""
    before = set(redaction._hidden), redaction._pattern
    yield
    redaction._hidden.clear()
    redaction._hidden.update(before[0])
    redaction._pattern = before[1]


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the connections of a test's apps after it. Otherwise the garbage collector may free a socket before its app
    closes it, which causes a warning in some later test."""
    made, begin = WeakSet[ThreadConnections](), ThreadConnections.__init__

    def begun(own: ThreadConnections, settings: Settings) -> None:
        begin(own, settings)
        made.add(own)

    monkeypatch.setattr(ThreadConnections, "__init__", begun)
    yield
    for own in list(made):
        own.close()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> reliability.Figures:
    """The results of this fault test, for the table."""
    found = reliability.Figures(strict=request.config.getoption("--reliability") is not None)
    request.node.user_properties.append(("figures", found.seen))
    return found


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The server of this pytest process, emptied. Do not stop it: `with Server() as own:` is for that."""
    client = shared_server.client()
    client.call("FLUSHALL")
    yield shared_server
    client.call("FLUSHALL")
    client.close()


@pytest.fixture
def redis(server: Server) -> Iterator[Client]:
    """A client of the emptied server, independent of qd."""
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def clean_redis(redis: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    """As `redis`, and at the end no key may be left but those that @pytest.mark.leaves("pattern", ...) allows."""
    yield redis
    left = redis.leftovers(*(pattern for mark in request.node.iter_markers("leaves") for pattern in mark.args))
    assert not left, f"keys left in Redis: {left}"


# The other servers: one of each per pytest process, started on first use. A test that kills one must restart it.


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgreses.Postgres]:
    postgreses.installed()
    with postgreses.Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[mariadbs.MariaDb]:
    mariadbs.installed()
    with mariadbs.MariaDb() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: postgreses.Postgres) -> Iterator[str]:
    """The url of an empty PostgreSQL database for this test."""
    url = postgres.fresh_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def mariadb_url(mariadb: mariadbs.MariaDb) -> Iterator[str]:
    """The url of an empty MariaDB database for this test."""
    url = mariadb.fresh_database()
    yield url
    mariadb.drop(url)


@pytest.fixture(scope="session")
def shared_beanstalkd() -> Iterator[beanstalkds.Beanstalkd]:
    beanstalkds.installed()
    with beanstalkds.Beanstalkd() as server:
        yield server


@pytest.fixture
def beanstalkd(shared_beanstalkd: beanstalkds.Beanstalkd) -> Iterator[beanstalkds.Beanstalkd]:
    """A beanstalkd without jobs, emptied again at the end."""
    shared_beanstalkd.empty()
    yield shared_beanstalkd
    shared_beanstalkd.empty()


@pytest.fixture(scope="session")
def shared_sqs() -> Iterator[sqses.Sqs]:
    sqses.installed()
    with sqses.Sqs() as server:
        yield server


@pytest.fixture
def sqs(shared_sqs: sqses.Sqs) -> sqses.Sqs:
    """An SQS server without queues. sqs.credentials: environment variables for its clients."""
    shared_sqs.reset()
    return shared_sqs


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[Valkey]:
    with Valkey(*KEEPS) as server:
        yield server


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Iterator[Valkey]:
    """A Valkey without keys, emptied again at the end. It keeps its data when it is killed."""
    with shared_valkey.client() as client:
        client.call("FLUSHALL")
        yield shared_valkey
        client.close()  # the test may have killed the server
        client.call("FLUSHALL")


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[clusters.Cluster]:
    with clusters.Cluster() as servers:
        yield servers


@pytest.fixture
def cluster(shared_cluster: clusters.Cluster) -> Iterator[clusters.Cluster]:
    """Three primaries without keys, emptied again at the end. Each keeps its data when it is killed."""
    shared_cluster.settled()
    shared_cluster.empty()
    shared_cluster.forget_errors()
    yield shared_cluster
    shared_cluster.whole()
    shared_cluster.empty()
    assert "CROSSSLOT" not in shared_cluster.errors()


@pytest.fixture(scope="session")
def shared_sentinel() -> Iterator[sentinels.Sentinel]:
    with sentinels.Sentinel() as servers:
        yield servers


@pytest.fixture
def sentinel(shared_sentinel: sentinels.Sentinel) -> Iterator[sentinels.Sentinel]:
    """A primary without keys, emptied again at the end, with its replicas and sentinels."""
    shared_sentinel.settled()
    shared_sentinel.empty()
    yield shared_sentinel
    shared_sentinel.empty()


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """How many jobs workers have in their hands (support/modes.py). Empty: this is no fault test, and `qd` has its built-in
    options."""
    own: modes.Modes = request.config.pluginmanager.getplugin("modes")
    return own.of(request.node)


@pytest.fixture
def project(server: Server, tmp_path: Path, mode: str) -> Iterator[Callable[..., Project]]:
    """project(jobs="...", config="...", url=...): a project's folder on the test's server; see support/project.py."""
    made: list[Project] = []

    def make(jobs: str = "", config: str = "", url: str = "") -> Project:
        root = tmp_path / f"project{len(made) or ''}"
        root.mkdir()
        made.append(Project(root, url or server.url, jobs, config, modes.MODES.get(mode, {})))
        return made[-1]

    yield make
    errors = []
    for one in made:
        try:
            one.close()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "; ".join(errors)


@pytest.fixture
def eventually() -> Callable[..., object]:
    """eventually(predicate, seconds=5): wait for a fact."""
    return waiting.eventually
