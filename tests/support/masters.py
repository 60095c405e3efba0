"""The parts of a master with a fake clock and fake processes: nothing is forked or signaled."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.log import Log
from qd.master import children, reload, spawn, state, watchdog
from qd.master.children import Worker
from qd.master.code import AppImport, Assignment, MasterPlan
from qd.master.reload import Reload
from qd.master.reports import Reports
from qd.master.spawn import Forker, Spawner
from qd.master.state import State
from qd.options.tables import WorkOptions
from qd.process import fork, scoreboard, systemd
from qd.process.channels import OrderPipe
from qd.process.exit_codes import Exit
from qd.process.scoreboard import W

WORK = WorkOptions(no_schedule=True, no_preload=True, stop_timeout=0.0, sleep=0.0)  # a worker may be silent for 10 s
PLAN = MasterPlan(
    WORK,
    template=lambda context, stream: 0,
    fresh=lambda context, assignment: 0,
    keeper=lambda context, stream, settings, queues: 0,
)


class Line:
    """The orders sent to a template."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def send(self, **order: Any) -> bool:
        self.given.append(order)
        return True

    def close(self) -> None: ...


class Rig:
    """`at`: the clock, monotonic seconds. `did`: signals sent and groups killed, as (what, pid). `full`: the system
    cannot create processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.at, self.full = 100_000.0, False
        self.did: list[tuple[str, int]] = []
        self.lines: list[str] = []
        self._pids = itertools.count(1 << 23)  # above all pids of the kernel
        self._ended: list[tuple[int, int]] = []  # pid, wait status
        clock = SimpleNamespace(monotonic=lambda: self.at)
        for module in (children, reload, spawn, state):
            monkeypatch.setattr(module, "time", clock)
        for module in (children, watchdog):
            monkeypatch.setattr(module, "now", lambda: int(self.at * 1e9))
        monkeypatch.setattr(Worker, "send", lambda one, number: self.did.append((signal.Signals(number).name, one.pid)))
        for module in (fork, spawn):
            monkeypatch.setattr(module, "kill_group", lambda pid: self.did.append(("killed", pid)))
        monkeypatch.setattr(fork, "ended", lambda: self._ended[0][0] if self._ended else None)
        monkeypatch.setattr(fork, "reap", lambda pid: (self._ended.pop(0)[1], 0))
        plan = replace(PLAN, work=replace(WORK, **options))
        self.state = State(
            plan, Log("master", write=lambda line: self.lines.append(line.decode())), systemd.Notifier({})
        )
        self.spawner = Spawner(self.state, cast(Forker, self))
        self.reload = Reload(self.state, self.spawner, lambda: plan)
        self.reload.own.remember()
        self.reports = Reports(self.state, self.spawner, self.reload, lambda _: None)
        self.reload.begin(plan)
        if plan.preload:
            assert self.state.codes.coming is not None
            self.reload.imported(self.state.codes.coming)
        else:
            (first,) = self.workers
            self.boots(first)
            self.reload.imported(self.state.codes.coming or self.code)

    # -- replaces Forker

    def template(self, code: AppImport) -> None:
        code.pid, code.orders = self._pid(), cast(OrderPipe, Line())

    def fresh(self, code: AppImport, assignment: Assignment) -> int:
        return self._pid()

    def _pid(self) -> int:
        if self.full:
            raise BlockingIOError("no process to be had")
        return next(self._pids)

    # -- actions

    def boots(self, worker: Worker) -> None:
        worker.is_ready(None)
        self.state.boots[worker.role].ready()

    def dies(self, pid: int, status: int = signal.SIGKILL) -> None:
        self._ended.append((pid, status))

    def turn(self, seconds: float = 0.0) -> None:
        """Advance the clock, then make one turn of the master."""
        self.at += seconds
        self.reports.reap()
        if self.state.stopping is None:
            self.reload.go_on()
            self.spawner.keep_number()
        else:
            self.state.go_on_stopping(self.state.stopping)
        for number in self.state.children.dead:  # the keeper has moved their jobs
            self.state.board.slot(number)[W.STATE] = scoreboard.SlotState.SETTLED

    def stop(self) -> None:
        self.state.begin_stop("signal SIGTERM", Exit.OK, by_signal=True)

    # -- observations

    @property
    def code(self) -> AppImport:
        assert self.state.codes.serving is not None
        return self.state.codes.serving

    @property
    def workers(self) -> list[Worker]:
        return [*self.state.children.workers.values()]

    def orders(self, code: AppImport) -> list[dict[str, Any]]:
        return cast(Line, code.orders).given

    def logged(self, event: str, field: str) -> list[str]:
        """The values of a field in the log lines of an event."""
        return [match[1] for line in self.lines if (match := re.search(rf" {event} .*\b{field}=(\S+)", line))]

    def close(self) -> None:
        self.state.receiver.sock.close()
        self.state.receiver.sender.sock.close()


MakeRig = Callable[..., Rig]
