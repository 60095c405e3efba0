"""Tracebacks without the frames of qd and of importlib."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import format_exception

import pytest

from qd import Qd, RunningJob
from qd.errors import ConnectionLost, JobTimeout
from qd.traces import HIDDEN, shown, trimmed, without_message
from tests.support.fakes import FakeQd

HERE = str(Path(__file__))


@pytest.fixture
def app() -> FakeQd:
    return FakeQd()


def raised_by(body: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # any error that a job may raise
        body()
    return caught.value


def files(error: BaseException) -> list[str]:
    """The file of each frame that is shown."""
    text = trimmed(error) or ""
    return [line.split('"')[1] for line in text.splitlines() if line.lstrip(" |").startswith('File "')]


def through(job: RunningJob, call_next: Callable[[], object]) -> object:
    return call_next()


def test_frames_of_qd_are_removed(app: FakeQd):
    lost = Qd("redis://127.0.0.1:1")

    @lost.job("other")
    def other() -> None: ...

    @app.job("sends", middleware=[through])
    def sends() -> None:
        other.dispatch()

    error = raised_by(sends.run)
    assert isinstance(error, ConnectionLost)
    assert not [file for file in files(error) if file.startswith(HIDDEN)]
    assert "in sends\n" in shown(error)
    assert "in through\n" in shown(error)
    whole = trimmed(error, whole=True) or ""
    assert "/qd/dispatch/dispatcher.py" in whole
    assert whole.endswith(shown(error).splitlines()[-1] + "\n")


def test_frames_of_the_event_loop_are_removed_unless_the_job_started_it(app: FakeQd):
    async def fails() -> None:
        raise ValueError("x")

    @app.job("async")
    async def plain() -> None:
        await fails()

    @app.job("own")
    def own() -> None:
        asyncio.run(fails())

    assert {Path(file).name for file in files(raised_by(plain.run))} == {"test_traces.py"}
    assert {Path(file).name for file in files(raised_by(own.run))} > {"test_traces.py"}


def test_causes_and_groups_are_trimmed_too(app: FakeQd):
    @app.job("inner")
    def inner() -> None:
        raise KeyError("inner")

    @app.job("outer")
    def outer() -> None:
        try:
            inner.run()
        except KeyError as error:
            raise ExceptionGroup("all", [error]) from error

    error = raised_by(outer.run)
    assert set(files(error)) == {HERE}
    assert len(files(error)) == 6  # raised_by and outer; outer and inner of the cause and of the member of the group


def test_a_failed_import_shows_only_the_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trimmed_outer.py").write_text("import importlib\nimportlib.import_module('trimmed_inner')\n")
    (tmp_path / "trimmed_inner.py").write_text("1 / 0\n")
    error = raised_by(lambda: import_module("trimmed_outer"))
    assert [Path(file).name for file in files(error)][-2:] == ["trimmed_outer.py", "trimmed_inner.py"]
    assert not [file for file in files(error) if "importlib" in file]
    (tmp_path / "trimmed_broken.py").write_text("def f(:\n")
    (tmp_path / "trimmed_app.py").write_text("import trimmed_broken\n")
    text = shown(raised_by(lambda: import_module("trimmed_app")))
    assert "trimmed_broken.py" in text
    assert "SyntaxError" in text
    sys.modules.pop("trimmed_outer", None)


def test_an_error_without_frames_of_the_app_is_shown():
    assert trimmed(ValueError("x")) is None
    assert shown(ValueError("x")) == "ValueError: x\n"


# -- without_message


CARD = "".join(["41", "11"])  # not in the source lines that a traceback shows


def test_an_error_without_a_message_has_its_class_and_frames_and_no_value() -> None:
    def job() -> None:
        try:
            int(f"x{CARD}")
        except ValueError as error:
            error.add_note(CARD)
            raise KeyError(CARD) from error

    def again() -> None:
        try:
            job()
        except KeyError:
            raise ExceptionGroup(CARD, [UnicodeDecodeError("utf8", b"", 0, 1, CARD), SyntaxError(CARD)]) from None

    for body in (job, again):
        error = raised_by(body)
        assert CARD in (trimmed(error) or "")
        copy = without_message(error)
        text = trimmed(copy) or ""
        assert (str(copy), CARD in text) == ("", False)
        assert files(copy)[-1] == HERE
    assert (type(copy).__name__, "UnicodeDecodeError" in text, "SyntaxError" in text) == ("ExceptionGroup", True, True)
    text = trimmed(without_message(raised_by(job))) or ""
    assert "ValueError\n\nThe above exception was the direct cause of" in text
    assert text.endswith("\nKeyError\n")


def test_an_error_without_a_message_keeps_the_text_given_and_the_class_of_one_that_ends_the_job() -> None:
    def job() -> None:
        try:
            raise ValueError(CARD)
        finally:
            raise JobTimeout("it ran longer than its timeout of 1 s")

    error = raised_by(job)
    copy = without_message(error, str(error))
    assert isinstance(copy, JobTimeout)
    assert (trimmed(copy) or "").endswith("JobTimeout: it ran longer than its timeout of 1 s\n")
    assert CARD in (trimmed(error) or "")
    assert CARD not in (trimmed(copy) or "")


def test_deeply_nested_groups_without_a_message_are_cut() -> None:
    error: Exception = ValueError(CARD)
    for _ in range(50):
        error = ExceptionGroup(CARD, [error, KeyError(CARD)])
    text = "".join(format_exception(without_message(error)))
    assert (text.count("KeyError") > 5, CARD in text) == (True, False)


def test_a_long_chain_of_errors_without_a_message_is_cut() -> None:
    error = last = ValueError()
    for _ in range(100):
        last.__cause__ = last = ValueError()
    copy: BaseException | None = without_message(error)
    count = 0
    while copy is not None:
        copy, count = copy.__cause__, count + 1
    assert count == 21
