"""Programs of supervisord that run `qd work`, by their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.checks.started import MARGIN, Started, found, of_others, read, seconds, started, words_of
from qd.cli.shipped import patience

PLACES = ("supervisor/*.conf", "/etc/supervisor/conf.d/*.conf", "/etc/supervisord.d/*.ini", "/etc/supervisord.conf")
LINGER = 1.5  # seconds that qd stays up under supervisord, unless --min-uptime says another number
Keys = Mapping[str, str]
YES = ("true", "on", "yes", "1")


def check(project: Project, named: Path | None) -> Iterator[Finding]:
    """named: the file that the user named; None: those in the usual places. Nothing found: nothing said."""
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
    rules = (patient, comes_back, lasts, kills_all, asks_to_stop, no_root)
    bad = [found for rule in rules if (found := rule(program, keys)) is not None]
    said = f"stopwaitsecs={waits(keys):g}, autorestart={keys.get('autorestart', 'unexpected')}"
    yield from bad or [ok(program.what, said)]


def waits(keys: Keys) -> float:
    return seconds(keys.get("stopwaitsecs", ""), 10.0)


def patient(program: Started, keys: Keys) -> Finding | None:
    need = patience(program.stop_timeout)
    if waits(keys) >= (program.stop_timeout + MARGIN if program.stop_timeout else need):
        return None
    limit = f"{program.stop_timeout:g} s" if program.stop_timeout else "ever"
    said = f"stopwaitsecs={waits(keys):g}, but running jobs may go on for {limit}: supervisord kills qd before"
    return fail(program.what, said, f"stopwaitsecs={need}")


def comes_back(program: Started, keys: Keys) -> Finding | None:
    said = keys.get("autorestart", "unexpected").lower()
    if said in YES or program.once:
        return None
    why = f"autorestart={said}: after `qd restart`, which ends it with 0, it stays down"
    return fail(program.what, why, "autorestart=true")


def lasts(program: Started, keys: Keys) -> Finding | None:
    least, start = program.min_uptime or LINGER, seconds(keys.get("startsecs", ""), 1.0)
    if start < least or program.once:
        return None
    said = f"startsecs={start:g}, but qd may end by itself after {least:g} s: supervisord takes that for a failed start"
    return fail(program.what, said, f"startsecs=1, or add --min-uptime {start + 0.5:g} to the command")


def kills_all(program: Started, keys: Keys) -> Finding | None:
    if keys.get("killasgroup", "false").lower() in YES:
        return None
    said = "killasgroup=false: when supervisord has to kill, what jobs have started stays"
    return warn(program.what, said, "killasgroup=true")


def asks_to_stop(program: Started, keys: Keys) -> Finding | None:
    said = keys.get("stopsignal", "TERM").upper().removeprefix("SIG")
    if said in ("TERM", "INT", "QUIT"):
        return None
    return fail(program.what, f"stopsignal={said} does not stop qd in good order", "stopsignal=TERM")


def no_root(program: Started, keys: Keys) -> Finding | None:
    if keys.get("user", "root") != "root":
        return None
    said = "no user=: where supervisord is root, jobs run as root"
    return warn(program.what, said, "user=NAME, a user of its own", topic="root")
