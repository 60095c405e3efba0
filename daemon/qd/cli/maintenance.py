"""`qd down` and `qd up`: maintenance mode, a note in Redis that every worker and scheduler on every host obeys.

Laravel's own maintenance mode is never written here: it takes a web site away, which nobody asks of a queue's command.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qd import units
from qd.cli import context, output
from qd.cli.notes import LONGEST, but, by_whom, shown
from qd.errors import ConnectionLost, ServerRefused
from qd.options.kinds import queue_name
from qd.process.allowed import MOST
from qd.store import hosts, laravel, stamps
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.config import Settings

OF_DAY = re.compile(r"[0-2]?\d:\d\d(:\d\d)?")


class End(NamedTuple):
    """A moment to come. at: unix seconds, this host's clock."""

    at: float
    seconds: float


class Moment(click.ParamType[End]):
    """ "30m", "18:30" (the next one, local time), "2026-11-21 18:30" (local time), "2026-11-21T18:30+01:00"."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> End:
        now = time.time()
        try:
            at = now + units.span(value)
        except ValueError:
            at = self._moment(str(value).strip(), now, param, ctx)
        if at <= now:
            self.fail(f"{value!r} is over already (it is {shown(now)})", param, ctx)
        try:
            units.span(at - now)
        except ValueError:
            self.fail(f"{value!r} is more than 100 years away", param, ctx)
        return End(at, at - now)

    def _moment(self, text: str, now: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            if OF_DAY.fullmatch(text):
                return of_day(text if text[1] != ":" else f"0{text}", now)
            return datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError):
            written = "30m, 18:30, '2026-11-21 18:30' or 2026-11-21T18:30+01:00"
            self.fail(f"{text!r} is neither a length of time nor a moment (written {written})", param, ctx)


def of_day(text: str, now: float) -> float:
    """The next time that a clock here shows `text`."""
    today = datetime.fromtimestamp(now)
    at = datetime.fromisoformat(f"{today:%Y-%m-%d} {text}")
    return (at if at.timestamp() > now else at + timedelta(days=1)).timestamp()


@click.command()
@click.option("--reason", default="", metavar="TEXT", help="Say why, for those who look at `qd status`.")
@click.option("--until", "end", type=Moment(), metavar="WHEN", help="End by itself: 30m, 18:30 or an ISO time.")
@click.option("--allow", multiple=True, metavar="QUEUE", help="Work on this queue meanwhile; several: a,b or again.")
@context.options
def down(reason: str, end: End | None, allow: tuple[str, ...]) -> None:
    """Begin maintenance mode, until `qd up`.

    Workers finish their jobs and take no other, on every host within 2 s, and the schedule is skipped; `qd work --force`
    goes on. A moment without a zone is one of this host's zone.
    """
    if len(reason) > LONGEST:
        raise click.UsageError(f"--reason has {len(reason)} characters, at most {LONGEST}: say where to read the rest")
    found = context.settings()
    store = context.store(found, found.control)
    open_ones = named(found, allow)
    was = stamps.is_down(store)
    seconds = None if end is None else end.seconds
    note = stamps.down(store, by=context.who(), reason=reason, seconds=seconds, allow=open_ones)
    if context.given().json:
        return output.document({"down": asdict(note), "was_down": None if was is None else asdict(was)})
    if was is not None:
        output.say(output.clean(f"it was on already{by_whom(was, store.now())}; this takes its place"))
    until = "until `qd up`" if end is None else f"until {shown(end.at)}, for {output.duration(end.seconds)}"
    output.say(output.clean(f"maintenance mode is on {until}{but(note)}"))


@click.command()
@context.options
def up() -> None:
    """End maintenance mode."""
    found = context.settings()
    store = context.store(found, found.control)
    was = stamps.up(store)
    if context.given().json:
        return output.document({"was_down": None if was is None else asdict(was)})
    output.say("maintenance mode is off" if was else "maintenance mode was not on")
    held = {
        f"{m.laravel_down} on {m.host}" for m in hosts.masters(store) if m.laravel_down and not m.silent(store.now())
    }
    for what in sorted(held):
        output.note(f"Laravel's own still holds ({what}): `php artisan up` ends it")


def laravels(found: Settings) -> str:
    """The file or key of Laravel that holds this host, where [laravel] says that it counts. "": none; or nobody knows."""
    held = found.laravel
    if held is not None and held.down_file and of_file(held.down_file):
        return held.down_file
    if held is None or not held.down:
        return ""
    try:
        return laravel.DOWN if laravel.down(context.store_at(held.cache_url, held.cache_prefix)) else ""
    except (ConnectionLost, ServerRefused) as error:
        output.note(f"Laravel's cache is away, and nobody knows whether it is down: {error}")
        return ""


def of_file(path: str) -> bool:
    """Not obeyed where it cannot be looked for, as by `qd work`, and that is said."""
    there, why = laravel.down_file(path)
    if why:
        output.note(output.clean(f"Laravel's down_file {path} is not obeyed until it can be looked for: {why}"))
    return there


def named(found: Settings, words: tuple[str, ...]) -> tuple[str, ...]:
    """The queues to go on with. Says which nobody is known to work on. Raises UsageError."""
    names = list(dict.fromkeys(name.strip() for word in words for name in word.split(",")))
    for name in names:
        try:
            queue_name(name)
        except ValueError as error:
            raise click.UsageError(f"--allow: {error}") from None
    if len(names) > MOST:
        raise click.UsageError(f"--allow names {len(names)} queues, at most {MOST}: `qd pause` the others instead")
    known = {queue for place in found.connections for queue in context.queues_named(found, place)} if names else set()
    if names:
        reported = hosts.queues_of(hosts.masters(context.store(found, found.control)))
        known |= {queue for queues in reported.values() for queue in queues}
    for name in names:
        if known and name not in known:
            output.note(f"nobody is known to work on '{name}'{did_you_mean(name, known)}")
    return tuple(names)
