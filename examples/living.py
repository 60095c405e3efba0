"""What `make demo-dashboard` runs: a living system (examples/living) with its dashboard, until Ctrl-C.

A private server, `qd work` with six workers and a schedule, a program that sends jobs, a queue that is paused and one that
nobody serves. Works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIVING = Path(__file__).resolve().parent / "living"
QD = (sys.executable, "-m", "qd")


def main(*options: str) -> int:
    with tempfile.TemporaryDirectory(prefix="qd-living-") as folder:
        shutil.copytree(LIVING, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("QD_") or name == "REDIS_URL"]:
            del os.environ[name]
        log = Path("work.log").open("wb")  # noqa: SIM115
        programs = [subprocess.Popen([*QD, "work"], stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)]
        try:
            subprocess.run(
                [*QD, "wait", "nothing", "--empty"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
            subprocess.run([*QD, "pause", "images", "--reason", "a new codec is tested"], check=True)
            programs.append(subprocess.Popen([sys.executable, "load.py"], start_new_session=True))
            print(f"A living system runs in {folder}. From that folder, in another terminal:", flush=True)
            for words in ("top", "status", "failed summary", "peek images --count-by job"):
                print(f"    {sys.executable} -m qd {words}", flush=True)
            return subprocess.run([*QD, "dashboard", *options], check=False).returncode
        except KeyboardInterrupt:
            return 0
        finally:
            for program in reversed(programs):
                program.send_signal(signal.SIGTERM)
                program.wait(30)
            log.close()
            subprocess.run([*QD, "embedded", "stop"], stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(*sys.argv[1:]))
