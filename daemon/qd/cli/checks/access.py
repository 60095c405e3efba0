"""May this user do what workers, keepers and commands do?"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.connectors.keyspace import keys
from qd.connectors.redis import rights
from qd.connectors.redis.rights import Tries, name_of, of_key, refused
from qd.connectors.redis.wire import Wire

HINT = "SECURITY.md has the rights that each kind of process needs"


def check(wire: Wire, where: str, prefix: str, queues: Sequence[str]) -> Iterator[Finding]:
    """`queues`: those that are worked on. Nothing that is written for it stays."""
    user = name_of(wire)
    what = f"{where}.rights"
    missing = sorted(rights.missing(wire, prefix, queues[0] if queues else "default"))
    closed = [name for name in key_names(prefix, queues) if of_key(wire.call_many([("EXISTS", name)])[0])]
    if closed:
        said = f"user {user} may not touch {', '.join(closed[:3])}"
        yield fail(what, said, f"ACL SETUSER {user} ~{prefix}queues:* ~{prefix}qd:*; {HINT}")
    elif missing:
        said = f"user {user} may not {', '.join(word.upper() for word in missing)}: workers cannot work"
        yield fail(what, said, f"ACL SETUSER {user} {' '.join('+' + word for word in missing)}; {HINT}")
    else:
        yield ok(what, f"user {user} may do all that workers do")
    lacks = sorted(refused(wire, steer_tries(prefix)) - set(missing))
    if lacks and not missing:
        said = f"user {user} may not {', '.join(word.upper() for word in lacks)}: `qd restart` and its sisters fail"
        yield warn(
            what, said, f"give commands another url, or ACL SETUSER {user} {' '.join('+' + word for word in lacks)}"
        )


def key_names(prefix: str, queues: Sequence[str]) -> list[str]:
    kinds = [keys.ready, keys.delayed, keys.reserved, keys.notify, keys.owners]
    kinds += [keys.paused, keys.failed, keys.failed_at, keys.deaths]
    names = [kind(queue) for queue in queues for kind in kinds] + [keys.MASTERS, keys.RESTART, keys.DOWN]
    return [prefix + name for name in names]


def steer_tries(prefix: str) -> Tries:
    """What the commands call beside that."""
    scratch = f"{prefix}{keys.MASTERS}:doctor-{secrets.token_hex(4)}"
    return [
        ("SET", scratch, "1", "PX", 1),
        ("DEL", scratch),
        ("UNLINK", scratch),
        ("MGET", scratch),
        ("SCAN", 0),
        ("MULTI",),
        ("EXEC",),
    ]
