"""A backend for Django's own Tasks: django.tasks in Django 6, the package django-tasks before.

    TASKS = {"default": {"BACKEND": "qd.contrib.django.tasks.QdBackend", "QUEUES": ["default", "mail"], "OPTIONS": {...}}}
    @task def welcome(to)        becomes a raw job of the project's Qd, under its module path, when its module is imported
    welcome.enqueue("a@b.c")     its data: {"args": ["a@b.c"], "kwargs": {}, "backend": "default", "at": unix seconds}
    get_result(id)               made from the record of its end, or from the job itself:
        kept    a successful task has returned its record (Attempt.ended), which result_ttl keeps
        found   else the job is searched for: it waits, runs, or is in the failed store

OPTIONS: those of a job (tries, timeout, backoff, result_ttl, connection ...), `after_commit`, and `app` ("shop.qd:app").
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import django
from django.utils import timezone
from django.utils.module_loading import import_string

from qd.app import Qd
from qd.contrib.django import project
from qd.drivers.types import Found
from qd.errors import DeclarationError
from qd.events import JobFailed
from qd.jobs.context import current_job
from qd.jobs.job import JobFunction
from qd.jobs.plan import IN_CODE
from qd.options.tables import JOB_KINDS
from qd.traces import shown

# django.tasks from Django 6 on, the package django-tasks before.
if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

RESULT_TTL = 86_400.0  # seconds for which a result is kept, unless OPTIONS set result_ttl
LAST_LINE = re.compile(r"^([\w.]+)(?::|$)", re.MULTILINE)
STATUS = {"ready": TaskResultStatus.READY, "delayed": TaskResultStatus.READY, "running": TaskResultStatus.RUNNING}

declared: dict[str, Task[..., Any]] = {}  # by module path
listening: set[int] = set()  # ids of the apps whose failures are sent to Django's signals


class QdBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.app: Qd = import_string(options.pop("app").replace(":", ".")) if "app" in options else project.app()
        if code := [name for name in IN_CODE if name in options]:
            way = f"a payload carries no code; use @app.job({code[0]}=...) in place of @task"
            raise DeclarationError(f"OPTIONS of task backend '{alias}' cannot have {code[0]} ({way})")
        self.sending: dict[str, Any] = {"result_ttl": RESULT_TTL, **options}
        self.supports_get_result = bool(self.sending["result_ttl"])
        if id(self.app) not in listening:
            listening.add(id(self.app))
            self.app.on(JobFailed)(send_failed)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Also declares it: Django validates a Task when its module is imported."""
        super().validate_task(task)
        self.job_of(task)

    def job_of(self, task: Task[..., Any]) -> JobFunction[..., Any, Any]:
        declared.setdefault(task.module_path, task)
        if self.app._registry.get(task.module_path) is None:
            own = {name: value for name, value in self.sending.items() if name in JOB_KINDS}
            options = {**own, "queue": task.queue_name, "raw": True}
            made: JobFunction[..., Any, Any] = self.app.job(task.module_path, **options)(running(task))
            if (code := getattr(inspect.unwrap(task.func), "__code__", None)) is not None:  # its place, not this file
                made._plan.declared.where = f"{code.co_filename}:{code.co_firstlineno}"
            jobs[self.app, task.module_path] = made
        return jobs[self.app, task.module_path]

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Send it. Raises what dispatch raises; InvalidTaskError; TypeError for arguments that JSON cannot carry."""
        self.validate_task(task)
        data = {"args": list(args), "kwargs": dict(kwargs), "backend": self.alias, "at": time.time()}
        found = task_result(task, "", data)
        sending = {**self.sending, "queue": task.queue_name}
        if (at := task.run_after) is not None:
            sending["delay"] = timezone.make_aware(at) if timezone.is_naive(at) else at
        sent = self.job_of(task).using(**sending).dispatch(data)
        object.__setattr__(found, "id", sent.id)
        task_enqueued.send(type(self), task_result=found)
        return found

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Raises TaskResultDoesNotExist if the result is unknown (any more), or is not that of a task."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        connection = self.app.settings.connection(self.sending.get("connection")).name
        id, queue = str(result_id), self.app.connections.get(connection)
        kept = queue.jobs.kept(id)
        if kept is not None and kept.status == "done":
            result = self._of_record(id, kept.value)
        else:
            found = next((found for name in sorted(self.queues) if (found := queue.jobs.find(name, id))), None)
            result = found and self._of_job(id, found)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def _of_record(self, id: str, value: bytes) -> TaskResult[Any] | None:
        try:
            record = json.loads(value)
            task = self.task_named(record["task"])
        except (ValueError, LookupError, TypeError):
            return None  # the job with this id is not a task
        if task is None:
            return None
        task = task.using(backend=self.alias, queue_name=record["queue"])
        times = {"started_at": record["started"], "finished_at": record["finished"]}
        found = task_result(task, id, record, TaskResultStatus.SUCCESSFUL, **times, workers=record["workers"])
        object.__setattr__(found, "_return_value", record["value"])
        return found

    def _of_job(self, id: str, found: Found) -> TaskResult[Any] | None:
        task, data = self.task_named(found.payload.job), data_of(bytes(found.payload.data))
        if task is None or data is None:
            return None
        task = task.using(backend=self.alias, queue_name=found.queue)
        if found.spot != "failed":
            workers = [(found.payload.rsv or "").rpartition(".")[0]] * found.payload.attempts
            return task_result(task, id, data, STATUS[found.spot], workers=workers)
        record = json.loads(found.text.partition(b"\n")[0])
        trace = record.get("trace") or record.get("reason") or ""
        error = TaskError(exception_class_path=path_of(record), traceback=trace)
        return failed_result(task, id, data, record.get("failed_at"), int(record.get("attempts") or 0), error)

    def task_named(self, path: str) -> Task[..., Any] | None:
        """A declared task. If it is unknown, imports the modules of the installed apps, but never the path itself."""
        if path not in declared:
            project.import_declared()
        return declared.get(path)


jobs: dict[tuple[Qd, str], JobFunction[..., Any, Any]] = {}


def running(task: Task[..., Any]) -> Any:
    """The function of its job. The task is looked up when it runs."""
    path = task.module_path

    def run(data: Any) -> Any:
        attempt = Attempt(declared[path], data)
        return attempt.ended(declared[path].func(*attempt.context, *data["args"], **data["kwargs"]))

    async def run_async(data: Any) -> Any:
        attempt = Attempt(declared[path], data)
        return attempt.ended(await declared[path].func(*attempt.context, *data["args"], **data["kwargs"]))

    return run_async if inspect.iscoroutinefunction(task.func) else run


class Attempt:
    """One attempt of a task, for Django's signals and TaskContext."""

    def __init__(self, task: Task[..., Any], data: Mapping[str, Any]) -> None:
        job, status = current_job(), TaskResultStatus.RUNNING
        task = task.using(backend=data["backend"], queue_name=job.queue)
        self.backend: Any = task.get_backend()
        workers = [os.environ.get("QD_OWNER", "")] * job.attempt
        self.result = task_result(task, job.id, data, status, started_at=time.time(), workers=workers)
        self.context = [TaskContext(task_result=self.result)] if task.takes_context else []
        task_started.send(type(self.backend), task_result=self.result)

    def ended(self, value: object) -> dict[str, Any]:
        """The record to keep, for `find_result`. Raises TypeError if JSON cannot represent the returned value."""
        found = self.result
        object.__setattr__(found, "_return_value", normalize_json(value))
        object.__setattr__(found, "finished_at", datetime.now(UTC))
        object.__setattr__(found, "status", TaskResultStatus.SUCCESSFUL)
        task_finished.send(type(self.backend), task_result=found)
        assert found.enqueued_at is not None
        assert found.started_at is not None
        return {
            "task": found.task.module_path,
            "queue": found.task.queue_name,
            "args": found.args,
            "kwargs": found.kwargs,
            "at": found.enqueued_at.timestamp(),
            "started": found.started_at.timestamp(),
            "finished": time.time(),
            "workers": found.worker_ids,
            "value": found._return_value,
        }


def send_failed(event: JobFailed) -> None:
    """Send Django's task_finished for a task that has failed permanently."""
    job = event.job
    if job.name in declared and (data := data_of(bytes(job.data))) is not None:
        task = declared[job.name].using(backend=data["backend"], queue_name=job.queue)
        kind, trace = type(event.error), event.error.__traceback__
        failure = TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=shown(event.error))
        found = failed_result(task, job.id, data, time.time(), job.attempt, failure)
        try:
            raise event.error
        except BaseException:  # Django's own receiver logs the error that is being handled, for monitoring
            task_finished.send(type(task.get_backend()), task_result=found)
        finally:
            event.error.__traceback__ = trace


# -- results


def task_result(
    task: Task[..., Any],
    id: str,
    data: Mapping[str, Any],
    status: Any = TaskResultStatus.READY,
    *,
    started_at: float | None = None,
    finished_at: float | None = None,
    workers: Sequence[str] = (),
    errors: Sequence[Any] = (),
) -> TaskResult[Any]:
    """data: of the task's payload, or its record. Times are unix seconds."""
    return TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=moment(data["at"]),
        started_at=moment(started_at),
        finished_at=moment(finished_at),
        last_attempted_at=moment(started_at),
        args=list(data["args"]),
        kwargs=dict(data["kwargs"]),
        backend=task.backend,
        errors=list(errors),
        worker_ids=list(workers),
    )


def failed_result(
    task: Task[..., Any], id: str, data: Mapping[str, Any], ended: float | None, attempts: int, error: Any
) -> TaskResult[Any]:
    status, workers = TaskResultStatus.FAILED, [""] * attempts
    return task_result(task, id, data, status, finished_at=ended, workers=workers, errors=[error])


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def data_of(raw: bytes) -> dict[str, Any] | None:
    """The data of a task's payload; None if it is not a task."""
    try:
        data = json.loads(raw)
        return data if {"args", "kwargs", "backend", "at"} <= set(data) else None
    except (ValueError, TypeError):
        return None


def path_of(record: Mapping[str, Any]) -> str:
    """The import path of the error's class: the record has only its name, the last line of the traceback its module."""
    name = str(record.get("error") or "Exception")
    named = [path for path in LAST_LINE.findall(record.get("trace") or "") if path.rpartition(".")[2] == name]
    path = named[-1] if named else name
    return path if "." in path else f"builtins.{path}"
