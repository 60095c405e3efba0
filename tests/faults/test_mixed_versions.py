"""Two versions of qd share a server while it is upgraded, and processes of both are killed: row 47."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.keyspace import DatabaseKeyspace
from tests.support.fleet import JOBS, Fleet, Seat, code_of, judge, storm
from tests.support.project import SOURCE, MakeProject, Project
from tests.support.redis import Client, leftovers
from tests.support.reliability import Figures
from tests.support.servers.postgres import Postgres

BEFORE = "e97273dcdf89523e0f04cbc9a67a6bf15709c35b"  # the version before this one
LEASE = 'retry_after = "10s"\n'  # long enough for a keeper that starts on a busy machine
# Options of `qd work` of the old and of the new version, and how long a new worker may keep an answer while it goes on.
OPTIONS = pytest.mark.parametrize(("old", "new", "late"), [pytest.param((), (), 0.0, id="no options")])
ROUNDS = pytest.mark.parametrize(
    "rounds", [pytest.param(2, id="short"), pytest.param(40, id="long", marks=pytest.mark.slow)]
)
pytestmark = [
    pytest.mark.xdist_group("mixed-versions"),  # they share the code of the old version
    pytest.mark.fault(
        "47",
        "kill -9 of workers, keepers and masters of the version before and of this one, which share a server",
        "nothing lost or failed, no attempt spent; only jobs running at a kill run twice; each version requeues jobs of the "
        "other",
    ),
    pytest.mark.modes("1", "prefetch", why="the version before does not know jobs that ran beside others"),
]


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to import the old version from."""
    return code_of(BEFORE, tmp_path_factory.mktemp("before"))


Mix = Callable[[Project, Sequence[str], Sequence[str], float], Fleet]


@pytest.fixture
def mix(before: Path) -> Iterator[Mix]:
    """mix(shop, old, new, late): a fleet of both versions with these options, which works."""
    made: list[Fleet] = []

    def begin(shop: Project, old: Sequence[str], new: Sequence[str], late: float) -> Fleet:
        seats = [Seat("old", before, old), Seat("new", SOURCE, new)]
        made.append(Fleet(shop, seats, seed=7, late=late))
        made[-1].begin()
        return made[-1]

    yield begin
    for fleet in made:
        fleet.close()


@OPTIONS
@ROUNDS
@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("queues:default:deaths")
def test_two_versions_share_a_redis_while_both_are_killed(
    rounds: int,
    old: Sequence[str],
    new: Sequence[str],
    late: float,
    project: MakeProject,
    mix: Mix,
    redis: Client,
    figures: Figures,
) -> None:
    fleet = mix(project(jobs=JOBS, config=LEASE), old, new, late)
    storm(fleet, rounds)
    judge(fleet, figures)


@OPTIONS
@ROUNDS
def test_two_versions_share_a_postgresql_while_both_are_killed(
    rounds: int,
    old: Sequence[str],
    new: Sequence[str],
    late: float,
    project: MakeProject,
    mix: Mix,
    postgres: Postgres,
    postgres_url: str,
    figures: Figures,
) -> None:
    shop = project(jobs=JOBS, config=LEASE)
    (shop.root / "qd.toml").write_text(
        f'[qd]\napp = "jobs:app"\ndefault = "db"\ncontrol = "db"\n\n[connections.db]\nurl = "{postgres_url}"\n{LEASE}'
    )
    assert shop.quick("migrate").exit_code == 0
    fleet = mix(shop, old, new, late)
    storm(fleet, rounds)
    judge(fleet, figures)
    database = postgres_url.rpartition("/")[2]
    assert postgres.run("SELECT * FROM jobs", database) == []
    assert postgres.run("SELECT * FROM qd_reserved", database) == []
    space = DatabaseKeyspace(DatabaseConnection(postgres_url, timeout=20))
    _, names = space.call("SCAN", b"0", "COUNT", 1000)
    space.close()
    # The version before does not delete the numbers of turns of the masters whose jobs it has requeued.
    left = leftovers([name.decode() for name in names])
    assert set(left) <= {"queues:default:deaths", "queues:default:owners"}
