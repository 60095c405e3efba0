"""[qd] control = a database: what steers workers stands there, by the same commands, whatever their queue is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually

JOBS = """
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
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:mail*")]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def shop(request: pytest.FixtureRequest, project: MakeProject, tmp_path: Path) -> Project:
    """Queues on Redis, control in a database."""
    sqlite = f"sqlite:///{tmp_path / 'control.sqlite'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = project(JOBS, config="")
    text = (found.root / "qd.toml").read_text()
    text = text.replace("[qd]\n", '[qd]\ncontrol = "steer"\ndefault = "redis"\n')
    (found.root / "qd.toml").write_text(f'{text}\n[connections.steer]\nurl = "{url}"\n')
    found.allowed |= {"ran", "ticked", "control.sqlite", "control.sqlite-wal", "control.sqlite-shm"}
    return found


def said(shop: Project, *words: str) -> str:
    done = shop.quick(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def ran(shop: Project) -> list[str]:
    path = shop.root / "ran"
    return path.read_text().split() if path.exists() else []


def test_without_its_tables_nothing_starts(shop: Project) -> None:
    work = shop.work("mail", "-w", "1")
    work.wait_line("has no table .*: run `qd migrate`")
    assert work.wait() == 78


def test_a_fleet_is_steered_from_a_database(shop: Project, redis: Client) -> None:
    assert "made table qd_names" in said(shop, "migrate")
    work = shop.work("mail", "-w", "1")
    work.wait_line("master.ready")
    eventually(lambda: "1 master" in said(shop, "health"), 20, what="a report in the database")
    shop.python("import jobs; jobs.hello.dispatch(1); jobs.breaks.dispatch()")
    work.wait_line("job.failed")
    eventually(lambda: ran(shop) == ["1"], 20)
    assert "breaks" in said(shop, "failed", "list")
    eventually((shop.root / "ticked").exists, 20, what="a tick that was taken in the database")

    said(shop, "down", "--reason", "upgrade")
    assert "upgrade" in said(shop, "status")
    said(shop, "up")
    said(shop, "schedule", "pause", "jobs.tick")
    said(shop, "schedule", "resume", "jobs.tick")
    said(shop, "restart")
    assert work.wait() == 0
    assert redis.text("KEYS", "qd:*") == []
    said(shop, "failed", "forget", "--all")
