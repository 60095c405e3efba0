"""The wheel and the sdist have what a user needs, and a project works with the installed wheel alone."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import Parser
from functools import partial
from pathlib import Path

import pytest

import qd
from qd.cli.help import pages
from qd.cli.init import PRINTED, SAMPLES
from tests.support import wheel as wheels
from tests.support.pages import ROOT
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.wheel import Built

pytestmark = pytest.mark.xdist_group("wheel")  # one build for all
Run = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return wheels.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def names(built: Built) -> list[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        return wheel.namelist()


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.installed(built.wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Iterator[Run]:
    """Runs a program of the environment in an empty folder."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (tmp_path / "here").mkdir()

    def run(program: str, *words: str, **env: str) -> str:
        own = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), **env}
        return wheels.run(environment / program, *words, cwd=tmp_path / "here", env=own)

    yield run
    assert not [path for path in home.rglob("*") if path.is_file()]


# -- what is in them


def test_the_wheel_contains_the_package_its_pages_and_nothing_else(built: Built, names: list[str]) -> None:
    """No file of data is forgotten: scripts in Lua, templates, styles, types. No test, bench or picture is in it."""
    package = {f"qd/{path.relative_to(built.source / 'daemon/qd')}" for path in files(built.source / "daemon/qd")}
    docs = {f"qd/docs/{path.relative_to(built.source / 'docs')}" for path in files(built.source / "docs")}
    expected = {name for name in docs if name.endswith(".md")} - {"qd/docs/index.md"}
    expected |= {"qd/docs/reference/security.md", *(f"qd/conf/{name}" for name in SAMPLES.values())}
    assert {Path(name).suffix for name in package} >= {".lua", ".html", ".css", ".js", ".typed", ".pyi", ".toml"}
    assert {name for name in names if ".dist-info/" not in name} == package | expected


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_sdist_contains_what_a_wheel_needs_and_the_pages_but_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        found = {Path(*Path(name).parts[1:2]).name for name in sdist.getnames()}
        pictures = [name for name in sdist.getnames() if Path(name).suffix in (".png", ".svg") and "/docs/" in name]
    assert found >= {"daemon", "docs", "conf", "supervisor", "setup.py", "LICENSE", "CHANGELOG.md", "SECURITY.md"}
    assert not found & {"tests", "bench", "examples", ".ci"}
    assert not pictures


def test_the_metadata_has_the_version_the_license_and_every_extra(built: Built, names: list[str]) -> None:
    metadata = read(built.wheel, next(name for name in names if name.endswith("/METADATA")))
    assert metadata["Name"] == "qd-worker"
    assert metadata["Version"] == qd.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(metadata.get_all("Provides-Extra", [])) == sorted(declared)
    assert re.fullmatch(rf"qd_worker-{re.escape(qd.__version__)}-py3-none-any\.whl", built.wheel.name)


def read(wheel: Path, name: str) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        return Parser().parsestr(opened.read(name).decode())


# -- installed, without the checkout


def test_the_installed_package_is_not_that_of_the_checkout(installed: Run, environment: Path) -> None:
    code = "import json, sys, qd; print(json.dumps([qd.__file__, *sys.path]))"
    file, *paths = json.loads(installed("python", "-c", code))
    assert file.startswith(str(environment.parent))
    assert not [path for path in paths if path.startswith((f"{ROOT}/", str(ROOT / "daemon")))]
    assert installed("qd", "--version") == f"qd {qd.__version__}\n"


OF_EXTRAS = {
    "boto3", "botocore", "cryptography", "django", "fastapi", "flask", "greenstalk", "jinja2", "lupa", "markupsafe",
    "opentelemetry", "psycopg", "pytest", "sentry_sdk", "sqlalchemy", "starlette", "textual", "uvicorn",
}  # fmt: skip
IMPORT_ALL = """
import importlib, json, pkgutil, qd
missing = {}
for found in pkgutil.walk_packages(qd.__path__, "qd.", onerror=lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            missing[found.name] = (error.name or "").partition(".")[0]
print(json.dumps(missing))
"""


def test_no_module_needs_a_package_that_neither_qd_nor_an_extra_requires(installed: Run) -> None:
    missing = json.loads(installed("python", "-W", "ignore", "-c", IMPORT_ALL))
    assert set(missing.values()) <= OF_EXTRAS, missing
    assert {name.split(".")[1] for name in missing} <= {"cli", "contrib", "dashboard", "drivers", "pytest_plugin"}


def test_a_first_project_runs_its_job(installed: Run, tmp_path: Path, redis: Client, server: Server) -> None:
    assert installed("qd", "init").startswith("wrote qd.toml, jobs.py and qd.schema.json. Next:\n")
    written = {path.name: path.read_text() for path in (tmp_path / "here").iterdir()}
    templates = ROOT / "daemon/qd/cli/templates"
    assert written == {
        "qd.toml": (templates / "qd.toml").read_text(),
        "jobs.py": (templates / "jobs.py").read_text(),
        "qd.schema.json": (ROOT / "conf/qd.schema.json").read_text(),
    }
    qd = partial(installed, "qd", QD_REDIS_URL=server.url, PYTHONDONTWRITEBYTECODE="1")
    qd("dispatch", "mail.welcome", "to=ada@example.org")
    assert redis.call("LLEN", "queues:default") == 1
    assert qd("work", "-w", "1", "--stop-when-empty") == "to ada@example.org: Hello (attempt 1)\n"
    assert redis.call("LLEN", "queues:default") == 0


@pytest.mark.parametrize("target", PRINTED)
def test_files_for_supervisors_and_containers_are_printed_for_the_installed_program(
    target: str, installed: Run, environment: Path
) -> None:
    installed("qd", "init")
    printed = installed("qd", "init", target)
    expected = {"supervisord": str(environment / "qd"), "systemd": str(environment / "qd"), "dockerignore": "\n.venv\n"}
    assert expected.get(target, '"qd", "work"') in printed


@pytest.mark.parametrize(("target", "name"), SAMPLES.items())
def test_the_samples_of_conf_are_printed_as_in_the_clone(target: str, name: str, installed: Run) -> None:
    assert installed("qd", "init", target) == (ROOT / "conf" / name).read_text()


@pytest.mark.parametrize("framework", ["flask", "fastapi"])
def test_a_project_of_a_framework_is_written(framework: str, installed: Run, tmp_path: Path) -> None:
    assert "wrote " in installed("qd", "init", f"--{framework}")
    assert (tmp_path / "here/jobs.py").is_file()


def test_help_prints_the_same_pages_as_in_the_checkout(installed: Run) -> None:
    here = partial(wheels.run, sys.executable, "-m", "qd", cwd=ROOT, env={"PYTHONPATH": str(ROOT / "daemon")})
    for words in ((), ("locks",), ("security",), (next(iter(pages())),)):
        assert installed("qd", "help", *words) == here("help", *words)
