"""`qd work` on a database that is not ready for it: one line, and the exit code that a supervisor does not try again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.project import Project
from tests.support.servers.mariadb import MariaDb

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


def test_a_table_that_is_missing_is_told_with_the_command_that_makes_it(tmp_path: Path):
    lines = refused(tmp_path, f"sqlite:///{tmp_path / 'jobs.sqlite'}")
    (line,) = [line for line in lines.splitlines() if "ERROR" in line]
    assert "has no table" in line
    assert "run `qd migrate`" in line


def test_a_password_that_is_refused_is_told_and_never_shown(tmp_path: Path, mariadb: MariaDb, mariadb_url: str):
    name = mariadb_url.rpartition("/")[2].partition("?")[0]
    mariadb.run("CREATE OR REPLACE USER shop IDENTIFIED BY 'right'")
    lines = refused(tmp_path, f"mysql://shop:s3cr3tw0rd@127.0.0.1:{mariadb.port}/{name}")
    (line,) = [line for line in lines.splitlines() if "ERROR" in line]
    assert "refuses this user or password" in line
    assert "s3cr3tw0rd" not in lines
