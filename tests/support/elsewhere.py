"""`qd` as it would run on another host: what tells hosts apart is changed in its process, and every child is forked from it.

python -m tests.support.elsewhere name work ...     another host name
python -m tests.support.elsewhere boot work ...     the same name, booted another time
python -m tests.support.elsewhere ns work ...       another container of the same name and kernel
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

from qd.process import proc
from tests.support.procs import Procs
from tests.support.project import SOURCE, Project


def elsewhere(shop: Project, *arguments: str, by: str = "name") -> Procs:
    """`qd work` of the shop on another host, ready. It sees the files of this one, so that jobs write one ledger."""
    path = os.pathsep.join([shop.env()["PYTHONPATH"], str(SOURCE.parent)])
    command = [sys.executable, "-m", "tests.support.elsewhere", by, "work", *arguments]
    work = Procs(command, cwd=shop.root, env=shop.env(PYTHONPATH=path))
    shop.started.append(work)
    work.wait_line("master.ready")
    return work


if __name__ == "__main__":
    by, *rest = sys.argv[1:]
    if by == "name":
        socket.gethostname = lambda: "elsewhere"
    elif by == "boot":
        setattr(proc, "boot_id", lambda: "another-boot")  # noqa: B010
    else:
        setattr(proc, "pid_namespace", lambda: "pid:[1]")  # noqa: B010
    sys.argv = ["qd", *rest]
    runpy.run_module("qd", run_name="__main__")
