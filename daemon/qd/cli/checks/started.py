"""How a supervisor runs `qd work`: its file, and what the command in it says. For supervisord.py and systemd.py."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qd.cli.checks.finding import Finding, fail
from qd.cli.checks.project import Project
from qd.config import Settings
from qd.config.layers import SCHEDULE
from qd.options import WorkOptions
from qd.units import span

MARGIN = 2.0  # seconds between qd's own deadline and the supervisor's, at least


@dataclass(frozen=True)
class Started:
    """How a supervisor runs `qd work`. once: it is meant to end by itself and stay down."""

    what: str
    stop_timeout: float
    min_uptime: float  # 0: by itself, 1.5 s
    once: bool


def found(patterns: Sequence[str]) -> list[Path]:
    # A pattern that is absolute is looked up from the root: glob() of a relative folder refuses it.
    return [p for each in patterns for p in sorted(Path("/" if each[0] == "/" else ".").glob(each.lstrip("/")))]


def read(path: Path) -> dict[str, dict[str, str]] | Finding:
    """Section -> key -> its last value. Both kinds of files are of this form."""
    # A line that ends in a backslash goes on in the next one, in units.
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, inline_comment_prefixes=(" ;",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text(encoding="utf-8").replace("\\\n", " "))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return fail(str(path), f"cannot be read: {why}", "name a file that can")
    return {section: {key: value or "" for key, value in parser.items(section)} for section in parser.sections()}


def words_of(command: str) -> list[str] | None:
    """The words behind `work` when this command runs `qd work` or `qd schedule work`, else None."""
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
            return [*words[at + 3 :], "--pool", SCHEDULE]  # the first --pool counts
    return None


def of_others(words: list[str], project: Project) -> bool:
    """Whether the command names another file than the one that counts here: another project on this host."""
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
    """Those of the pool; for the template of a unit (%i) those of the most patient one."""
    if pool == "%i" and project.pools:
        return max(project.pools.values(), key=lambda found: found.work.stop_timeout or float("inf"))
    return project.pools.get(pool) or project.settings


def value_of(words: list[str], flag: str) -> str:
    """`--flag VALUE` or `--flag=VALUE`, "" when it is not there."""
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def seconds(said: str, default: float) -> float:
    try:
        return span(said) if said else default
    except ValueError:
        return default
