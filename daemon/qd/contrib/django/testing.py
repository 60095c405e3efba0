"""Django's test databases, for `QD = {"url": "django://default"}`.

created    qd's tables are created, too
flushed    after a TransactionTestCase: qd's tables are emptied, too
dropped    first qd's own connections are closed: PostgreSQL drops no database that has connections
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core import mail
from django.db import connections

from qd.contrib.django.database import alias_of
from qd.contrib.django.project import made, qd_settings
from qd.drivers.connections import loaded
from qd.errors import ConfigError

SCHEMA = "qd.drivers.database.schema"
PATIENCE = 5.0  # seconds to connect


def prepare(using: str, **given: Any) -> None:
    """The receiver of post_migrate: after `migrate`, which has a plan, and after `flush`. Does nothing outside of tests."""
    if not hasattr(mail, "outbox"):  # of Django's test environment
        return
    created = "plan" in given
    try:
        if using != alias_of(qd_settings().get("url")):
            return
        made.follow()
        at = made.settings.connection(None)
        act = loaded(f"{SCHEMA}:{'migrated' if created else 'emptied'}")
    except ConfigError:
        return  # `manage.py check` and the first use report it
    if at.url_origin == "Qd(...)":
        act(at, PATIENCE)
        if created:
            close_before_drop(connections[using].creation)


def close_before_drop(creation: Any) -> None:
    """creation: of a connection of Django; it has no other hook for this."""
    drop = creation.destroy_test_db

    def close_and_drop(
        old_database_name: Any = None, verbosity: int = 1, keepdb: bool = False, suffix: Any = None
    ) -> None:
        made.connections.close_all()
        drop(old_database_name, verbosity, keepdb, suffix)
        if creation.connection.vendor == "sqlite" and suffix is not None and not keepdb:
            # The processes of --parallel are killed. A new file with this name would take over their log.
            copy = creation.get_test_db_clone_settings(suffix)["NAME"]
            for log in ("-wal", "-shm"):
                Path(f"{copy}{log}").unlink(missing_ok=True)

    creation.destroy_test_db = close_and_drop
