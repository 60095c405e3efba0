"""Commands on lists. Those of queues are rows of the jobs table and never come here: see queued.py."""

from __future__ import annotations

from qd.connectors.database import items
from qd.connectors.database.step import Name, Step
from qd.connectors.database.words import OK, Command, Commands, Status, Words, whole

LIST = "list"


def rpush(step: Step, words: Words) -> int:
    name = step.change(words[0], LIST)
    last = items.ends(step, name)[1]
    return pushed(step, name, {last + number: value for number, value in enumerate(words[1:], 1)})


def lpush(step: Step, words: Words) -> int:
    name = step.change(words[0], LIST)
    first = items.ends(step, name)[0]
    return pushed(step, name, {first - number: value for number, value in enumerate(words[1:], 1)})


def pushed(step: Step, name: Name, values: dict[float, bytes]) -> int:
    items.add(step, name, {b"%.0f" % place: (place, value) for place, value in values.items()})
    step.woken(name.name)
    return name.size


def lpop(step: Step, words: Words) -> bytes | None:
    name = step.look(words[0], LIST)
    first = items.by_rank(step, name, 0, 0)
    items.take(step, name, [each.item for each in first])
    return first[0].value if first else None


def llen(step: Step, words: Words) -> int:
    return step.look(words[0], LIST).size


def lindex(step: Step, words: Words) -> bytes | None:
    name, at = step.look(words[0], LIST), whole(words[1])
    if not -name.size <= at < name.size:
        return None
    return items.by_rank(step, name, at, at)[0].value


def lrange(step: Step, words: Words) -> list[bytes | None]:
    found = items.by_rank(step, step.look(words[0], LIST), whole(words[1]), whole(words[2]))
    return [each.value for each in found]


def lrem(step: Step, words: Words) -> int:
    name, count = step.look(words[0], LIST), whole(words[1])
    if not name.size:
        return 0
    found = items.equal(step, name, words[2], abs(count), down=count < 0)
    return items.take(step, name, [each.item for each in found])


def ltrim(step: Step, words: Words) -> Status:
    """What stands outside of the two places goes."""
    name = step.look(words[0], LIST)
    first, most = items.ranks(whole(words[1]), whole(words[2]), name.size)
    if not most:
        step.remove(words[0])
    elif most < name.size:
        low, high = (items.by_rank(step, name, at, at)[0].score for at in (first, first + most - 1))
        items.take_by_score(step, name, items.LOWEST, items.Bound(low, True))
        items.take_by_score(step, name, items.Bound(high, True), items.HIGHEST)
    return OK


COMMANDS: Commands = {
    "RPUSH": Command(rpush, True, 1, 2),
    "LPUSH": Command(lpush, True, 1, 2),
    "LPOP": Command(lpop, True),
    "LLEN": Command(llen, False),
    "LINDEX": Command(lindex, False, 1, 2),
    "LRANGE": Command(lrange, False, 1, 3),
    "LREM": Command(lrem, True, 1, 3),
    "LTRIM": Command(ltrim, True, 1, 3),
}
