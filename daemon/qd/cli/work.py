"""`qd work` and `qd schedule work`, the daemon with a scheduler and no workers; and their flags, made from the option table.

Wrong flags are wrong usage: exit 2. Everything else is daemon.py's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from qd import config
from qd.cli import context
from qd.cli.context import Parsed, decorated
from qd.cli.output import quote
from qd.config.file import VARIABLES
from qd.config.settings import Settings
from qd.options.kinds import names_and_weights
from qd.options.tables import WORK, Option

METAVARS = {"span": "TIME", "spans": "TIME[,TIME...]", "size": "SIZE", "count": "N", "name": "NAME", "share": "SHARE"}
Words = tuple[tuple[str, ...], ...]  # each argument, split at its commas
ELSEWHERE = ("queues", "connection")  # arguments, and an option of every command


def work_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `function(flags=...)` gets the flags and queues that were given, by the long names of their options.

    Queues are arguments. With --queue one argument is the connection, as in Laravel; without it an argument that names a
    connection is refused, since the worker would wait forever on a queue of that name.
    """

    @functools.wraps(function)
    def with_flags(*, words: Words, queue: tuple[str, ...] | None, delay: Any, daemon: bool, **held: Any) -> Any:
        given = _typed(held)
        if delay is not None:
            given.setdefault("backoff", delay)
        return function(flags=given | (_laravel(words, queue) if queue else _queues(words)))

    queues = Parsed(WORK["queues"].read)
    help = f"{_capital(WORK['queues'].help)}; also as arguments."
    return decorated(
        with_flags,
        click.argument("words", nargs=-1, metavar="[QUEUE]...", type=queues),
        click.option("--queue", type=queues, metavar="QUEUE[,QUEUE...]", help=help),
        *(flag(option) for name, option in WORK.items() if name not in ELSEWHERE),
        click.option("--delay", type=Parsed(WORK["backoff"].read), hidden=True, help="The old name of --backoff."),
        click.option("--daemon", is_flag=True, hidden=True, help="Do nothing, as in Laravel."),
    )


def schedule_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `function(flags=...)` gets those of FLAGS that were given."""

    @functools.wraps(function)
    def with_flags(**held: Any) -> Any:
        return function(flags=_typed(held))

    options = [WORK[name]._replace(help=help or WORK[name].help) for name, help in FLAGS.items()]
    return decorated(with_flags, *map(flag, options))


def _typed(held: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line; --json sets the log format, as in Laravel."""
    ctx = click.get_current_context()
    named = [name for name in held if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    given = {name: held[name] for name in named}
    return {"log_format": "json", **given} if context.given().json else given


def flag(option: Option) -> Callable[[Any], Any]:
    """One option. Defaults are filled in by the configuration, not here."""
    names = [name for name in (option.short, option.flag) if name]
    if option.kind == "switch":
        return click.option(*names, option.name, is_flag=True, default=False, help=f"{_capital(option.help)}.")
    unit = f"{option.unit}, " if option.unit else ""
    return click.option(
        *names,
        option.name,
        type=Parsed(option.read),
        metavar="|".join(option.choices) or METAVARS[option.kind],
        help=f"{_capital(option.help)}.  [{unit}default: {option.shown}]",
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _laravel(words: Words, queues: tuple[str, ...]) -> dict[str, object]:
    """`qd work redis --queue=high,default`."""
    line = f"--queue={quote(','.join(queues))}"
    if not words:
        return {"queues": queues}
    connection = ",".join(words[0])
    if len(words) > 1:
        given = " ".join(",".join(word) for word in words)
        right = f"qd work {quote(connection)} {line}"
        raise click.UsageError(f"with --queue give one argument, the connection, not '{given}': {right}")
    other = context.given().connection
    if other not in (None, connection):
        raise click.UsageError(f"two connections, '{connection}' and '{other}': qd work {line} -c {quote(connection)}")
    return {"queues": queues, "connection": connection}


def _queues(words: Words) -> dict[str, object]:
    queues = tuple(dict.fromkeys(queue for word in words for queue in word))
    known = context.loaded().connections if queues else {}
    try:
        names, _ = names_and_weights(queues)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for queue in names:
        if queue in known:
            name = quote(queue)
            ways = f"for its queues type `qd work -c {name}`, for a queue of that name `qd work --queue={name}`"
            raise click.UsageError(f"'{queue}' names a connection; {ways}")
    return {"queues": queues} if queues else {}


# The options of `qd work` that `qd schedule work` has, with a help text where it differs.
FLAGS = {
    "pool": "use [pools.NAME] over [worker], and this name; without it [pools.schedule] if there is one",
    "force": "run entries in maintenance mode too",
    "stop_timeout": "on stop, wait this long for running entries, then kill them, 0: no limit",
    "min_uptime": "",
    "no_respawn": "exit with the scheduler: 1 after a crash, 12 for memory, else 0",
    "no_preload": "import the app in the scheduler itself",
    "reload": "restart the scheduler when a file changes, for development",
    "log_format": "",
    "log_level": "",
}


@click.command("work")
@schedule_flags
@context.options
def work(flags: Mapping[str, object]) -> int:
    """Run only the schedule, in a process of its own.

    `qd work` runs the schedule next to its workers, unless --no-schedule. Signals, exit codes and restarts are those of
    `qd work`.
    """
    return run({**flags, "only_schedule": True})


EXITS = """Exit codes: 0 stopped, 1 a bug, 2 usage, 3 the app does not start, 78 configuration; with --no-respawn also 1 a
worker crashed, 12 memory."""


@click.command("work", epilog=EXITS)
@work_flags
@context.options
def command(flags: Mapping[str, object]) -> int:
    """Run the jobs of QUEUE..., in order of priority.

    Set weights with high=5 low=1. Without QUEUE: every queue that the app declares, in turn."""
    return run(flags)


def run(flags: Mapping[str, object]) -> int:
    """The daemon with these flags and the shared options. Returns its exit code."""
    from qd import daemon

    VARIABLES.begin()
    options = context.given()
    given = {**flags, **({"app": options.app} if options.app else {})}
    if options.connection:
        given.setdefault("connection", options.connection)

    def load(code: Mapping[str, object] | None) -> Settings:
        if code is None:
            return config.load_without_app(options.file, given)
        return config.load(options.file, flags=given, code=code)

    return daemon.run(load)
