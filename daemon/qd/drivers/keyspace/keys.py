"""Every key qd writes, made here and nowhere else. All of them stand under the connection's prefix.

| key                     | type   | owner and bound                                                                     |
| ----------------------- | ------ | ----------------------------------------------------------------------------------- |
| queues:NAME             | list   | Laravel's ready list: pushed at the tail, taken from the head                       |
| queues:NAME:delayed     | zset   | Laravel's; score = unix seconds (with fraction) at which the payload is due         |
| queues:NAME:reserved    | zset   | Laravel's; score = unix seconds at which the lease runs out                         |
| queues:NAME:notify      | list   | Laravel's; one token a ready job, a hint; never more than ready jobs plus waiters   |
| queues:NAME:owners      | hash   | `<master token>/<slot>` -> the reserved payload; at most one field a worker         |
| queues:NAME:paused      | string | JSON {by, reason, at, until}; lives until `qd resume`, or its own TTL (--for)       |
| queues:NAME:failed      | hash   | id -> one line of JSON, a newline, the payload's raw bytes; bounded by [failed]     |
| queues:NAME:failed_at   | zset   | id -> unix seconds, the index of the hash above; `bytes`, `dropped`, `dropped_at`   |
|                         |        | are counters (failed.lua), the last two until [failed] keep after the last drop     |
| queues:NAME:keyed       | hash   | name -> issue, due, payload of the job that waits under it; see keyed.py             |
| queues:NAME:deaths      | hash   | mark -> how its worker died; read and deleted by who fails the job; 1,000, one day   |
| queues:NAME:qd-taken    | hash   | where another server keeps the jobs: id of one in hand there -> owner, as owners     |
| queues:NAME:qd-holding  | hash   | there: owner -> id and handle of the job it has in hand; a field a worker            |
| queues:NAME:qd-ended    | zset   | there: id of a job that is answered and not yet known to be deleted -> unix seconds; |
|                         |        | at most one a worker, and those of the dead, which keepers look after                |
| queues:NAME:qd-sending  | list   | there: what is just being sent from the outbox (ready, delayed); 100 or 1 MB         |
| queues:NAME:qd-sender   | string | there: who is sending it; TTL: 10 s                                                  |
| qd:message:NAME:ID      | string | of a FIFO queue of SQS: the text of a job that was put back; TTL: 15 days            |
| queues:NAME:qd-resent   | hash   | there: digest of what an outbox may have sent twice -> how often it may be taken, and |
|                         |        | how often it was; a hundred a sender that did not come back, TTL: 1 day               |
| queues:NAME:qd-elsewhere | string | there: unix seconds at which a job for PHP is there again; TTL: until then, and 5 s  |
| qd:outbox               | hash   | there: names of queues that an outbox was used for; a field a queue                  |
| qd:ticks                | hash   | entry of the schedule -> ms of its last tick, claimer, mark of its timing; HOST 0x1f  |
|                         |        | ENTRY for on_every_host, and HOST 0x1f -> when it was last there. A field an entry;   |
|                         |        | schedulers take those gone for 400 days, and those of a host that was away for 7. In   |
|                         |        | one hash for all queues: an entry that moves to another keeps its place               |
| qd:unique:NAME:TEXT     | string | of a unique job: its uuid, also its id; freed when the job ends, and by its TTL     |
| qd:job:ID               | hash   | how a job ended, for those that ask for it; TTL result_ttl                          |
| qd:batch:ID             | hash   | a batch: counts, moments, callbacks; TTL 1 day once finished, 30 days before, and   |
|                         |        | with failed jobs                                                                    |
| qd:batch:ID:pending     | set    | uuids of its jobs that have not ended; TTL 30 days                                  |
| qd:batch:ID:failed      | hash   | uuid of a job of it that has failed -> queue and id of its record, or that it was   |
|                         |        | sent again; TTL as its batch                                                        |
| qd:lock:NAME            | hash   | job uuid -> until (ms), holder: WithoutOverlapping; a field each holder, TTL: longest |
| qd:slots:NAME           | hash   | the same of a ConcurrencyLimit: as many fields as may run, TTL: the longest         |
| qd:places:ID            | hash   | job uuid -> which of the two above a running job has; TTL: the longest of them      |
| qd:rate:{NAME}:starts   | zset   | start -> us, of a RateLimited or app.limiter; those of the last two windows of the   |
|                         |        | longest that was used lately, TTL: so long                                          |
| qd:rate:{NAME}:turns    | zset   | job uuid -> us at which it may start; one a job put back, TTL: the last of them     |
| qd:rate:{NAME}:due      | zset   | job uuid -> us by which it asks again; same members and TTL                         |
| qd:errors:NAME          | zset   | error -> us, of a ThrottlesExceptions; fewer than its limit, TTL: its window        |
| qd:rest:NAME            | hash   | there while jobs rest after too many errors; TTL: the rest                          |
| qd:mutex:{NAME}         | string | who has app.lock(NAME): "host/pid/id"; TTL: its ttl                                  |
| qd:mutex:{NAME}:fence   | string | its last fencing token; TTL: an hour and the ttl                                    |
| qd:mutex:{NAME}:line    | zset   | who waits for it -> us at which it came; those that are gone are taken away; 1 hour |
| qd:mutex:{NAME}:seen    | zset   | who waits for it -> us until which it counts as there; same members and TTL         |
| qd:mutex:{NAME}:wake:ID | list   | one token, for a waiter that was handed the lock; TTL: 3 s                          |
| qd:masters              | hash   | master token -> JSON report; a leaving master takes its own, keepers those over 1 h |
| qd:restart              | string | the last restart stamp, Redis time; one key, overwritten                            |
| qd:cancel               | hash   | mark of a running job -> when it was cancelled; keepers take those that are over   |
| qd:schedule:last        | hash   | entry -> JSON, how it last ran; a field an entry, schedulers take those of no entry   |
| qd:schedule:skipped     | hash   | entry -> JSON, which tick was last passed over and why; as above                      |
| qd:schedule:paused      | hash   | entry, or * for all -> JSON {by, reason, at, until}; until `qd schedule resume`       |
| qd:overlap:ENTRY        | string | who runs it, JSON; of an entry without_overlapping; TTL: [schedule] lease, renewed;   |
|                         |        | HOST 0x1f ENTRY for on_every_host                                                     |
| qd:down                 | string | JSON {by, reason, at} while in maintenance mode                                     |

On a cluster the keys of a queue, of a batch and of the ticks have braces (cluster/names.py), and there are three more beside
a queue, one beside a batch and one beside the ticks: cluster/ends.py.
"""

from __future__ import annotations

from qd.options.kinds import BESIDE

RESTART = "qd:restart"
DOWN = "qd:down"
MASTERS = "qd:masters"
CANCEL = "qd:cancel"
TICKS = "qd:ticks"
OUTBOX = "qd:outbox"
OF = "\x1f"
SCHEDULE_LAST = "qd:schedule:last"
SCHEDULE_SKIPPED = "qd:schedule:skipped"
SCHEDULE_PAUSED = "qd:schedule:paused"


def is_queue(name: str) -> bool:
    """Whether the keys of a queue of this name are no other queue's."""
    return not name.endswith(BESIDE)


def ready(queue: str) -> str:
    return f"queues:{queue}"


def delayed(queue: str) -> str:
    return f"queues:{queue}:delayed"


def reserved(queue: str) -> str:
    return f"queues:{queue}:reserved"


def notify(queue: str) -> str:
    return f"queues:{queue}:notify"


def owners(queue: str) -> str:
    return f"queues:{queue}:owners"


def paused(queue: str) -> str:
    return f"queues:{queue}:paused"


def failed(queue: str) -> str:
    return f"queues:{queue}:failed"


def failed_at(queue: str) -> str:
    return f"queues:{queue}:failed_at"


def deaths(queue: str) -> str:
    return f"queues:{queue}:deaths"


def keyed(queue: str) -> str:
    return f"queues:{queue}:keyed"


def taken(queue: str) -> str:
    return f"queues:{queue}:qd-taken"


def holding(queue: str) -> str:
    return f"queues:{queue}:qd-holding"


def ended(queue: str) -> str:
    return f"queues:{queue}:qd-ended"


def sending(queue: str) -> str:
    return f"queues:{queue}:qd-sending"


def sender(queue: str) -> str:
    return f"queues:{queue}:qd-sender"


def kept_text(queue: str, id: str) -> str:
    return f"qd:message:{queue}:{id}"


def resent(queue: str) -> str:
    return f"queues:{queue}:qd-resent"


def elsewhere(queue: str) -> str:
    return f"queues:{queue}:qd-elsewhere"


def ends(name: str) -> str:
    """On a cluster only: beside a queue, a batch or the ticks, whose key is called `name` there."""
    return f"{name}:ends"


def seen_ids(ready: str) -> str:
    """On a cluster only: beside a queue, whose ready list is called `ready` there."""
    return f"{ready}:seen"


def cancelled(ready: str) -> str:
    """On a cluster only: beside a queue, whose ready list is called `ready` there."""
    return f"{ready}:cancel"


ON_CLUSTER = (ends(""), seen_ids(""), cancelled(""))
"""The endings of keys that are beside a queue on a cluster only."""


def of_host(host: str, entry: str) -> str:
    """The name that an entry on_every_host has for one of them: a field of its ticks, the end of its overlap. No entry is
    called so by itself: its name has no such letter."""
    return f"{host}{OF}{entry}"


def entry_of_host(name: str) -> str:
    """The entry that `of_host` was given; "" for another name."""
    return name.partition(OF)[2]


def host_of(name: str) -> str:
    """The host that `of_host` was given; "" for another name."""
    return name.partition(OF)[0] if OF in name else ""


def overlap(entry: str) -> str:
    return f"qd:overlap:{entry}"


def unique(name: str) -> str:
    return f"qd:unique:{name}"


def kept(id: str) -> str:
    return f"qd:job:{id}"


def batch(id: str) -> str:
    return f"qd:batch:{id}"


def batch_pending(id: str) -> str:
    return f"qd:batch:{id}:pending"


def batch_failed(id: str) -> str:
    return f"qd:batch:{id}:failed"


def lock(name: str) -> str:
    return f"qd:lock:{name}"


def mutex(name: str) -> str:
    """Of app.lock. The braces keep all keys of a lock in one slot of a cluster."""
    return f"qd:mutex:{{{name}}}"


def fence(name: str) -> str:
    return f"qd:mutex:{{{name}}}:fence"


def line(name: str) -> str:
    return f"qd:mutex:{{{name}}}:line"


def seen(name: str) -> str:
    return f"qd:mutex:{{{name}}}:seen"


def wake(name: str, waiter: str) -> str:
    return f"qd:mutex:{{{name}}}:wake:{waiter}"


def slots(name: str) -> str:
    return f"qd:slots:{name}"


def places_of(owner: str) -> str:
    """Of one job: the names of the locks and slots that it has."""
    return f"qd:places:{owner}"


def starts(name: str) -> str:
    """Of a rate. The braces keep all its keys in one slot of a cluster."""
    return f"qd:rate:{{{name}}}:starts"


def turns(name: str) -> str:
    return f"qd:rate:{{{name}}}:turns"


def due(name: str) -> str:
    return f"qd:rate:{{{name}}}:due"


def errors(name: str) -> str:
    return f"qd:errors:{name}"


def rest(name: str) -> str:
    return f"qd:rest:{name}"
