"""The steps of a stop. Its clock is StopClock (state.py).

begin -> drained -> interrupts() -> ends_now() -> no worker left -> keeper leaves -> template ends -> lingered -> over
"""

from __future__ import annotations

import time

from qd.master.state import State, StopClock
from qd.process.exit_codes import Exit
from qd.process.scoreboard import H, Verdict, Why

BIRTH = 1.0  # seconds after the request to stop within which a child that is just starting exits without a kill


def begin(state: State, reason: str, code: Exit, *, by_signal: bool = False) -> None:
    """Begin to stop: drain the workers, hand back jobs still running at the deadline, let the keeper settle, leave.

    Args:
        reason: Goes into the log line `master.stopping`.
        code: What the program exits with.
        by_signal: Leave as soon as everything is settled, without waiting for `min_uptime`.
    """
    deadline = state.plan.work.stop_timeout or None
    fate = "handed back" if any(worker.has_job for worker in state.children.workers.values()) else "ended"
    running = state.running
    hint = f"work still running then is {fate}; a second signal ends it now" if running and deadline else None
    linger = 0.0 if by_signal else state.started_at + state.plan.work.min_uptime
    state.stopping = StopClock(code, state.plan.work.stop_timeout, linger, by_signal)
    if code is Exit.OK and not by_signal:  # --stop-when-empty may be done before all workers are ready
        state.notifier.ready("")
    state.notifier.stopping()
    if state.codes.coming is not None and not state.codes.coming.imported:
        state.codes.give_up()
    # Set before any child is signaled: a child that drains reads how long it has.
    state.board.set_header(H.STOP_AT, state.stopping.deadline_ns)
    for worker in state.children.workers.values():
        worker.drain()
    # Logged after the signals: once this line is written, no worker takes another job.
    state.log.info("master.stopping", reason=reason, running=running, deadline=deadline, hint=hint)


def go_on(state: State, stopping: StopClock) -> None:
    """Take the steps that are due now."""
    children = state.children
    state.board.set_header(H.STOP_AT, stopping.deadline_ns)
    for worker in children.workers.values():
        if stopping.ends_now():
            children.kill(worker, Verdict.HAND_BACK)
        elif stopping.interrupts() and worker.has_job and not worker.interrupted:
            worker.interrupted = True
            children.alarm(worker, Why.INTERRUPT)
    if state.busy and stopping.extend_due():
        state.notifier.extend(10.0)
    if stopping.ends_now() or time.monotonic() - stopping.began > BIRTH:
        _end_births(state)
    if not children.workers:
        _last_steps(state, stopping)


def _end_births(state: State) -> None:
    """Kill children that hang before they can have a job, for instance in a library's fork hook, where TERM has no effect.
    The template is killed first, with any child it is forking, so that no more are born."""
    starting = [worker for worker in state.children.workers.values() if worker.is_starting]
    if starting:
        state.codes.end()
    for worker in starting:
        state.children.kill(worker, Verdict.HAND_BACK)
    state.children.forget_unborn(time.monotonic() + 1e9)


def _last_steps(state: State, stopping: StopClock) -> None:
    """All workers have ended: let the keeper move their jobs and leave, then end the template, then linger."""
    if not stopping.keeper_dismissed:
        stopping.keeper_dismissed = True
        state.keeper.leave()
        state.codes.end()
    if state.keeper.pid and not stopping.keeper_late():
        return
    state.keeper.kill()
    if time.monotonic() >= stopping.linger and not stopping.over:
        stopping.over = True
        jobs, back = state.jobs_done, state.handed_back
        state.log.info("master.stopped", jobs=jobs, handed_back=back, exit=int(stopping.code))
