"""Python runs this file at its start if its folder is on PYTHONPATH. It disables one mechanism of qd in the pytest process
and in every `qd` that a test starts. SWITCHED_OFF names the mechanism; see tests/faults/test_switched_off.py.

A name that qd no longer has, or a changed line of a script, is an error at import, which fails the test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


def replaced(path: str, other: Callable[..., Any]) -> Patch:
    """Replace `path` inside the module by the result of `other`, which gets the original."""

    def patch(module: Any) -> None:
        *holders, name = path.split(".")
        for holder in holders:
            module = getattr(module, holder)
        setattr(module, name, other(getattr(module, name)))

    return patch


def never(answer: object) -> Callable[..., Any]:
    """Replace a function by one that does nothing and returns this answer."""
    return lambda real: wraps(real)(lambda *args, **kwargs: answer)


def script_without(name: str, text: str, instead: str) -> Patch:
    """One script, with one piece of text replaced."""

    def other(real: Callable[[str], Any]) -> Callable[[str], Any]:
        known: dict[str, Any] = {}

        def script(wanted: str) -> Any:
            if wanted != name:
                return real(wanted)
            if wanted not in known:
                made = real(wanted)
                assert made.text.count(text) == 1, f"the script {name} has changed: where is {text!r}?"
                known[wanted] = type(made)(name, made.text.replace(text, instead))
            return known[wanted]

        return script

    return replaced("script", other)


def one_process(real: Callable[..., Any]) -> Callable[..., Any]:
    """Kills one process instead of a process group."""
    return lambda pid: os.kill(pid, 9)


def reap_alone(real: Callable[..., Any]) -> Callable[..., Any]:
    def reap(pid: int) -> tuple[int, int]:
        _, status, usage = os.wait4(pid, 0)
        return status, usage.ru_maxrss * 1024

    return reap


def as_a_crash(real: Callable[..., Any]) -> Callable[..., Any]:
    """Jobs that should be handed back without using an attempt are requeued as after a crash. Only the master may write the
    slot itself: it repairs changes by others."""

    class Crashed:
        def __init__(self, slot: Any) -> None:
            self.slot = slot

        def __getitem__(self, word: Any) -> Any:
            from qd.process.scoreboard import Verdict, W

            found = self.slot[word]
            return Verdict.CRASH if word == W.VERDICT and found == Verdict.HAND_BACK else found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.slot, name)

    @wraps(real)
    def move(dead: Any, queue: str, slot: Any) -> Any:
        return real(dead, queue, Crashed(slot))

    return move


def in_any_namespace(real: Callable[..., Any]) -> Callable[..., Any]:
    """A master of another pid namespace is checked by its pid in this one."""

    def died_here(master: Any) -> bool:
        from qd.process import proc

        return real(master) or proc.alive(master.pid, master.start) is False

    return died_here


def sure(real: Callable[..., Any]) -> Callable[..., Any]:
    """A broken call is treated as never sent."""

    def broke(connection: Any, error: Exception) -> None:
        real(connection, error)
        connection.unsure = False

    return broke


def spending(real: Callable[..., Any]) -> Callable[..., Any]:
    """A job released by middleware uses an attempt."""

    def by_job(*args: Any) -> Any:
        from msgspec.structs import replace

        return replace(real(*args), spends=True)

    return by_job


def blind(real: Callable[..., Any]) -> Callable[..., Any]:
    """A worker with prefetched jobs does not see that the keeper takes them back."""

    def next_held(ahead: Any) -> Any:
        batch, ahead._batch = ahead._batch, -1
        try:
            return real(ahead)
        finally:
            ahead._batch = batch

    return next_held


def first_seats(real: Callable[..., Any]) -> Callable[..., Any]:
    """Only the first lane of each worker has its lease renewed."""
    return lambda keeper: [seat for seat in real(keeper) if seat < 256]


SCRIPTS = "qd.drivers.keyspace.base"
FRESH = "if may_be_tied(p) then q, once_leased = rarely().taken("
OWNED, OWNED_TOO = (f"redis.pcall('HSET', owners, owner, text{more})" for more in ("", ", unpack(also)"))
FENCE = "if known and tonumber(known) > tonumber(ARGV[7]) then return {-2} end"
RECORDED = "redis.call('HSET', KEYS[1], name, result)"
NOT_ALONE = "if tonumber(string.match(mark, '%.(%d+)')) < 256 then crashes = crashes + 1 end"

# Mechanism -> patches of modules.
SWITCHES: dict[str, list[tuple[str, Patch]]] = {
    "renewal": [("qd.keeper.keeper", replaced("Keeper._to_renew", never([])))],
    "owner mark": [
        (SCRIPTS, script_without("turn", OWNED, "0")),
        (SCRIPTS, script_without("lanes", OWNED_TOO, "redis.pcall('HSET', owners, unpack(also))")),
        (SCRIPTS, script_without("lanes", "unpack(pairs_of))", "field, last)")),
    ],
    "end with the master": [("qd.process.proc", replaced("set_pdeathsig", never(True)))],
    "hard kill": [("qd.master.watchdog", replaced("Watchdog.check", never(None)))],
    "read before pop": [(SCRIPTS, script_without("turn", FRESH, f"redis.call('LPOP', list)\n{FRESH}"))],
    "reclaim only when long connected": [("qd.keeper.keeper", replaced("Keeper._reclaims_until", never(1e12)))],
    "hand-back": [("qd.keeper.dead_workers", replaced("DeadWorkers._move", as_a_crash))],
    "worker first for the OOM killer": [("qd.process.proc", replaced("oom_score_adj", never(True)))],
    "end of the group": [
        ("qd.process.fork", replaced("kill_group", one_process)),
        ("qd.process.fork", replaced("reap", reap_alone)),
        ("qd.process.fork", replaced("kill_all", never(0))),  # it would come shortly after
    ],
    "end of what left the group": [("qd.process.fork", replaced("kill_all", never(0)))],
    "pid namespace": [("qd.keeper.dead_workers", replaced("died_here", in_any_namespace))],
    "signs of life": [("qd.master.watchdog", replaced("silence_of", never(0.0)))],
    "jitter": [("qd.jobs.policy", replaced("backoff", never(0.3)))],
    "a slower and slower start": [("qd.master.children", replaced("BootBackoff.fell", never(0.0)))],
    "ask after a broken call": [("qd.worker.connection", replaced("WorkerConnection.broke", sure))],
    "one job a worker": [
        (SCRIPTS, script_without("turn", "i ~= acks_at and redis.pcall('HGET', KEYS[i + 5], owner)", "false"))
    ],
    "a lock is its job's": [(SCRIPTS, script_without("hold", "elseif places[i] ~= owner then", "else"))],
    "a window that slides": [
        (SCRIPTS, script_without("admit", "(score_at(KEYS[1], before - most) or 0) + window)", "now)")),
    ],
    "put back at no cost": [("qd.worker.outcome", replaced("Outcomes.by_job", spending))],
    "recall": [("qd.worker.prefetch", replaced("PrefetchConnection.next_held", blind))],
    "fence": [(SCRIPTS, script_without("lanes", FENCE, ""))],
    "proof": [("qd.process.scoreboard", replaced("Scoreboard.finished", never(0)))],
    "suspects": [(SCRIPTS, script_without(name, NOT_ALONE, "crashes = crashes + 1")) for name in ("lanes", "turn")],
    "renewal of lanes": [("qd.keeper.keeper", replaced("Keeper._seats", first_seats))],
    "events once": [(SCRIPTS, script_without("emit", "if by == attempt then", "if false then"))],
    "events before the end": [("qd.worker.settle", replaced("Settlement._end_stream", never(())))],
    "record of steps": [(SCRIPTS, script_without("steps", RECORDED, ""))],
    "nothing": [],
}


class Switches(MetaPathFinder):
    """Finds qd's modules as Python does, and patches them after they are loaded."""

    def __init__(self, patches: list[tuple[str, Patch]]) -> None:
        self.patches = patches

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        patches = [patch for module, patch in self.patches if module == name]
        spec = PathFinder.find_spec(name, path) if patches else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            for patch in patches:
                patch(module)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


if "SWITCHED_OFF" in os.environ:
    sys.meta_path.insert(0, Switches(SWITCHES[os.environ["SWITCHED_OFF"]]))
