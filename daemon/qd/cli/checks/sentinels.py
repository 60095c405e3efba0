"""The sentinels of a connection: does each answer, do they agree, and what does a failover lose."""

from __future__ import annotations

from collections.abc import Iterator

from qd.cli.checks.finding import Finding, ok, warn
from qd.cli.checks.server import configured
from qd.connectors.redis.sentinels import Primary, shown
from qd.connectors.redis.target import reason
from qd.connectors.redis.wire import Wire
from qd.errors import ConnectionLost

PATIENCE = 1.0  # seconds that each of them may take
FEWEST = 3  # with which one may be lost, and the others still agree


def check(wire: Wire, where: str) -> Iterator[Finding]:
    """Nothing for a connection that asks none."""
    target = wire.target
    if not isinstance(target, Primary):
        return
    said = {shown(each): told_by(target, each) for each in target.sentinels}
    here = f"{target.host}:{target.port}"
    wrong = [f"{name} {told}" for name, told in said.items() if told != here]
    if wrong:
        way = "start it, or take it out of the url; `SENTINEL RESET` where it names a server that is long gone"
        yield warn(f"{where}.sentinels", f"the primary is {here}, and {'; '.join(wrong)}", way)
    elif len(said) < FEWEST:
        way = "name all of them in the url; with less than three none may be lost"
        yield warn(f"{where}.sentinels", f"{len(said)} in the url, all name {here}", way)
    else:
        yield ok(f"{where}.sentinels", f"all {len(said)} name {here}")
    if configured(wire, "min-replicas-to-write") == "0":
        way = "min-replicas-to-write 1 and min-replicas-max-lag 10 in redis.conf, on all of them"
        yield warn(f"{where}.replicas", "a primary that was cut off goes on taking jobs, which a failover loses", way)


def told_by(target: Primary, sentinel: tuple[str, int]) -> str:
    """What it names, or why it does not."""
    try:
        host, port = target.told_by(sentinel, PATIENCE)
    except OSError as error:
        return reason(error)
    except ConnectionLost as error:
        return str(error)
    return f"{host}:{port}"
