"""`qd init --django`, `--flask` and `--fastapi` in a new project: with the printed lines added, a job runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.contrib.conftest import PYTHON
from tests.contrib.test_django_database import settings_of
from tests.support import warm
from tests.support.image import steps
from tests.support.processes import QD, Procs
from tests.support.project import Project
from tests.support.servers.postgres import Postgres


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
    return warm.run(words, cwd=new.root, env=new.env(**env), capture_output=True, text=True, timeout=60, check=False)


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


MODEL = "from django.contrib.auth.models import User\n"
SENDS = ("dispatch", "mail.welcome", "to=ada@example.org")
RUNS = ["to ada@example.org: Hello (attempt 1)"]


@pytest.mark.parametrize("command", [QD, (PYTHON, "manage.py", "qd")], ids=["qd", "manage"])
@pytest.mark.parametrize("folder", ["", "config/settings"], ids=["plain", "nested settings"])
def test_a_new_django_project_whose_jobs_import_models_runs_a_job(
    new: Project, command: tuple[str, ...], folder: str
) -> None:
    good(new, PYTHON, "-m", "django", "startproject", "mysite", ".")
    settings = new.root / "mysite" / "settings.py"
    if folder:  # a package of settings
        (new.root / "mysite" / "settings").mkdir()
        settings = settings.rename(new.root / "mysite" / "settings" / "base.py")
        manage = new.root / "manage.py"
        manage.write_text(manage.read_text().replace("mysite.settings", "mysite.settings.base"))
    new.allowed |= {"manage.py", "mysite", "db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm", "qd.schema.json"}
    shown = good(new, *QD, "init", "--django")
    assert 'DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}' in shown
    assert "wrote mysite/qd.py, mysite/jobs.py, qd.toml and qd.schema.json" in shown
    jobs = new.root / "mysite" / "jobs.py"
    jobs.write_text(jobs.read_text().replace("from mysite.qd", f"{MODEL}from mysite.qd"))
    assert MODEL in jobs.read_text()
    settings.write_text(settings.read_text() + printed(shown, "INSTALLED_APPS", "QD = "))
    python = [PYTHON, "manage.py"]
    assert good(new, *python, "check") == "System check identified no issues (0 silenced).\n"
    good(new, *python, "qd", "migrate")
    good(new, *command, *SENDS)
    assert work_off(new, *command) == RUNS


def test_the_deployment_files_of_a_django_project_run_its_jobs(new: Project, postgres: Postgres) -> None:
    """Its settings name the database, and DJANGO_SETTINGS_MODULE the settings."""
    good(new, PYTHON, "-m", "django", "startproject", "mysite", ".")
    lines = printed(good(new, *QD, "init", "--django"), "INSTALLED_APPS", "QD = ")
    database = settings_of(url := postgres.fresh_database())
    settings = new.root / "mysite" / "settings.py"
    settings.write_text(f"{settings.read_text()}{lines}DATABASES = {{'default': {database!r}}}\n")
    (new.root / "mysite" / "qd.py").write_text("import qd.contrib.django\n\napp = qd.contrib.django.app()\n")
    new.allowed |= {"manage.py", "mysite", "qd.schema.json"}
    files = {
        target: good(new, *QD, "init", target) for target in ("docker", "compose", "k8s", "systemd", "supervisord")
    }
    assert "QD_" not in "".join(re.findall("QD_[A-Z]+_URL", "".join(files.values())))

    image = {step.word: step for step in steps(files["docker"])}
    variables = dict(word.split("=") for word in image["ENV"].rest.split())
    assert re.search(r"'qd-worker\[dashboard,postgres\]==\S+' 'django~=", files["docker"])
    services = yaml.safe_load(files["compose"])["services"]
    assert sorted(services) == ["dashboard", "worker"]
    (pod,) = [each["spec"]["template"]["spec"] for each in yaml.safe_load_all(files["k8s"])]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]
    assert "After=network-online.target postgresql.service\n" in files["systemd"]
    assert '["uvicorn", "mysite.asgi:application", ' in files["compose"]
    assert 'DJANGO_SETTINGS_MODULE="mysite.settings"' in files["supervisord"]
    unit = dict(
        line.split("=", 1) for line in files["systemd"].splitlines() if re.match("ExecStart|Environment=DJ", line)
    )

    def runs(words: Sequence[str], **env: str) -> None:
        good(new, *QD, *SENDS, **env)
        work = Procs([*QD, *words[1:], "-w", "1", "--stop-when-empty"], cwd=new.root, env=new.env(**env))
        new.started.append(work)
        work.ends_clean(seconds=60)
        assert work.output == RUNS

    good(new, *QD, "migrate", DJANGO_SETTINGS_MODULE=variables["DJANGO_SETTINGS_MODULE"])
    runs(image["CMD"].words, **variables)
    runs(services["worker"]["command"], **services["worker"]["environment"])
    runs(unit["ExecStart"].split(), **dict([unit["Environment"].split("=")]))
    assert pod["containers"][0]["command"] == image["CMD"].words
    postgres.drop(url)


def test_the_error_for_an_app_beside_a_model_import_has_the_users_line_and_the_fix(new: Project) -> None:
    (new.root / "jobs.py").write_text(MODEL)
    (new.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    done = run(new, *QD, "declared", DJANGO_SETTINGS_MODULE="django.conf.global_settings")
    assert done.returncode == 78
    assert f"({new.root}/jobs.py:1); make the app in a module without models" in done.stderr


@pytest.mark.parametrize("words", ["--fastapi --flask", "docker --django"])
def test_two_kinds_of_project_are_refused(new: Project, words: str) -> None:
    done = run(new, *QD, "init", *words.split())
    assert done.returncode == 2
    assert f"give one of {words.replace(' ', ', ')}" in done.stderr
    assert not list(new.root.iterdir())


def test_a_django_project_without_a_package_has_no_module_that_hides_qd(new: Project) -> None:
    (new.root / "manage.py").write_text('os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")')
    good(new, *QD, "init", "--django")
    assert 'app = "qd_app:app"' in (new.root / "qd.toml").read_text()
    assert not (new.root / "qd.py").exists()
    new.allowed |= {"manage.py", "qd_app.py", "qd.schema.json"}


def test_a_new_flask_project_runs_a_job(new: Project) -> None:
    shown = good(new, *QD, "init", "--flask")
    lines = printed(shown, "import jobs", "jobs.background.init_app")
    (new.root / "app.py").write_text("from flask import Flask\n\napp = Flask(__name__)\n" + lines)
    new.allowed |= {"app.py", "qd.schema.json"}
    flask = (PYTHON, "-m", "flask", "qd")
    good(new, *flask, *SENDS)
    assert work_off(new, *flask) == RUNS


def test_a_new_fastapi_project_runs_a_job(new: Project) -> None:
    shown = good(new, *QD, "init", "--fastapi")
    lines = printed(shown, "from qd", "app = FastAPI") + '\n\n@app.post("/")\nasync def sign_up() -> None:\n    '
    lines += printed(shown, "await jobs.welcome", "await jobs.welcome").strip()
    (new.root / "main.py").write_text("from fastapi import FastAPI\n" + lines + "\n")
    new.allowed |= {"main.py", "qd.schema.json"}
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
    way = f"move it away, or see `qd help {framework[2:]}`"
    assert f"{name} already exists; nothing was written; {way}" in done.stderr
    assert sorted(path.name for path in new.root.iterdir()) == sorted(["manage.py", name])
    assert (new.root / name).read_text() == "mine"


def test_without_manage_py_it_says_where_to_run(new: Project) -> None:
    done = run(new, *QD, "init", "--django")
    assert done.returncode == 2
    assert "no manage.py that names the settings is here; run `qd init --django` in its folder" in done.stderr
