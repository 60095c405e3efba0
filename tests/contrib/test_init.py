"""`qd init --django`, `--flask` and `--fastapi` in a new project: with the printed lines added, a job runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contrib.conftest import PYTHON
from tests.support.processes import QD, Procs
from tests.support.project import Project


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Project]:
    """An empty folder, on the private server if its qd.toml says so."""
    root = tmp_path / "new"
    root.mkdir()
    found = Project(root, "embedded:")
    for name in ("qd.toml", "jobs.py"):
        (root / name).unlink()
    found.allowed |= {".qd"}
    yield found
    found.close()


def run(new: Project, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=new.root, env=new.env(**env), capture_output=True, text=True, timeout=60, check=False
    )


def good(new: Project, *words: str, **env: str) -> str:
    done = run(new, *words, **env)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def printed(text: str, first: str, last: str) -> str:
    """The lines to add: from the one that begins with `first` to that with `last`."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(first))
    end = next(number for number, line in enumerate(lines) if number >= begin and line.startswith(last))
    return "\n" + "\n".join(lines[begin : end + 1]) + "\n"


def work_off(new: Project, *words: str, **env: str) -> list[str]:
    work = Procs([*words, "work", "-w", "1", "--stop-when-empty"], cwd=new.root, env=new.env(**env))
    new.started.append(work)
    work.ends_clean(seconds=60)
    return work.output


SENDS = ("dispatch", "mail.welcome", "to=ada@example.org")
RUNS = ["to ada@example.org: Hello (attempt 1)"]


@pytest.mark.parametrize("command", [QD, (PYTHON, "manage.py", "qd")], ids=["qd", "manage"])
@pytest.mark.parametrize("folder", ["", "config/settings"], ids=["plain", "nested settings"])
def test_a_new_django_project_runs_a_job(new: Project, command: tuple[str, ...], folder: str) -> None:
    good(new, PYTHON, "-m", "django", "startproject", "mysite", ".")
    settings = new.root / "mysite" / "settings.py"
    if folder:  # a package of settings
        (new.root / "mysite" / "settings").mkdir()
        settings = settings.rename(new.root / "mysite" / "settings" / "base.py")
        manage = new.root / "manage.py"
        manage.write_text(manage.read_text().replace("mysite.settings", "mysite.settings.base"))
    new.allowed |= {"manage.py", "mysite", "db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm"}
    shown = good(new, *QD, "init", "--django")
    assert "wrote mysite/jobs.py and qd.toml" in shown
    settings.write_text(settings.read_text() + printed(shown, "INSTALLED_APPS", "QD = "))
    python = [PYTHON, "manage.py"]
    assert good(new, *python, "check") == "System check identified no issues (0 silenced).\n"
    good(new, *python, "qd", "migrate")
    good(new, *command, *SENDS)
    assert work_off(new, *command) == RUNS


def test_a_new_flask_project_runs_a_job(new: Project) -> None:
    shown = good(new, *QD, "init", "--flask")
    lines = printed(shown, "from jobs", "background.init_app")
    (new.root / "app.py").write_text("from flask import Flask\n\napp = Flask(__name__)\n" + lines)
    new.allowed.add("app.py")
    flask = (PYTHON, "-m", "flask", "qd")
    good(new, *flask, *SENDS)
    assert work_off(new, *flask) == RUNS


def test_a_new_fastapi_project_runs_a_job(new: Project) -> None:
    shown = good(new, *QD, "init", "--fastapi")
    lines = printed(shown, "from qd", "app = FastAPI") + '\n\n@app.post("/")\nasync def sign_up() -> None:\n    '
    lines += printed(shown, "await welcome", "await welcome").strip()
    (new.root / "main.py").write_text("from fastapi import FastAPI\n" + lines + "\n")
    new.allowed.add("main.py")
    visit = "from starlette.testclient import TestClient\nfrom main import app\n"
    good(new, sys.executable, "-c", visit + "with TestClient(app) as web:\n    assert web.post('/').status_code == 200")
    assert work_off(new, *QD) == RUNS


@pytest.mark.parametrize("framework", ["--django", "--flask", "--fastapi"])
@pytest.mark.parametrize("name", ["qd.toml", "jobs.py"])
def test_no_file_is_overwritten(new: Project, framework: str, name: str) -> None:
    (new.root / "manage.py").write_text('os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")')
    (new.root / name).write_text("mine")
    new.allowed.add("manage.py")
    done = run(new, *QD, "init", framework)
    assert done.returncode == 2
    assert f"{name} already exists; nothing was written" in done.stderr
    assert sorted(path.name for path in new.root.iterdir()) == sorted(["manage.py", name])
    assert (new.root / name).read_text() == "mine"


def test_without_manage_py_it_says_where_to_run(new: Project) -> None:
    done = run(new, *QD, "init", "--django")
    assert done.returncode == 2
    assert "no manage.py that names the settings is here; run `qd init --django` in its folder" in done.stderr
