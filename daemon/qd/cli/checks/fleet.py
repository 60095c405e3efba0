"""The masters that report: silent and hung ones, other versions, old code, root."""

from __future__ import annotations

from collections.abc import Iterator

from qd import __version__
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.output import count, duration
from qd.cli.reasons import named, stale
from qd.store.hosts import Master
from qd.store.stamps import Restart

OBEYED = 60.0  # seconds a restart may take: running jobs finish first


def check(masters: list[Master], restart: Restart | None, now: float) -> Iterator[Finding]:
    for master in masters:
        yield from judged(master, restart, now)
    if not masters:
        yield ok("masters", "none reports")


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
    if master.root:
        found.append(
            warn(what, f"{where} runs as root, and so do its jobs", "give it a user of its own: user=, User=, USER")
        )
    yield from found or [ok(what, f"{where}, {count(len(master.workers), 'worker')}, qd {master.version}")]
