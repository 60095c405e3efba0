"""The programs in examples/: what `make demo` copies, and the whole run of the Django shop."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.project import OURS, SOURCE
from tests.support.servers import postgres

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
RESULTS = ("pictures/alps.pgm", "thumbs/alps.pgm", "outbox/mail.eml", "index.html", ".qd/embedded/address")


def test_the_demo_copies_no_results_of_a_run_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery, copy = tmp_path / "gallery", tmp_path / "copy"
    for name in ("gallery.py", *RESULTS):
        (gallery / name).parent.mkdir(parents=True, exist_ok=True)
        (gallery / name).touch()
    copy.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", {})
    move_in = runpy.run_path(str(DEMO))["move_in"]
    monkeypatch.setitem(move_in.__globals__, "GALLERY", gallery)
    move_in(copy)
    assert [path.name for path in copy.rglob("*")] == ["gallery.py"]


SHOWN = """
Ada buys: the order and its job are saved in one transaction
  in the transaction, others see      0 orders, 0 jobs
  after the commit                    1 orders, 1 jobs
Bob buys, and his payment is refused: a rollback
  in the transaction, others see      1 orders, 1 jobs
  after the rollback                  1 orders, 1 jobs
Eve buys, and the process is killed before the commit
  after the kill                      1 orders, 1 jobs
$ manage.py qd work -w 1 --log-level error --stop-when-empty
worker: order 1 of ada@example.org is confirmed
The result of Ada's task: confirmed; 1 orders, 0 jobs are left
PostgreSQL is stopped and its folder removed
"""


def test_the_django_shop_shows_its_transactions_and_leaves_nothing() -> None:
    postgres.installed()
    folder = Path(tempfile.mkdtemp(prefix="qd-"))  # a short path, for the socket
    folder.chmod(0o755)  # the server has another user
    shop = DEMO.with_name("django_shop")
    before = {*shop.rglob("*")}
    env = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, "PG", "DJANGO"))}
    env |= {"TMPDIR": str(folder), "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        command = [sys.executable, str(shop / "run.py")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("Django ")
        assert SHOWN in done.stdout, done.stdout
        assert [path.name for path in folder.iterdir()] == []
        assert {*shop.rglob("*")} == before
        running = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        assert not [words for words in running if str(folder) in " ".join(words)]
    finally:
        shutil.rmtree(folder)
