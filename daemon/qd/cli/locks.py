"""`qd locks [PREFIX]`: locks and limits with their holders. `qd locks release NAME`: takes one from its holder."""

from __future__ import annotations

from typing import Any

import click

from qd.cli import context, output
from qd.locks.lease import read_owner
from qd.store import held
from qd.store.base import KeyspaceStore
from qd.store.held import KINDS, Held

SHOWN = 100  # locks without --limit


class Locks(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`qd locks report` is `qd locks list report`."""
        own = args[:1] and args[0] in (*self.commands, "-h", "--help")
        return super().parse_args(ctx, args if own else ["list", *args])


@click.group("locks", cls=Locks)
def command() -> None:
    """Show who holds which lock or limit, and free one."""


@command.command("list")
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, metavar="N", help="Show N names.")
@context.options
def list_(prefix: str, limit: int) -> None:
    """Show who holds which lock or limit.

    PREFIX: only those whose names begin like this. Scans at most 10,000 keys for each kind.
    """
    context.given().only_looks = True
    settings = context.settings()
    connection = context.place(settings)
    found = document(context.store(settings, connection), connection, prefix, limit)
    if context.given().json:
        return output.document(found)
    spans = [[output.duration(each["held_s"]), output.duration(each["left_s"])] for each in found["locks"]]
    names = ("kind", "name", "holder", "waiting")
    rows = [[*(each[name] for name in names), *two] for each, two in zip(found["locks"], spans, strict=True)]
    if rows:
        output.table(("kind", "name", "held by", "waiting", "for", "expires in"), rows, right=("waiting",))
    cut = f", among the first {held.MOST:,} keys of the server" if found["cut"] else ""
    if cut or not rows or found["count"] > limit:
        output.note(f"{min(limit, found['count']):,} of {found['count']:,} locks shown{cut}")


def document(store: KeyspaceStore, connection: str, prefix: str, limit: int) -> dict[str, Any]:
    """count: how many locks were found; cut: whether the server has keys that were not looked at."""
    (names, cut), now = held.find(store, prefix), store.now()
    locks = [facts_of(each, now) for each in held.read(store, names[:limit], now)]
    head = {"schema": 1, "read_at": output.iso(now), "connection": connection, "count": len(names), "cut": cut}
    return head | {"locks": locks}


def facts_of(each: Held, now: float) -> dict[str, Any]:
    facts = output.fields(each, "kind", "name", "waiting") | {"holder": holder(each)}
    facts["held_s"] = None if each.since is None else round(max(0.0, now - each.since), 1)
    return facts | {"left_s": None if each.until is None else round(max(0.0, each.until - now), 1)}


def holder(each: Held) -> str:
    return str(read_owner(each.owner)) if each.kind == "lock" else f"job {each.owner.partition(' ')[0]}"


@command.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="The lock's kind, if several have this name.")
@context.yes
@context.options
def release(name: str, kind: str | None, yes: bool) -> int:
    """Take a lock from its holder, who is not stopped.

    An app.lock goes to the first in line. A lock whose holder changes meanwhile stays. Exit 1: nobody holds it.
    """
    settings = context.settings()
    connection = context.place(settings)
    store = context.store(settings, connection)
    now, wanted = store.now(), [each for each in KINDS if kind in (None, each)]
    there = [*held.read(store, [(each, name) for each in wanted], now)]
    kinds, who = [*dict.fromkeys(each.kind for each in there)], ", ".join(map(holder, there))
    if len(kinds) > 1:
        raise context.Refused(f"{' and '.join(kinds)} are called {name}: give one of them as --kind")
    if there:
        context.confirm(yes, name, f"this takes {name} from {who}, which goes on: another may run beside it")
    freed = [each for each in there if each.free(store)]
    if freed:
        facts = {"lock": name, "kind": kinds[0], "holder": who, "connection": connection}
        context.record(settings, "locks release", facts)
    if context.given().json:
        released = [facts_of(each, now) for each in freed]
        output.document({"schema": 1, "name": name, "connection": connection, "released": released})
    elif freed:
        output.say(f"released {name}, which {who} held")
    else:
        output.note(f"{who} does not hold {name} any more" if there else f"nobody holds a lock called {name}")
    return int(not freed)
