"""qd.master.children, Unsettled: the keeper may settle a slot while the master looks at it."""

from typing import cast

from qd.log import Log
from qd.master.children import Children, Unsettled
from qd.master.keeping import Keeping
from qd.master.mending import Mending
from qd.process.scoreboard import Role, Scoreboard, State, W
from qd.process.talk import Orders

DEAD = Unsettled(((W.PID, 7), (W.STATE, State.DEAD)))


def test_what_the_keeper_has_settled_meanwhile_is_not_dead_again():
    slot = Scoreboard().slot(3)
    assert DEAD.stand(slot)
    slot[W.STATE] = State.SETTLED
    assert not DEAD.stand(slot)
    assert slot[W.STATE] == State.SETTLED


def test_what_a_job_has_scribbled_over_the_dead_is_put_right():
    slot = Scoreboard().slot(3)
    DEAD.stand(slot)
    slot[W.STATE] = 77
    assert DEAD.stand(slot)
    assert slot[W.STATE] == State.DEAD


def test_the_keeper_is_told_again_of_the_dead_that_were_put_right():
    said: list[dict[str, object]] = []

    class Line:
        def give(self, **message: object) -> bool:
            said.append(message)
            return True

    keeping = Keeping(Scoreboard(), Log("master"))
    keeping.orders = cast(Orders, Line())
    keeping.dead = {3: {"dead": 3}, 4: {"dead": 4}}
    keeping.tell_again([3, 9])
    keeping.watch(lambda *_: 0, {3, 4})
    assert said == [{"dead": 3}]


def test_what_a_job_has_scribbled_over_the_role_of_a_scheduler_is_put_right():
    board = Scoreboard()
    children = Children(board)
    scheduler = children.take(5, 1, 0.0, Role.SCHEDULER)
    scheduler.slot[W.ROLE] = 0
    assert Mending(board, children, Log("master", write=lambda line: None)).look(
        paused=False, stopping=False, forked_at=None
    ) == [5]
    assert scheduler.slot[W.ROLE] == Role.SCHEDULER
