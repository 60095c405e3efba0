"""The wheel on every Python of Debian's releases, each in a chroot of its own, and on those of this machine: jobs run and
the unit tests pass. It takes minutes, root, mmdebstrap, and the network for packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import qd
from tests.support import wheel as wheels
from tests.support.pages import ROOT
from tests.support.programs import missing, program
from tests.support.wheel import Built

RELEASES = {"bookworm": "3.11", "trixie": "3.13", "testing": "3.14"}
OF_THIS_MACHINE = ("3.12",)
EXTRAS = "postgres,mysql,beanstalkd,sqs,top,dashboard,encryption,opentelemetry,sentry"
CHECKERS = {"basedpyright", "build", "import-linter", "mypy", "qd-worker", "ruff", "setuptools", "types-psutil"}
# What a chroot needs to reach the registries as this machine does.
OF_THE_HOST = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/root/.config/pip/pip.conf",
)
INSTALLED = "python3,python3-venv,redis-server,ca-certificates"
EXPECTED = {
    "processes": ["async main"] * 5 + ["sync main"] * 5,
    "concurrent": ["async main"] * 5 + ["sync thread"] * 5,
    "failed": ["smoke.killed", "smoke.slow", "unreadable"],
    "schedule": True,
    "version": f"qd {qd.__version__}",
}


def test_the_classifiers_name_the_versions_that_these_tests_run() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    assert named == sorted({*RELEASES.values(), *OF_THIS_MACHINE}, key=lambda version: int(version.split(".")[1]))


@dataclass(frozen=True)
class Place:
    """root: a chroot or a folder. home: the work folder, as programs see it. prefix: words before each command."""

    root: Path
    home: Path
    prefix: tuple[str, ...] = ()
    python: str = "python3"

    @property
    def files(self) -> Path:
        """The work folder, as this process sees it."""
        return self.root / self.home.relative_to("/") if self.prefix else self.home

    def run(self, *words: object, seconds: float = 900) -> str:
        own = {"HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return wheels.run(*self.prefix, "env", "-C", self.home, *words, cwd=self.root, seconds=seconds, env=own)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return wheels.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module", params=[*RELEASES, *OF_THIS_MACHINE])
def place(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """With the wheel, its extras and the packages of its unit tests in home/venv."""
    root = tmp_path_factory.mktemp("root") / "root"
    found = chroot(request.param, root) if request.param in RELEASES else local(request.param, root)
    try:
        found.run(found.python, "-m", "venv", found.home / "venv")
        shutil.copy(built.wheel, found.files)
        shutil.copy(Path(__file__).with_name("smoke.py"), found.files)
        wanted = [str(line) for line in map(Requirement, requires("qd-worker") or ()) if of_tests(line)]
        words = [word.partition(";")[0].strip() for word in wanted]
        pip = (found.home / "venv/bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "install")
        found.run(*pip, f"{found.home / built.wheel.name}[{EXTRAS}]", *words)
        yield found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def of_tests(line: Requirement) -> bool:
    return line.marker is not None and "dev" in str(line.marker) and line.name not in CHECKERS


def chroot(release: str, root: Path) -> Place:
    if os.geteuid() != 0:
        missing("root, for a chroot")
    # A mirror may be some weeks old.
    words = ("--quiet", "--variant=minbase", f"--include={INSTALLED}", '--aptopt=Acquire::Check-Valid-Until "false"')
    wheels.run(program("mmdebstrap"), *words, "--format=directory", release, root, cwd=root.parent, seconds=900)
    for name in filter(os.path.exists, OF_THE_HOST):
        copy = root / name.removeprefix("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, copy)
    own_proc = ("unshare", "--mount", "--pid", "--kill-child", "--fork", f"--mount-proc={root}/proc")
    first = ("sh", "-c", '"$@"; exit $?', "sh")  # the process 1, which no program under test should be
    return Place(root, Path("/srv"), (*own_proc, "chroot", str(root), *first))


def local(version: str, root: Path) -> Place:
    """A Python of this machine: on PATH, or one that pyenv has installed."""
    root.mkdir()
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    python = shutil.which(f"python{version}") if not found else str(found[-1])
    if python is None or subprocess.run([python, "--version"], check=False, capture_output=True).returncode != 0:
        missing(f"python{version}")
    return Place(root, root, python=python)


@pytest.mark.slow
def test_jobs_of_every_kind_run(place: Place, request: pytest.FixtureRequest) -> None:
    release = request.node.callspec.params["place"]
    (place.files / "work").mkdir(mode=0o700)
    printed = place.run("env", "-C", place.home / "work", place.home / "venv/bin/python", place.home / "smoke.py")
    assert json.loads(printed) == {"python": RELEASES.get(release, release), **EXPECTED}


@pytest.mark.slow
def test_the_unit_tests_pass(place: Place, built: Built) -> None:
    """With the installed package, which takes the place of daemon/qd; without the tests of the tests' own parts."""
    checkout = place.files / "checkout"
    shutil.copytree(built.source, checkout, ignore=shutil.ignore_patterns("daemon"))
    (checkout / "daemon").mkdir()
    python = place.home / "venv/bin/python"
    package = place.run(python, "-c", "import qd; print(qd.__path__[0])").strip()
    (checkout / "daemon/qd").symlink_to(package)
    inside = partial(
        place.run, "env", "-C", place.home / "checkout", python, "-m", "pytest", "-q", "-p", "no:cacheprovider"
    )
    output = inside("-n", "2", "tests/unit", "--ignore=tests/unit/test_support.py")
    assert int(re.findall(r"(\d+) passed", output)[-1]) > 3000
