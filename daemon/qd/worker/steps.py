"""The event loop of a worker that runs several jobs: which job's step runs on it now, and which tasks and threads a job has.

    task created in a job's context -> its coroutine is wrapped -> W.STEP is the job's turn during each step, W.STEPS counts
    asyncio.to_thread in a job      -> the attempt ends after that thread

The master reads the two words and so finds the job that blocks the loop, also if that holds the GIL. Callbacks of call_soon
and the like belong to no job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

from qd.process import fork
from qd.process.scoreboard import Slot, W, now

LONG_NS = 200_000_000  # a step that takes longer moves the deadlines of the other jobs


class Owner:
    """The attempt that owns tasks and threads. turn: 0 once it has ended. tasks: without its first one."""

    __slots__ = ("tasks", "threads", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.tasks = set[asyncio.Task[Any]]()
        self.threads = set[Future[Any]]()


owner_here: ContextVar[Owner | None] = ContextVar("qd_owner_of_tasks", default=None)


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that notes its job during each step."""

    __slots__ = ("_coroutine", "_owner", "_steps")

    def __init__(self, coroutine: Any, owner: Owner, steps: Steps) -> None:
        self._coroutine, self._owner, self._steps = coroutine, owner, steps

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, go: Callable[..., Any], *args: Any) -> Any:
        steps = self._steps
        slot, began = steps.slot, now()
        before = slot[W.STEP]
        slot[W.STEPS] = steps.count = steps.count + 1
        slot[W.STEP] = self._owner.turn
        try:
            return go(*args)
        finally:
            if steps.copied:
                fork.leave(0)  # a copy of the worker that the job has forked: the other jobs are not its own
            if (took := now() - began) > LONG_NS and not before:
                steps.blocked(took, self._owner.turn)  # before STEP is 0: the master sees a step, or later deadlines
            slot[W.STEP] = before

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("await the task, not its coroutine")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_frame, __qualname__ ...


class Steps:
    """Installs itself in a loop. blocked: called after a step that took so many ns, with the job's turn."""

    def __init__(self, slot: Slot, blocked: Callable[[int, int], None]) -> None:
        self.slot, self.blocked = slot, blocked
        self.count = 0
        self.copied = False  # this process is a fork of the worker
        self._factory: Any = None  # the app's

    def install(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        """threads: for asyncio.to_thread. An app may set a task factory of its own later; it is wrapped, too."""
        replace = loop.set_task_factory
        loop.set_default_executor(JobThreads(max(32, threads), "qd-to-thread"))

        def set_factory(factory: Any) -> None:
            self._factory = factory
            replace(self._make)

        set_factory(None)
        with suppress(AttributeError):  # a loop written in C
            loop.set_task_factory = set_factory  # type: ignore[method-assign]

    def first(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, owner: Owner, context: Context
    ) -> asyncio.Task[Any]:
        """The first task of an attempt."""
        stepped = Stepped(coroutine, owner, self)
        if self._factory is not None:
            return cast("asyncio.Task[Any]", self._factory(loop, stepped, context=context))
        return asyncio.Task(stepped, loop=loop, context=context)

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> Any:
        context: Context | None = how.get("context")
        owner = owner_here.get() if context is None else context.get(owner_here)
        if owner is not None and owner.turn:
            coroutine = Stepped(coroutine, owner, self)
        task = self._factory(loop, coroutine, **how) if self._factory else asyncio.Task(coroutine, loop=loop, **how)
        if owner is not None:
            owner.tasks.add(task)
            task.add_done_callback(owner.tasks.discard)
        return task


class JobThreads(ThreadPoolExecutor):
    """Notes the threads of each job."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if (owner := owner_here.get()) is not None:
            owner.threads.add(future)
            future.add_done_callback(owner.threads.discard)
        return future


async def ended(owner: Owner) -> None:
    """Cancel the tasks that the job has left running, and wait for them and its threads."""
    here = asyncio.current_task()
    while left := [task for task in owner.tasks if task is not here and not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
    if owner.threads:
        await asyncio.wait([asyncio.wrap_future(future) for future in list(owner.threads)])


def context_of(owner: Owner, base: Context | None = None) -> Context:
    """A new context for the tasks of an attempt."""
    context = (base or copy_context()).copy()
    context.run(owner_here.set, owner)
    return context
