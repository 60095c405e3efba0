"""`qd locks [PREFIX]`: locks and limits with their holders. `qd locks release NAME`: takes one from its holder.

    kind       made by              key                held by
    lock       app.lock             qd:mutex:{NAME}    a process: host/pid/id
    limit      ConcurrencyLimit     qd:slots:NAME      a job in each place: its uuid
    overlap    WithoutOverlapping   qd:lock:NAME       a job: its uuid
    unique     unique=              qd:unique:NAME     the job that waits or runs: its uuid (and id)

Names are found by SCAN, among at most MOST keys for each kind; a lock whose whole name is given is always found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from qd.cli import context, output
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg
from qd.locks.lease import read_owner
from qd.store.base import KeyspaceStore, fields_of
from qd.store.locks import Lease, Mutex, Places

KINDS = {"lock": keys.mutex, "limit": keys.slots, "overlap": keys.lock, "unique": keys.unique}
FACTS = ("kind", "name", "holder", "waiting", "held_s", "left_s")
MOST = 10_000  # keys that are scanned for each kind


class Held(NamedTuple):
    """owner: as stored, by which `free` knows that it has not changed. attempt: of the job that holds a place. waiting: how
    many are in line. held_s: seconds, None: unknown. left_s: seconds, None: it does not expire."""

    kind: str
    name: str
    owner: str
    attempt: str = ""
    waiting: int = 0
    held_s: float | None = None
    left_s: float | None = None

    @property
    def holder(self) -> str:
        return str(read_owner(self.owner)) if self.kind == "lock" else f"job {self.owner.partition(' ')[0]}"

    def free(self, store: KeyspaceStore) -> bool:
        """Free it, or hand it to the first in line. False: its owner no longer holds it."""
        if self.kind == "lock":
            return Mutex(self.name, self.owner).give(store)
        if self.kind == "unique":
            return Lease(keys.unique(self.name), self.owner, 1.0).free(store)
        return Places(KINDS[self.kind](self.name), 1, 1.0).free(store, self.owner, self.attempt)


class Locks(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`qd locks report` is `qd locks list report`."""
        return super().parse_args(ctx, args if {*args[:1]} & {*self.commands, "-h", "--help"} else ["list", *args])


@click.group("locks", cls=Locks)
def command() -> None:
    """Show who holds which lock or limit, and free one."""


@command.command("list")
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Show N names.")
@context.options
def list_(prefix: str, limit: int) -> None:
    """Show who holds which lock or limit.

    PREFIX: only those whose names begin like this. Scans at most 10,000 keys for each kind.
    """
    found = document(*context.opened(looks=True)[1:], prefix, limit)
    if context.given().json:
        return output.document(found)
    if found["locks"]:
        rows = [[*(row := list(each.values()))[:4], *map(output.duration, row[4:])] for each in found["locks"]]
        output.table(("kind", "name", "held by", "waiting", "for", "expires in"), rows, right=("waiting",))
    output.shown(min(limit, found["count"]), found["count"], "locks", MOST * found["cut"])


def document(connection: str, store: KeyspaceStore, prefix: str, limit: int) -> dict[str, Any]:
    """count: how many names were found; cut: whether the server has keys that were not looked at."""
    names, cut, now = list[tuple[str, str]](), False, store.now()
    for kind, key in KINDS.items():
        before, end = key("\0").split("\0")
        found, more = store.scan(before + prefix, MOST)
        cut = cut or more
        if more and prefix and store.space.call("EXISTS", store.prefix + key(prefix)):
            found.append(key(prefix))
        names += sorted((kind, name[len(before) : len(name) - len(end)]) for name in {*found} if name.endswith(end))
    locks = [output.fields(each, *FACTS) for each in read(store, names[:limit], now)]
    head = {"schema": 1, "read_at": output.iso(now), "connection": connection, "count": len(names), "cut": cut}
    return head | {"locks": locks}


def read(store: KeyspaceStore, names: Sequence[tuple[str, str]], now: float) -> Iterator[Held]:
    """The holders of these; those that nobody holds are left out."""
    commands = list[tuple[Arg, ...]]()
    for kind, name in names:
        key, fence, line = (store.prefix + of(name) for of in (KINDS[kind], keys.fence, keys.line))
        commands += [("HGETALL" if kind in ("limit", "overlap") else "GET", key), ("PTTL", key)]
        commands += [("GET", fence), ("ZCARD", line)] if kind == "lock" else []
    replies = iter(store.space.call_many(commands) if commands else ())
    for kind, name in names:
        value, left = next(replies), next(replies)
        token, waiting = (next(replies), next(replies)) if kind == "lock" else (None, 0)
        if isinstance(value, bytes):
            # The fencing token of an app.lock is the time at which it was taken, in microseconds.
            held = round(max(0.0, now - int(token) / 1e6), 3) if isinstance(token, bytes) and token.isdigit() else None
            owner, left_s = str(value, "utf-8", "replace"), left / 1000 if left >= 0 else None
            yield Held(kind, name, owner, "", waiting, held, left_s)
        elif isinstance(value, list):  # else it was freed meanwhile, or the key is of another type
            for owner, place in fields_of(value).items():
                until, _, attempt = str(place, "utf-8", "replace").partition(" ")
                if until.isdecimal() and (left_s := round(int(until) / 1000 - now, 3)) > 0:
                    yield Held(kind, name, owner, attempt, left_s=left_s)


@command.command()
@click.argument("name")
@click.option("--kind", type=click.Choice([*KINDS]), help="The lock's kind, if several have this name.")
@context.yes
@context.options
def release(name: str, kind: str | None, yes: bool) -> int:
    """Release a lock by force; its holder is not stopped.

    An app.lock goes to the first in line. A lock whose holder changes meanwhile stays. Exit 1: it is not held.
    """
    settings, connection, store = context.opened()
    there = [*read(store, [(each, name) for each in KINDS if kind in (None, each)], store.now())]
    kinds, who = [*dict.fromkeys(each.kind for each in there)], ", ".join(each.holder for each in there)
    if len(kinds) > 1:
        raise context.Refused(f"{' and '.join(kinds)} are called {name}: give one of them as --kind")
    if there:
        context.confirm(yes, name, f"this takes {name} from {who}, which goes on: another may run beside it")
    freed = [each for each in there if each.free(store)]
    if freed:
        facts = {"lock": name, "kind": kinds[0], "holder": who, "connection": connection}
        context.record(settings, "locks release", facts)
    if context.given().json:
        released = [output.fields(each, *FACTS) for each in freed]
        output.document({"schema": 1, "name": name, "connection": connection, "released": released})
    elif freed:
        output.say(f"released {name}, which {who} held")
    else:
        output.note(f"{who} does not hold {name} any more" if there else f"no lock called {name} is held")
    return int(not freed)
