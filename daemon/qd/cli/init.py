"""`qd init`: writes a first project into an empty folder, or prints the file that runs this one, made of templates/ and the
facts of the project:

    qd.toml, jobs.py, qd.schema.json      a first project, written unchanged, with the schema of this qd (no network needed)
    django.txt, flask.txt, fastapi.txt    the files that such a project needs, and what its user must edit
    supervisord.conf, systemd.service     the settings of supervisor/qd.conf and qd@.service; a test compares them
    Dockerfile, dependencies, dockerignore, compose.yaml, kubernetes.yaml    containers; examples/reports and deploy/helm/qd
                                          have the same settings, which tests compare
    ../../conf                            the full qd.toml, alert rules and dashboard, printed unchanged
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from string import Template

import click

from qd import __version__
from qd.cli import context, output
from qd.config import schema
from qd.config.file import PYPROJECT, find
from qd.config.settings import CONNECTION, Settings, environ_name
from qd.errors import ConfigError
from qd.options import kinds
from qd.options.drivers import extra_of_url, scheme_of
from qd.process.proc import user_name

GRACE = 10  # seconds a supervisor waits longer than qd itself
FOREVER = 86400  # seconds, if qd waits for running jobs without limit
INSTANCE = re.compile(r"[A-Za-z0-9:_.-]+")  # names that systemd passes to %i unchanged
SECRETS = "What Django's settings read, such as the host and the password of the database."
# Units of the servers of a kind of url, as distributions name them; one that is not installed is ignored.
SERVERS: dict[str, tuple[str, ...]] = dict.fromkeys(("redis", "rediss", "unix"), ("redis-server", "valkey-server"))
SERVERS |= {"postgresql": ("postgresql",), "mysql": ("mysql", "mariadb")}
PROBE = json.dumps(["qd", "health", "--live"])
FIRST = ("qd.toml", "jobs.py", schema.NAME)
NEXT = """\
wrote qd.toml, jobs.py and qd.schema.json. Next:
  qd dev                                          worker, schedule and dashboard; Ctrl-C stops them
  qd dispatch mail.welcome to=ada@example.org     a job, from another terminal\
"""


# -- the files


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
    requirement: str  # of qd itself: "'qd-worker[dashboard,sqs]==1.0.0'"
    dependencies: str  # the file that lists the others, "requirements.txt" or "pyproject.toml"; "" for none
    kind: str = "redis"  # of the default connection's url
    connection: str = "redis"
    writes: tuple[Path, ...] = ()
    settings: str = ""  # DJANGO_SETTINGS_MODULE of a Django project
    in_django: bool = False  # jobs are in its database, which its settings name

    @property
    def environ(self) -> dict[str, str]:
        return {kinds.DJANGO: self.settings} if self.settings else {}

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command on this host, without the pool."""
        named = ("--config", str(self.file)) if self.file else ()
        return (*self.program, "work", *named, *self.arguments)

    @property
    def on_redis(self) -> bool:
        return self.kind in ("redis", "unix", "embedded")

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
            secret=secret_of(project),
            environ="".join(f',{name}="{value}"' for name, value in project.environ.items()),
            patience=patience(stop_timeout),
        )
    return text + "\n"


def secret_of(project: Project) -> str:
    """What a file of variables is for."""
    return "the password of Django's database" if project.in_django else project.url_variable


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
        servers=" ".join(["network-online.target", *(f"{name}.service" for name in SERVERS.get(project.kind, ()))]),
        user=project.user,
        root=str(project.root).replace("%", "%%"),
        pwd=_systemd_word(f"PWD={project.root}").replace("$$", "$"),  # a dollar has no meaning here
        environ="".join(f"Environment={name}={value}\n" for name, value in project.environ.items()),
        secret=secret_of(project),
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
    url = "redis://host:6379/0" if project.on_redis else f"{project.kind}://..."
    pip = "pip install --no-cache-dir"
    install, listed = f"{pip} --find-links . {project.requirement}", project.dependencies
    if listed == PYPROJECT:  # the project itself needs its code: it is installed after it
        install = f"{text_of('dependencies').rstrip()} \\\n && {install} -r /tmp/dependencies.txt"
    elif listed:
        install += f" -r {listed}"
    return filled(
        "Dockerfile",
        name=project.name,
        patience=max(map(patience, project.pools.values())),
        environment="--env-file .env" if project.in_django else f"-e {project.url_variable}={url}",
        environ="".join(f" {name}={value}" for name, value in project.environ.items()),
        python=project.python,
        dependencies=f"{listed} " if listed else "",
        install=f"RUN {install}",
        install_project=f"RUN {pip} --no-deps .\n" if listed == PYPROJECT else "",
        probe=PROBE,
        commands="\n".join([f"CMD {lines[0]}", *others]),
    )


def dockerignore(project: Project) -> str:
    return text_of("dockerignore")


def compose(project: Project) -> str:
    """A worker for each pool, Redis if the jobs are there, and the dashboard."""
    text = text_of("compose.yaml")
    if not project.on_redis:  # the server is elsewhere
        text = re.sub(r"(?ms)^  redis:.*?\n\n|^  depends_on:.*?\n|^\nvolumes:.*", "", text)
    head, worker, tail = re.split(r"(?ms)^(  \$worker:.*?\n\n)", text)
    url = "redis://redis:6379/0" if project.on_redis else f"${{{project.url_variable}:?the url of the queue}}"
    facts = {"name": project.name, "variable": f"{project.url_variable}: {url}"}
    if project.in_django:
        first = next(filter(None, map(fit, project.pools)), "")
        tables = f"docker compose run --rm worker{f'-{first}' * bool(first)} qd migrate"
        head = head.replace(
            "Then: docker compose up --build", f"Then: docker compose build; {tables}; docker compose up"
        )
        head = head.replace(
            "  environment:", f"  # {SECRETS}\n  env_file: [{{path: .env, required: false}}]\n  environment:"
        )
        facts["variable"] = f"{kinds.DJANGO}: {project.settings}"
    facts["web"] = f"{project.settings.partition('.')[0]}.asgi:application" if project.settings else "web:app"
    facts["arguments"] = "".join(f"{json.dumps(word)}, " for word in project.arguments)
    workers = [
        Template(worker).substitute(
            worker="-".join(filter(None, ("worker", fit(pool)))),
            command=_container_command(project, pool),
            patience=patience(stop_timeout),
        )
        for pool, stop_timeout in project.pools.items()
    ]
    return Template(head).substitute(facts) + "".join(workers) + Template(tail).substitute(facts)


def _container_command(project: Project, pool: str) -> str:
    """In the image the project is in /app, and `qd` is on PATH."""
    named = project.file and project.file.name not in ("qd.toml", "pyproject.toml")
    file = ("--config", f"/app/{project.file.name}") if project.file and named else ()
    return json.dumps(["qd", "work", *file, *project.arguments, *(("--pool", pool) if pool else ())])


def kubernetes(project: Project) -> str:
    """One Deployment per pool. `qd init docker` prints the Dockerfile."""
    text = text_of("kubernetes.yaml")
    if project.in_django:
        text = re.sub(r"(?m)^ +- \{name: secrets, mountPath.*\n|^ +- name: secrets\n.*\n", "", text)
        variables = f"# {SECRETS}\n          envFrom: [{{secretRef: {{name: $name, optional: true}}}}]\n"
        text = re.sub(r"(?<= )env:\n.*\n", variables, text)
    return "---\n".join(
        Template(text).substitute(
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


PRINTED = {
    "supervisord": supervisord,
    "systemd": systemd,
    "docker": docker,
    "dockerignore": dockerignore,
    "compose": compose,
    "k8s": kubernetes,
}
CONTAINERS = ("docker", "compose", "k8s")
SAMPLES = {"config": "qd.toml", "prometheus": "prometheus-rules.yml", "grafana": "grafana-dashboard.json"}  # of conf/


# -- the command


@click.command("init")
@click.argument("target", required=False, type=click.Choice([*PRINTED, *SAMPLES]))
@click.option("--django", is_flag=True, help="Write jobs.py and qd.toml for a Django project.")
@click.option("--fastapi", is_flag=True, help="Write jobs.py and qd.toml for a FastAPI app.")
@click.option("--flask", is_flag=True, help="Write jobs.py and qd.toml for a Flask app.")
@context.options
def init(target: str | None, **frameworks: bool) -> None:
    """Write a first qd.toml and jobs.py, or a deployment file.

    Without an argument: writes both into this folder, and the schema of qd.toml for editors. With one: prints the file
    that runs this project under supervisord, systemd, Docker, Docker Compose or Kubernetes; `config` prints a qd.toml
    with every key, `prometheus` and `grafana` the alert rules and the dashboard. For a framework it also prints the
    lines to add by hand."""
    wanted = [*filter(None, [target]), *(f"--{name}" for name, given in frameworks.items() if given)]
    if len(wanted) > 1:
        raise click.UsageError(f"give one of {', '.join(wanted)}")
    if wanted and not target:
        return write_for(wanted[0].removeprefix("--"))
    if target is None:
        write_first_project()
        return click.echo(NEXT)
    if target in SAMPLES:
        return click.echo((context.shipped("conf") / SAMPLES[target]).read_text("utf-8").rstrip("\n"))
    project = project_here()
    click.echo(PRINTED[target](project).rstrip("\n"))
    strange = [pool for pool in project.pools if pool and not INSTANCE.fullmatch(pool)]
    for pool in strange if target == "systemd" else ():
        way = "rename it (letters, digits, : _ . and -)"
        output.note(f"qd init systemd: pool '{pool}' cannot be started as qd@NAME: {way}")
    if project.kind == "sqlite" and target in CONTAINERS:
        output.note(
            f"qd init {target}: jobs are in a SQLite file, which containers do not share; use a database server"
        )
    if project.kind == "embedded":
        way = f"set {project.url_variable} for a shared one"
        output.note(f'qd init {target}: url is "embedded:", a private server; {way}')


def write_first_project() -> None:
    texts = {name: schema.text() if name == schema.NAME else text_of(name) for name in FIRST}
    write_new(texts, "run `qd init` in an empty folder")


def write_for(framework: str) -> None:
    """Write the files of its template, and print the notes at the end of it."""
    settings = django_settings() if framework == "django" else ""
    database = for_sqlite(settings)
    package = settings.rpartition(".")[0].partition(".")[0]
    places = {"folder": f"{package}/" * bool(package), "module": f"{package}." * bool(package)}
    places["own"] = "qd" if package else "qd_app"  # beside manage.py a qd.py would hide qd itself
    _, *parts = re.split(r"(?m)^--- (.*)\n", filled(f"{framework}.txt", settings=settings, database=database, **places))
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    notes = texts.pop("notes")
    write_new(texts | {schema.NAME: schema.text()}, f"move it away, or see `qd help {framework}`")
    click.echo(f"wrote {', '.join(texts)} and {schema.NAME}. {notes}", nl=False)


def django_settings() -> str:
    """The settings module that manage.py names."""
    if not (found := settings_of_manage(Path())):
        raise context.Refused("no manage.py that names the settings is here; run `qd init --django` in its folder")
    return found


def for_sqlite(settings: str) -> str:
    """The lines for settings whose database is SQLite. It is read, not imported: its environment may not be set yet."""
    file = Path(*settings.split(".")).with_suffix(".py") if settings else Path()
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if "django.db.backends.sqlite3" not in text:
        return ""
    test = 'BASE_DIR / "test.sqlite3"' if "BASE_DIR" in text else '"test.sqlite3"'
    lines = [
        f'# A file, so that workers see the database of `manage.py test`.\nDATABASES["default"]["TEST"] = {{"NAME": {test}}}'
    ]
    if tuple(map(int, version("django").split(".")[:2])) >= (5, 1):
        lines.append("# A transaction waits for other writers when it begins.")
        lines.append('DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}')
    return "".join(f"{line}\n" for line in lines)


def settings_of_manage(root: Path) -> str:
    """The settings module that manage.py names, "" if there is none."""
    text = (root / "manage.py").read_text(encoding="utf-8") if (root / "manage.py").is_file() else ""
    found = re.search(r"""DJANGO_SETTINGS_MODULE["'], *["']([\w.]+)""", text)
    return found[1] if found else ""


def write_new(texts: Mapping[str, str], way: str) -> None:
    """All files or none."""
    for name in texts:
        if os.path.lexists(name):
            raise context.Refused(f"{name} already exists; nothing was written; {way}")
    if (found := find(None, {})) is not None:  # [tool.qd]
        raise context.Refused(f"{found.shown} has [tool.qd] already, nothing was written")
    for name, text in texts.items():  # "x": do not overwrite a file created meanwhile
        with open(name, "x", encoding="utf-8") as file:
            file.write(text)


def project_here() -> Project:
    found = context.loaded()
    if not found.app:
        output.note("qd init: no app is named: write app = below [qd] in qd.toml, or give --app MODULE:ATTR")
    found, settings = with_django(found)
    pools = {pool: context.loaded(pool=pool).work for pool in context.pool_names() or [""]}
    used = dict.fromkeys([found.default, found.control, *(work.connection for work in pools.values())])
    named = [found.connections[name].url for name in used if name in found.connections]
    urls = [url for url in (*named, found.failed.database) if url]
    extras = {"dashboard"} | ({"encryption"} if found.encryption.keys else set[str]())
    extras |= {extra for url in urls if (extra := extra_of_url(url))}
    app = ("--app", found.app) if found.app and ":" not in found.origins["qd.app"] else ()
    default, listed = found.connections[found.default], _dependencies(found.root)
    program = Path(sys.executable).with_name("qd")  # with its full path, because supervisors have another PATH
    return Project(
        root=_by_name(found.root),
        program=(str(program),) if os.access(program, os.X_OK) else (sys.executable, "-m", "qd"),
        arguments=app,
        file=_by_name(found.root) / found.file.name if found.file else None,
        user=user_name(),
        home=Path.home(),
        pools={pool: work.stop_timeout for pool, work in pools.items()},
        url_variable=environ_name(CONNECTION["url"], found.default),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        requirement=f"'qd-worker[{','.join(sorted(extras))}]=={__version__}'" + _django(settings, listed),
        dependencies=listed,
        kind=scheme_of(default.url or "") or "redis",
        connection=found.default,
        writes=tuple(_written(found.root, urls)),
        settings=settings,
        in_django=default.url_origin == "Qd(...)" and default.driver == "database" and bool(settings),
    )


def with_django(found: Settings) -> tuple[Settings, str]:
    """The configuration with the url that Django's settings name, and the name of their module. In a project without
    Django the same configuration, and ""."""
    settings = os.environ.get(kinds.DJANGO) or settings_of_manage(found.root)
    if not settings or not found.app:
        return found, settings
    os.environ[kinds.DJANGO] = settings
    try:
        code = context.app_of(found)._code_settings
    except ConfigError as error:
        output.note(f"qd init: {error}; what Django's settings say about the database is missing here")
        return found, settings
    return (context.loaded(code), settings) if "qd.contrib.django" in sys.modules else (found, "")


def _django(settings: str, listed: str) -> str:
    """Django itself, for a project that lists no dependencies."""
    return f" 'django~={version('django')}'" if settings and not listed else ""


def _written(root: Path, urls: Sequence[str]) -> Iterator[Path]:
    """The folders to which `qd work` writes."""
    if any(scheme_of(url) == "embedded" for url in urls):
        yield _by_name(root)
    for url in urls:
        if scheme_of(url) == "sqlite" and (path := url.partition("://")[2].partition("?")[0][1:]).startswith("/"):
            yield _by_name(root) if Path(path).parent == root else Path(path).parent


def _by_name(root: Path) -> Path:
    """The folder as the user entered it: a reload follows a link such as `current` to the next release."""
    here = os.environ.get("PWD", "")
    return Path(here) if root == Path.cwd() and os.path.isabs(here) and os.path.samefile(here, root) else root


def _dependencies(root: Path) -> str:
    if (root / "requirements.txt").exists():
        return "requirements.txt"
    text = (root / PYPROJECT).read_text(encoding="utf-8") if (root / PYPROJECT).is_file() else ""
    return PYPROJECT if "[project]" in text else ""
