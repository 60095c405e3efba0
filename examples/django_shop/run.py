"""Django with jobs in its own PostgreSQL, from start to end: `python examples/django_shop/run.py`.

Needs PostgreSQL and `pip install 'qd-worker[postgres]' django django-tasks` (from Django 6 on without the last). The server
runs in a temporary folder. shop/orders.py is the code to read: it saves an order and enqueues its task in one transaction.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
KILLED = """
import django, os, signal
django.setup()
from shop.orders import buy
buy("eve@example.org", pay=lambda: os.kill(os.getpid(), signal.SIGKILL))
"""
MANAGE = (sys.executable, str(HERE / "manage.py"))


def program(name: str) -> str:
    """The path of a program of PostgreSQL. Debian does not install them on PATH."""
    found = shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), "")
    if not found:
        sys.exit("PostgreSQL is not installed: `apt install postgresql`, `brew install postgresql`, or similar")
    return found


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL in a temporary folder. Yields the folder of its socket."""
    initdb, server = program("initdb"), program("postgres")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    folder = tempfile.mkdtemp(prefix="qd-shop-")
    if user:
        shutil.chown(folder, user)
    data = f"{folder}/data"
    try:
        options = ["--auth=trust", "--username=shop", "--no-sync", "--locale=C", "--encoding=UTF8"]
        subprocess.run([initdb, "-D", data, *options], check=True, stdout=subprocess.DEVNULL, cwd=folder, user=user)
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"]
        with open(f"{folder}/log", "wb") as log:
            line = [server, "-D", data, "-k", folder, *options]
            running = subprocess.Popen(line, cwd=folder, user=user, stderr=log, start_new_session=True)
        try:
            wait_for(folder)
            yield folder
        finally:
            running.send_signal(signal.SIGINT)  # disconnects clients
            running.wait(30)
    finally:
        shutil.rmtree(folder)


def wait_for(folder: str) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(psycopg.OperationalError), psycopg.connect(f"host={folder} user=shop dbname=postgres"):
            return
        time.sleep(0.05)
    sys.exit(f"PostgreSQL does not answer: {Path(folder, 'log').read_text()}")


def manage(*words: str) -> None:
    print(f"$ manage.py {' '.join(words)}", flush=True)
    done = subprocess.run([*MANAGE, *words], capture_output=words[-1] != "--stop-when-empty", text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}{done.stderr or ''}")


def seen() -> str:
    """What another connection sees."""
    from shop.models import Order
    from shop.qd import app

    found: list[str] = []

    def count() -> None:
        found.append(f"{Order.objects.count()} orders, {app.queue('default').size()} jobs")

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return found[0]


def refuse() -> None:
    print(f"  in the transaction, others see      {seen()}")
    raise ValueError("the payment is refused")


def main() -> None:
    import django

    tasks = "django.tasks" if django.VERSION >= (6, 0) else f"django-tasks {version('django-tasks')}"
    print(f"Django {django.get_version()} with {tasks}, Python {sys.version.split()[0]}")
    if django.VERSION < (6, 0):
        print("(django.tasks is part of Django 6, which needs Python 3.12)")
    manage("migrate", "--run-syncdb", "-v", "0")
    manage("qd", "migrate")
    django.setup()
    from shop.orders import buy
    from shop.tasks import confirm

    print("Ada buys: the order and its job are saved in one transaction")
    id = buy("ada@example.org", pay=lambda: print(f"  in the transaction, others see      {seen()}"))
    print(f"  after the commit                    {seen()}")
    print("Bob buys, and his payment is refused: a rollback")
    with suppress(ValueError):
        buy("bob@example.org", pay=refuse)
    print(f"  after the rollback                  {seen()}")
    print("Eve buys, and the process is killed before the commit")
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    print(f"  after the kill                      {seen()}")
    manage("qd", "work", "-w", "1", "--log-level", "error", "--stop-when-empty")
    print(f"The result of Ada's task: {confirm.get_result(id).return_value}; {seen()} are left")


if __name__ == "__main__":
    if missing := [name for name in ("qd", "django", "psycopg", "sqlalchemy") if find_spec(name) is None]:
        sys.exit(
            f"not installed: {', '.join(missing)}. Run pip install '{HERE.parents[1]}[postgres]' django django-tasks"
        )
    os.chdir(HERE)
    sys.path.insert(0, str(HERE))
    with postgres() as folder:
        os.environ |= {"PGHOST": folder, "DJANGO_SETTINGS_MODULE": "shop.settings"}
        main()
    print("PostgreSQL is stopped and its folder removed")
