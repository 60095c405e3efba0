"""The keys of the file that are no options of `qd work`, as rows of the same kind; [worker] and [pools.NAME] come from
options.WORK. Read by file.py (what may stand where), load.py, and the test of the reference in the docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qd.options.tables import WORK, Option, row


def _rows(*made: Option) -> Mapping[str, Option]:
    return {option.name: option for option in made}


def _key(name: str, default: Any, kind: str, help: str, environ: str, **more: Any) -> Option:
    return row(name, default, {"kind": kind, "help": help, "environ": environ, "flag": "", **more})


QD = _rows(
    _key("app", "", "name", "the app as MODULE:ATTRIBUTE", "QD_APP", flag="--app", shown="none"),
    _key("imports", (), "names", "modules that declare jobs", "QD_IMPORTS", shown="none"),
    _key(
        "env", "", "name", "where this runs, `production` or `staging`: for entries of the schedule that say environments",
        "QD_ENV", shown="none",
    ),
    _key(
        "default", "", "name", "the connection used when none is named", "QD_CONNECTION",
        shown="redis, or the only connection there is",
    ),
    _key(
        "control", "", "name", "the connection where restart, pause, down, locks and status live", "QD_CONTROL",
        shown="the default connection",
    ),
    _key(
        "max_payload", 1 << 20, "size", "refuse to send payloads that are larger, and to take those of others over sixteen "
        "times that, 0: any", "QD_MAX_PAYLOAD",
    ),
    _key(
        "max_depth", 512, "count", "refuse payloads that are nested deeper, as PHP counts, 0: any", "QD_MAX_DEPTH",
        unit="levels",
    ),
)  # fmt: skip

# {NAME} is the connection's name in capitals: QD_REDIS_URL for [connections.redis].
CONNECTION = _rows(
    _key(
        "driver", "", "driver", "what keeps the queues: redis (Redis or Valkey), database, beanstalkd, sqs, sync, null, "
        "failover", "QD_{NAME}_DRIVER", shown="that of the url",
    ),
    _key(
        "url", None, "url", "where it is: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:; "
        "postgresql://, mysql:// or sqlite:///; beanstalkd://; sqs://", "QD_{NAME}_URL",
        shown="none; for the connection redis also REDIS_URL",
    ),
    _key(
        "credentials", "", "reference", "of a Redis: what provides user and password at each connect, MODULE:ATTRIBUTE, "
        "instead of those in the url", "QD_{NAME}_CREDENTIALS", shown="none",
    ),
    _key(
        "table", "jobs", "name", "of a database: Laravel's table of jobs", "QD_{NAME}_TABLE",
    ),
    _key(
        "connections", (), "names", "of failover: those that are tried, in this order", "QD_{NAME}_CONNECTIONS",
        shown="none",
    ),
    _key(
        "prefix", "", "text", "what every key begins with, Laravel's `redis.options.prefix`", "QD_{NAME}_PREFIX",
        shown='""',
    ),
    _key("queue", "default", "queue", "the queue used when none is named", "QD_{NAME}_QUEUE"),
    _key(
        "retry_after", 30.0, "span", "the lease of a running job, renewed while it runs: how long a dead host holds it",
        "QD_{NAME}_RETRY_AFTER", at_least=1,
    ),
)  # fmt: skip

LARAVEL = _rows(
    _key(
        "cache_url", None, "url", "the Redis where Laravel's cache keeps its restart and pause keys",
        "QD_LARAVEL_CACHE_URL", shown="none",
    ),
    _key("cache_prefix", "", "text", "what the cache's keys begin with", "QD_LARAVEL_CACHE_PREFIX", shown='""'),
    _key(
        "down", False, "switch", "obey `php artisan down` where its driver is this cache", "QD_LARAVEL_DOWN",
    ),
    _key(
        "down_file", "", "text", "obey `php artisan down` where it makes this file, storage/framework/down",
        "QD_LARAVEL_DOWN_FILE", shown="none",
    ),
)  # fmt: skip

FAILED = _rows(
    _key("enabled", True, "switch", "keep jobs that have failed for good", "QD_FAILED_ENABLED"),
    _key("keep", 30 * 86400.0, "span", "forget a failed job after this long", "QD_FAILED_KEEP", at_least=1),
    _key(
        "max_count", None, "count", "keep at most this many failed jobs of a queue, the newest ones",
        "QD_FAILED_MAX_COUNT", unit="jobs", shown="none", at_least=1,
    ),
    _key(
        "max_bytes", 64 << 20, "size", "keep at most this much of failed jobs of a queue, the newest ones",
        "QD_FAILED_MAX_BYTES", at_least=1,
    ),
    _key(
        "database", "", "database", "copy failed jobs into Laravel's table failed_jobs there: mysql://, postgresql://, "
        "sqlite:///", "QD_FAILED_DATABASE", shown="none",
    ),
)  # fmt: skip

SIGNING = _rows(
    _key(
        "keys", (), "keys", "sign payloads with the first of these keys (ID:SECRET, or ID:file:PATH), accept all of them",
        "QD_SIGNING_KEYS", shown="none",
    ),
    _key(
        "require", True, "switch", "where there are keys, refuse payloads that are not signed", "QD_SIGNING_REQUIRE",
    ),
)  # fmt: skip

SCHEDULE = _rows(
    _key("timezone", "UTC", "zone", "the zone in which entries of the schedule are reckoned", "QD_SCHEDULE_TIMEZONE"),
    _key(
        "late", 60.0, "span", "a tick that cannot be taken within this long of its moment is missed", "QD_SCHEDULE_LATE",
        at_least=1,
    ),
    _key(
        "lease", 15.0, "span", "how long an entry without_overlapping stays taken when its scheduler's host has died",
        "QD_SCHEDULE_LEASE", at_least=1,
    ),
)  # fmt: skip

# An entry of the schedule: one of the first four, and one of cron and every. Only the file says them, so none is a variable.
ENTRY = _rows(
    _key("job", "", "name", "send this job", "", shown="none"),
    _key("args", None, "arguments", "with these arguments, `{days = 7}`", "", shown="none"),
    _key("queue", "", "queue", "to this queue", "", shown="the job's own"),
    _key("connection", "", "name", "on this connection", "", shown="the job's own"),
    _key("call", "", "name", "call this function, MODULE:FUNCTION", "", shown="none"),
    _key("shell", "", "text", "have /bin/sh run this line", "", shown="none"),
    _key("qd", "", "text", "run this command of qd's, `failed forget --older-than 30d`", "", shown="none"),
    _key("cron", "", "text", "at these moments, `*/5 * * * *`", "", shown="none"),
    _key("every", None, "span", "each time that this long has passed", "", shown="none", at_least=0.01),
    _key("timezone", "", "zone", "reckon them in this zone", "", shown="`timezone` of [schedule]"),
    _key("environments", (), "names", "only where `env` of [qd], or QD_ENV, is one of these", "", shown="all"),
    _key("missed", "skip", "name", "what becomes of moments that were missed", "", choices=("skip", "once", "all")),
    _key("without_overlapping", False, "switch", "not while an earlier run goes on", ""),
    _key("on_every_host", False, "switch", "once on every host, instead of once over all", ""),
    _key("even_in_maintenance_mode", False, "switch", "after `qd down`, too", ""),
    _key("in_background", False, "switch", "beside other entries of the same moment; not of a job", ""),
    _key("timeout", 0.0, "span", "end a run that takes longer, 0: never; not of a job", ""),
    _key("output_to", "", "name", "write what a run says into this file; not of a job", "", shown="the log"),
    _key("append", False, "switch", "write it behind what is there", ""),
)  # fmt: skip

# Words of the code that somebody may try in an entry of the file: what to write there.
IN_CODE = "asks code: declare the entry with app.schedule"
ENTRY_WORDS: Mapping[str, str] = {
    "append_output_to": 'write output_to = "...", and append = true',
    "name": "an entry is called as its table is",
    "overlap": "write without_overlapping = true",
    "tz": 'write timezone = "Europe/Berlin"',
    "between": 'write the hours into cron = "*/10 8-17 * * *"',
    "at": 'write cron = "0 13 * * *" for 13:00',
    "daily_at": 'write cron = "0 13 * * *" for 13:00',
    "daily": 'write cron = "0 0 * * *"',
    "twice_daily": 'write cron = "0 1,13 * * *"',
    "hourly": 'write cron = "0 * * * *"',
    "hourly_at": 'write cron = "17 * * * *" for minute 17',
    "weekly": 'write cron = "0 0 * * 0"',
    "weekly_on": 'write cron = "0 8 * * 1" for Mondays at 8:00',
    "weekdays": 'write cron = "0 8 * * 1-5" for 8:00',
    "weekends": 'write cron = "0 8 * * 6,0" for 8:00',
    "days": 'write cron = "0 8 * * 1,3" for Mondays and Wednesdays at 8:00',
    "monthly": 'write cron = "0 0 1 * *"',
    "monthly_on": 'write cron = "0 15 4 * *" for the 4th at 15:00',
    "last_day_of_month": 'write cron = "0 0 L * *"',
    "quarterly": 'write cron = "0 0 1 1-12/3 *"',
    "yearly": 'write cron = "0 0 1 1 *"',
    "every_second": 'write every = "1s"',
    "every_minute": 'write cron = "* * * * *"',
    "every_five_minutes": 'write cron = "*/5 * * * *"',
    "every_ten_minutes": 'write cron = "*/10 * * * *"',
    "every_two_hours": 'write cron = "0 */2 * * *"',
    "when": IN_CODE, "skip": IN_CODE, "before": IN_CODE, "after": IN_CODE, "on_success": IN_CODE, "on_failure": IN_CODE,
}  # fmt: skip

WORKER = {name: option for name, option in WORK.items() if option.in_file}

# Section -> its keys. A name in capitals is the user's choice.
SECTIONS: Mapping[str, Mapping[str, Option]] = {
    "qd": QD,
    "connections.NAME": CONNECTION,
    "worker": WORKER,
    "pools.NAME": WORKER,
    "laravel": LARAVEL,
    "failed": FAILED,
    "signing": SIGNING,
    "schedule": SCHEDULE,
    "schedule.entries.NAME": ENTRY,
}

# Words that will be keys one day: said so, instead of "unknown".
PLANNED: dict[str, str] = {}


def environ_name(option: Option, connection: str = "") -> str:
    """The environment variable of a row; `connection` is whose, for the rows of [connections.NAME]."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in connection.upper())
    return option.environ.replace("{NAME}", name)
