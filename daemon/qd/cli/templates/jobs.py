"""The jobs of this project. `qd work` runs them, `welcome.dispatch(...)` or `qd dispatch mail.welcome ...` sends one."""

from __future__ import annotations

from qd import Qd, current_job

app = Qd()


@app.job("mail.welcome", tries=5, backoff=[1, 5, 30], timeout=30)
def welcome(to: str, subject: str = "Hello") -> None:
    print(f"to {to}: {subject} (attempt {current_job().attempt})", flush=True)
