"""Units of systemd that run `qd work`: as systemd shows them, drop-ins and all, else by their files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.checks.started import MARGIN, Started, found, of_others, read, started, words_of
from qd.cli.shipped import patience

PLACES = ("supervisor/*.service", "/etc/systemd/system/qd*.service")
BOOTED = Path("/run/systemd/system")  # there when systemd is PID 1
LIMIT, STOP = "StartLimitIntervalSec", "TimeoutStopSec"
Keys = Mapping[str, str]
SHOWN = "Id,Type,KillMode,TimeoutStopUSec,Restart,StartLimitIntervalUSec,User,DynamicUser,Environment,ExecStart"


def check(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the unit file that the user named; None: the loaded units, or the files in the usual places."""
    if named is None and BOOTED.is_dir():
        yield from of_systemctl(project)
        return
    for path in [named] if named else found(PLACES):
        yield from of_file(path, project, must=named is not None)


def of_file(path: Path, project: Project, *, must: bool) -> Iterator[Finding]:
    sections = read(path)
    if isinstance(sections, Finding):
        yield sections
        return
    service, head = sections.get("Service", {}), sections.get("Unit", {})
    words = words_of(service.get("ExecStart", ""))
    if words is None and must:
        way = "name the unit that does; `qd init systemd` prints one"
        yield warn(str(path), "its ExecStart does not run `qd work`", way)
    if words is None or (not must and of_others(words, project)):
        return
    if LIMIT in service:
        yield warn(str(path), f"{LIMIT} stands in [Service], where it counts for nothing", "move it to [Unit]")
    yield from of_service(str(path), words, project, {**service, LIMIT: head.get(LIMIT, "10")})


def of_systemctl(project: Project) -> Iterator[Finding]:
    """The loaded units whose names begin with qd, as systemd itself has understood them, drop-ins and all."""
    command = ["systemctl", "show", "qd*.service", f"--property={SHOWN}", "--no-pager"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for block in said.split("\n\n"):
        keys = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        argv = re.search(r"argv\[\]=(.*?) ; ", keys.get("ExecStart", ""))
        words = words_of(argv[1]) if argv else None
        if words is not None and not of_others(words, project):
            keys |= {STOP: keys.get("TimeoutStopUSec", ""), LIMIT: keys.get("StartLimitIntervalUSec", "")}
            yield from of_service(keys["Id"], words, project, keys)


def of_service(what: str, words: list[str], project: Project, keys: Keys) -> Iterator[Finding]:
    unit = started(what, words, project, keys.get("Environment", ""))
    rules = (ends_one, notifies, patient, comes_back, unlimited, no_root)
    bad = [found for rule in rules if (found := rule(unit, keys)) is not None]
    yield from bad or [ok(what, f"Restart={keys.get('Restart')}, KillMode={keys.get('KillMode')}")]


def ends_one(unit: Started, keys: Keys) -> Finding | None:
    kill = keys.get("KillMode", "control-group")
    if kill == "mixed":
        return None
    said = {
        "process": "what jobs have started stays behind when qd is killed",
        "none": "nothing is ended at a stop",
    }.get(kill, "at a stop every process gets TERM, also what running jobs have started")
    return (warn if kill == "process" else fail)(unit.what, f"KillMode={kill}: {said}", "KillMode=mixed")


def notifies(unit: Started, keys: Keys) -> Finding | None:
    if keys.get("Type", "").startswith("notify"):
        return None
    said = f"Type={keys.get('Type') or 'simple'}: systemd does not know when workers have booted"
    return warn(unit.what, said, "Type=notify")


def patient(unit: Started, keys: Keys) -> Finding | None:
    """With Type=notify qd asks for more time by itself, while a job may still finish."""
    wait, need = seconds(keys.get(STOP, "90")), patience(unit.stop_timeout)
    if keys.get("Type", "").startswith("notify") or wait >= (unit.stop_timeout + MARGIN if unit.stop_timeout else need):
        return None
    limit = f"{unit.stop_timeout:g} s" if unit.stop_timeout else "ever"
    said = f"{STOP}={wait:g}, but running jobs may go on for {limit}: systemd kills qd before"
    return fail(unit.what, said, f"{STOP}={need}")


def comes_back(unit: Started, keys: Keys) -> Finding | None:
    said = keys.get("Restart", "no")
    if said == "always" or unit.once:
        return None
    return fail(unit.what, f"Restart={said}: after `qd restart`, which ends it with 0, it stays down", "Restart=always")


def unlimited(unit: Started, keys: Keys) -> Finding | None:
    if not seconds(keys.get(LIMIT, "10")) or unit.once:
        return None
    said = "a start limit: after a few clean ends in a row (qd restart, --stop-when-empty) it stays down"
    return warn(unit.what, said, f"{LIMIT}=0 in [Unit]")


def no_root(unit: Started, keys: Keys) -> Finding | None:
    if keys.get("User", "root") not in ("", "root") or keys.get("DynamicUser") == "yes":
        return None
    return warn(unit.what, "no User=: jobs run as root", "User=NAME, a user of its own", topic="root")


UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(said: str) -> float:
    """`90`, `1min 30s`, `infinity`, as systemd writes and shows lengths of time; 0: none is said."""
    if said.strip() == "infinity":
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", said)
    return sum(float(number) * UNITS.get(unit, 1.0) for number, unit in parts)
