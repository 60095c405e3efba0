"""`qd dispatch`, `run` and `declared`: send a job, run it here, list the jobs of an app."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from qd.cli import context, output
from qd.cli.context import app, app_if_named
from qd.errors import QdError, UnknownParameters
from qd.events import JobQueued, UniqueJobSkipped
from qd.jobs.pipeline import title_of
from qd.jobs.plan import IN_CODE
from qd.jobs.registry import NO_JOBS
from qd.options.tables import JOB_KINDS, JobOptions, shown
from qd.traces import trimmed

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.jobs.job import Call
    from qd.jobs.registry import Declared

CHUNK = 1000  # jobs per round trip


def given_data(words: tuple[str, ...], data: str | None) -> object:
    """The KEY=VALUE words, or --data. Raises UsageError."""
    if data is not None:
        if words:
            raise click.UsageError(f"'{words[0]}' and --data: use either KEY=VALUE arguments or --data, not both")
        try:
            return json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"--data is not JSON: {error}") from None
    return {key: value_of(text) for key, text in texts_of(words).items()}


def texts_of(words: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE words as a dict. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"'{word}' is not of the form KEY=VALUE")
        if key in found:
            raise click.UsageError(f"'{key}' is given twice")
        found[key] = text
    return found


def typed(declared: Declared, texts: Mapping[str, str]) -> bytes:
    """The JSON of KEY=VALUE words: a value is JSON if its parameter's type accepts that, else text."""
    takes, pairs = declared.signature.takes, list[bytes]()
    for key, text in texts.items():
        as_text, as_json = encoded(text), text.encode("utf-8", "surrogateescape")  # a Decimal keeps its digits
        is_text = value_of(text) == text or (not takes(key, as_json) and takes(key, as_text))
        pairs.append(encoded(key) + b":" + (as_text if is_text else as_json))
    return b"{%b}" % b",".join(pairs)


def value_of(text: str) -> object:
    """Parsed as JSON, or else the text: 7 -> 7, [1] -> [1], ada -> "ada", "7" -> "7"."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")


def encoded(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE...]")
@click.option("--data", metavar="JSON", help="The job's data, instead of KEY=VALUE.")
@click.option("--queue", metavar="QUEUE", help="Send to this queue.  [default: the job's, else the connection's]")
@click.option("--delay", type=context.SPAN, metavar="TIME", help="Delay before the job becomes due.")
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Send this many copies.  [default: 1]")
@context.options
def dispatch(name: str, words: tuple[str, ...], data: str | None, count: int, **sending: Any) -> int:
    """Dispatch a job by its name.

    A value is parsed as JSON, or else is text: to=ada@example.org count=3 tags='["a"]'. With an app, a value is read as
    the type of its parameter (to=5 is "5" for a str) and checked before anything is sent. Without an app, and for PHP's
    Class@method, it is sent unchecked.

    Exit 1: nothing was sent, because a unique job like it waits or runs already.
    """
    given = given_data(words, data)
    sending["connection"] = context.given().connection
    sending = {key: value for key, value in sending.items() if value is not None}
    try:
        if "\\" in name or "@" in name:  # a job of a PHP app: App\\Jobs\\Report@fire
            result = by_name(name, given, sending, count)
        else:
            result = by_app(name, given, words, sending, count)
    except Exception as error:  # from a job of the sync driver
        return failed_here(error)
    if context.given().json:
        output.document({"name": name, **asdict(result)})
    else:
        if ids := result.ids:
            later = f", due in {output.duration(delay)}" if (delay := sending.get("delay")) else ""
            output.say(f"sent {name} {ids[0] if len(ids) == 1 else f'{len(ids)} times'} to {result.queue}{later}")
        if skipped := result.skipped:
            often, there = f" {skipped} times" if skipped > 1 else "", ", ".join(result.held_by)
            output.say(f"not sent{often}: {name} {there} waits or runs already (the job is unique)")
    return 0 if result.ids else 1


@dataclass(frozen=True)
class Result:
    """ids: of the jobs sent. skipped: how many were not sent. held_by: unique jobs that wait or run in their place."""

    queue: str
    ids: list[str]
    skipped: int = 0
    held_by: list[str] = field(default_factory=list)


def by_app(name: str, data: object, words: tuple[str, ...], sending: dict[str, Any], count: int) -> Result:
    """Through the declaration, which checks the arguments. Without an app as `by_name`."""
    found = app_if_named(context.loaded())
    if found is None:
        return by_name(name, data, sending, count)
    call = called(found, name, data, words)
    call = call.using(**sending) if sending else call
    skipped: list[UniqueJobSkipped] = []
    queued: set[str | None] = set()
    found.on(UniqueJobSkipped)(skipped.append)
    found.on(JobQueued)(lambda event: queued.add(event.id))
    ids: list[str] = []
    while len(ids) < count:
        ids += [handle.id for handle in found.dispatch(*[call] * min(CHUNK, count - len(ids)))]
    place = queue_of(found, name, sending)
    if not skipped:
        return Result(place, ids)
    each = list(dict.fromkeys(ids))
    sent = [id for id in each if id in queued]
    return Result(place, sent, len(skipped), [id for id in each if id not in queued] or sent)


def called(found: Qd, name: str, data: object, words: tuple[str, ...]) -> Call[Any]:
    """Raises UnknownJob, WrongType and UnknownParameters."""
    declared = found._registry.get(name)
    try:
        return found.call(name, typed(declared, texts_of(words)) if declared and words else encoded(data))
    except UnknownParameters as error:
        if not error.missing:
            raise
        names = ", ".join(f"'{one}'" for one in error.missing)
        what = f"parameter {names}, which was" if len(error.missing) == 1 else f"parameters {names}, which were"
        way_out = " ".join(f"{one}=..." for one in error.missing)
        raise UnknownParameters(f"job '{name}' needs {what} not given ({way_out})") from None


def queue_of(found: Qd, name: str, sending: dict[str, Any]) -> str:
    declared = found._registry.get(name)
    own = declared.options if declared else JobOptions()
    connection = found.settings.connection(sending.get("connection", own.connection))
    return str(sending.get("queue") or own.queue or connection.queue)


def by_name(name: str, data: object, sending: dict[str, Any], count: int) -> Result:
    """Without a declaration, unchecked."""
    from qd.app import Qd

    found = Qd()
    found.settings = context.settings()
    connection = context.connection_name(found.settings)
    place = found.queue(sending.get("queue") or found.settings.connection(connection).queue, connection)
    return Result(place.name, [place.push(name, data, delay=sending.get("delay")).id for _ in range(count)])


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE...]")
@click.option("--data", metavar="JSON", help="The job's data, instead of KEY=VALUE.")
@context.options
def run(name: str, words: tuple[str, ...], data: str | None) -> int:
    """Run a job here and now, and print what it returns.

    It runs in this process: nothing is sent or retried, and no server is needed. If the job raises, exit 1.
    """
    call = called(app(), name, given_data(words, data), words)
    try:
        result = call.run()
    except Exception as error:
        return failed_here(error)
    if context.given().json:
        output.document({"name": name, "result": plain(result)})
    elif result is not None:
        click.echo(output.clean(result) if isinstance(result, str) else json.dumps(plain(result)))
    return 0


def failed_here(error: Exception) -> int:
    """Print the traceback of a job that raised in this process. Raises qd's own errors, which have an exit code."""
    if isinstance(error, QdError) or (isinstance(error, OSError) and context.folder_is_gone()):
        raise error
    print(trimmed(error) or trimmed(error, whole=True), end="", file=sys.stderr)
    return 1


def plain(result: object) -> Any:
    """The result as JSON values; what JSON does not have is converted by msgspec, or else its repr."""
    import msgspec

    from qd.arguments.values import unknown

    try:
        return msgspec.to_builtins(result, enc_hook=unknown)
    except (TypeError, ValueError):
        return repr(result)


@click.command()
@context.options
def declared() -> None:
    """List the jobs that the app declares."""
    jobs = list(app()._registry)
    if context.given().json:
        facts = ((job, {"name": job.name, "async": job.is_async, "options": options_of(job)}) for job in jobs)
        return output.document({"jobs": [{**own, "declared_at": job.where} for job, own in facts]})
    if not jobs:
        return output.note(NO_JOBS)
    rows = list[tuple[str, ...]]()
    for job in jobs:
        values = ((name, JOB_KINDS[name], value) for name, value in options_of(job).items() if name != "queue")
        texts = (f"{name}={', '.join(v) if name in IN_CODE else shown(kind, v)}" for name, kind, v in values)
        rows.append((job.name, job.options.queue or "-", " ".join(texts), job.where))
    output.table(("job", "queue", "options", "declared at"), rows)


def options_of(job: Declared) -> dict[str, Any]:
    """The options of its declaration; middleware and errors by name."""
    options = {name: value for name in JOB_KINDS if (value := getattr(job.options, name)) is not None}
    for name in [name for name in IN_CODE if name in options]:
        options[name] = [title_of(each) for each in options[name]]
    if not isinstance(waits := options.get("backoff"), tuple | None):
        options["backoff"] = shown("spans", waits)
    return options
