"""What a keeper records about its master: each event once, whichever keeper is alive and however the server answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.keeper import report
from qd.keeper.report import MasterEvents, code_of
from qd.keeper.servers import ControlConnection
from qd.process.scoreboard import H, Scoreboard
from qd.store.audit import Event


class Control:
    """The server: notes what was recorded, or raises `error`."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self.error: QdError | None = None
        self.tries = 0
        self.lines: list[str] = []

    def record(self, *given: Event) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.found += [(event.what, event.times) for event in given]

    def warning(self, event: str, **_: object) -> None:
        self.lines.append(event)


@pytest.fixture
def board() -> Scoreboard:
    found = Scoreboard()
    found.set_header(H.FORKED_AT, 5)
    return found


def keeper(board: Scoreboard, control: Control, root: Path) -> MasterEvents:
    settings = SimpleNamespace(root=root, work=SimpleNamespace(pool=""))
    fake = cast(Any, control)
    return MasterEvents(
        cast(Any, settings), cast(Any, SimpleNamespace(board=board)), cast(ControlConnection, fake), fake
    )


def test_each_event_is_recorded_once_by_whichever_keeper_is_there(board: Scoreboard, tmp_path: Path) -> None:
    control = Control()
    keeper(board, control, tmp_path).record()
    assert control.found == [("master started", 1)]
    again = keeper(board, control, tmp_path)
    again.record()
    assert len(control.found) == 1
    board.set_header(H.FORKED_AT, 9)
    for _ in range(3):
        board.count(H.CRASH_LOOPS)
    board.count(H.LEASES_LOST)
    for _ in range(2):
        board.note_crash()
        board.note_refusal("ImportError: no x; fix it")
    again.record()
    assert control.found[1:] == [
        ("refused new code", 2),
        ("new code", 1),
        ("worker died", 2),
        ("crash loop", 3),
        ("lease lost", 1),
    ]
    keeper(board, control, tmp_path).record(stopped=True)
    assert control.found[6:] == [("master stopped", 1)]


def test_an_event_stays_due_while_the_server_is_unreachable(board: Scoreboard, tmp_path: Path) -> None:
    control = Control()
    control.error, one = ConnectionLost("away"), keeper(board, control, tmp_path)
    with pytest.raises(ConnectionLost):
        one.record()
    control.error = None
    one.record()
    assert control.found == [("master started", 1)]


def test_a_refusal_is_logged_once_and_tried_again_later(
    board: Scoreboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: clock.now))
    control = Control()
    control.error, one = ServerRefused("OOM"), keeper(board, control, tmp_path)
    one.record()
    one.record()
    assert (control.tries, control.lines) == (1, ["events.refused"])
    clock.now += report.AGAIN
    one.record()
    assert (control.tries, control.lines) == (2, ["events.refused"])
    control.error, clock.now = None, clock.now + report.AGAIN
    one.record()
    assert control.found == [("master started", 1)]


def test_the_code_is_a_commit_or_the_folder_behind_a_link(tmp_path: Path) -> None:
    release = tmp_path / "releases" / "42"
    (release / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / "current").symlink_to(release)
    assert code_of(tmp_path / "current") == str(release)
    (release / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert code_of(tmp_path / "current") == str(release), "the ref is packed"
    (release / ".git" / "refs" / "heads" / "main").write_text("4f72e6e3a1b2c3d4\n")
    assert code_of(tmp_path / "current") == "4f72e6e3a1b2"
    (release / ".git" / "HEAD").write_text("0123456789abcdef\n")
    assert code_of(tmp_path / "current") == "0123456789ab"
