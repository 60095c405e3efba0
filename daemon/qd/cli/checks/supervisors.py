"""How supervisord and systemd run `qd work`: programs of supervisord by their files; units of systemd as systemd shows them
(including drop-ins), else by their files.
"""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.init_files import patience
from qd.config.load import SCHEDULE
from qd.config.settings import Settings
from qd.options.kinds import span
from qd.options.tables import WorkOptions

MARGIN = 2.0  # seconds, at least, between qd's own deadline and the supervisor's
LINGER = 1.5  # seconds that qd stays up under supervisord, unless --min-uptime is set
PLACES = ("supervisor/*.conf", "/etc/supervisor/conf.d/*.conf", "/etc/supervisord.d/*.ini", "/etc/supervisord.conf")
UNIT_FOLDERS = ("supervisor/*.service", "/etc/systemd/system/qd*.service")
BOOTED = Path("/run/systemd/system")  # exists if systemd is PID 1
LIMIT, STOP = "StartLimitIntervalSec", "TimeoutStopSec"
SHOWN = "Id,Type,KillMode,TimeoutStopUSec,Restart,StartLimitIntervalUSec,User,DynamicUser,Environment,ExecStart"
UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
YES = ("true", "on", "yes", "1")
Keys = Mapping[str, str]


@dataclass(frozen=True)
class Started:
    """How a supervisor runs `qd work`. once: it is meant to end and stay down."""

    what: str
    stop_timeout: float
    min_uptime: float  # 0: the default of qd under supervisord, LINGER
    once: bool


def found(patterns: Sequence[str]) -> list[Path]:
    # glob() of a relative folder refuses absolute patterns.
    return [p for each in patterns for p in sorted(Path("/" if each[0] == "/" else ".").glob(each.lstrip("/")))]


def read(path: Path) -> dict[str, dict[str, str]] | Finding:
    """Section -> key -> its last value; for both kinds of files. In units a line that ends in a backslash continues."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, inline_comment_prefixes=(" ;",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text(encoding="utf-8").replace("\\\n", " "))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return fail(str(path), f"cannot be read: {why}", "name a file that can")
    return {section: {key: value or "" for key, value in parser.items(section)} for section in parser.sections()}


def words_of(command: str) -> list[str] | None:
    """The words after `work` if this command runs `qd work` or `qd schedule work`, else None."""
    try:
        words = shlex.split(command.lstrip("@-:+!"))
    except ValueError:
        return None
    for at, word in enumerate(words):
        if Path(word).name != "qd":  # /srv/.venv/bin/qd work, python -m qd work
            continue
        if words[at + 1 : at + 2] == ["work"]:
            return words[at + 2 :]
        if words[at + 1 : at + 3] == ["schedule", "work"]:
            return [*words[at + 3 :], "--pool", SCHEDULE]  # an explicit --pool comes first and wins
    return None


def of_others(words: list[str], project: Project) -> bool:
    """Whether the command uses another file than this project."""
    named, ours = value_of(words, "--config"), project.settings.file if project.settings else None
    return bool(named and ours) and Path(named).resolve() != Path(str(ours)).resolve()


def started(what: str, words: list[str], project: Project, environ: str = "") -> Started:
    settings = settings_of(value_of(words, "--pool") or pool_of(environ), project)
    work = settings.work if settings else WorkOptions()
    own = settings is not None and settings.origins["worker.min_uptime"] != "built in"
    return Started(
        what,
        seconds(value_of(words, "--stop-timeout"), work.stop_timeout),
        seconds(value_of(words, "--min-uptime"), work.min_uptime if own else 0.0),
        any(word in words for word in ("--once", "--stop-when-empty", "--stop-when-empty-for")),
    )


def pool_of(environ: str) -> str:
    match = re.search(r'QD_POOL="?([\w.-]+)', environ)
    return match[1] if match else ""


def settings_of(pool: str, project: Project) -> Settings | None:
    """The settings of the pool; for a unit template (%i) those with the longest stop timeout."""
    if pool == "%i" and project.pools:
        return max(project.pools.values(), key=lambda found: found.work.stop_timeout or float("inf"))
    return project.pools.get(pool) or project.settings


def value_of(words: list[str], flag: str) -> str:
    """`--flag VALUE` or `--flag=VALUE`, or ""."""
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def seconds(text: str, default: float) -> float:
    try:
        return span(text) if text else default
    except ValueError:
        return default


# -- supervisord


def check_supervisord(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the file that the user named. None: the files in the usual places; nothing is reported without one."""
    for path in [named] if named else found(PLACES):
        yield from of_file(path, project, must=named is not None)


def of_file(path: Path, project: Project, *, must: bool) -> Iterator[Finding]:
    sections = read(path)
    if isinstance(sections, Finding):
        yield sections
        return
    ours = {
        name: (words, keys)
        for name, keys in sections.items()
        if name.startswith("program:") and (words := words_of(keys.get("command", ""))) is not None
    }
    if must and not ours:
        way = "name the file that does; `qd init supervisord` prints one"
        yield warn(str(path), "no [program:...] in it runs `qd work`", way)
    for name, (words, keys) in ours.items():
        if must or not of_others(words, project):
            program = started(f"{path} [{name}]", words, project, keys.get("environment", ""))
            yield from judged(program, keys)


def judged(program: Started, keys: Keys) -> Iterator[Finding]:
    rules = (stop_patience, restarts, startup, kills_group, stop_signal, no_root)
    bad = [found for rule in rules if (found := rule(program, keys)) is not None]
    value = f"stopwaitsecs={waits(keys):g}, autorestart={keys.get('autorestart', 'unexpected')}"
    yield from bad or [ok(program.what, value)]


def waits(keys: Keys) -> float:
    return seconds(keys.get("stopwaitsecs", ""), 10.0)


def stop_patience(program: Started, keys: Keys) -> Finding | None:
    need = patience(program.stop_timeout)
    if waits(keys) >= (program.stop_timeout + MARGIN if program.stop_timeout else need):
        return None
    limit = f"for {program.stop_timeout:g} s" if program.stop_timeout else "forever"
    value = f"stopwaitsecs={waits(keys):g}, but running jobs may continue {limit}: supervisord kills qd earlier"
    return fail(program.what, value, f"stopwaitsecs={need}")


def restarts(program: Started, keys: Keys) -> Finding | None:
    value = keys.get("autorestart", "unexpected").lower()
    if value in YES or program.once:
        return None
    why = f"autorestart={value}: after `qd restart`, which exits with 0, it stays down"
    return fail(program.what, why, "autorestart=true")


def startup(program: Started, keys: Keys) -> Finding | None:
    least, start = program.min_uptime or LINGER, seconds(keys.get("startsecs", ""), 1.0)
    if start < least or program.once:
        return None
    value = (
        f"startsecs={start:g}, but qd may exit by itself after {least:g} s: supervisord counts that as a failed start"
    )
    return fail(program.what, value, f"startsecs=1, or add --min-uptime {start + 0.5:g} to the command")


def kills_group(program: Started, keys: Keys) -> Finding | None:
    if keys.get("killasgroup", "false").lower() in YES:
        return None
    value = "killasgroup=false: when supervisord kills qd, processes started by jobs stay"
    return warn(program.what, value, "killasgroup=true")


def stop_signal(program: Started, keys: Keys) -> Finding | None:
    value = keys.get("stopsignal", "TERM").upper().removeprefix("SIG")
    if value in ("TERM", "INT", "QUIT"):
        return None
    return fail(program.what, f"stopsignal={value} does not stop qd gracefully", "stopsignal=TERM")


def no_root(program: Started, keys: Keys) -> Finding | None:
    if keys.get("user", "root") != "root":
        return None
    value = "no user=: if supervisord runs as root, so do jobs"
    return warn(program.what, value, "user=NAME, its own user", topic="root")


# -- systemd


def check_systemd(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the unit file that the user named. None: the loaded units, or the files in the usual places."""
    if named is None and BOOTED.is_dir():
        yield from of_systemctl(project)
        return
    for path in [named] if named else found(UNIT_FOLDERS):
        yield from unit_of_file(path, project, must=named is not None)


def unit_of_file(path: Path, project: Project, *, must: bool) -> Iterator[Finding]:
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
        yield warn(str(path), f"{LIMIT} is in [Service], where it has no effect", "move it to [Unit]")
    yield from of_service(str(path), words, project, {**service, LIMIT: head.get(LIMIT, "10")})


def of_systemctl(project: Project) -> Iterator[Finding]:
    """The loaded units whose names begin with qd, as systemd understood them, including drop-ins."""
    command = ["systemctl", "show", "qd*.service", f"--property={SHOWN}", "--no-pager"]
    try:
        value = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for block in value.split("\n\n"):
        keys = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        argv = re.search(r"argv\[\]=(.*?) ; ", keys.get("ExecStart", ""))
        words = words_of(argv[1]) if argv else None
        if words is not None and not of_others(words, project):
            keys |= {STOP: keys.get("TimeoutStopUSec", ""), LIMIT: keys.get("StartLimitIntervalUSec", "")}
            yield from of_service(keys["Id"], words, project, keys)


def of_service(what: str, words: list[str], project: Project, keys: Keys) -> Iterator[Finding]:
    unit = started(what, words, project, keys.get("Environment", ""))
    rules = (ends_one, notifies, unit_patience, unit_restarts, unlimited, unit_no_root)
    bad = [found for rule in rules if (found := rule(unit, keys)) is not None]
    yield from bad or [ok(what, f"Restart={keys.get('Restart')}, KillMode={keys.get('KillMode')}")]


def ends_one(unit: Started, keys: Keys) -> Finding | None:
    kill = keys.get("KillMode", "control-group")
    if kill == "mixed":
        return None
    value = {
        "process": "processes started by jobs stay when qd is killed",
        "none": "a stop ends nothing",
    }.get(kill, "a stop sends TERM to every process, also to those started by running jobs")
    return (warn if kill == "process" else fail)(unit.what, f"KillMode={kill}: {value}", "KillMode=mixed")


def notifies(unit: Started, keys: Keys) -> Finding | None:
    if keys.get("Type", "").startswith("notify"):
        return None
    value = f"Type={keys.get('Type') or 'simple'}: systemd does not know when workers have booted"
    return warn(unit.what, value, "Type=notify")


def unit_patience(unit: Started, keys: Keys) -> Finding | None:
    """With Type=notify qd asks systemd for more time while a job may still finish."""
    wait, need = unit_seconds(keys.get(STOP, "90")), patience(unit.stop_timeout)
    if keys.get("Type", "").startswith("notify") or wait >= (unit.stop_timeout + MARGIN if unit.stop_timeout else need):
        return None
    limit = f"for {unit.stop_timeout:g} s" if unit.stop_timeout else "forever"
    value = f"{STOP}={wait:g}, but running jobs may continue {limit}: systemd kills qd earlier"
    return fail(unit.what, value, f"{STOP}={need}")


def unit_restarts(unit: Started, keys: Keys) -> Finding | None:
    value = keys.get("Restart", "no")
    if value == "always" or unit.once:
        return None
    return fail(unit.what, f"Restart={value}: after `qd restart`, which exits with 0, it stays down", "Restart=always")


def unlimited(unit: Started, keys: Keys) -> Finding | None:
    if not unit_seconds(keys.get(LIMIT, "10")) or unit.once:
        return None
    value = "a start limit: after a few clean exits in a row (qd restart, --stop-when-empty) it stays down"
    return warn(unit.what, value, f"{LIMIT}=0 in [Unit]")


def unit_no_root(unit: Started, keys: Keys) -> Finding | None:
    if keys.get("User", "root") not in ("", "root") or keys.get("DynamicUser") == "yes":
        return None
    return warn(unit.what, "no User=: jobs run as root", "User=NAME, its own user", topic="root")


def unit_seconds(value: str) -> float:
    """`90`, `1min 30s`, `infinity`, as systemd writes durations; 0 for an empty text."""
    if value.strip() == "infinity":
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value)
    return sum(float(number) * UNITS.get(unit, 1.0) for number, unit in parts)
