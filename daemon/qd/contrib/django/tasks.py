"""A backend for Django's own Tasks: django.tasks in Django 6, the package django-tasks before.

    TASKS = {"default": {"BACKEND": "qd.contrib.django.tasks.QdBackend", "QUEUES": ["default", "mail"], "OPTIONS": {...}}}
    @task def welcome(to)        becomes a raw job of the project's Qd, under its module path, when its module is imported
    welcome.enqueue("a@b.c")     its data: {"args": ["a@b.c"], "kwargs": {}, "backend": "default", "at": unix seconds}
    get_result(id)               what results.py finds: the record of its end, else the job itself

OPTIONS: those of a job (tries, timeout, backoff, result_ttl, connection ...), `after_commit`, and `app` ("shop.qd:app").
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from qd.app import Qd
from qd.bus.running import current_job
from qd.contrib.django import project, results
from qd.contrib.django.kit import (
    BaseTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)
from qd.events import JobFailed
from qd.jobs import JobFunction
from qd.options.job import JOB_KINDS

RESULT_TTL = 86_400.0  # seconds for which a result is kept where OPTIONS do not say

declared: dict[str, Task[..., Any]] = {}  # by module path
hearing: set[int] = set()  # the apps whose failures are told to Django's signals


class QdBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        said = dict(self.options)
        self.app: Qd = import_string(said.pop("app").replace(":", ".")) if "app" in said else project.app()
        self.sending: dict[str, Any] = {"result_ttl": RESULT_TTL, **said}
        self.supports_get_result = bool(self.sending["result_ttl"])
        if id(self.app) not in hearing:
            hearing.add(id(self.app))
            self.app.on(JobFailed)(tell_failed)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Also declares it: a Task is validated when it is made, and so is known to whatever has imported its module."""
        super().validate_task(task)
        self.job_of(task)

    def job_of(self, task: Task[..., Any]) -> JobFunction[..., Any, Any]:
        declared.setdefault(task.module_path, task)
        known = self.app.registry.get(task.module_path)
        if known is None:
            run = running_async if inspect.iscoroutinefunction(task.func) else running
            said = {name: value for name, value in self.sending.items() if name in JOB_KINDS}
            options = {**said, "queue": task.queue_name, "raw": True}
            made: JobFunction[..., Any, Any] = self.app.job(task.module_path, **options)(run(task.module_path))
            declared_as(self.app, task)
            jobs[self.app, task.module_path] = made
        return jobs[self.app, task.module_path]

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Send it. Raises what dispatch raises; InvalidTaskError; TypeError for arguments that JSON cannot carry."""
        self.validate_task(task)
        at = time.time()
        found = results.made(self, task, "", args=args, kwargs=kwargs, enqueued_at=at)
        data = {"args": found.args, "kwargs": found.kwargs, "backend": self.alias, "at": at}
        sending = {**self.sending, "queue": task.queue_name}
        if task.run_after is not None:
            sending["delay"] = aware(task.run_after)
        sent = self.job_of(task).using(**sending).dispatch(data)
        object.__setattr__(found, "id", sent.id)
        task_enqueued.send(type(self), task_result=found)
        return found

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Raises TaskResultDoesNotExist: nothing is known of it any more, or it is none of a task."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        found = results.look(self, str(result_id))
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def task_named(self, path: str) -> Task[..., Any] | None:
        """A declared task. The modules of the installed apps are imported when it is not known; its path never is."""
        if path not in declared:
            project.import_declared()
        return declared.get(path)


jobs: dict[tuple[Qd, str], JobFunction[..., Any, Any]] = {}


def declared_as(app: Qd, task: Task[..., Any]) -> None:
    """Its place is that of the task, not of the line here that declares all of them."""
    code = getattr(inspect.unwrap(task.func), "__code__", None)
    found = app.registry.get(task.module_path)
    if code is not None and found is not None:
        found.where = f"{code.co_filename}:{code.co_firstlineno}"


def aware(moment: datetime) -> datetime:
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


# -- in the worker


def running(path: str) -> Any:
    def run(data: Any) -> Any:
        attempt = Attempt(declared[path], data)
        return attempt.ended(declared[path].func(*attempt.context, *data["args"], **data["kwargs"]))

    return run


def running_async(path: str) -> Any:
    async def run(data: Any) -> Any:
        attempt = Attempt(declared[path], data)
        return attempt.ended(await declared[path].func(*attempt.context, *data["args"], **data["kwargs"]))

    return run


class Attempt:
    """One attempt of a task, as Django's signals and TaskContext are told of it."""

    def __init__(self, task: Task[..., Any], data: Mapping[str, Any]) -> None:
        job = current_job()
        began = time.time()
        task = task.using(backend=data["backend"], queue_name=job.queue)
        backend: Any = task.get_backend()
        self.backend = backend
        self.result = results.made(
            backend,
            task,
            job.id,
            args=data["args"],
            kwargs=data["kwargs"],
            enqueued_at=data["at"],
            status=TaskResultStatus.RUNNING,
            started_at=began,
            workers=[os.environ.get("QD_OWNER", "")] * job.attempt,
        )
        self.context = [TaskContext(task_result=self.result)] if task.takes_context else []
        task_started.send(type(backend), task_result=self.result)

    def ended(self, value: object) -> dict[str, Any]:
        """The record that is kept of it. Raises TypeError: JSON cannot carry what it returned."""
        found = self.result
        object.__setattr__(found, "_return_value", normalize_json(value))
        object.__setattr__(found, "finished_at", datetime.now(UTC))
        object.__setattr__(found, "status", TaskResultStatus.SUCCESSFUL)
        task_finished.send(type(self.backend), task_result=found)
        return results.record(found)


def tell_failed(event: JobFailed) -> None:
    """Django's task_finished of a task that has failed for good."""
    job = event.job
    if job.name not in declared:
        return
    data = results.data_of(bytes(job.data))
    if data is not None:
        task = declared[job.name].using(backend=data["backend"], queue_name=job.queue)
        found = results.failed(task, job.id, data, event.error, job.attempt)
        trace = event.error.__traceback__
        try:
            raise event.error
        except BaseException:  # Django's own receiver logs the error that is being handled, for monitoring
            task_finished.send(type(task.get_backend()), task_result=found)
        finally:
            event.error.__traceback__ = trace
