"""Tracebacks for people: the frames of the app and of its libraries, without those of qd and of importlib.

    job raised      worker/attempt.py, jobs/pipeline.py, ... jobs.py, worker/timeout.py   ->  jobs.py
    app imported    worker/boot.py, importlib ... shop/queue.py                           ->  shop/queue.py

With `--log-level debug` all frames are kept.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import TracebackException, format_exception_only
from types import FrameType
from typing import Any

from qd.errors import EndJob

QD = str(Path(__file__).parent) + os.sep
HIDDEN = (QD, importlib.__file__, "<frozen importlib")
ASYNCIO = str(Path(importlib.__file__).parents[1] / "asyncio") + os.sep  # between qd and an async job


def calling_line() -> str:
    """File and line of the code that called qd, "" if it was qd itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(QD):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def trimmed(error: BaseException, *, whole: bool = False) -> str | None:
    """The traceback, with its causes and groups trimmed too. None if no frame of the app is in it. A syntax error needs no
    frame: it names file and line itself. whole: keep all frames."""
    trace = TracebackException.from_exception(error)
    if whole:
        return "".join(trace.format())
    parts = [trace]
    while parts:
        part, frames, by_qd = parts.pop(), [], False
        for frame in part.stack:
            if frame.filename.startswith(HIDDEN):
                by_qd = frame.filename.startswith(QD)
            elif not (by_qd and frame.filename.startswith(ASYNCIO)):
                by_qd = False
                frames.append(frame)
        part.stack[:] = frames
        parts += [each for each in (part.__cause__, part.__context__, *(part.exceptions or ())) if each is not None]
    if trace.stack:
        return "".join(trace.format())
    return "".join(trace.format_exception_only()) if isinstance(error, SyntaxError) else None


def without_message(error: BaseException, text: str = "", depth: int = 20) -> BaseException:
    """A copy of the error that shows no values: its class and frames, without its message and notes; also of its causes and
    groups, up to `depth`. text: shown as its message."""
    kind = type(error)
    body: dict[str, Any] = {"__init__": lambda self, *args: None, "__str__": lambda self: text}
    body |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if isinstance(error, BaseExceptionGroup) and depth > 0:
        inner = [without_message(each, "", depth - 1) for each in error.exceptions]
        copy: BaseException = type(kind.__name__, (BaseExceptionGroup,), body)(text, inner)
    else:
        copy = type(kind.__name__, (kind if issubclass(kind, EndJob) else Exception,), body)()
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if below is not None and depth > 0:
        below = without_message(below, "", depth - 1)
        copy.__cause__, copy.__context__ = (below, None) if error.__cause__ is not None else (None, below)
    return copy.with_traceback(error.__traceback__)


def shown(error: BaseException, *, whole: bool = False) -> str:
    """The trimmed traceback, or the error's own text without one."""
    return trimmed(error, whole=whole) or "".join(format_exception_only(error))
