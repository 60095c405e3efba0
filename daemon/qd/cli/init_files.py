"""The files that `qd init` writes or prints: templates/ filled with the facts of one project.

supervisord.conf, systemd.service     the settings of supervisor/qd.conf and qd@.service; a test compares them
Dockerfile, kubernetes.yaml           containers
qd.toml, jobs.py                      a first project, written unchanged
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from string import Template

GRACE = 10  # seconds a supervisor waits longer than qd itself
FOREVER = 86400  # seconds, if qd waits for running jobs without limit
INSTANCE = re.compile(r"[A-Za-z0-9:_.-]+")  # names that systemd passes to %i unchanged
PROBE = json.dumps(["qd", "health", "--live"])


@dataclass(frozen=True)
class Project:
    """pools: pool -> its stop_timeout in seconds; "" for no pool."""

    root: Path
    program: tuple[str, ...]  # ("/srv/shop/.venv/bin/qd",)
    arguments: tuple[str, ...]  # for `qd work`, which the file does not have: ("--app", "jobs:app")
    file: Path | None
    user: str
    home: Path
    pools: dict[str, float]
    url_variable: str
    python: str
    packages: str
    kind: str = "redis"  # of the default connection's url
    connection: str = "redis"
    writes: tuple[Path, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command on this host, without the pool."""
        named = ("--config", str(self.file)) if self.file else ()
        return (*self.program, "work", *named, *self.arguments)

    @property
    def name(self) -> str:
        """The folder's name for programs, images and Kubernetes: lower-case letters, digits and dashes."""
        return fit(self.root.name) or "jobs"


def fit(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")


def patience(stop_timeout: float) -> int:
    """Seconds a supervisor waits after TERM."""
    return int(stop_timeout) + GRACE if stop_timeout else FOREVER


def text_of(name: str) -> str:
    from importlib import resources  # takes 10 ms, only needed by `qd init`

    return (resources.files("qd.cli") / "templates" / name).read_text(encoding="utf-8")


def filled(file: str, /, **facts: object) -> str:
    return Template(text_of(file)).substitute(facts)


def supervisord(project: Project) -> str:
    """One program per pool. Percent signs are doubled for supervisord."""
    head, blank, program = text_of("supervisord.conf").partition("\n\n")
    text = Template(head).substitute(name=project.name)
    for pool, stop_timeout in project.pools.items():
        words = (*project.command, *(("--pool", pool) if pool else ()))
        text += Template(blank + program.rstrip("\n")).substitute(
            program="-".join(filter(None, ("qd", fit(pool)))),
            command=shlex.join(words).replace("%", "%%"),
            root=str(project.root).replace("%", "%%"),
            home=str(project.home).replace("%", "%%"),
            user=project.user,
            patience=patience(stop_timeout),
        )
    return text + "\n"


def systemd(project: Project) -> str:
    """One unit; with pools a template, with one instance per pool."""
    pools = [pool for pool in project.pools if pool]
    unit = "qd@" if pools else "qd"
    words = [_systemd_word(word) for word in project.command]
    return filled(
        "systemd.service",
        unit=f"{unit}.service",
        first=f"qd@{next(filter(INSTANCE.fullmatch, pools), 'POOL')}" if pools else "qd",
        name=project.name,
        of_pool=", pool %i" if pools else "",
        user=project.user,
        root=str(project.root).replace("%", "%%"),
        pwd=_systemd_word(f"PWD={project.root}").replace("$$", "$"),  # a dollar has no meaning here
        url_variable=project.url_variable,
        instance="%i" if pools else project.name,
        command=" ".join([*words, *(["--pool", "%i"] if pools else [])]),
        patience=max(map(patience, project.pools.values())),
        # With `yes` nothing there is visible, not even the program.
        protect_home="read-only" if _below(project, "/home/", "/root/", "/run/user/") else "yes",
        private_tmp="no" if _below(project, "/tmp/", "/var/tmp/") else "yes",
        writable="".join(f"ReadWritePaths={_systemd_word(str(path))}\n" for path in dict.fromkeys(project.writes)),
    )


def _systemd_word(word: str) -> str:
    """A word of a command line for systemd: % and $ doubled, quoted if necessary."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{text}"' if re.search(r"[\s\"';\\]", text) else text


def _below(project: Project, *folders: str) -> bool:
    return any(str(path).startswith(folders) for path in (project.root, project.program[0]))


def docker(project: Project) -> str:
    """One image for all pools, which runs the first one by default."""
    lines = [_container_command(project, pool) for pool in project.pools]
    others = [f"# or: {line}" for line in lines[1:]]
    return filled(
        "Dockerfile",
        name=project.name,
        patience=max(map(patience, project.pools.values())),
        url_variable=project.url_variable,
        url="redis://host:6379/0" if project.kind in ("redis", "unix", "embedded") else f"{project.kind}://...",
        python=project.python,
        packages=project.packages,
        probe=PROBE,
        commands="\n".join([f"CMD {lines[0]}", *others]),
    )


def _container_command(project: Project, pool: str) -> str:
    """In the image the project is in /app, and `qd` is on PATH."""
    named = project.file and project.file.name not in ("qd.toml", "pyproject.toml")
    file = ("--config", f"/app/{project.file.name}") if project.file and named else ()
    return json.dumps(["qd", "work", *file, *project.arguments, *(("--pool", pool) if pool else ())])


def kubernetes(project: Project) -> str:
    """One Deployment per pool. `qd init docker` prints the Dockerfile."""
    return "---\n".join(
        filled(
            "kubernetes.yaml",
            deployment="-".join(filter(None, (project.name, "qd", fit(pool)))),
            name=project.name,
            pool=fit(pool) or "default",
            patience=patience(stop_timeout),
            command=_container_command(project, pool),
            probe=PROBE,
            url_variable=project.url_variable,
            connection=fit(project.connection),
        )
        for pool, stop_timeout in project.pools.items()
    )


PRINTED = {"supervisord": supervisord, "systemd": systemd, "docker": docker, "k8s": kubernetes}
