"""Queues allowed in maintenance mode: the keeper writes them on the scoreboard, and workers read them."""

from __future__ import annotations

from typing import Any

from qd.process import scoreboard
from qd.process.scoreboard import H, Scoreboard
from qd.worker.queues import ShutQueues


def looking(board: Scoreboard, *queues: str, force: bool = False) -> ShutQueues:
    found = ShutQueues(board, queues, force)
    found.look()
    return found


def test_all_queues_are_open_without_maintenance_and_closed_in_it() -> None:
    board = Scoreboard()
    one = looking(board, "a", "b")
    assert (one.look(), one.holds, one.shut) == (True, False, ())
    scoreboard.set_open_queues(board, True, ())
    assert (one.look(), one.holds, one.shut) == (False, True, ("a", "b"))
    assert looking(board, "a", force=True).look()
    scoreboard.set_open_queues(board, False, ())
    assert (one.look(), one.holds, one.shut, board.header(H.DOWN)) == (True, False, (), 0)


def test_allowed_queues_are_found_by_name() -> None:
    board = Scoreboard()
    workers = [looking(board, *queues) for queues in (("a", "high"), ("high", "b"), ("c",), ("mail",))]
    scoreboard.set_open_queues(board, True, ("high", "mail"))
    assert [worker.look() for worker in workers] == [True, True, False, True]
    assert [worker.shut for worker in workers] == [("a",), ("b",), ("c",), ()]
    scoreboard.set_open_queues(board, True, ("a",))
    assert [worker.look() for worker in workers] == [True, False, False, False]
    assert workers[0].shut == ("high",)


def test_the_same_set_in_another_order_writes_nothing() -> None:
    board = Scoreboard()
    scoreboard.set_open_queues(board, True, ("a", "b"))
    before = bytes(board.words)
    scoreboard.set_open_queues(board, True, ("b", "a", "b"))
    assert bytes(board.words) == before


def test_queues_that_do_not_fit_are_dropped_without_overwriting_a_slot() -> None:
    board = Scoreboard()
    names = [f"q{number:02}" for number in range(scoreboard.MAX_OPEN_QUEUES + 5)]
    scoreboard.set_open_queues(board, True, names)
    assert looking(board, *names).shut == tuple(names[scoreboard.MAX_OPEN_QUEUES :])
    assert not list(board)


def test_a_read_during_a_change_is_retried_without_taking_a_job() -> None:
    board = Scoreboard()
    scoreboard.set_open_queues(board, True, ("a",))
    worker = looking(board, "a", "b")
    changed: list[bool] = []

    class Words:
        """The keeper writes between two reads of the worker."""

        def __getitem__(self, at: Any) -> Any:
            found = memory[at]
            if isinstance(at, slice) and not changed:
                changed.append(True)
                board.words = memory
                scoreboard.set_open_queues(board, True, ("b",))
            return found

    scoreboard.set_open_queues(board, True, ("a", "b"))
    memory, board.words = board.words, Words()  # type: ignore[assignment]
    assert (worker.look(), worker.shut, changed) == (False, ("a", "b"), [True])
    assert (worker.look(), worker.shut) == (True, ("a",))


def test_paused_jobs_are_found_by_name_and_stay_while_others_change() -> None:
    board = Scoreboard()
    scoreboard.set_paused_jobs(board, ["a", "b"])
    place = [scoreboard.digest("b") == word for word in board.words[H.PAUSED_JOBS : H.PAUSED_JOBS + 11].tolist()]
    scoreboard.set_paused_jobs(board, [f"n{n}" for n in range(5)] + ["b"])
    assert place == [
        scoreboard.digest("b") == word for word in board.words[H.PAUSED_JOBS : H.PAUSED_JOBS + 11].tolist()
    ]
    assert [scoreboard.is_paused_job(board, name) for name in ("a", "b", "n4", "c")] == [False, True, True, False]
    scoreboard.set_paused_jobs(board, [])
    assert not scoreboard.is_paused_job(board, "b")


def test_the_header_ends_before_the_first_slot() -> None:
    board = Scoreboard()
    scoreboard.set_paused_jobs(board, [f"n{n}" for n in range(30)])
    assert not list(board)
    assert (H.PAUSED_JOBS + 1 + scoreboard.MAX_PAUSED_JOBS) * 8 <= scoreboard.SLOT_BYTES
