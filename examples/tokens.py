"""A page that shows a model's answer token by token, written by a job (examples/tokens), until Ctrl-C.

    python examples/tokens.py [PORT]

Needs `pip install 'qd-worker[embedded]' fastapi uvicorn`. Starts a private server, `qd work` and uvicorn.
Works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOKENS = ROOT / "examples" / "tokens"
QD = (sys.executable, "-m", "qd")
WEB = (sys.executable, "-m", "uvicorn", "chat:web", "--log-level", "info", "--timeout-graceful-shutdown", "1")


def main(port: str = "8000") -> int:
    if missing := [name for name in ("qd", "fastapi", "uvicorn") if find_spec(name) is None]:
        sys.exit(f"not installed: {', '.join(missing)}. Run pip install '{ROOT}[embedded]' fastapi uvicorn")
    if port != "0":
        print(f"Open http://127.0.0.1:{port} as soon as uvicorn says that it runs", flush=True)
    with tempfile.TemporaryDirectory(prefix="qd-tokens-") as folder:
        shutil.copytree(TOKENS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("QD_") or name == "REDIS_URL"]:
            del os.environ[name]
        programs = list[subprocess.Popen[bytes]]()
        try:
            for command in ([*QD, "work"], [*WEB, "--port", port]):
                programs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
            programs[-1].wait()
        except KeyboardInterrupt:
            pass
        finally:
            for program in reversed(programs):
                program.send_signal(signal.SIGTERM)
                program.wait(30)
            subprocess.run([*QD, "embedded", "stop"], stdout=subprocess.DEVNULL, check=False)
    return max(program.returncode not in (0, -signal.SIGTERM) for program in programs)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(*sys.argv[1:]))
