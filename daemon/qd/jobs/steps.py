"""Durable steps: job.step(name, function, ...) runs the function once, however often the job is tried.

    first step of an attempt -> read what earlier attempts have recorded, with one call
    a recorded name          -> its result; the function does not run
    another one              -> the function -> its result as JSON, recorded -> the result, as the next attempt reads it

step() returns once the server has the record, and until then tries again, as long as the job may run. If the job went on
without it, the next attempt would run the function again. Tasks of asyncio call the server in a thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from qd.arguments.signature import result_from
from qd.arguments.values import FAILURES, encode_value, why
from qd.drivers.pausing import Pause, Pausing, block_on, sleep, threaded, wait_for
from qd.errors import ArgumentError, NotInJob
from qd.jobs.context import RunningJob
from qd.jobs.pipeline import is_async

AGAIN = 0.2  # seconds until an unreachable server is tried again


def in_memory(known: dict[str, bytes], job: object, name: str = "", text: bytes = b"") -> Mapping[str, bytes]:
    """The steps of a job that runs where it is sent. A store returns all steps, or the given one as it is recorded."""
    return known | {name: known.setdefault(name, text)} if name else known


class Steps:
    """The durable steps of one attempt. store: see in_memory; None: the server did not answer."""

    def __init__(self, job: RunningJob) -> None:
        self._store = partial(job._step_store or partial(in_memory, {}), job)
        self._known: Mapping[str, bytes] | None = None  # recorded by earlier attempts; None: not read yet
        self._names = dict[str, object]()  # used by this attempt
        self._reading, self._pid = threading.Lock(), os.getpid()

    def run(self, name: str, function: Callable[..., Any], call: Callable[[], Any]) -> Pausing[Any]:
        if os.getpid() != self._pid:
            raise NotInJob("job.step() was called in a process that the job has forked: call it in the job's own")
        if self._names.setdefault(name, mine := object()) is not mine:
            raise ArgumentError(f"job.step({name!r}) was called twice in one attempt: give each step its own name")
        while (known := (yield threaded(self._read))) is None:
            yield sleep(AGAIN)
        if (text := known.get(name)) is None:
            text = encode_value((yield Pause(call, call)), f"the result of job.step({name!r})")
            while (found := (yield threaded(partial(self._store, name, text)))) is None:
                yield sleep(AGAIN)
            text = found[name]
        try:
            return result_from(text, function)
        except FAILURES as error:
            raise ArgumentError(f"the recorded result of job.step({name!r}) is not JSON: {why(error)}") from None

    def _read(self) -> Any:
        with self._reading:
            self._known = self._store() if self._known is None else self._known
            return self._known


def step(job: RunningJob, name: object, function: Callable[..., Any], call: Callable[[], Any]) -> Any:
    if not isinstance(name, str) or not name or not name.isprintable() or not callable(function):
        raise ArgumentError(f"job.step() takes a name like 'fetch' and a function, not {name!r} and {function!r}")
    in_loop = "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None
    if in_loop != is_async(function):
        way = f"an async function on an event loop; else: await asyncio.to_thread(job.step, {name!r}, ...)"
        raise ArgumentError(f"job.step({name!r}) takes {way if in_loop else 'an async function in an async job only'}")
    job._steps = job._steps or Steps(job)
    return (wait_for if in_loop else block_on)(job._steps.run(name, function, call))
