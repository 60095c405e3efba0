"""The control connection on a server of its own: in a database, and unreachable while the server of the jobs is fine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually

# -- the control connection is unreachable


JOBS = """
@app.job("hello", queue="mail")
def hello(n: int, seconds: float = 0.0) -> None:
    with open("ran", "a") as file:
        file.write(f"{n}\\n")
    time.sleep(seconds)
"""
LEASE = 2  # seconds; a worker takes no job if its keeper had no contact for half of them
LONG = LEASE + 1


@pytest.fixture
def steer() -> Iterator[Server]:
    """The server of the control connection, the test's own."""
    with Server(*KEEPS) as server:
        yield server


@pytest.fixture
def shop(project: MakeProject, tmp_path: Path, steer: Server) -> Project:
    """Jobs in SQLite, control on Redis."""
    found = on(project(JOBS), f"sqlite:///{tmp_path / 'jobs.sqlite'}", steer)
    assert found.quick("migrate", "-c", "jobs").exit_code == 0
    return found


def on(found: Project, url: str, steer: Server) -> Project:
    (found.root / "qd.toml").write_text(
        f'[qd]\napp = "jobs:app"\ncontrol = "steer"\ndefault = "jobs"\n\n[connections.steer]\nurl = "{steer.tcp_url}"\n\n'
        f'[connections.jobs]\nurl = "{url}"\nretry_after = {LEASE}\n'
    )
    found.allowed |= {"ran"}
    return found


def send(shop: Project, number: int, delay: float = 0.0, **more: object) -> None:
    words = "".join(f", {key}={value!r}" for key, value in more.items() if key != "queue")
    queue = more.get("queue", "mail")
    shop.python(f"import jobs; jobs.hello.using(delay={delay}, queue={queue!r}).dispatch({number}{words})")


def ran(shop: Project) -> list[int]:
    path = shop.root / "ran"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("how", ["killed", pytest.param("hangs", marks=pytest.mark.slow)])
def test_jobs_run_on_while_the_control_connection_is_away(shop: Project, steer: Server, how: str) -> None:
    work = shop.work("mail", "-w", "2")
    work.wait_line("master.ready")
    send(shop, 1)
    eventually(lambda: ran(shop) == [1], 20)
    assert steer.process is not None
    hung = steer.process
    if how == "killed":
        steer.kill()
    else:
        hung.send_signal(signal.SIGSTOP)
    work.wait_line("redis.away .*connection=steer", 20)
    send(shop, 2, seconds=LONG)
    send(shop, 3, delay=LONG)
    eventually(lambda: sorted(ran(shop)) == [1, 2, 3], 30, what="jobs that are taken long after")
    if how == "killed":
        steer.start()
    else:
        hung.send_signal(signal.SIGCONT)
    work.wait_line("redis.back .*connection=steer", 30)
    eventually(lambda: shop.quick("health").exit_code == 0, 20)
    assert shop.quick("restart").exit_code == 0
    assert work.wait() == 0
    assert sorted(ran(shop)) == [1, 2, 3]
    assert len(work.matches("redis.away")) == len(work.matches("redis.back")) == 1
    for event in ("database.away", "lease.", "lease_lost", "keeper.silent", "job.requeued"):
        assert not work.matches(event), event


def test_maintenance_mode_holds_while_the_control_connection_is_away_also_for_a_new_keeper(
    shop: Project, steer: Server
) -> None:
    work = shop.work("mail,open", "-w", "1")
    work.wait_line("master.ready")
    assert shop.quick("down", "--allow", "open").exit_code == 0
    eventually(lambda: work.child("waiting on open"), 20, what="a worker that knows of maintenance mode")
    send(shop, 1)
    steer.kill()
    work.wait_line("redis.away .*connection=steer", 20)
    send(shop, 2, delay=LEASE, queue="open")
    eventually(lambda: 2 in ran(shop), 20, what="a job of the queue that is worked on")
    work.child("keeper").kill()
    work.wait_line("keeper.died")
    send(shop, 3, delay=LEASE, queue="open")
    eventually(lambda: 3 in ran(shop), 20, what="a job that is taken under the new keeper")
    assert ran(shop) == [2, 3]
    steer.start()
    assert shop.quick("up").exit_code == 0
    eventually(lambda: ran(shop) == [2, 3, 1], 20, what="the job that waited for the end of maintenance mode")
    work.stop()


def test_jobs_run_where_the_control_connection_is_away_from_the_start(shop: Project, steer: Server) -> None:
    steer.kill()
    work = shop.work("mail", "-w", "1")
    work.wait_line("redis.away .*connection=steer", 60)
    send(shop, 1)
    eventually(lambda: ran(shop) == [1], 20)
    work.stop()


def test_beanstalkd_names_the_control_connection_whose_leases_it_needs(
    project: MakeProject, steer: Server, beanstalkd: Beanstalkd
) -> None:
    shop = on(project(JOBS), beanstalkd.url, steer)
    work = shop.work("mail", "-w", "1")
    work.wait_line("master.ready")
    send(shop, 1)
    eventually(lambda: ran(shop) == [1], 20)
    steer.kill()
    line = work.wait_line("redis.away .*connection=steer", 20)
    assert "no job of connection 'jobs' (beanstalkd) is taken" in line.string
    send(shop, 2)
    steer.start()
    work.wait_line("redis.back .*connection=steer", 20)
    eventually(lambda: ran(shop) == [1, 2], 30)
    work.stop()
    assert not work.matches("beanstalkd.away")
    assert len(work.matches("redis.away")) == 1


# -- the control connection is a database


STEERED_JOBS = """
@app.job("hello", queue="mail")
def hello(n: int) -> None:
    with open("ran", "a") as file:
        file.write(f"{n}\\n")

@app.job("breaks", queue="mail")
def breaks() -> None:
    raise ValueError("as it should")

def tick() -> None:
    Path("ticked").touch()

app.schedule(tick).every(1)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def steered(request: pytest.FixtureRequest, project: MakeProject, tmp_path: Path) -> Project:
    """Queues on Redis, control in a database."""
    sqlite = f"sqlite:///{tmp_path / 'control.sqlite'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = project(STEERED_JOBS, config="")
    text = (found.root / "qd.toml").read_text()
    text = text.replace("[qd]\n", '[qd]\ncontrol = "steer"\ndefault = "redis"\n')
    (found.root / "qd.toml").write_text(f'{text}\n[connections.steer]\nurl = "{url}"\n')
    found.allowed |= {"ran", "ticked", "control.sqlite", "control.sqlite-wal", "control.sqlite-shm"}
    return found


def output_of(steered: Project, *words: str) -> str:
    done = steered.quick(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def steered_ran(steered: Project) -> list[str]:
    path = steered.root / "ran"
    return path.read_text().split() if path.exists() else []


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("queues:mail*")
def test_without_its_tables_nothing_starts(steered: Project) -> None:
    work = steered.work("mail", "-w", "1")
    work.wait_line("has no table .*: run `qd migrate`")
    assert work.wait() == 78


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("queues:mail*")
def test_a_fleet_is_steered_from_a_database(steered: Project, redis: Client) -> None:
    assert "made table qd_names" in output_of(steered, "migrate")
    work = steered.work("mail", "-w", "1")
    work.wait_line("master.ready")
    eventually(lambda: "1 master" in output_of(steered, "health"), 20, what="a report in the database")
    steered.python("import jobs; jobs.hello.dispatch(1); jobs.breaks.dispatch()")
    work.wait_line("job.failed")
    eventually(lambda: steered_ran(steered) == ["1"], 20)
    assert "breaks" in output_of(steered, "failed", "list")
    eventually((steered.root / "ticked").exists, 20, what="a tick that was taken in the database")

    output_of(steered, "down", "--reason", "upgrade")
    assert "upgrade" in output_of(steered, "status")
    output_of(steered, "up")
    output_of(steered, "schedule", "pause", "jobs.tick")
    output_of(steered, "schedule", "resume", "jobs.tick")
    output_of(steered, "restart")
    assert work.wait() == 0
    assert redis.text("KEYS", "qd:*") == []
    output_of(steered, "failed", "forget", "--all", "--yes")
