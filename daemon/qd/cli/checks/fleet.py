"""Maintenance mode, and the masters that report: silent and hung ones, other versions, old code, root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qd import __version__
from qd.cli import context
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.notes import by_whom
from qd.cli.output import count, duration
from qd.cli.reasons import blind, named, stale
from qd.cli.state import FRESH, State, refusal
from qd.connectors.keyspace import keys
from qd.store import hosts, stamps
from qd.store.hosts import Master
from qd.store.stamps import Restart

if TYPE_CHECKING:
    from qd.config import Settings

OBEYED = 60.0  # seconds a restart may take: running jobs finish first


def read(settings: Settings) -> State:
    """What counts for the whole fleet, by commands that a worker's user may call too. Raises ConnectionLost or
    ServerRefused."""
    store = context.store(settings, settings.control)
    masters, now = hosts.masters(store), store.now()
    down, restart = (store.space.call("GET", store.prefix + key) for key in (keys.DOWN, keys.RESTART))
    note = None if down is None else stamps.read_down(down)
    refused = dict[str, str]()
    if masters and not any(now - master.seen_at <= FRESH for master in masters) and (said := refusal(store)):
        refused[settings.control] = said
    return State(now, note, stamps.read_restart(restart), masters, [], refused=refused, control=settings.control)


def check(state: State) -> Iterator[Finding]:
    if state.down is not None:
        what = "any other queue" if state.down.allow else "any queue"
        said = f"switched on{by_whom(state.down, state.now)}; nothing is taken from {what}"
        yield warn("maintenance mode", said, "qd up")
    for master in state.masters:
        if master.laravel_down and not stale(master, state.now):
            said = f"Laravel's own ({master.laravel_down}) holds all queues of {named(master)}"
            yield warn("maintenance mode", said, "php artisan up")
    for master in state.masters:
        if not blind(state):
            yield from judged(master, state.restart, state.now)
    if not state.masters:
        yield ok("masters", "none reports")
    if rooted := [f"{named(master)} (pid {master.pid})" for master in state.masters if master.root]:
        way = "give them a user of their own: user= for supervisord, User= for systemd, USER in a Dockerfile"
        yield warn("root", f"these masters run as root, and so do their jobs: {', '.join(rooted)}", way, topic="root")


def judged(master: Master, restart: Restart | None, now: float) -> Iterator[Finding]:
    what, where = f"master {named(master)}", f"pid {master.pid}"
    found = list[Finding]()
    if stale(master, now):
        way = f"see whether it runs there; if that host is gone for good: HDEL qd:masters {master.token}"
        yield warn(what, f"{where} has not reported for {duration(now - master.seen_at)}", way)
        return
    if master.hangs:
        way = f"kill -9 {master.pid} on {master.host}: its supervisor starts it again"
        found.append(fail(what, f"{where} has not answered for {duration(master.master_silent)}: it hangs", way))
    if master.version != __version__:
        way = "install the same version everywhere, then `qd restart`"
        found.append(warn(what, f"{where} is qd {master.version or 'of old'}, this is {__version__}", way))
    if restart is not None and master.booted_at < restart.at and now - restart.at > OBEYED:
        said = f"{where} runs code from before the `qd restart` of {duration(now - restart.at)} ago"
        found.append(
            warn(what, said, "a job that takes long may hold it up (`qd status`); else restart it by its supervisor")
        )
    yield from found or [ok(what, f"{where}, {count(len(master.workers), 'worker')}, qd {master.version}")]
