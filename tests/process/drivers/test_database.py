"""`qd work` on a database: chains, batches, locks and keys; and a database that is not ready: one line, exit code 78."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import Project
from tests.support.servers.mariadb import MariaDb
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("databases")


def refused(folder: Path, url: str) -> str:
    """The lines of a start that came to nothing."""
    shop = Project(folder, "", "@app.job('x')\ndef x() -> None: ...\n")
    (folder / "qd.toml").write_text(
        f'[qd]\napp = "jobs:app"\ndefault = "db"\ncontrol = "db"\n\n[connections.db]\nurl = "{url}"\n'
    )
    work = shop.work("-w", "1")
    assert work.wait(40) == 78
    work.kill()
    shop.allowed |= {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}
    shop.close()
    return "\n".join(work.lines)


def test_a_missing_table_is_reported_with_the_command_that_creates_it(tmp_path: Path):
    lines = refused(tmp_path, f"sqlite:///{tmp_path / 'jobs.sqlite'}")
    (line,) = [line for line in lines.splitlines() if "ERROR" in line]
    assert "has no table" in line
    assert "run `qd migrate`" in line


def test_a_refused_password_is_reported_and_never_shown(tmp_path: Path, mariadb: MariaDb, mariadb_url: str):
    name = mariadb_url.rpartition("/")[2].partition("?")[0]
    mariadb.run("CREATE OR REPLACE USER shop IDENTIFIED BY 'right'")
    lines = refused(tmp_path, f"mysql://shop:s3cr3tw0rd@127.0.0.1:{mariadb.port}/{name}")
    (line,) = [line for line in lines.splitlines() if "ERROR" in line]
    assert "refuses this user or password" in line
    assert "s3cr3tw0rd" not in lines


TIED = """
def note(*words):
    with open("notes", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@app.job("step")
def step(n: int) -> None:
    note("step", n)

@app.job("then")
def then() -> None:
    note("then")

@app.job("single", unique="n:{n}")
def single(n: int) -> None:
    note("single", n)
"""
SEND = """
from jobs import app, single, step, then

app.chain(step.bind(1), step.bind(2)).dispatch()
app.batch(step.bind(3), step.bind(4), then=then.bind()).dispatch()
assert single.dispatch(5).id == single.dispatch(5).id
step.using(key="moved", delay=600).dispatch(6)
step.using(key="moved", delay=1).dispatch(7)
step.using(key="gone", delay=1).dispatch(8)
assert app.keyed(step, "gone").cancel()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_chains_batches_locks_and_keys_stand_in_the_database(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.sqlite'}" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    shop = Project(tmp_path, "", TIED)
    shop.allowed |= {"notes", "send.py", "jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}
    (tmp_path / "qd.toml").write_text(
        f'[qd]\napp = "jobs:app"\ndefault = "db"\ncontrol = "db"\n\n[connections.db]\nurl = "{url}"\n'
    )
    assert shop.quick("migrate").exit_code == 0
    (tmp_path / "send.py").write_text(SEND)
    subprocess.run([sys.executable, "send.py"], cwd=tmp_path, env=shop.env(), check=True, timeout=60)
    assert shop.quick("pause", "default").exit_code == 0
    work, notes = shop.work("-w", "2", "-c", "db", "default"), tmp_path / "notes"
    work.wait_line("master.ready")
    assert not notes.exists()
    assert shop.quick("resume", "default").exit_code == 0
    every = ["single 5", *[f"step {n}" for n in (1, 2, 3, 4, 7)], "then"]
    eventually(lambda: notes.exists() and len(notes.read_text().splitlines()) >= len(every), 40, what="seven jobs")
    work.stop()
    assert sorted(notes.read_text().splitlines()) == every
    shop.close()
