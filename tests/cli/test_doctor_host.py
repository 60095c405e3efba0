"""qd doctor on the files of supervisord and systemd and on the host: the reported line, and that its fix works."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from qd.cli.checks import Finding, supervisors
from qd.cli.checks import project as host
from qd.cli.checks.project import Project as Looked
from qd.process import liveness
from tests.support.project import Project, doctor, with_setting

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shop(project: Callable[..., Project]) -> Project:
    return project(jobs="@app.job('mail.welcome')\ndef welcome() -> None: ...\n")


# -- supervisord and systemd

Check = Callable[[Looked, Path], Iterator[Finding]]


def checked(check: Check, file: Path, text: str) -> Finding:
    """The finding about this file with this text."""
    file.write_text(text)
    (found,) = check(Looked(), file)
    return found


def setting_of(line: Finding) -> str:
    """KEY=VALUE, as the fix names it."""
    setting = re.match(r"\w+=\w+", line.fix)
    assert setting
    return setting[0]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("stopwaitsecs", "10", "stopwaitsecs=10, but running jobs may continue for 25 s"),
        ("stopwaitsecs", None, "stopwaitsecs=10, but running jobs may continue for 25 s"),
        ("autorestart", None, "autorestart=unexpected: after `qd restart`, which exits with 0, it stays down"),
        ("startsecs", "10", "startsecs=10, but qd may exit after 1.5 s"),
        ("killasgroup", "false", "killasgroup=false: when supervisord kills qd"),
        ("stopsignal", "KILL", "stopsignal=KILL does not stop qd gracefully"),
        ("user", None, "no user=: if supervisord runs as root, so do jobs"),
        ("user", "root", "user=root: jobs run as root"),
    ],
)
def test_a_program_of_supervisord(key: str, value: str | None, expected: str, folder: Path) -> None:
    check_text = partial(checked, supervisors.check_supervisord, folder / "my.conf")
    good = (ROOT / "supervisor" / "qd.conf").read_text()
    assert check_text(good).sign == "ok"
    line = check_text(with_setting(good, key, value))
    assert expected in line.value
    assert check_text(with_setting(good, key, None) + f"{setting_of(line)}\n").sign == "ok"


def test_a_program_is_checked_against_its_pool_and_flags(shop: Project) -> None:
    shop.config(
        '[pools.schedule]\nstop_timeout = "3m"\n[pools.slow]\nstop_timeout = "5m"\n[pools.web]\nmin_uptime = 11\n'
    )
    shop.allowed.add("supervisor")
    (shop.root / "supervisor").mkdir()
    text = "[program:%s]\ncommand=/x/qd %s ; the pool\nautorestart=true\nkillasgroup=true\nuser=a\nstopwaitsecs=35\n"
    programs = {"a": "work --pool slow", "b": "work --pool=web", "c": "work --stop-timeout 2m", "e": "schedule work"}
    programs |= {"d": "work --config /another/qd.toml", "f": "schedule work --pool slow", "g": "schedule list"}
    text = "".join(text % each for each in programs.items()) + "[program:nginx]\ncommand=nginx\n"
    (shop.root / "supervisor" / "all.conf").write_text(text.replace("user=a", "user=a\nstartsecs=10"))
    found = {
        line.what[-2:-1]: line for line in doctor(shop).lines if "all.conf" in line.what and "stopwait" in line.value
    }
    assert {name: line.fix for name, line in found.items()} == {
        "a": "stopwaitsecs=310",
        "b": "",
        "c": "stopwaitsecs=130",
        "e": "stopwaitsecs=190",
        "f": "stopwaitsecs=310",
    }
    shutil.rmtree(shop.root / "supervisor")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("KillMode", "control-group", "KillMode=control-group: a stop sends TERM to every process"),
        ("KillMode", None, "KillMode=control-group"),
        ("KillMode", "process", "KillMode=process: processes started by jobs continue"),
        ("Restart", "on-failure", "Restart=on-failure: after `qd restart`, which exits with 0, it stays down"),
        ("StartLimitIntervalSec", None, "a start limit"),
        ("Type", "simple", "Type=simple: systemd does not know when workers have booted"),
        ("User", None, "no User=: jobs run as root"),
    ],
)
def test_a_unit_of_systemd(key: str, value: str | None, expected: str, folder: Path) -> None:
    check_text = partial(checked, supervisors.check_systemd, folder / "my.service")
    good = (ROOT / "supervisor" / "qd@.service").read_text()
    assert check_text(good).sign == "ok"
    line = check_text(with_setting(good, key, value))
    assert expected in line.value
    section = "[Unit]" if "[Unit]" in line.fix else "[Service]"
    assert check_text(with_setting(good, key, None).replace(section, f"{section}\n{setting_of(line)}", 1)).sign == "ok"


@pytest.mark.parametrize("command", ["/x/python -m qd work", "/x/qd schedule work"])
def test_a_unit_that_does_not_wait_long_enough(shop: Project, command: str) -> None:
    shop.allowed.add("my.service")
    unit = f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart={command}\nUser=a\nKillMode=mixed\n"
    unit += "Restart=always\nTimeoutStopSec="
    (shop.root / "my.service").write_text(f"{unit}10s\n")
    found = [line for line in doctor(shop, "--unit", "my.service").lines if line.what == "my.service"]
    assert "TimeoutStopSec=10, but running jobs may continue for 25 s: systemd kills qd earlier" in found[1].value
    (shop.root / "my.service").write_text(f"{unit}{found[1].fix.partition('=')[2]}\nType=notify\n")
    assert doctor(shop, "--unit", "my.service").line("my.service").sign == "ok"


def test_a_start_limit_in_the_wrong_section_and_invalid_files(shop: Project) -> None:
    shop.allowed.update(("my.service", "my.conf"))
    (shop.root / "my.service").write_text("[Service]\nExecStart=qd \\\n  work\nStartLimitIntervalSec=0\n")
    found = [line.value for line in doctor(shop, "--unit", "my.service").lines if line.what == "my.service"]
    assert found[0] == "StartLimitIntervalSec is in [Service], where it has no effect"
    (shop.root / "my.conf").write_text("[program:web]\ncommand=nginx\n")
    assert doctor(shop, "--supervisord", "my.conf").line("my.conf").sign == "warn"
    (shop.root / "my.conf").write_text("what is this\n")
    assert doctor(shop, "--supervisord", "my.conf").line("my.conf").sign == "fail"
    assert "No such file" in doctor(shop, "--unit", "gone.service").line("gone.service").value


SHOWN = """Type=notify
Restart=always
TimeoutStopUSec=1min 30s
ExecStart={ path=/srv/qd ; argv[]=/srv/qd work --pool mail ; ignore_errors=no ; start_time=[n/a] ; pid=0 }
Environment=PWD=/srv
User=shop
KillMode=%s
Id=qd@mail.service
StartLimitIntervalUSec=0

Type=simple
Restart=no
ExecStart={ path=/usr/bin/nginx ; argv[]=/usr/bin/nginx ; ignore_errors=no ; start_time=[n/a] ; pid=0 }
Id=qdx.service
"""


def test_loaded_units_are_read_from_systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fake systemctl prints the output of systemd 252."""
    program = tmp_path / "systemctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(supervisors, "BOOTED", tmp_path)
    for kill, sign in (("mixed", "ok"), ("control-group", "fail")):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{SHOWN % kill}END\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (found,) = supervisors.check_systemd(Looked(), None)
        assert (found.what, found.sign) == ("qd@mail.service", sign)


def test_durations_in_systemds_format() -> None:
    durations = {"90": 90, "1min 30s": 90, "infinity": float("inf"), "500ms": 0.5, "0": 0, "": 0, "2h": 7200}
    assert {text: supervisors.unit_seconds(text) for text in durations} == durations


# -- this host


@pytest.mark.parametrize(("container", "sign"), [(False, "warn"), (True, "ok")])
def test_root_is_a_warning_except_in_a_container(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, container: bool, sign: str
) -> None:
    machine({})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("qd.process.proc.in_container", lambda: container)
    (found,) = [each for each in host.check_host(Looked()) if each.what == "root"]
    assert found.sign == sign


def test_root_is_reported_once(shop: Project) -> None:
    shop.allowed |= {"my.conf", "my.service"}
    (shop.root / "my.conf").write_text(with_setting((ROOT / "supervisor" / "qd.conf").read_text(), "user", None))
    (shop.root / "my.service").write_text(with_setting((ROOT / "supervisor" / "qd@.service").read_text(), "User", None))
    lines = doctor(shop, "--supervisord", "my.conf", "--unit", "my.service").lines
    assert [line.fix for line in lines if line.what == "root" or "as root" in line.value] == ["user=NAME, its own user"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """machine({"proc/meminfo": "..."}): fake files of the host."""
    root = tmp_path / "machine"
    monkeypatch.setattr(host, "ROOT", root)
    monkeypatch.setattr("qd.process.proc.rss_of", lambda pid: 50 << 20)  # this process has loaded more than an app

    def write(files: dict[str, str]) -> None:
        for name, text in {"proc/meminfo": "MemTotal: 16000000 kB\n", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    return write


V1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/x\n",
    "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "%s",
}
V2 = {"proc/self/cgroup": "0::/system.slice/qd\n", "sys/fs/cgroup/system.slice/qd/memory.max": "%s\n"}
ABOVE = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "%s"}
INSIDE = {"proc/self/cgroup": "0::/not/here\n", "sys/fs/cgroup/memory.max": "%s"}


@pytest.mark.parametrize("files", [V1, V2, ABOVE, INSIDE], ids=["v1", "v2", "of a parent", "in a container"])
def test_more_workers_than_the_memory_of_the_container(
    files: dict[str, str], machine: Callable[..., None], folder: Path
) -> None:
    from qd import config

    (folder / "qd.toml").write_text("[worker]\nworkers = 8\n")
    looked = Looked(pools={"": config.load()})

    def memory(limit: str) -> tuple[str, str]:
        machine({name: text.replace("%s", limit) for name, text in files.items()})
        (found,) = host.memory(looked)
        return found.sign, found.value

    sign, message = memory(str(512 << 20))
    assert (sign, message.startswith("8 workers x 128M + app ")) == ("fail", True)
    assert message.endswith("over the 512M of this container or unit")
    assert memory(str(4 << 30))[0] == "ok"
    sign, message = memory("9223372036854771712")  # how v1 writes that there is no limit
    assert (sign, message.endswith(" of 15625M")) == ("ok", True)
    (folder / "qd.toml").write_text("[worker]\nworkers = 2\n")  # the fix: fewer workers
    looked.pools[""] = config.load()
    assert memory(str(512 << 20))[0] == "ok"


def test_more_workers_than_the_machine_has_memory(machine: Callable[..., None], folder: Path) -> None:
    from qd import config

    machine({"proc/meminfo": "MemTotal:  512000 kB\n"})
    (folder / "qd.toml").write_text("[worker]\nworkers = 8\n")
    (found,) = host.memory(Looked(pools={"": config.load()}))
    assert (found.sign, found.value.endswith("over the 500M of this machine")) == ("warn", True)


def test_a_liveness_folder_that_others_can_write_to(shop: Project) -> None:
    where = liveness.folder(shop.env())
    where.mkdir()
    where.chmod(0o777)
    line = doctor(shop).line("health --live")
    assert (line.sign, str(where) in line.value) == ("warn", True)
    where.chmod(0o700)
    assert doctor(shop).line("health --live").sign == "ok"
