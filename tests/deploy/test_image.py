"""The image of the example, built into a Debian that mmdebstrap makes, and run as compose.yaml and the Helm chart say.

No container engine is needed. A container is a chroot with namespaces of its own (support/image.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from qd.dashboard.access import hashed
from tests.deploy.test_docker import EXAMPLE
from tests.support import helm
from tests.support.image import Image
from tests.support.pages import ROOT
from tests.support.processes import Procs, namespace_init, new_namespace
from tests.support.programs import program, redis_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

UP = """
import fcntl, signal, socket, struct
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
signal.pause()
"""
WEB = "http://127.0.0.1:8000"
FETCH = "import sys, urllib.request as r; print(r.urlopen(r.Request(sys.argv[2], method=sys.argv[1])).read().decode())"


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh Debian of this machine's release with Python and pip, in place of python:slim."""
    new_namespace()
    root = tmp_path_factory.mktemp("image") / "root"
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    command = [program("mmdebstrap"), "--quiet", "--variant=minbase", "--include=passwd,python3-pip,python-is-python3"]
    subprocess.run([*command, release.get("VERSION_CODENAME", "stable"), str(root)], check=True, timeout=900)
    root.parent.chmod(0o755)
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def example(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The example's image. pip takes the packages from a folder: the Debian has no settings of an index."""
    context, wheels = tmp_path_factory.mktemp("context") / "reports", debian / "wheels"
    shutil.copytree(EXAMPLE, context, ignore=shutil.ignore_patterns("__pycache__", "*.whl", "dashboard-users"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(context), str(ROOT)], check=True, timeout=300)
    (wheel,) = context.glob("*.whl")
    chroot = ["chroot", str(debian), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(chroot, capture_output=True, text=True, check=True).stdout.strip()
    options = [f"--python-version={version}", "--only-binary=:all:", "-d", str(wheels)]
    # async-timeout: needed by redis before Python 3.11.3; pip reads the condition for the Python that runs it.
    wanted = [f"{wheel}[dashboard]", "-r", str(context / "requirements.txt"), "async-timeout"]
    subprocess.run([*pip, "download", *options, *wanted], check=True, timeout=300)
    found = Image(debian, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_BREAK_SYSTEM_PACKAGES": "1"})
    found.build(context)
    found.inside("/etc/hosts").write_text("127.0.0.1 localhost redis\n")
    found.inside("/run/secrets/qd").mkdir(parents=True)
    return found


@pytest.fixture
def network(tmp_path: Path) -> Iterator[list[str]]:
    """Prefix of a command that runs in a network of its own, which has loopback only."""
    holder = subprocess.Popen(["unshare", "--net", sys.executable, "-c", UP], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout as lines:
        assert lines.readline() == "up\n"
    yield ["nsenter", f"--target={holder.pid}", "--net"]
    holder.kill()
    holder.wait(20)


def healthy(image: Image, pid: int, check: list[str]) -> bool:
    return image.beside(pid, check).returncode == 0


def test_the_example_builds_runs_a_job_reports_its_health_and_ends_with_0(
    example: Image, network: list[str], tmp_path: Path
) -> None:
    services: Mapping[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    example.inside("/run/secrets/dashboard-users").write_text(f"ada:operate:{hashed('secret')}\n")
    who = example.run(["id", "-u"])
    assert who.stdout == "10001\n"

    started: dict[str, Procs] = {}
    try:
        server = [str(redis_server()), *services["redis"]["command"][1:], "--dir", str(tmp_path)]
        started["redis"] = Procs([*network, *server], cwd=tmp_path, env=os.environ)
        ping = [*network, *services["redis"]["healthcheck"]["test"][1:]]
        eventually(lambda: subprocess.run(ping, capture_output=True, check=False).returncode == 0, what="Redis")
        for name in ("worker", "web", "dashboard"):
            words = example.words(services[name]["command"], services[name]["environment"])
            started[name] = Procs([*network, *words], cwd=tmp_path, env=os.environ)
        assert services["worker"]["command"] == example.command
        pids = {name: namespace_init(started[name]) for name in ("worker", "web", "dashboard")}

        for name, pid in pids.items():
            check = services[name].get("healthcheck", {"test": ["CMD", *example.health]})["test"][1:]
            eventually(partial(healthy, example, pid, check), 60, what=f"a healthy {name}")
        started["worker"].wait_line("master.ready")
        assert not [line for line in started["worker"].all_lines if "master.is_root" in line]

        def fetch(method: str, path: str) -> Any:
            done = example.beside(pids["web"], ["python", "-c", FETCH, method, WEB + path])
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        job = fetch("POST", "/reports/7")["id"]
        done = eventually(lambda: (found := fetch("GET", f"/reports/{job}"))["status"] == "done" and found, 60)
        assert done["report"] == {"month": 7, "pages": 70}

        os.kill(pids["worker"], example.stop_signal)
        assert started["worker"].process.wait(35) == 0
        gone = example.beside(pids["web"], example.health)
        assert (gone.returncode, "no master runs here" in gone.stdout) == (1, True)
        for name in ("web", "dashboard"):
            os.kill(pids[name], signal.SIGTERM)
            assert started[name].process.wait(35) == 0, name
    finally:
        for each in started.values():
            each.process.kill()
            each.process.wait(20)


def test_the_pods_of_the_chart_work_without_a_writable_file_system_and_read_the_url_from_a_file(
    example: Image, network: list[str], tmp_path: Path
) -> None:
    given = {"image": {"repository": "reports", "tag": "1"}, "url": {"secret": "reports"}}
    objects, _ = helm.render(**given, dashboard={"enabled": True, "usersSecret": "people", "hosts": ["qd.example.com"]})
    specs = {
        name: objects["Deployment", f"shop-qd-{name}"]["spec"]["template"]["spec"]
        for name in ("worker-default", "metrics", "dashboard")
    }
    for spec in specs.values():
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
        assert example.run(["id", "-u", example.user]).stdout == f"{spec['securityContext']['runAsUser']}\n"
    secrets = {"qd/redis-url": "redis://redis:6379/0", "dashboard/users": f"ada:operate:{hashed('secret')}"}
    for name, text in secrets.items():
        file = example.inside(f"/run/secrets/{name}")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{text}\n")
        file.chmod(0o440)
        os.chown(file, 0, specs["metrics"]["securityContext"]["fsGroup"])

    started = {"redis": Procs([*network, str(redis_server()), "--dir", str(tmp_path)], cwd=tmp_path, env=os.environ)}
    try:
        for name, spec in specs.items():
            (container,) = spec["containers"]
            environ = {each["name"]: each["value"] for each in container["env"]}
            words = example.words(container["command"], environ, read_only=True)
            started[name] = Procs([*network, *words], cwd=tmp_path, env=os.environ)
        pids = {name: namespace_init(started[name]) for name in specs}
        for name, pid in pids.items():
            (container,) = specs[name]["containers"]
            probe = container["readinessProbe"]
            if "exec" in probe:
                check = probe["exec"]["command"]
            else:
                address = f"http://127.0.0.1:{container['ports'][0]['containerPort']}{probe['httpGet']['path']}"
                headers = {each["name"]: each["value"] for each in probe["httpGet"].get("httpHeaders", [])}
                check = [
                    "python",
                    "-c",
                    f"import urllib.request as r; r.urlopen(r.Request({address!r}, headers={headers}))",
                ]
            eventually(partial(healthy, example, pid, check), 60, what=f"a ready {name}")
            assert "Read-only file system" in example.beside(pid, ["touch", "/app/x"]).stderr
        worker = started["worker-default"]
        url = {"QD_REDIS_URL_FILE": "/run/secrets/qd/redis-url"}
        sent = example.beside(pids["worker-default"], ["qd", "dispatch", "reports.build", "month=2"], **url)
        assert sent.returncode == 0, sent.stderr
        worker.wait_line("job.done.*reports.build")
        assert worker.output == ["report of month 2: 20 pages"]
        keda = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9600/keda/default').read().decode())"
        assert json.loads(example.beside(pids["metrics"], ["python", "-c", keda]).stdout)["value"] == 0
        for name, pid in pids.items():
            os.kill(pid, signal.SIGTERM)
            assert started[name].process.wait(specs[name].get("terminationGracePeriodSeconds", 30)) == 0, name
        assert not worker.matches("WARN|ERROR")
    finally:
        for each in started.values():
            each.process.kill()
            each.process.wait(20)
