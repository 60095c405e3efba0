"""Servers: is a Redis or a database reachable, fast, suited for jobs and durable; may its user do what qd does; do the
sentinels agree.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

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
SLOW, JERKY = 0.005, 0.05  # seconds of a ping at p50 and p99; each job costs at least one call
SKEW, FAR = 1.0, 60.0  # seconds between this clock and the server's
OLDEST = (6, 2)
STEP = 1000  # names that a server scans in one call
FULL, NEARLY = 0.95, 0.8  # of maxmemory
LARGE = 16 << 20  # bytes that one statement should take: a failed job is stored with payload and traceback
SENTINEL_PATIENCE = 1.0  # seconds each sentinel may take
FEWEST = 3  # sentinels: one may be lost, and the others still agree
QUEUE_KEYS = (
    keys.ready, keys.delayed, keys.reserved, keys.notify, keys.owners, keys.paused, keys.failed, keys.failed_at, keys.deaths,
    keys.suspects,
)  # fmt: skip
IN_CONF = "and the same in redis.conf"
IF_WORKERS = ": if workers use this user, they cannot work"
AS_WORKER = "run qd doctor as the user of the workers; if this is it:"
HINT = "`qd help acl` lists the rights that each kind of process needs"

clock = time.time


def answers(space: Keyspace, where: str) -> Finding:
    """Whether it can be reached with this user and password. After a fail do not query it. Raises other errors that need
    an operator."""
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
            return fail(what, error, reach(where, error), Exit.UNAVAILABLE)
    return ok(what, space.place)


def takes(queue: Connector, at: ConnectionSettings) -> Finding:
    """As `answers`, for a server that only keeps jobs. Errors of a single queue are reported elsewhere."""
    what = f"{at.name}.answers"
    try:
        queue.sizes(at.queue)
    except ServerRefused:
        pass  # reported with the queues
    except ConnectionLost as error:
        if isinstance(error, NeedsMending):
            raise
        return fail(what, error, reach(at.name, error), Exit.UNAVAILABLE)
    return ok(what, mask_url(at.url or at.driver))


def reach(where: str, error: Exception) -> str:
    """What to do about a failed first call. A connect that timed out says "does not answer" instead of "broke"."""
    if "broke: no answer in time" in str(error):
        see = "`redis-cli --latency`, `redis-cli slowlog get` and" if "Redis at" in str(error) else "its log and"
        fact = "it accepts connections and does not answer: it hangs, swaps, or runs a slow command"
        return f"{fact}; see {see} the memory of its host"
    return f"start it, or fix the url; `qd config show` shows where {where} points to"


def redis_connections(space: Keyspace, name: str) -> Iterator[tuple[str, RedisConnection]]:
    """Its Redis servers, each with a name for its findings: one, or all nodes of a cluster that have slots. None for other
    drivers."""
    if isinstance(space, RedisConnection):
        yield name, space
    elif hasattr(space, "nodes"):  # a cluster; its module is only imported where it is used
        yield from ((f"{name}.{node.place}", node.ready()) for node in space.nodes.primaries())


def check_redis(connection: RedisConnection, where: str, facts: Facts, *, clustered: bool = False) -> Iterator[Finding]:
    """`facts`: the reply of INFO, {} if this user may not call it. clustered: it was reached as a node of a cluster."""
    yield latency(connection, where)
    yield skew(connection, where)
    if connection.target.tls is not None and not connection.target.tls.check_hostname:
        options = "ssl_cert_reqs=none and ssl_check_hostname=false"
        way = f"name the authority with ssl_ca_certs=PATH, and remove {options} from the url"
        yield warn(f"{where}.tls", "its certificate is not checked: a man in the middle can read and change jobs", way)
    if not facts:
        fact = "this user may not call INFO, and workers need not: version, role, memory, persistence unknown"
        yield warn(f"{where}.info", fact, "ACL SETUSER ... +info +config|get for it, or look at them as an admin")
        return
    yield version(where, facts)
    yield role(where, facts, clustered=clustered)
    yield from memory(where, facts)
    yield from persistence(connection, where, facts)


def facts_of(connection: RedisConnection) -> Facts:
    """{} if this user may not call INFO."""
    (raw,) = connection.call_many([("INFO",)])
    if not isinstance(raw, bytes):
        return {}
    return dict(line.split(":", 1) for line in raw.decode("utf-8", "replace").splitlines() if ":" in line)


def configured(connection: RedisConnection, name: str) -> str | None:
    """A value of its configuration. None if CONFIG is not allowed, as with most providers."""
    (reply,) = connection.call_many([("CONFIG", "GET", name)])
    return reply[1].decode() if isinstance(reply, list) and len(reply) > 1 else None


def latency(space: Keyspace, where: str) -> Finding:
    times = sorted(ping(space) for _ in range(PINGS))
    p50, p99 = times[PINGS // 2], times[int(PINGS * 0.99)]
    text = f"{p50 * 1000:.2f} ms p50, {p99 * 1000:.2f} ms p99 of {PINGS} calls"
    if p50 > SLOW or p99 > JERKY:
        way = "run workers nearer to it; see what keeps it busy (SLOWLOG GET)"
        return warn(f"{where}.latency", f"{text}: a worker does at most {1 / max(p50, 1e-6):.0f} jobs a second", way)
    return ok(f"{where}.latency", text)


def ping(space: Keyspace) -> float:
    began = time.perf_counter()
    space.call("TIME")
    return time.perf_counter() - began


def skew(space: Keyspace, where: str) -> Finding:
    before = clock()
    seconds, micros = space.call("TIME")
    between = (before + clock()) / 2 - (int(seconds) + int(micros) / 1e6)
    text = f"this clock is {abs(between):.1f} s {'ahead of' if between > 0 else 'behind'} the server's"
    way = "synchronize both clocks (timedatectl set-ntp true): retry_for and job ages depend on them"
    if abs(between) > SKEW:
        return (fail if abs(between) > FAR else warn)(f"{where}.clock", text, way)
    return ok(f"{where}.clock", f"within {SKEW:g} s of the server's")


def version(where: str, facts: Facts) -> Finding:
    name = "Valkey" if "valkey_version" in facts else "Redis"
    text = facts.get("valkey_version") or facts.get("redis_version", "?")
    old = tuple(int(part) for part in text.split(".")[:2] if part.isdigit()) < OLDEST
    what, value = f"{where}.version", f"{name} {text}"
    return fail(what, value, "use Redis 6.2 or later, or any Valkey") if old else ok(what, value)


def role(where: str, facts: Facts, *, clustered: bool = False) -> Finding:
    what = f"{where}.role"
    if facts.get("cluster_enabled") == "1" and not clustered:
        way = "write redis+cluster:// instead of redis:// in the url"
        return fail(what, "a node of a cluster: it has only some of the keys", way)
    if facts.get("role") != "master":
        master = f"{facts.get('master_host', '?')}:{facts.get('master_port', '?')}"
        return fail(what, f"a replica of {master}: it takes no jobs (READONLY)", f"write redis://{master} in the url")
    return ok(what, "master")


def memory(where: str, facts: Facts) -> Iterator[Finding]:
    most, used = number(facts, "maxmemory"), number(facts, "used_memory")
    policy = facts.get("maxmemory_policy", "noeviction")
    yield eviction(f"{where}.eviction", policy, most)
    if not most:
        yield ok(f"{where}.memory", f"{used >> 20}M used, without a limit of its own")
        return
    text = f"{used / most:.0%} of {size_text(most)} used"
    way = "raise it (CONFIG SET maxmemory ...), or find what fills it (redis-cli --bigkeys, `qd status`)"
    if used > most * NEARLY:
        grade = fail if used > most * FULL else warn
        yield grade(f"{where}.memory", f"{text}: when it is full no job can be sent", way)
    else:
        yield ok(f"{where}.memory", text)


def eviction(what: str, policy: str, most: int) -> Finding:
    if policy == "noeviction":
        return ok(what, policy)
    way = f"CONFIG SET maxmemory-policy noeviction, {IN_CONF}"
    if policy.startswith("volatile"):
        return warn(what, f"{policy}: when it is full, pauses with --for and crash counts are thrown away", way)
    if not most:
        return warn(what, f"{policy}: with a maxmemory, jobs would be thrown away", way)
    return fail(what, f"{policy}: when it is full, jobs are thrown away", way)


def persistence(connection: RedisConnection, where: str, facts: Facts) -> Iterator[Finding]:
    what, way = f"{where}.persistence", f"CONFIG SET appendonly yes, {IN_CONF}"
    if facts.get("aof_enabled") == "1":
        yield appended(connection, what, facts)
        return
    saves = configured(connection, "save")
    if saves is None:
        yield warn(what, "no append-only file; snapshots unknown (CONFIG is not allowed)", "ask the provider")
    elif not saves:
        yield warn(what, "neither append-only file nor snapshots: every job is lost when it restarts", way)
    elif facts.get("rdb_last_bgsave_status", "ok") != "ok":
        yield fail(what, "the last snapshot failed: it takes no more jobs (MISCONF)", "see its log; is the disk full?")
    else:
        yield warn(what, f"snapshots only (save {saves}): the jobs since the last one are lost when it crashes", way)


def appended(connection: RedisConnection, what: str, facts: Facts) -> Finding:
    if facts.get("aof_last_write_status", "ok") != "ok":
        return fail(what, "its append-only file cannot be written: it takes no jobs (MISCONF)", "is the disk full?")
    each = configured(connection, "appendfsync")
    if each == "no":
        way = f"CONFIG SET appendfsync everysec, {IN_CONF}"
        return warn(what, "append-only file, appendfsync no: a power cut loses half a minute of jobs", way)
    return ok(what, f"append-only file, appendfsync {each or 'unknown'}")


def number(facts: Facts, name: str) -> int:
    text = facts.get(name, "0")
    return int(text) if text.isdigit() else 0


def check_rights(connection: RedisConnection, where: str, prefix: str, queues: Sequence[str]) -> Iterator[Finding]:
    """`queues`: those that are worked on. Leaves nothing behind."""
    user = name_of(connection)
    what = f"{where}.rights"
    missing = sorted(acl.missing(connection, prefix, queues[0] if queues else "default"))
    names = [kind(queue) for queue in queues for kind in QUEUE_KEYS] + [keys.MASTERS, keys.RESTART, keys.DOWN]
    closed = [prefix + name for name in names if of_key(connection.call_many([("EXISTS", prefix + name)])[0])]
    if closed:
        text = f"user {user} may not touch {', '.join(closed[:3])}"
        yield fail(what, text + IF_WORKERS, f"{AS_WORKER} ACL SETUSER {user} ~{prefix}queues:* ~{prefix}qd:*; {HINT}")
    elif missing:
        text = f"user {user} may not {', '.join(word.upper() for word in missing)}"
        words = " ".join("+" + word for word in missing)
        yield fail(what, text + IF_WORKERS, f"{AS_WORKER} ACL SETUSER {user} {words}; {HINT}")
    else:
        yield ok(what, f"user {user} has all rights that workers need")
    scratch = f"{prefix}{keys.MASTERS}:doctor-{secrets.token_hex(4)}"
    others: Tries = [(name, scratch) for name in ("DEL", "UNLINK", "MGET")]
    operators: Tries = [("SET", scratch, "1", "PX", 1), *others, ("SCAN", 0)]
    lacks = sorted(refused(connection, operators) - set(missing))
    if lacks and not missing:
        words = ", ".join(word.upper() for word in lacks)
        text = f"user {user} may not {words}: `qd restart` and similar commands fail"
        way = f"give commands another url, or ACL SETUSER {user} {' '.join('+' + word for word in lacks)}"
        yield warn(what, text, way)


SCANNED = 100_000  # keys of a server that are looked at for other prefixes


def prefixes(space: Keyspace, part: str) -> dict[str, set[str]]:
    """Prefix -> names, of keys PREFIX + `part` + NAME. {} if this user may not SCAN."""
    found, cursor = dict[str, set[str]](), b"0"
    try:
        for _ in range(0, SCANNED, STEP):
            cursor, raws = space.call("SCAN", cursor, "MATCH", f"*{part}*", "COUNT", STEP)
            for prefix, _, name in (raw.decode("utf-8", "replace").partition(part) for raw in raws):
                found.setdefault(prefix, set()).add(name)
            if cursor == b"0":
                break
    except (ServerRefused, WrongPassword):  # NOPERM
        return {}
    return found


def check_prefix(space: RedisConnection, name: str, prefix: str, queues: Sequence[str]) -> Iterator[Finding]:
    """Queues of a Laravel that writes another prefix: they have a name that is served here, or there are no others. A prefix
    with masters belongs to another qd, or, if nothing is under this one, may be the right one."""
    found = {other: bodies for other, bodies in prefixes(space, "queues:").items() if not other.endswith("illuminate:")}
    ours = {body.partition(":")[0] for body in found.pop(prefix, ())}
    if not ours and space.call_many([("EXISTS", prefix + keys.MASTERS)]) == [0]:
        of_qd = sorted(prefixes(space, keys.MASTERS))
        others = list(dict.fromkeys([*of_qd, *sorted(found)]))
        if near := next(iter(close(prefix, others)), "") if prefix else "":
            fact = f"no queue has the prefix '{prefix}', and there are keys of qd with '{near}'"
            way = f'if it is misspelled, write prefix = "{near}" below [connections.{name}]'
            yield warn(f"{name}.prefix", fact, way)
            return
        if of_qd or len(others) > 1:
            some = ", ".join(f"'{other}'" for other in others[:3]) + (", ..." if len(others) > 3 else "")
            fact = f"no queue and no master has the prefix '{prefix}', and others have {some}"
            yield warn(
                f"{name}.prefix", fact, f"if one of them is yours, write it as prefix below [connections.{name}]"
            )
            return
    for other, bodies in sorted(found.items()):
        there = sorted({body.partition(":")[0] for body in bodies})
        (masters,) = space.call_many([("EXISTS", other + keys.MASTERS)])
        if masters != 0:  # or not allowed
            continue
        if not ours or not ours.isdisjoint(there) or not set(queues).isdisjoint(there):
            shown = ", ".join(there[:3]) + (", ..." if len(there) > 3 else "")
            fact = f"there are queues with the prefix '{other}' ({shown}), and qd reads those with '{prefix}'"
            way = f'if Laravel sends jobs to them for qd, write prefix = "{other}" below [connections.{name}]'
            yield warn(f"{name}.prefix", fact, way)


def close(word: str, others: Sequence[str]) -> list[str]:
    return get_close_matches(word, others, n=1, cutoff=0.8)


def check_database(
    space: RedisConnection, name: str, prefix: str, queues: Sequence[str], facts: Facts
) -> Iterator[Finding]:
    """A url with the wrong number: nothing of qd is here, and another database has masters or jobs of these queues."""
    own = space.target.db
    names = [prefix + key for key in (keys.MASTERS, *(kind(each) for each in queues for kind in QUEUE_KEYS[:3]))]
    exist: Tries = [("EXISTS", *names)]
    others = [int(fact[2:]) for fact in facts if re.fullmatch(r"db\d+", fact) and int(fact[2:]) != own]
    if not others or space.call_many(exist) != [0]:
        return
    steps: Tries = [step for other in others for step in (("SELECT", other), *exist)]
    replies = space.call_many([*steps, ("SELECT", own)])
    there = [other for other, reply in zip(others, replies[1::2], strict=False) if isinstance(reply, int) and reply]
    if there:
        one = len(there) == 1
        which = (
            f"database{'' if one else 's'} {' and '.join(map(str, there))} of this server {'has' if one else 'have'}"
        )
        fact = f"database {own} has neither masters nor jobs of these queues, and {which}"
        yield warn(
            f"{name}.database", fact, f"if the number is wrong, end the url of [connections.{name}] in /{there[0]}"
        )


def check_cache_prefix(space: Keyspace, prefix: str) -> Finding:
    """Whether Laravel's cache has its keys under this prefix."""
    what, found = "laravel.cache_prefix", prefixes(space, "illuminate:")
    if prefix in found:
        return ok(what, f"Laravel's keys have the prefix '{prefix}'")
    if not found:
        return ok(what, "no key of Laravel is there yet; `php artisan queue:restart` writes one")
    others = " and ".join(f"'{other}'" for other in sorted(found)[:3])
    way = f'write cache_prefix = "{min(found)}" below [laravel]'
    return warn(
        what, f"Laravel's keys have the prefix {others}, and qd reads '{prefix}': it sees no restart or pause", way
    )


def check_failed_jobs(url: str) -> Finding:
    """Laravel's table of failed jobs. Changes nothing."""
    from qd.store.failed_jobs_table import DatabaseError, FailedJobs  # needs SQLAlchemy

    what = "failed.database"
    try:
        FailedJobs(url).check()
    except ConfigError as error:
        fact, pip, libraries = str(error).partition(": pip install ")
        return fail(what, fact, f"pip install {libraries}" if pip else "correct database below [failed]", Exit.CONFIG)
    except DatabaseError as error:
        return fail(what, f"failed jobs are not copied: {error.fact}", error.fix)
    return ok(what, f"the table failed_jobs is there: {mask_url(url)}")


# What workers need, for servers that have users; docs/reference/drivers/database.md has the statements.
GRANTS = {
    "postgresql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, qd_reserved, qd_names, "
    "qd_items; GRANT USAGE ON SEQUENCE {table}_id_seq",
    "mysql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, on qd_reserved, on qd_names "
    "and on qd_items; GRANT SELECT, UPDATE ON qd_locks",
}


def tables(space: DatabaseKeyspace, at: ConnectionSettings) -> Iterator[Finding]:
    """Nothing if it does not answer, which is reported elsewhere. After a fail do not query it."""
    from qd.drivers.database.dialects import ForeignTable
    from qd.drivers.database.schema import check, check_rights  # loaded with the connection

    try:
        check(space.connection, at.table)
    except ConfigError as error:
        yield fail(f"{at.name}.tables", str(error).removesuffix(": run `qd migrate`"), "qd migrate", Exit.CONFIG)
    except ForeignTable as error:
        yield fail(f"{at.name}.tables", error, "`qd work` exits with 78 until then", Exit.CONFIG)
    except ConnectionLost:
        return
    else:
        yield ok(f"{at.name}.tables", f"qd's tables and '{at.table}' exist")
        if space.connection.kind == "sqlite":
            return
        try:
            check_rights(space.connection, at.table)
            yield ok(f"{at.name}.rights", "its user has all rights that workers need")
        except NeedsMending as error:
            yield fail(f"{at.name}.rights", error, GRANTS[space.connection.kind].format(table=at.table), Exit.CONFIG)


def check_server(space: DatabaseKeyspace, where: str) -> Iterator[Finding]:
    link = space.connection
    yield latency(space, where)
    if link.kind != "sqlite":  # its clock is this one
        yield skew(space, where)
    yield durability(link, f"{where}.persistence")
    if link.kind == "mysql":
        most = int(query(link, "SELECT @@max_allowed_packet"))
        if most < LARGE:
            way = f"SET GLOBAL max_allowed_packet = {LARGE}, and the same in its configuration"
            fact = f"max_allowed_packet is {size_text(most)}: larger jobs are refused, or cannot be kept"
            yield warn(f"{where}.packet", fact, way)
        else:
            yield ok(f"{where}.packet", f"jobs of up to {size_text(most)}")


def durability(link: DatabaseConnection, what: str) -> Finding:
    if link.kind == "sqlite":
        if (journal := query(link, "PRAGMA journal_mode")) == "wal":
            return ok(what, "journal_mode is wal")
        way = "keep the file on a local disk: network file systems do not support WAL"
        return warn(what, f"its journal is '{journal}': readers and writers wait for each other", way)
    for name in ("fsync", "synchronous_commit") if link.kind == "postgresql" else ():
        if query(link, f"SHOW {name}") == "off":
            way = f"ALTER SYSTEM SET {name} = on"
            return warn(what, f"{name} is off: a crash of its host loses the last jobs", way)
    name = "innodb_flush_log_at_trx_commit"
    if link.kind == "mysql" and (value := query(link, f"SELECT @@{name}")) != "1":
        way = f"SET GLOBAL {name} = 1, and the same in its configuration"
        return warn(what, f"{name} is {value}: a crash of its host loses a second of jobs", way)
    return ok(what, "each commit is on disk")


def query(link: DatabaseConnection, statement: str) -> str:
    return str(link.query(statement).scalar())


def check_sentinels(connection: RedisConnection, where: str) -> Iterator[Finding]:
    """Nothing for a connection without sentinels."""
    target = connection.target
    if not isinstance(target, Primary):
        return
    text = {shown(each): named_by(target, each) for each in target.sentinels}
    here = f"{target.host}:{target.port}"
    wrong = [f"{name} {primary}" for name, primary in text.items() if primary != here]
    if wrong:
        way = "start it, or remove it from the url; `SENTINEL RESET` if it names a server that no longer exists"
        yield warn(f"{where}.sentinels", f"the primary is {here}, and {'; '.join(wrong)}", way)
    elif len(text) < FEWEST:
        way = "name all of them in the url; with less than three, none may be lost"
        yield warn(f"{where}.sentinels", f"{len(text)} in the url, all name {here}", way)
    else:
        yield ok(f"{where}.sentinels", f"all {len(text)} name {here}")
    if configured(connection, "min-replicas-to-write") == "0":
        way = "min-replicas-to-write 1 and min-replicas-max-lag 10 in redis.conf, on all of them"
        yield warn(f"{where}.replicas", "a primary that is cut off keeps taking jobs, which a failover loses", way)


def named_by(target: Primary, sentinel: tuple[str, int]) -> str:
    """The primary that this sentinel names, or why it names none."""
    try:
        host, port = target.primary_by(sentinel, SENTINEL_PATIENCE)
    except OSError as error:
        return reason(error)
    except ConnectionLost as error:
        return str(error)
    return f"{host}:{port}"
