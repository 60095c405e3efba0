"""The liveness file: a master's sign of life that a health check reads without any server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from qd.process import liveness, proc
from tests.support.project import MakeProject, Project
from tests.support.waiting import eventually
from tests.support.witness import JOBS

pytestmark = pytest.mark.usefixtures("clean_redis")


def signs(shop: Project) -> list[Path]:
    return sorted((shop.run / "qd").glob("*"))


def test_the_file_says_who_and_how_many_and_is_gone_at_a_clean_end(project: MakeProject) -> None:
    shop = project(jobs=JOBS, config="[pools.mail]\nworkers = 2\n")
    work = shop.work("-w", "2", "--pool", "mail")
    work.wait_line("master.ready")
    file = shop.run / "qd" / f"mail.{work.pid}.live"

    def said() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(file.read_text())
        return found if found["ready"] else {}

    told = eventually(said, what="a sign of a ready master")
    assert told.pop("keeper_silent_s") < 20
    assert told == {"pid": work.pid, "start": proc.start_time(work.pid), "pool": "mail", "workers": 2, "ready": True}
    assert (shop.run / "qd").stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_mtime_ns
    eventually(lambda: file.stat().st_mtime_ns > before, what="the next sign")
    work.stop()
    assert signs(shop) == []


@pytest.mark.leaves("qd:masters")
def test_a_master_that_hangs_grows_old_and_a_dead_ones_file_is_taken_away(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    environ = shop.env()
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    (file,) = eventually(lambda: [f for f in signs(shop) if f.suffix == ".live"], what="a sign")
    work.signal(signal.SIGSTOP)
    eventually(lambda: psutil.Process(work.pid).status() == psutil.STATUS_STOPPED, what="that it stands still")
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 11))
    (found,) = liveness.read_all(environ)
    assert (found.pid, found.pool, found.hangs) == (work.pid, "", True)
    work.kill()
    eventually(lambda: not work.session(), what="no child of the dead master")
    half = file.with_suffix(".new")  # as of one that was killed while it wrote
    half.touch()
    os.utime(half, (0, 0))
    assert liveness.read_all(environ) == []
    assert signs(shop) == []


def test_a_folder_of_somebody_else_is_refused_once_and_harms_nothing(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    (shop.run / "qd").mkdir()
    (shop.run / "qd").chmod(0o777)
    work = shop.work("-w", "1")
    work.wait_line("liveness.write_failed .*not a folder of this user alone")
    work.wait_line("master.ready")
    keeper = work.child("qd: keeper")
    for count in (1, 2):  # seconds, by the keeper that is missed
        keeper.kill()
        work.wait_line("keeper.died", count=count)
        keeper = eventually(
            lambda before=keeper.pid: [k for k in work.children("qd: keeper") if k.pid != before],  # type: ignore[misc]
            what="a keeper",
        )[0]
    assert len(work.matches("liveness.write_failed")) == 1
    assert signs(shop) == []
    work.stop()


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"RUNTIME_DIRECTORY": "/run/qd:/run/other", "XDG_RUNTIME_DIR": "/"}, "/run/qd"),
        ({"XDG_RUNTIME_DIR": "/tmp"}, "/tmp/qd"),
        ({"XDG_RUNTIME_DIR": "/not/there"}, f"/tmp/qd-{os.getuid()}"),
    ],
)
def test_the_folder_is_the_first_that_there_is(environ: dict[str, str], place: str) -> None:
    assert str(liveness.folder(environ)) == place
    assert liveness.path(Path("/x"), "a/b c", 7) == Path("/x/a_b_c.7.live")
