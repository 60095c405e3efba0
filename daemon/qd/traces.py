"""Tracebacks as people read them: the frames of the app and of its libraries, without those of qd and of importlib.

    job raised      worker/attempt.py, jobs/pipeline.py, ... jobs.py, worker/timeout.py   ->  jobs.py
    app imported    worker/template.py, importlib ... shop/queue.py                    ->  shop/queue.py

With `--log-level debug` all frames are kept.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from traceback import TracebackException, format_exception_only

QD = str(Path(__file__).parent) + os.sep
HIDDEN = (QD, importlib.__file__, "<frozen importlib")
ASYNCIO = str(Path(importlib.__file__).parents[1] / "asyncio") + os.sep  # between qd and an async job


def trimmed(error: BaseException, *, whole: bool = False) -> str | None:
    """The traceback, those of its causes and of its group included. None: no frame of the app is in its own.

    A syntax error needs none: it says file and line itself. whole: keep all frames.
    """
    told = TracebackException.from_exception(error)
    if whole:
        return "".join(told.format())
    parts = [told]
    while parts:
        part = parts.pop()
        trim(part)
        parts += [each for each in (part.__cause__, part.__context__, *(part.exceptions or ())) if each is not None]
    if told.stack:
        return "".join(told.format())
    return "".join(told.format_exception_only()) if isinstance(error, SyntaxError) else None


def shown(error: BaseException, *, whole: bool = False) -> str:
    """`trimmed`, or what the error says where that is None."""
    return trimmed(error, whole=whole) or "".join(format_exception_only(error))


def trim(told: TracebackException) -> None:
    frames, by_qd = [], False
    for frame in told.stack:
        if frame.filename.startswith(HIDDEN):
            by_qd = frame.filename.startswith(QD)
        elif not (by_qd and frame.filename.startswith(ASYNCIO)):
            by_qd = False
            frames.append(frame)
    told.stack[:] = frames
