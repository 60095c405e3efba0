"""A server: does it answer and how fast, is it a fit one for jobs, does it keep them.

May this user do what workers, keepers and commands do?

A database: are the tables there, does it keep what it was told, does it take a large job.

The sentinels of a connection: does each answer, do they agree, and what does a failover lose.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qd.cli.checks import Finding, fail, ok, warn
from qd.config.settings import ConnectionSettings
from qd.drivers.base import Connector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.redis import acl
from qd.drivers.redis.acl import Tries, name_of, of_key, refused
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.sentinel import Primary, shown
from qd.drivers.redis.url import reason
from qd.errors import ConfigError, ConnectionLost, NeedsMending, ServerRefused, WrongPassword
from qd.options.kinds import size_text
from qd.process.exit_codes import Exit
from qd.redaction import mask_url

if TYPE_CHECKING:
    from qd.drivers.database.connection import DatabaseConnection
    from qd.drivers.database.keyspace import DatabaseKeyspace


Facts = Mapping[str, str]
PINGS = 50
SLOW, JERKY = 0.005, 0.05  # seconds a ping takes at p50 and p99: a job costs one call at least
SKEW, FAR = 1.0, 60.0  # seconds between this clock and the server's
OLDEST = (6, 2)
FULL, NEARLY = 0.95, 0.8  # of maxmemory
IN_CONF = "and the same in redis.conf"

clock = time.time


def answers(space: Keyspace, where: str) -> Finding:
    """Whether it can be reached with this user and password. A fail: ask it nothing more. Raises what else only a person
    can mend."""
    what = f"{where}.answers"
    try:
        space.call("PING")
    except WrongPassword as error:
        if "NOPERM" not in str(error):
            return fail(what, error, "write the right user and password into the url", Exit.UNAVAILABLE)
    except (ConnectionLost, ServerRefused) as error:
        if isinstance(error, NeedsMending):
            raise
        if "MISCONF" not in str(error):  # the answer to PING, while it serves reads: written() reports it
            way = f"start it, or mend the url; `qd config show` tells where {where} points to"
            return fail(what, error, way, Exit.UNAVAILABLE)
    return ok(what, space.place)


def takes(queue: Connector, at: ConnectionSettings) -> Finding:
    """The same of a server that keeps jobs and nothing else. Raises what only a person can mend, but for this queue's."""
    what = f"{at.name}.answers"
    try:
        queue.sizes(at.queue)
    except ServerRefused:
        pass  # of this queue, and that is told with the others
    except ConnectionLost as error:
        if isinstance(error, NeedsMending):
            raise
        return fail(
            what,
            error,
            f"start it, or mend the url; `qd config show` tells where {at.name} points to",
            Exit.UNAVAILABLE,
        )
    return ok(what, mask_url(at.url or at.driver))


def wires_of(space: Keyspace, name: str) -> Iterator[tuple[str, RedisConnection]]:
    """The servers behind it, each with what its findings are called: the one, or all nodes of a cluster that have slots.
    None for what is no Redis."""
    if isinstance(space, RedisConnection):
        yield name, space
    elif hasattr(space, "nodes"):  # a cluster's, which is not imported where there is none
        yield from ((f"{name}.{node.place}", node.ready()) for node in space.nodes.primaries())


def check_redis(wire: RedisConnection, where: str, facts: Facts, *, clustered: bool = False) -> Iterator[Finding]:
    """`facts`: what INFO says, {} when this user may not ask. clustered: it is asked as a node of a cluster."""
    yield latency(wire, where)
    yield skew(wire, where)
    if wire.target.tls is not None and not wire.target.tls.check_hostname:
        options = "ssl_cert_reqs=none and ssl_check_hostname=false"
        way = f"name the authority with ssl_ca_certs=PATH, and remove {options} from the url"
        yield warn(f"{where}.tls", "its certificate is not checked: anybody on the way can read and change jobs", way)
    if not facts:
        way = "ACL SETUSER ... +info +config|get for it, or run qd doctor with an operator's url"
        yield warn(f"{where}.info", "this user may not ask INFO: version, role, memory, persistence unknown", way)
        return
    yield version(where, facts)
    yield role(where, facts, clustered=clustered)
    yield from memory(where, facts)
    yield from persistence(wire, where, facts)


def facts_of(wire: RedisConnection) -> Facts:
    """{}: it may not be asked."""
    (raw,) = wire.call_many([("INFO",)])
    if not isinstance(raw, bytes):
        return {}
    return dict(line.split(":", 1) for line in raw.decode("utf-8", "replace").splitlines() if ":" in line)


def configured(wire: RedisConnection, name: str) -> str | None:
    """A value of its configuration. None: it may not be asked, as with most providers."""
    (reply,) = wire.call_many([("CONFIG", "GET", name)])
    return reply[1].decode() if isinstance(reply, list) and len(reply) > 1 else None


def latency(space: Keyspace, where: str, pings: Callable[[Any], float] | None = None) -> Finding:
    times = sorted((pings or ping)(space) for _ in range(PINGS))
    p50, p99 = times[PINGS // 2], times[int(PINGS * 0.99)]
    said = f"{p50 * 1000:.2f} ms p50, {p99 * 1000:.2f} ms p99 of {PINGS} calls"
    if p50 > SLOW or p99 > JERKY:
        way = "run workers nearer to it; see what keeps it busy (SLOWLOG GET)"
        return warn(f"{where}.latency", f"{said}: a worker does at most {1 / max(p50, 1e-6):.0f} jobs a second", way)
    return ok(f"{where}.latency", said)


def ping(space: Keyspace) -> float:
    began = time.perf_counter()
    space.call("TIME")
    return time.perf_counter() - began


def skew(space: Keyspace, where: str) -> Finding:
    before = clock()
    seconds, micros = space.call("TIME")
    between = (before + clock()) / 2 - (int(seconds) + int(micros) / 1e6)
    said = f"this clock is {abs(between):.1f} s {'ahead of' if between > 0 else 'behind'} the server's"
    way = "let both follow a time server (timedatectl set-ntp true): retry_for and the age of jobs go by both"
    if abs(between) > SKEW:
        return (fail if abs(between) > FAR else warn)(f"{where}.clock", said, way)
    return ok(f"{where}.clock", f"within {SKEW:g} s of the server's")


def version(where: str, facts: Facts) -> Finding:
    name = "Valkey" if "valkey_version" in facts else "Redis"
    said = facts.get("valkey_version") or facts.get("redis_version", "?")
    parts = tuple(int(part) for part in said.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        return fail(f"{where}.version", f"{name} {said}", "at least Redis 6.2, or any Valkey")
    return ok(f"{where}.version", f"{name} {said}")


def role(where: str, facts: Facts, *, clustered: bool = False) -> Finding:
    what = f"{where}.role"
    if facts.get("cluster_enabled") == "1" and not clustered:
        way = "write redis+cluster:// in place of redis:// into the url"
        return fail(what, "a node of a cluster: it has some of the keys only", way)
    if facts.get("role") != "master":
        master = f"{facts.get('master_host', '?')}:{facts.get('master_port', '?')}"
        return fail(what, f"a replica of {master}: it takes no jobs (READONLY)", f"write redis://{master} into the url")
    return ok(what, "master")


def memory(where: str, facts: Facts) -> Iterator[Finding]:
    most, used = number(facts, "maxmemory"), number(facts, "used_memory")
    policy = facts.get("maxmemory_policy", "noeviction")
    yield eviction(f"{where}.eviction", policy, most)
    if not most:
        yield ok(f"{where}.memory", f"{used >> 20}M used, without a limit of its own")
        return
    said = f"{used / most:.0%} of {size_text(most)} used"
    way = "raise it (CONFIG SET maxmemory ...), or find what fills it (redis-cli --bigkeys, `qd status`)"
    if used > most * NEARLY:
        yield (fail if used > most * FULL else warn)(
            f"{where}.memory", f"{said}: when it is full no job can be sent", way
        )
    else:
        yield ok(f"{where}.memory", said)


def eviction(what: str, policy: str, most: int) -> Finding:
    if policy == "noeviction":
        return ok(what, policy)
    way = f"CONFIG SET maxmemory-policy noeviction, {IN_CONF}"
    if policy.startswith("volatile"):
        return warn(what, f"{policy}: when it is full, pauses with --for and notes of crashes are thrown away", way)
    if not most:
        return warn(what, f"{policy}: with a maxmemory, jobs would be thrown away", way)
    return fail(what, f"{policy}: when it is full, jobs are thrown away", way)


def persistence(wire: RedisConnection, where: str, facts: Facts) -> Iterator[Finding]:
    what, way = f"{where}.persistence", f"CONFIG SET appendonly yes, {IN_CONF}"
    if facts.get("aof_enabled") == "1":
        yield appended(wire, what, facts)
        return
    saves = configured(wire, "save")
    if saves is None:
        yield warn(
            what, "no append-only file; whether it saves snapshots may not be asked", "see what the provider says"
        )
    elif not saves:
        yield warn(what, "neither append-only file nor snapshots: every job is lost when it restarts", way)
    elif facts.get("rdb_last_bgsave_status", "ok") != "ok":
        yield fail(
            what, "the last snapshot failed: it takes no jobs any more (MISCONF)", "see its log; is the disk full?"
        )
    else:
        yield warn(what, f"snapshots only (save {saves}): the jobs since the last one are lost when it crashes", way)


def appended(wire: RedisConnection, what: str, facts: Facts) -> Finding:
    if facts.get("aof_last_write_status", "ok") != "ok":
        return fail(what, "its append-only file cannot be written: it takes no jobs (MISCONF)", "is the disk full?")
    each = configured(wire, "appendfsync")
    if each == "no":
        way = f"CONFIG SET appendfsync everysec, {IN_CONF}"
        return warn(what, "append-only file, appendfsync no: a power cut loses half a minute of jobs", way)
    return ok(what, f"append-only file, appendfsync {each or 'unknown'}")


def number(facts: Facts, name: str) -> int:
    said: Any = facts.get(name, "0")
    return int(said) if said.isdigit() else 0


HINT = "SECURITY.md has the rights that each kind of process needs"


def check(wire: RedisConnection, where: str, prefix: str, queues: Sequence[str]) -> Iterator[Finding]:
    """`queues`: those that are worked on. Nothing that is written for it stays."""
    user = name_of(wire)
    what = f"{where}.rights"
    missing = sorted(acl.missing(wire, prefix, queues[0] if queues else "default"))
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


# What workers need, of the kinds of server that have users; docs/database.md has the statements.
GRANTS = {
    "postgresql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, qd_reserved, qd_names, "
    "qd_items; GRANT USAGE ON SEQUENCE {table}_id_seq",
    "mysql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, on qd_reserved, on qd_names "
    "and on qd_items; GRANT SELECT, UPDATE ON qd_locks",
}
LARGE = 16 << 20  # bytes that one statement should take: a failed job goes with its payload and its traceback


def tables(space: DatabaseKeyspace, at: ConnectionSettings) -> Iterator[Finding]:
    """Nothing where it does not answer: that is told by another. A fail: ask it nothing more."""
    from qd.drivers.database.migrations import check  # loaded with the connection

    try:
        check(space.connection, at.table)
    except ConfigError as error:
        yield fail(f"{at.name}.tables", error, "qd migrate", Exit.CONFIG)
    except ConnectionLost:
        return
    else:
        yield ok(f"{at.name}.tables", f"qd's and '{at.table}' are there")
        if space.connection.kind != "sqlite":
            yield rights(space.connection, at)


def rights(link: DatabaseConnection, at: ConnectionSettings) -> Finding:
    from qd.drivers.database.migrations import check_rights

    try:
        check_rights(link, at.table)
    except NeedsMending as error:
        return fail(f"{at.name}.rights", error, GRANTS[link.kind].format(table=at.table), Exit.CONFIG)
    return ok(f"{at.name}.rights", "its user may do all that workers do")


def check_server(space: DatabaseKeyspace, where: str) -> Iterator[Finding]:
    yield latency(space, where)
    if space.connection.kind != "sqlite":  # its clock is this one
        yield skew(space, where)
    yield KINDS[space.connection.kind](space.connection, f"{where}.persistence")
    if space.connection.kind == "mysql":
        yield packet(space.connection, f"{where}.packet")


def postgres(link: DatabaseConnection, what: str) -> Finding:
    for name in ("fsync", "synchronous_commit"):
        if said(link, f"SHOW {name}") == "off":
            return warn(
                what, f"{name} is off: a crash of its host loses the last jobs", f"ALTER SYSTEM SET {name} = on"
            )
    return ok(what, "each commit is on disk")


def mysql(link: DatabaseConnection, what: str) -> Finding:
    found = said(link, "SELECT @@innodb_flush_log_at_trx_commit")
    if found != "1":
        way = "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in its configuration"
        return warn(what, f"innodb_flush_log_at_trx_commit is {found}: a crash of its host loses a second of jobs", way)
    return ok(what, "each commit is on disk")


def sqlite(link: DatabaseConnection, what: str) -> Finding:
    found = said(link, "PRAGMA journal_mode")
    if found != "wal":
        way = "keep the file on a disk of this host: on a network's the journal in WAL cannot be had"
        return warn(what, f"its journal is '{found}': who reads and who writes wait for each other", way)
    return ok(what, "a journal in WAL")


def packet(link: DatabaseConnection, what: str) -> Finding:
    most = int(said(link, "SELECT @@max_allowed_packet"))
    if most < LARGE:
        way = f"SET GLOBAL max_allowed_packet = {LARGE}, and the same in its configuration"
        return warn(what, f"max_allowed_packet is {size_text(most)}: a larger job is refused, or cannot be buried", way)
    return ok(what, f"jobs of up to {size_text(most)}")


def said(link: DatabaseConnection, statement: str) -> str:
    return str(link.query(statement).scalar())


KINDS = {"postgresql": postgres, "mysql": mysql, "sqlite": sqlite}


PATIENCE = 1.0  # seconds that each of them may take
FEWEST = 3  # with which one may be lost, and the others still agree


def check_sentinels(wire: RedisConnection, where: str) -> Iterator[Finding]:
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
