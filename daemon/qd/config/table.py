"""The keys of the file that are not options of `qd work`, as rows of the same kind; [worker] and [pools.NAME] come from
options.WORK. Used by file.py (to check the file), load.py, and the test of the reference in the docs.
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
        "env", "", "name", "where this runs, `production` or `staging`: for schedule entries with `environments`",
        "QD_ENV", shown="none",
    ),
    _key(
        "default", "", "name", "the connection used when none is named", "QD_CONNECTION",
        shown="redis, or the only connection there is",
    ),
    _key(
        "control", "", "name", "the connection that stores restarts, pauses, maintenance mode, locks and status",
        "QD_CONTROL", shown="the default connection",
    ),
    _key(
        "max_payload", 1 << 20, "size", "do not send payloads larger than this, nor accept those of others over sixteen "
        "times this, 0: any", "QD_MAX_PAYLOAD",
    ),
    _key(
        "max_depth", 512, "count", "refuse payloads nested deeper than this, as PHP counts, 0: any", "QD_MAX_DEPTH",
        unit="levels",
    ),
)  # fmt: skip

# {NAME} is the connection's name in capitals: QD_REDIS_URL for [connections.redis].
CONNECTION = _rows(
    _key(
        "driver", "", "driver", "what keeps the queues: redis (Redis or Valkey), database, beanstalkd, sqs, sync, null, "
        "failover", "QD_{NAME}_DRIVER", shown="from the url",
    ),
    _key(
        "url", None, "url", "where it is: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:; "
        "postgresql://, mysql:// or sqlite:///; beanstalkd://; sqs://", "QD_{NAME}_URL",
        shown="none; for the connection redis also REDIS_URL",
    ),
    _key(
        "credentials", "", "reference", "Redis: provider of user and password at each connect, MODULE:ATTRIBUTE, "
        "instead of those in the url", "QD_{NAME}_CREDENTIALS", shown="none",
    ),
    _key("table", "jobs", "name", "database: Laravel's table of jobs", "QD_{NAME}_TABLE"),
    _key(
        "connections", (), "names", "failover: the connections to try, in this order", "QD_{NAME}_CONNECTIONS",
        shown="none",
    ),
    _key("prefix", "", "text", "prefix of every key, Laravel's `redis.options.prefix`", "QD_{NAME}_PREFIX", shown='""'),
    _key("queue", "default", "queue", "the queue used when none is named", "QD_{NAME}_QUEUE"),
    _key(
        "retry_after", 30.0, "span", "lease of a running job, renewed while it runs: how long a dead host keeps it",
        "QD_{NAME}_RETRY_AFTER", at_least=1,
    ),
)  # fmt: skip

LARAVEL = _rows(
    _key(
        "cache_url", None, "url", "the Redis where Laravel's cache keeps its restart and pause keys",
        "QD_LARAVEL_CACHE_URL", shown="none",
    ),
    _key("cache_prefix", "", "text", "prefix of the cache's keys", "QD_LARAVEL_CACHE_PREFIX", shown='""'),
    _key("down", False, "switch", "obey `php artisan down` if its driver is this cache", "QD_LARAVEL_DOWN"),
    _key(
        "down_file", "", "text", "obey `php artisan down` if it creates this file, storage/framework/down",
        "QD_LARAVEL_DOWN_FILE", shown="none",
    ),
)  # fmt: skip

FAILED = _rows(
    _key("enabled", True, "switch", "keep jobs that have failed permanently", "QD_FAILED_ENABLED"),
    _key("keep", 30 * 86400.0, "span", "delete a failed job after this long", "QD_FAILED_KEEP", at_least=1),
    _key(
        "max_count", None, "count", "keep at most this many failed jobs per queue, the newest ones",
        "QD_FAILED_MAX_COUNT", unit="jobs", shown="none", at_least=1,
    ),
    _key(
        "max_bytes", 64 << 20, "size", "keep at most this many bytes of failed jobs per queue, the newest ones",
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
    _key("require", True, "switch", "with keys, refuse unsigned payloads", "QD_SIGNING_REQUIRE"),
)  # fmt: skip

SCHEDULE = _rows(
    _key("timezone", "UTC", "zone", "time zone of schedule entries", "QD_SCHEDULE_TIMEZONE"),
    _key(
        "late", 60.0, "span", "a tick that is not taken within this long of its time is missed", "QD_SCHEDULE_LATE",
        at_least=1,
    ),
    _key(
        "lease", 15.0, "span", "how long an entry without_overlapping stays locked after its scheduler's host has died",
        "QD_SCHEDULE_LEASE", at_least=1,
    ),
)  # fmt: skip

# An entry of the schedule: one of job, call, shell and qd, and one of cron and every. Only the file has them.
ENTRY = _rows(
    _key("job", "", "name", "send this job", "", shown="none"),
    _key("args", None, "arguments", "with these arguments, `{days = 7}`", "", shown="none"),
    _key("queue", "", "queue", "to this queue", "", shown="the job's own"),
    _key("connection", "", "name", "on this connection", "", shown="the job's own"),
    _key("call", "", "name", "call this function, MODULE:FUNCTION", "", shown="none"),
    _key("shell", "", "text", "run this line with /bin/sh", "", shown="none"),
    _key("qd", "", "text", "run this qd command, `failed forget --older-than 30d`", "", shown="none"),
    _key("cron", "", "text", "at these times, `*/5 * * * *`", "", shown="none"),
    _key("every", None, "span", "at this interval", "", shown="none", at_least=0.01),
    _key("timezone", "", "zone", "compute times in this time zone", "", shown="`timezone` of [schedule]"),
    _key("environments", (), "names", "only if `env` of [qd], or QD_ENV, is one of these", "", shown="all"),
    _key("missed", "skip", "name", "how to handle missed times", "", choices=("skip", "once", "all")),
    _key("without_overlapping", False, "switch", "skip while an earlier run is active", ""),
    _key("on_every_host", False, "switch", "once on every host, instead of once in total", ""),
    _key("even_in_maintenance_mode", False, "switch", "also in maintenance mode", ""),
    _key("in_background", False, "switch", "in parallel with other entries of the same time; not for jobs", ""),
    _key("timeout", 0.0, "span", "end a run that takes longer, 0: never; not for jobs", ""),
    _key("output_to", "", "name", "write the output of a run to this file; not for jobs", "", shown="the log"),
    _key("append", False, "switch", "append to the file", ""),
)  # fmt: skip

# Names from code that a user may try in the file -> what to write instead.
IN_CODE = "needs code: declare the entry with app.schedule"
CRON_OF = {
    "daily": "0 0 * * *", "twice_daily": "0 1,13 * * *", "hourly": "0 * * * *", "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *", "last_day_of_month": "0 0 L * *", "quarterly": "0 0 1 1-12/3 *", "yearly": "0 0 1 1 *",
    "every_minute": "* * * * *", "every_five_minutes": "*/5 * * * *", "every_ten_minutes": "*/10 * * * *",
    "every_two_hours": "0 */2 * * *",
}  # fmt: skip
ENTRY_WORDS: Mapping[str, str] = {
    **{name: f'write cron = "{cron}"' for name, cron in CRON_OF.items()},
    "append_output_to": 'write output_to = "...", and append = true',
    "name": "the name of an entry is that of its table",
    "overlap": "write without_overlapping = true",
    "tz": 'write timezone = "Europe/Berlin"',
    "between": 'write the hours into cron = "*/10 8-17 * * *"',
    "at": 'write cron = "0 13 * * *" for 13:00',
    "daily_at": 'write cron = "0 13 * * *" for 13:00',
    "hourly_at": 'write cron = "17 * * * *" for minute 17',
    "weekly_on": 'write cron = "0 8 * * 1" for Mondays at 8:00',
    "weekdays": 'write cron = "0 8 * * 1-5" for 8:00',
    "weekends": 'write cron = "0 8 * * 6,0" for 8:00',
    "days": 'write cron = "0 8 * * 1,3" for Mondays and Wednesdays at 8:00',
    "monthly_on": 'write cron = "0 15 4 * *" for the 4th at 15:00',
    "every_second": 'write every = "1s"',
    **dict.fromkeys(("when", "skip", "before", "after", "on_success", "on_failure"), IN_CODE),
}

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


def environ_name(option: Option, connection: str = "") -> str:
    """The environment variable of a row. connection: its name, for the rows of [connections.NAME]."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in connection.upper())
    return option.environ.replace("{NAME}", name)
