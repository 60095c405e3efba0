"""`qd init`: writes a first project into an empty folder, or prints the file that runs this one under supervisord, systemd,
Docker or Kubernetes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from qd import __version__
from qd.cli import context, init_files, output
from qd.config.file import PYPROJECT, find
from qd.config.settings import CONNECTION, Settings, environ_name
from qd.options.drivers import extra_of_url, scheme_of
from qd.process.proc import user_name

NEXT = """\
wrote qd.toml and jobs.py. Next:
  qd work                                         a worker; Ctrl-C stops it
  qd dispatch mail.welcome to=ada@example.org     a job, from another terminal\
"""


@click.command("init")
@click.argument("target", required=False, type=click.Choice(list(init_files.PRINTED)))
@context.options
def init(target: str | None) -> None:
    """Write a first qd.toml and jobs.py, or a deployment file.

    Without an argument: writes both files into this folder, with comments. With one: prints the file that runs this
    project under supervisord, systemd, Docker or Kubernetes."""
    if target is None:
        _write({name: init_files.text_of(name) for name in ("qd.toml", "jobs.py")})
        click.echo(NEXT)
        return
    project = _project()
    click.echo(init_files.PRINTED[target](project).rstrip("\n"))
    strange = [pool for pool in project.pools if pool and not init_files.INSTANCE.fullmatch(pool)]
    for pool in strange if target == "systemd" else ():
        way = "rename it (letters, digits, : _ . and -)"
        output.note(f"qd init systemd: pool '{pool}' cannot be started as qd@NAME: {way}")
    if project.kind == "embedded":
        way = f"set {project.url_variable} for a shared one"
        output.note(f'qd init {target}: url is "embedded:", a private server; {way}')


def _write(files: Mapping[str, str]) -> None:
    """All files or none."""
    for name in files:
        if os.path.lexists(name):
            raise context.Refused(f"{name} already exists; nothing was written; run `qd init` in an empty folder")
    if (found := find(None, {})) is not None:  # [tool.qd]
        raise context.Refused(f"{found.shown} has [tool.qd] already, nothing was written")
    for name, text in files.items():  # "x": do not overwrite a file created meanwhile
        with open(name, "x", encoding="utf-8") as file:
            file.write(text)


def _project() -> init_files.Project:
    found = context.loaded()
    if not found.app:
        output.note("qd init: no app is named: write app = below [qd] in qd.toml, or give --app MODULE:ATTR")
    urls = _used(found)
    app = ("--app", found.app) if found.app and ":" not in found.origins["qd.app"] else ()
    return init_files.Project(
        root=_by_name(found.root),
        program=_program(),
        arguments=app,
        file=_by_name(found.root) / found.file.name if found.file else None,
        user=user_name(),
        home=Path.home(),
        pools={pool: context.loaded(pool=pool).work.stop_timeout for pool in context.pool_names() or [""]},
        url_variable=environ_name(CONNECTION["url"], found.default),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        packages=_packages(found.root, sorted({extra for url in urls if (extra := extra_of_url(url))})),
        kind=scheme_of(found.connections[found.default].url or "") or "redis",
        connection=found.default,
        writes=tuple(_written(found.root, urls)),
    )


def _used(found: Settings) -> list[str]:
    """The urls of the connections that workers use, and of the copy of failed jobs."""
    pools = context.pool_names() or [""]
    names = [found.default, found.control, *(context.loaded(pool=pool).work.connection for pool in pools)]
    urls = [found.connections[name].url for name in dict.fromkeys(names) if name in found.connections]
    return [url for url in (*urls, found.failed.database) if url]


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


def _program() -> tuple[str, ...]:
    """The `qd` of this Python with its full path, because supervisors have another PATH."""
    program = Path(sys.executable).with_name("qd")
    return (str(program),) if os.access(program, os.X_OK) else (sys.executable, "-m", "qd")


def _packages(root: Path, extras: Sequence[str]) -> str:
    own = f"'qd-worker[{','.join(extras)}]=={__version__}'" if extras else f"qd-worker=={__version__}"
    if (root / "requirements.txt").exists():
        return f"{own} -r requirements.txt"
    text = (root / PYPROJECT).read_text(encoding="utf-8") if (root / PYPROJECT).is_file() else ""
    return f"{own} ." if "[project]" in text else own
