"""What is known of a task that was sent, as Django's TaskResult: made of the record of its end, or of the job itself.

kept    a task that ended well has returned its record (tasks.Attempt.ended), which result_ttl keeps
found   else the job is looked for: it waits, it runs, or it stands in the failed store
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qd.contrib.django.kit import Task, TaskError, TaskResult, TaskResultStatus
from qd.traces import shown

if TYPE_CHECKING:
    from qd.connectors.base import Found
    from qd.contrib.django.tasks import QdBackend

LAST_LINE = re.compile(r"^([\w.]+)(?::|$)", re.MULTILINE)
STATUS = {"ready": TaskResultStatus.READY, "delayed": TaskResultStatus.READY, "running": TaskResultStatus.RUNNING}


def made(
    backend: Any,
    task: Task[..., Any],
    id: str,
    *,
    args: Any,
    kwargs: Any,
    enqueued_at: float | None,
    status: Any = TaskResultStatus.READY,
    started_at: float | None = None,
    finished_at: float | None = None,
    workers: Sequence[str] = (),
    errors: Sequence[Any] = (),
) -> TaskResult[Any]:
    """Moments are unix seconds."""
    return TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=moment(enqueued_at),
        started_at=moment(started_at),
        finished_at=moment(finished_at),
        last_attempted_at=moment(started_at),
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend.alias,
        errors=list(errors),
        worker_ids=list(workers),
    )


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# -- of one that has ended well


def record(found: TaskResult[Any]) -> dict[str, Any]:
    """What a task leaves of itself, for `look`."""
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


def look(backend: QdBackend, id: str) -> TaskResult[Any] | None:
    """None: nothing is known of it."""
    queue = backend.app.connections.get(backend.app.settings.connection(backend.sending.get("connection")).name)
    kept = queue.jobs.kept(id)
    if kept is not None and kept.status == "done":
        return of_record(backend, id, kept.value)
    for name in sorted(backend.queues):
        found = queue.jobs.find(name, id)
        if found is not None:
            return of_job(backend, id, found)
    return None


def of_record(backend: QdBackend, id: str, value: bytes) -> TaskResult[Any] | None:
    try:
        told = json.loads(value)
        task = backend.task_named(told["task"])
    except (ValueError, LookupError, TypeError):
        return None  # the job of that id is no task
    if task is None:
        return None
    found = made(
        backend,
        task.using(backend=backend.alias, queue_name=told["queue"]),
        id,
        args=told["args"],
        kwargs=told["kwargs"],
        enqueued_at=told["at"],
        status=TaskResultStatus.SUCCESSFUL,
        started_at=told["started"],
        finished_at=told["finished"],
        workers=told["workers"],
    )
    object.__setattr__(found, "_return_value", told["value"])
    return found


# -- of one that waits, runs or has failed


def data_of(raw: bytes) -> dict[str, Any] | None:
    """The data of a task's payload. None: it is none of ours."""
    try:
        data = json.loads(raw)
        return data if {"args", "kwargs", "backend", "at"} <= set(data) else None
    except (ValueError, TypeError):
        return None


def of_job(backend: QdBackend, id: str, found: Found) -> TaskResult[Any] | None:
    task, data = backend.task_named(found.payload.job), data_of(bytes(found.payload.data))
    if task is None or data is None:
        return None
    task = task.using(backend=backend.alias, queue_name=found.queue)
    own = {"args": data["args"], "kwargs": data["kwargs"], "enqueued_at": data["at"]}
    workers = [(found.payload.rsv or "").rpartition(".")[0]] * found.payload.attempts
    if found.spot != "failed":
        return made(backend, task, id, **own, status=STATUS[found.spot], workers=workers)
    said = json.loads(found.text.partition(b"\n")[0])
    error = TaskError(exception_class_path=path_of(said), traceback=said.get("trace") or said.get("reason") or "")
    ended = said.get("failed_at")
    workers = [""] * int(said.get("attempts") or 0)
    return made(
        backend, task, id, **own, status=TaskResultStatus.FAILED, finished_at=ended, workers=workers, errors=[error]
    )


def path_of(said: Mapping[str, Any]) -> str:
    """The import path of the error's class: the traceback's last line has the module, the record the name alone."""
    name = str(said.get("error") or "Exception")
    named = [path for path in LAST_LINE.findall(said.get("trace") or "") if path.rpartition(".")[2] == name]
    path = named[-1] if named else name
    return path if "." in path else f"builtins.{path}"


def failed(
    task: Task[..., Any], id: str, data: Mapping[str, Any], error: BaseException, attempts: int
) -> TaskResult[Any]:
    """Of one that fails now."""
    kind = type(error)
    told = TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=shown(error))
    return made(
        task.get_backend(),
        task,
        id,
        args=data["args"],
        kwargs=data["kwargs"],
        enqueued_at=data["at"],
        status=TaskResultStatus.FAILED,
        finished_at=time.time(),
        workers=[""] * attempts,
        errors=[told],
    )
