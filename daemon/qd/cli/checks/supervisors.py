"""How supervisord and systemd run `qd work`: programs of supervisord by their files; units of systemd as systemd shows them
(including drop-ins), else by their files.
"""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.init import patience
from qd.config.load import SCHEDULE_POOL
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
KILL_MODES = {"process": "processes started by jobs continue when qd is killed", "none": "a stop ends nothing"}
STAYS_DOWN = "after `qd restart`, which exits with 0, it stays down"
Keys = Mapping[str, str]


@dataclass(frozen=True)
class Started:
    """How a supervisor runs `qd work`. once: it is meant to end and stay down."""

    what: str
    stop_timeout: float
    min_uptime: float  # 0: the default of qd under supervisord, LINGER
    once: bool

    def too_early(self, wait: float) -> str:
        """How long jobs may run after TERM, if a supervisor that waits for `wait` seconds kills them earlier; else ""."""
        if wait >= (self.stop_timeout + MARGIN if self.stop_timeout else patience(0.0)):
            return ""
        return f"running jobs may continue {f'for {self.stop_timeout:g} s' if self.stop_timeout else 'forever'}"


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
            return [*words[at + 3 :], "--pool", SCHEDULE_POOL]  # an explicit --pool comes first and wins
    return None


def of_others(words: list[str], project: Project) -> bool:
    """Whether the command uses another file than this project."""
    named, ours = value_of(words, "--config"), project.settings.file if project.settings else None
    return bool(named and ours) and Path(named).resolve() != Path(str(ours)).resolve()


def started(what: str, words: list[str], project: Project, environ: str = "") -> Started:
    of_environment = re.search(r'QD_POOL="?([\w.-]+)', environ)
    pool = value_of(words, "--pool") or (of_environment[1] if of_environment else "")
    settings = project.pools.get(pool) or project.settings
    if pool == "%i" and project.pools:  # a template: the longest stop timeout
        settings = max(project.pools.values(), key=lambda each: each.work.stop_timeout or float("inf"))
    work = settings.work if settings else WorkOptions()
    own = settings is not None and settings.origins["worker.min_uptime"] != "built in"
    return Started(
        what,
        seconds(value_of(words, "--stop-timeout"), work.stop_timeout),
        seconds(value_of(words, "--min-uptime"), work.min_uptime if own else 0.0),
        any(word in words for word in ("--once", "--stop-when-empty", "--stop-when-empty-for")),
    )


def value_of(words: list[str], flag: str) -> str:
    """`--flag VALUE` or `--flag=VALUE`, or ""."""
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def seconds(text: str, default: float) -> float:
    with suppress(ValueError):
        return span(text)
    return default


# -- supervisord


def check_supervisord(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the file that the user named. None: the files in the usual places; nothing is reported without one."""
    for path in [named] if named else found(PLACES):
        sections = read(path)
        yield from (
            [sections] if isinstance(sections, Finding) else of_programs(path, sections, project, must=bool(named))
        )


def of_programs(path: Path, sections: Mapping[str, Keys], project: Project, *, must: bool) -> Iterator[Finding]:
    programs = {name: keys for name, keys in sections.items() if name.startswith("program:")}
    ours = {name: words for name, keys in programs.items() if (words := words_of(keys.get("command", ""))) is not None}
    if must and not ours:
        way = "name the file that does; `qd init supervisord` prints one"
        yield warn(str(path), "no [program:...] in it runs `qd work`", way)
    for name, words in ours.items():
        keys = programs[name]
        if must or not of_others(words, project):
            program = started(f"{path} [{name}]", words, project, keys.get("environment", ""))
            wait, restart = seconds(keys.get("stopwaitsecs", ""), 10.0), keys.get("autorestart", "unexpected")
            well = ok(program.what, f"stopwaitsecs={wait:g}, autorestart={restart}")
            yield from list(program_problems(program, keys, wait, restart.lower())) or [well]


def program_problems(program: Started, keys: Keys, wait: float, restart: str) -> Iterator[Finding]:
    what = program.what
    if why := program.too_early(wait):
        value = f"stopwaitsecs={wait:g}, but {why}: supervisord kills qd earlier"
        yield fail(what, value, f"stopwaitsecs={patience(program.stop_timeout)}")
    if restart not in YES and not program.once:
        yield fail(what, f"autorestart={restart}: {STAYS_DOWN}", "autorestart=true")
    least, start = program.min_uptime or LINGER, seconds(keys.get("startsecs", ""), 1.0)
    if start >= least and not program.once:
        value = f"startsecs={start:g}, but qd may exit after {least:g} s: supervisord counts that as a failed start"
        yield fail(what, value, f"startsecs=1, or add --min-uptime {start + 0.5:g} to the command")
    if keys.get("killasgroup", "false").lower() not in YES:
        value = "killasgroup=false: when supervisord kills qd, processes started by jobs continue"
        yield warn(what, value, "killasgroup=true")
    if (signal := keys.get("stopsignal", "TERM").upper().removeprefix("SIG")) not in ("TERM", "INT", "QUIT"):
        yield fail(what, f"stopsignal={signal} does not stop qd gracefully", "stopsignal=TERM")
    if keys.get("user", "root") == "root":
        value = "user=root: jobs run as root" if "user" in keys else "no user=: if supervisord runs as root, so do jobs"
        yield warn(what, value, "user=NAME, its own user", topic="root")


# -- systemd


def check_systemd(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the unit file that the user named. None: the loaded units, or the files in the usual places."""
    if named is None and BOOTED.is_dir():
        yield from of_systemctl(project)
        return
    for path in [named] if named else found(UNIT_FOLDERS):
        sections = read(path)
        yield from [sections] if isinstance(sections, Finding) else of_unit(path, sections, project, must=bool(named))


def of_unit(path: Path, sections: Mapping[str, Keys], project: Project, *, must: bool) -> Iterator[Finding]:
    service = sections.get("Service", {})
    words = words_of(service.get("ExecStart", ""))
    if words is None and must:
        way = "name the unit that does; `qd init systemd` prints one"
        yield warn(str(path), "its ExecStart does not run `qd work`", way)
    if words is None or (not must and of_others(words, project)):
        return
    if LIMIT in service:
        yield warn(str(path), f"{LIMIT} is in [Service], where it has no effect", "move it to [Unit]")
    yield from of_service(str(path), words, project, {**service, LIMIT: sections.get("Unit", {}).get(LIMIT, "10")})


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
    well = ok(what, f"Restart={keys.get('Restart')}, KillMode={keys.get('KillMode')}")
    yield from list(unit_problems(unit, keys)) or [well]


def unit_problems(unit: Started, keys: Keys) -> Iterator[Finding]:
    what, notifies = unit.what, keys.get("Type", "").startswith("notify")
    if (kill := keys.get("KillMode", "control-group")) != "mixed":
        value = KILL_MODES.get(kill, "a stop sends TERM to every process, also to those started by running jobs")
        yield (warn if kill == "process" else fail)(what, f"KillMode={kill}: {value}", "KillMode=mixed")
    if not notifies:
        value = f"Type={keys.get('Type') or 'simple'}: systemd does not know when workers have booted"
        yield warn(what, value, "Type=notify")
        # With Type=notify qd asks systemd for more time while a job may still finish.
        if why := unit.too_early(wait := unit_seconds(keys.get(STOP, "90"))):
            value = f"{STOP}={wait:g}, but {why}: systemd kills qd earlier"
            yield fail(what, value, f"{STOP}={patience(unit.stop_timeout)}")
    if (restart := keys.get("Restart", "no")) != "always" and not unit.once:
        yield fail(what, f"Restart={restart}: {STAYS_DOWN}", "Restart=always")
    if unit_seconds(keys.get(LIMIT, "10")) and not unit.once:
        value = "a start limit: after a few clean exits in a row (qd restart, --stop-when-empty) it stays down"
        yield warn(what, value, f"{LIMIT}=0 in [Unit]")
    if keys.get("User", "root") in ("", "root") and keys.get("DynamicUser") != "yes":
        value = f"{'User=root' if keys.get('User') else 'no User='}: jobs run as root"
        yield warn(what, value, "User=NAME, its own user", topic="root")


def unit_seconds(value: str) -> float:
    """A duration as systemd writes it: `90`, `1min 30s`, `infinity`; "" is 0."""
    if value.strip() == "infinity":
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value)
    return sum(float(number) * UNITS.get(unit, 1.0) for number, unit in parts)
