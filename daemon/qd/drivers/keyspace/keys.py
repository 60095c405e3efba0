"""Every key qd writes. Only this file builds key names; the connection's prefix is added to each.

| key                      | type   | content; limit                                                                     |
| ------------------------ | ------ | ---------------------------------------------------------------------------------- |
| queues:NAME              | list   | Laravel's ready list: pushed at the tail, taken from the head                      |
| queues:NAME:delayed      | zset   | Laravel's; score = unix seconds (with fraction) at which the payload is due        |
| queues:NAME:reserved     | zset   | Laravel's; score = unix seconds at which the lease expires                         |
| queues:NAME:notify       | list   | Laravel's; a token per ready job, a hint; at most ready jobs plus waiting workers  |
| queues:NAME:owners       | hash   | `<master token>/<place>` -> the reserved payload; at most one field per lane of a  |
|                          |        | worker. `<master token>/<slot>:turn` -> number of its last turn with several jobs; |
|                          |        | at most one per worker, deleted when it ends                                       |
| queues:NAME:suspects     | list   | payloads that may have killed their worker; they run in a worker of their own      |
| queues:NAME:paused       | string | JSON {by, reason, at, until}; until `qd resume`, or TTL (--for)                    |
| queues:NAME:failed       | hash   | id -> one line of JSON, a newline, the payload's raw bytes; limited by [failed]    |
| queues:NAME:failed_at    | zset   | id -> unix seconds, the index of `failed`; `bytes`, `dropped`, `dropped_at` are    |
|                          |        | counters (failed.lua), the last two until [failed] keep after the last drop        |
| queues:NAME:keyed        | hash   | name -> issue, due, payload of the job that waits under it; see sending.py         |
| queues:NAME:deaths       | hash   | mark -> how its worker died; deleted when it is read; 1,000, one day               |
| queues:NAME:qd-taken     | hash   | for brokers: id of a job that a worker holds -> its owner, as in owners            |
| queues:NAME:qd-holding   | hash   | for brokers: owner -> id and handle of the job it holds; a field per worker        |
| queues:NAME:qd-ended     | zset   | for brokers: id of an answered job not yet known to be deleted -> unix seconds; at |
|                          |        | most one per worker; keepers delete those of dead workers                          |
| queues:NAME:qd-sending   | list   | for brokers: jobs just being sent from the outbox (ready, delayed); 100 or 1 MB    |
| queues:NAME:qd-sender    | string | for brokers: the process that sends them; TTL 10 s                                 |
| queues:NAME:qd-resent    | hash   | for brokers: digest of a job that an outbox may have sent twice -> how often it    |
|                          |        | may be taken and was; 100 per sender that did not return, TTL 1 day                |
| queues:NAME:qd-elsewhere | string | for brokers: unix seconds at which a job for PHP is available again; TTL until     |
|                          |        | then, and 5 s                                                                      |
| qd:message:NAME:ID       | string | FIFO queues of SQS: the payload of a job that was put back; TTL 15 days            |
| qd:outbox                | hash   | for brokers: names of queues whose outbox was used; a field per queue              |
| qd:ticks                 | hash   | schedule entry -> ms of its last tick, claimer, mark of its timing; for            |
|                          |        | on_every_host HOST 0x1f ENTRY, and HOST 0x1f -> when the host was last seen. A     |
|                          |        | field per entry; schedulers delete removed entries after 400 days, absent hosts    |
|                          |        | after 7. One hash, so that an entry keeps its history when its queue changes       |
| qd:unique:NAME:TEXT      | string | uuid (and id) of a unique job; deleted when the job ends, and by TTL               |
| qd:job:ID                | hash   | how a job with result_ttl ended; TTL result_ttl                                    |
| qd:batch:ID              | hash   | a batch: counts, times, callbacks; TTL 1 day once finished, 30 days before that    |
|                          |        | and with failed jobs                                                               |
| qd:batch:ID:pending      | set    | uuids of its jobs that have not ended; TTL 30 days                                 |
| qd:batch:ID:failed       | hash   | uuid of a failed job -> queue and id of its record, or that it was retried; TTL as |
|                          |        | its batch                                                                          |
| qd:lock:NAME             | hash   | job uuid -> until (ms), holder: WithoutOverlapping; a field per holder, longest TTL|
| qd:slots:NAME            | hash   | the same for a ConcurrencyLimit: at most as many fields as may run, longest TTL    |
| qd:places:ID             | hash   | place in one of the two above -> until, holder, of a running job; longest TTL      |
| qd:rate:{NAME}:starts    | zset   | start -> us, of a RateLimited or app.limiter; the last two windows of the longest  |
|                          |        | window in recent use, TTL the same                                                 |
| qd:rate:{NAME}:turns     | zset   | job uuid -> us at which it may start; one per released job, TTL: the last of them  |
| qd:rate:{NAME}:due       | zset   | job uuid -> us by which it asks again; same members and TTL                        |
| qd:errors:NAME           | zset   | error -> us, of a ThrottlesExceptions; fewer than its limit, TTL its window        |
| qd:rest:NAME             | hash   | exists while jobs rest after too many errors; TTL the rest                         |
| qd:mutex:{NAME}          | string | holder of app.lock(NAME): "host/pid/id"; TTL its ttl                               |
| qd:mutex:{NAME}:fence    | string | its last fencing token; TTL an hour and the ttl                                    |
| qd:mutex:{NAME}:line     | zset   | waiter -> us at which it came; waiters that are gone are deleted; 1 hour           |
| qd:mutex:{NAME}:seen     | zset   | waiter -> us until which it counts as alive; same members and TTL                  |
| qd:mutex:{NAME}:wake:ID  | list   | one token, for a waiter that was given the lock; TTL 3 s                           |
| qd:masters               | hash   | master token -> JSON report; a master deletes its own when it stops, keepers those |
|                          |        | older than 1 h                                                                     |
| qd:restart               | string | the last restart stamp, Redis time; overwritten                                    |
| qd:fleet                 | hash   | pauses of jobs, hosts and pools, restarts of a host or pool, sizes of pools        |
|                          |        | (store/fleet.py); what is over or a day old is deleted by the next order           |
| qd:cancel                | hash   | mark of a running job -> when it was cancelled; keepers delete those that ended    |
| qd:schedule:last         | hash   | entry -> JSON, its last run; a field per entry, schedulers delete removed entries  |
| qd:schedule:skipped      | hash   | entry -> JSON, the last skipped tick and why; the same                             |
| qd:schedule:paused       | hash   | entry, or * for all -> JSON {by, reason, at, until}; until `qd schedule resume`    |
| qd:overlap:ENTRY         | string | JSON, who runs an entry without_overlapping; TTL [schedule] lease, renewed; for    |
|                          |        | on_every_host HOST 0x1f ENTRY                                                      |
| qd:down                  | string | JSON {by, reason, at} during maintenance mode                                      |
| qd:{stats}:total         | hash   | statistics (store/statistics.py): a field per connection, queue and job; at most   |
|                          |        | 301; TTL 30 days after the last write, as the next                                 |
| qd:{stats}:numbers       | hash   | master token -> number of its last write; a master deletes its own when it stops,  |
|                          |        | keepers those of masters that died                                                 |
| qd:{stats}:h:HOUR        | hash   | what was added to the total in this unix hour; TTL 30 days                         |
| qd:{stats}:m:MINUTE      | hash   | what was added in this unix minute; TTL 8 hours                                    |
| qd:{stats}:q:MINUTE      | hash   | connection 0x1f queue -> what the queue held in this minute; TTL 8 hours           |
| qd:alerts                | string | JSON, what is wrong, of which `qd alerts` has told; TTL a week                      |
| qd:alerts:by             | string | which `qd alerts` sends; TTL four times `every` of [alerts], renewed               |
| qd:events                | list   | audit events, the newest last: number, times, count, JSON (store/audit.py); 10,000 |

On a cluster the keys of a queue, of a batch and of the ticks have braces (cluster/nodes.py). A queue has three more keys
there, a batch and the ticks one each: cluster/deferred.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qd.options.kinds import QUEUE_SUFFIXES

RESTART = "qd:restart"
DOWN = "qd:down"
MASTERS = "qd:masters"
CANCEL = "qd:cancel"
EVENTS = "qd:events"
ALERTS = "qd:alerts"
ALERTS_BY = "qd:alerts:by"
FLEET = "qd:fleet"
TICKS = "qd:ticks"
OUTBOX = "qd:outbox"
OF = "\x1f"
FENCE = ":turn"  # ending of a field of the owners that is no owner
SCHEDULE_LAST = "qd:schedule:last"
SCHEDULE_SKIPPED = "qd:schedule:skipped"
SCHEDULE_PAUSED = "qd:schedule:paused"


def is_queue(name: str) -> bool:
    """Whether no key of a queue of this name belongs to another queue."""
    return not name.endswith(QUEUE_SUFFIXES)


def _of(start: str, ending: str = "") -> Callable[[str], str]:
    def key(name: str) -> str:
        return f"{start}{name}{ending}"

    return key


ready = _of("queues:")
(
    delayed, reserved, notify, owners, paused, failed, failed_at, deaths, keyed, taken, holding, ended, sending, sender,
    elsewhere, resent, suspects,
) = map(partial(_of, "queues:"), QUEUE_SUFFIXES)  # fmt: skip

# On a cluster only: next to the key of a queue, a batch or the ticks (`ends`), and next to a ready list.
ends = _of("", ":ends")
seen_ids = _of("", ":seen")
cancelled = _of("", ":cancel")
ON_CLUSTER = (ends(""), seen_ids(""), cancelled(""))
"""Endings of keys that exist on a cluster only."""

unique = _of("qd:unique:")
kept = _of("qd:job:")  # the stored result of a job
batch = _of("qd:batch:")
batch_pending = _of("qd:batch:", ":pending")
batch_failed = _of("qd:batch:", ":failed")
lock = _of("qd:lock:")
slots = _of("qd:slots:")
places_of = _of("qd:places:")  # names of the locks and slots that a job holds
errors = _of("qd:errors:")
rest = _of("qd:rest:")
overlap = _of("qd:overlap:")

# The braces keep the keys of the statistics, of a rate and of an app.lock in one slot of a cluster.
STATS_TOTAL = "qd:{stats}:total"
STATS_NUMBERS = "qd:{stats}:numbers"
starts = _of("qd:rate:{", "}:starts")
turns = _of("qd:rate:{", "}:turns")
due = _of("qd:rate:{", "}:due")
mutex = _of("qd:mutex:{", "}")
fence = _of("qd:mutex:{", "}:fence")
line = _of("qd:mutex:{", "}:line")
seen = _of("qd:mutex:{", "}:seen")


def stats_hour(hour: int) -> str:
    return f"qd:{{stats}}:h:{hour}"


def stats_minute(minute: int) -> str:
    return f"qd:{{stats}}:m:{minute}"


def stats_depths(minute: int) -> str:
    return f"qd:{{stats}}:q:{minute}"


def wake(name: str, waiter: str) -> str:
    return f"{mutex(name)}:wake:{waiter}"


def kept_text(queue: str, id: str) -> str:
    return f"qd:message:{queue}:{id}"


def of_host(host: str, entry: str) -> str:
    """The name of an on_every_host entry on one host, in qd:ticks and qd:overlap. Names of entries do not contain OF."""
    return f"{host}{OF}{entry}"


def entry_of_host(name: str) -> str:
    """The entry that `of_host` was given; "" for another name."""
    return name.partition(OF)[2]


def host_of(name: str) -> str:
    """The host that `of_host` was given; "" for another name."""
    return name.partition(OF)[0] if OF in name else ""
