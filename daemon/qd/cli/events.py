"""`qd events`: the audit events of store/audit.py. With -f it reads once a second what is new."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime

import click

from qd.cli import context, output
from qd.cli.failed import TIME, Moment, moment
from qd.errors import ConnectionLost
from qd.log import quoted
from qd.store import audit
from qd.store.base import KeyspaceStore

POLL = 1.0  # seconds between two reads of -f
SHOWN = 100  # events without --limit and --since


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--since", type=TIME, metavar="TIME", help="Only events since: 2h (ago), 2026-11-21T10:00.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help=f"The newest N.  [{SHOWN}; with --since all]")
@context.options
def events(follow: bool, since: Moment | None, limit: int | None) -> None:
    """Show what operators did and what happened to masters.

    The newest event is the last line. Times are local; with --json each event is one line, in UTC.
    """
    found = context.settings()
    context.given().only_looks = True
    store = context.store(found, found.control)
    most = (SHOWN if since is None else audit.MOST) if limit is None else limit
    last = audit.last_number(store)  # before the read: what comes meanwhile is shown by the next one
    last = show(audit.read(store, since=moment(since, store.now()) or 0.0, most=most), last)
    away = False
    while follow and not output.is_lost():
        time.sleep(POLL)
        try:
            last, away = show_new(store, last), False
        except ConnectionLost as error:  # the server may come back
            if not away:
                output.note(f"qd: {error}; trying again")
            away = True


def show_new(store: KeyspaceStore, last: int) -> int:
    """Show the entries after number `last`. Returns the last number."""
    number = audit.last_number(store)
    last = last if number >= last else 0  # the list was deleted, and starts again
    return show(audit.read(store, after=last), last) if number > last else last


def show(entries: Iterable[audit.Entry], last: int) -> int:
    for entry in entries:
        last = max(last, entry.number)
        if context.given().json:
            times = {"at": output.iso(entry.at), "first_at": output.iso(entry.first_at)}
            names = output.fields(entry, "count", "actor", "what", "object", "reason")
            click.echo(json.dumps({"schema": 1, "number": entry.number, **times, **names}))
            continue
        at = datetime.fromtimestamp(entry.at)
        words = [f"{key}={quoted(value)}" for key, value in entry.object.items()]
        words += [f"reason={quoted(entry.reason)}"] if entry.reason else []
        if entry.count > 1:
            words.append(f"x {entry.count} since {datetime.fromtimestamp(entry.first_at):%H:%M:%S}")
        output.say(" ".join([f"{at:%Y-%m-%d %H:%M:%S}  {entry.actor:<20} ", entry.what, *words]))
    return last
