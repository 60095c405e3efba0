"""`qd failed kick`: jobs that another program has buried in a beanstalkd are ready again. qd buries none there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qd.cli import common, output

if TYPE_CHECKING:
    from qd.config import Settings
    from qd.connectors.beanstalkd.buried import Buried


Row = dict[str, int | str | None]


@click.command("kick")
@click.option(
    "-q",
    "--queue",
    multiple=True,
    metavar="QUEUE",
    help="Only those of this queue; more than once: any.  [default: the queues that the configuration names]",
)
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Kick this many of each queue at most, the first ones."
)
@click.option("--dry-run", is_flag=True, help="Only say how many are buried, and which is the first.")
@common.options
def kick(queue: tuple[str, ...], count: int | None, dry_run: bool) -> None:
    """Let jobs run that another program has buried in beanstalkd.

    Laravel's `$job->bury()` does so, and workers of other languages with what has failed; such a job runs nowhere before it
    is kicked. (What has failed in qd is not buried: `qd failed retry`.) A job goes back to its queue as it was buried, the
    first one first.
    """
    found = common.settings()
    name = common.place(found)
    queues = list(queue) or list(dict.fromkeys([*common.queues_named(found, name), found.connection(name).queue]))
    at = buried_at(found, name)
    rows = {each: one(at, each, count, dry_run) for each in queues}
    if common.given().json:
        return output.document(rows)
    for each, row in rows.items():
        if row["buried"]:
            output.say(output.clean(told(each, row, dry_run)))
    if not any(row["buried"] for row in rows.values()):
        output.note(f"nothing is buried in {', '.join(queues)}")
    return None


def buried_at(found: Settings, name: str) -> Buried:
    """Raises Refused where nothing can be buried."""
    from qd.connectors.drivers import DRIVERS, loaded

    at = found.connection(name)
    driver = DRIVERS.get(at.driver)
    if driver is None or not driver.buried:
        raise common.Refused(
            f"connection '{name}' ({at.driver}): jobs are buried in beanstalkd only; failed ones: `qd failed retry`"
        )
    opened: Buried = loaded(driver.buried)(at, common.given().patience)
    click.get_current_context().call_on_close(opened.close)
    return opened


def one(at: Buried, queue: str, most: int | None, dry_run: bool) -> Row:
    """Of one queue: how many were buried, which was the first, and how many are kicked (or would be)."""
    buried = at.count(queue)
    meant = buried if most is None else min(most, buried)
    first = at.first(queue) if buried else None
    would = {"would": meant} if dry_run else {}
    return {"buried": buried, "first": named(first), "kicked": 0 if dry_run else at.kick(queue, meant), **would}


def named(payload: bytes | None) -> str | None:
    """Job and id, as the payload says them."""
    from qd.errors import Malformed
    from qd.payload import read

    if payload is None:
        return None
    try:
        known = read(payload)
    except Malformed:
        return f"no job ({len(payload)} bytes)"
    return " ".join([known.job, known.id or known.uuid or ""]).strip()


def told(queue: str, row: Row, dry_run: bool) -> str:
    number, what = (row["would"], "would be kicked") if dry_run else (row["kicked"], "kicked")
    return f"{queue}: {number} of {output.count(int(row['buried'] or 0), 'buried job')} {what}, first {row['first']}"
