"""Django's test databases: in the worker of the fixture `qd_worker`, and with `QD = {"url": "django://default"}`.

created    qd's tables are created, too
flushed    after a TransactionTestCase: qd's tables are emptied, too
dropped    first qd's own connections are closed: PostgreSQL drops no database that has connections
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.core import mail
from django.db import connections
from django.db.backends.signals import connection_created

from qd.contrib.django.database import alias_of, in_memory
from qd.contrib.django.project import TESTED, in_transaction, made, qd_settings
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


def variables() -> dict[str, str]:
    """For the process of `qd_worker`: the names of this test's databases, each also as a path from any folder. Raises
    ConfigError if its jobs could not see what the test writes."""
    names = dict[str, tuple[str, str]]()
    for found in map(connections.__getitem__, connections):
        name = path = str(found.settings_dict["NAME"])
        if found.vendor == "sqlite":
            if found.is_in_memory_db():
                raise in_memory(found.alias)
            path = name if name.startswith("file:") else os.path.abspath(name)
        if in_transaction(found):
            fact = f"a transaction is open on Django's connection '{found.alias}': the worker cannot see its rows"
            raise ConfigError(f"{fact}; mark the test with @pytest.mark.django_db(transaction=True)")
        names[found.alias] = name, path
    return {TESTED: json.dumps(names)}


def use(given: str) -> None:
    """In that process: put these names into DATABASES. A job cannot open a database for which the test has no other name
    than the settings: that is the real one."""
    real = set[str]()
    for alias, (name, path) in json.loads(given).items():
        own = connections.settings[alias]
        if name == str(own["NAME"]) and name != str(own["TEST"]["NAME"]):
            real.add(alias)
        own["NAME"] = path

    def refuse(connection: Any, **_: object) -> None:
        if connection.alias in real:
            connection.close()
            way = f"name it in @pytest.mark.django_db(transaction=True, databases=['{connection.alias}', ...])"
            raise RuntimeError(f"the test has set up no test database for DATABASES['{connection.alias}']: {way}")

    connection_created.connect(refuse, weak=False)
