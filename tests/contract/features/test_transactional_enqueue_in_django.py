"""`app.transaction(django.db.connection)`: jobs in the open transaction of Django, where Django has the queue's database."""

from __future__ import annotations

from sqlalchemy import make_url

from tests.contract.features.conftest import Cell
from tests.contract.kinds import Tried, ready

FEATURE = "Transactional enqueue in Django"
SENDS = """
import pymysql
pymysql.install_as_MySQLdb()
from django.conf import settings
settings.configure(DATABASES={"default": <database>})
from django.db import connection, transaction
from jobs import app, quick

class Stop(Exception): ...

with transaction.atomic():
    with app.transaction(connection):
        quick.dispatch(1)
try:
    with transaction.atomic(), app.transaction(connection):
        quick.dispatch(2)
        app.dispatch(quick.bind(3), quick.bind(4))
        raise Stop
except Stop:
    pass
"""


def database_of(tried: Tried) -> dict[str, object]:
    """The entry of DATABASES: the queue's own database, or SQLite for a queue that is in none."""
    url = make_url(str(tried.served.table["url"])) if tried.served.migrates and not tried.served.control else None
    if url is None or url.database is None or url.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database if url else str(tried.shop.root / "go")}
    engine = f"django.db.backends.{url.get_backend_name()}"
    return {"ENGINE": engine, "NAME": url.database, "USER": url.username, "HOST": url.host, "PORT": url.port}


def test_a_job_exists_exactly_when_djangos_transaction_commits(tried: Tried, cell: Cell) -> None:
    program = SENDS.replace("<database>", repr(database_of(tried)))
    if cell == "refused":
        program = f"from qd.errors import ConfigError\ntry:\n{indented(program)}\nexcept ConfigError as error:\n"
        program += "    assert 'is not a database' in str(error), error\nelse:\n    raise SystemExit('accepted')\n"
        tried.shop.python(program)
        return
    tried.shop.python(program)
    work = ready(tried.shop, "--stop-when-empty")
    work.ends_clean()
    assert [note[1] for note in tried.shop.noted("E")] == ["1"]


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
