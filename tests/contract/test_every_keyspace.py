"""A database is the same keyspace as Redis: after any calls both give the same replies and have the same contents."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from qd.drivers.database.commands import COMMANDS as KNOWN
from qd.drivers.keyspace.base import Keyspace, script
from qd.drivers.redis.connection import RedisConnection
from qd.errors import ServerRefused
from qd.options.kinds import QUEUE_SUFFIXES
from tests.contract.spaces import Observer, Stand
from tests.support.servers.redis import Server

Line = tuple[Any, ...]
UNORDERED = ("HGETALL", "HKEYS", "SMEMBERS")
CLOCK = re.compile(rb"\d{9,}(\.\d+)?")  # times: the two were not called at the same time
APART = re.compile(rb"[\t\n\r ]{20,}")  # after equal delayed payloads, a time as white space: see later.lua
NEAR = 30.0  # seconds by which times may differ


class Both:
    """Redis and a database that get the same calls."""

    def __init__(self, redis: Keyspace, database: Keyspace) -> None:
        self.redis, self.database = redis, database

    def clear(self) -> None:
        for space in (self.redis, self.database):
            for name in Observer(space).names():
                space.call("DEL", name)

    def ask(self, line: Line) -> Any:
        """The reply. Raises AssertionError if the two replies differ."""
        ours, theirs = (answer(space, line) for space in (self.database, self.redis))
        assert same(ours, theirs), f"{line}: {ours!r} and not {theirs!r}"
        return theirs

    def agree(self) -> None:
        """Check that both have the same contents."""
        names = Observer(self.redis).names()
        assert Observer(self.database).names() == names
        for name in names:
            for line in contents(self.redis.call("TYPE", name), name):
                self.ask(line)


def contents(kind: bytes, name: str) -> list[Line]:
    line = {
        b"string": ("GET", name),
        b"hash": ("HGETALL", name),
        b"set": ("SMEMBERS", name),
        b"list": ("LRANGE", name, 0, -1),
        b"zset": ("ZSCAN", name, 0, "COUNT", 10_000),  # members with equal times here may have different ones there
    }[kind]
    return [line, ("TYPE", name), ("PTTL", name)]


def answer(space: Keyspace, line: Line) -> Any:
    """The reply to a command, or to ("step", script, names, args). An error is reduced to its kind."""
    try:
        if line[0] == "step":
            found = script(line[1]).call(space, line[2], *line[3])
        else:
            found = space.call(*line)
    except ServerRefused as error:
        return kind_of(error)
    if line[0] in UNORDERED:
        step = 2 if line[0] == "HGETALL" else 1
        return sorted([found[at : at + step] for at in range(0, len(found), step)])
    if line[0] in ("HSCAN", "ZSCAN"):
        pairs = found[1]
        return sorted([pairs[at : at + 2] for at in range(0, len(pairs), 2)])
    if line[0] == "PTTL":
        return found if found < 0 else found / 1000
    return found


def kind_of(error: Exception) -> str:
    text = re.sub(r"^(-|ERR Error running script.*?: )", "", str(error))
    return "WRONGTYPE" if "WRONGTYPE" in text else "refused"


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        return isinstance(ours, Exception) and isinstance(theirs, Exception) and kind_of(ours) == kind_of(theirs)
    if isinstance(ours, float) and isinstance(theirs, float):  # seconds
        return abs(ours - theirs) <= NEAR
    if isinstance(ours, int) and isinstance(theirs, int):
        return ours == theirs or (min(ours, theirs) > 100 and near(ours, theirs))
    if isinstance(ours, bytes) and isinstance(theirs, bytes) and ours != theirs:
        ours, theirs = APART.sub(b"", ours), APART.sub(b"", theirs)
        moments = [float(each[0]) for each in CLOCK.finditer(ours)], [float(each[0]) for each in CLOCK.finditer(theirs)]
        return CLOCK.sub(b"", ours) == CLOCK.sub(b"", theirs) and all(map(near, *moments))
    return bool(ours == theirs)


def near(one: float, other: float) -> bool:
    """Compare times in seconds, ms or us, or values derived from them."""
    unit = next(unit for unit in (10**6, 1000, 1) if abs(one) > unit * 10**9 or unit == 1)
    return abs(one - other) <= NEAR * unit or (abs(one) < 10**9 and abs(one - other) <= NEAR * 1000)


@pytest.fixture
def both(database: Stand, server: Server) -> Iterator[Both]:
    wire = RedisConnection(server.url)
    found = Both(wire, database.open())
    yield found
    found.clear()
    wire.close()


# -- random commands

NAME = st.sampled_from(["a", "b", "c"])
TEXT = st.sampled_from([b"x", b"y", b"", b"\x00\xff", b"x" * 250, b"x" * 250 + b"y", "\u00fc".encode(), b"7"])
NUMBER = st.integers(-4, 4)
SCORE = st.sampled_from(["0", "1", "-1.5", "2", "1e3", "1795311328.123456", "0.1", "1795311328123456"])
EDGE = st.sampled_from(["-inf", "+inf", "(1", "1", "0", "(1795311328.123456", "2"])


def line(word: str, *parts: Any) -> st.SearchStrategy[Line]:
    return st.tuples(st.just(word), *[st.just(each) if isinstance(each, str) else each for each in parts])


def many(word: str, name: Any, *parts: Any, least: int = 1) -> st.SearchStrategy[Line]:
    some = st.lists(st.tuples(*parts), min_size=least, max_size=4)
    return st.tuples(name, some).map(lambda found: (word, found[0], *[each for group in found[1] for each in group]))


STRINGS = (
    line("SET", NAME, TEXT), line("SET", NAME, TEXT, "NX"), line("SET", NAME, TEXT, "PX", st.just(500_000)),
    line("SET", NAME, TEXT, "NX", "EX", st.just(500)), line("GET", NAME), line("MGET", NAME, NAME, NAME),
)  # fmt: skip
NAMES = (
    line("EXISTS", NAME), line("EXISTS", NAME, NAME), line("DEL", NAME, NAME), line("UNLINK", NAME), line("TYPE", NAME),
    line("EXPIRE", NAME, st.sampled_from([0, -1, 500])), line("PEXPIRE", NAME, st.sampled_from([0, 500_000])),
    line("PTTL", NAME),
)  # fmt: skip
HASHES = (
    many("HSET", NAME, TEXT, TEXT), line("HGET", NAME, TEXT), many("HMGET", NAME, TEXT), many("HDEL", NAME, TEXT),
    line("HGETALL", NAME), line("HKEYS", NAME), line("HLEN", NAME), line("HEXISTS", NAME, TEXT),
    line("HINCRBY", NAME, TEXT, NUMBER), line("HSTRLEN", NAME, TEXT), line("HSCAN", NAME, "0", "COUNT", st.just(1000)),
)  # fmt: skip
SETS = (many("SADD", NAME, TEXT), many("SREM", NAME, TEXT), line("SCARD", NAME), line("SMEMBERS", NAME))
LISTS = (
    many("RPUSH", NAME, TEXT), many("LPUSH", NAME, TEXT), line("LPOP", NAME), line("LLEN", NAME),
    line("LINDEX", NAME, NUMBER), line("LRANGE", NAME, NUMBER, NUMBER), line("LTRIM", NAME, NUMBER, NUMBER),
    line("LREM", NAME, NUMBER, TEXT),
)  # fmt: skip
SORTED = (
    many("ZADD", NAME, SCORE, TEXT), many("ZADD", NAME, SCORE, TEXT).map(lambda each: (*each[:2], "XX", *each[2:])),
    many("ZADD", NAME, SCORE, TEXT).map(lambda each: (*each[:2], "NX", *each[2:])),
    many("ZREM", NAME, TEXT), line("ZSCORE", NAME, TEXT), line("ZCARD", NAME), line("ZRANK", NAME, TEXT),
    line("ZRANGE", NAME, NUMBER, NUMBER), line("ZRANGE", NAME, NUMBER, NUMBER, "WITHSCORES"),
    line("ZRANGEBYSCORE", NAME, EDGE, EDGE), line("ZRANGEBYSCORE", NAME, EDGE, EDGE, "LIMIT", st.just(1), NUMBER),
    line("ZREVRANGEBYSCORE", NAME, EDGE, EDGE, "WITHSCORES", "LIMIT", st.just(0), st.just(2)),
    line("ZREMRANGEBYSCORE", NAME, EDGE, EDGE), line("ZREMRANGEBYRANK", NAME, NUMBER, NUMBER),
    line("ZSCAN", NAME, "0", "COUNT", st.just(1000)),
)  # fmt: skip
KINDS = ((*STRINGS, *NAMES), (*HASHES, *NAMES[:3]), SETS, LISTS, SORTED)
MIXED = st.lists(st.one_of(*[each for kind in KINDS for each in kind]), max_size=30)
ALIKE = st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.one_of(*kind), max_size=30))
CALM: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
FEW, MANY = settings(max_examples=25, **CALM), settings(max_examples=1000, **CALM)


def compared(both: Both, lines: list[Line]) -> None:
    """Run the calls and compare. A difference is ignored if the shortest delay may have ended between two calls."""
    both.clear()
    began = time.monotonic()
    try:
        for each in lines:
            both.ask(each)
        both.agree()
    except AssertionError:
        assume(time.monotonic() - began < SHORTEST)
        raise


@FEW
@example(lines=[("ZADD", "a", "NX", "0", b"x", "1", b"x")])
@given(lines=st.one_of(ALIKE, ALIKE, MIXED))
def test_random_commands_have_the_same_replies_as_on_redis(both: Both, lines: list[Line]) -> None:
    compared(both, lines)


@pytest.mark.slow
@MANY
@given(lines=st.one_of(ALIKE, ALIKE, MIXED))
def test_many_random_commands_have_the_same_replies_as_on_redis(both: Both, lines: list[Line]) -> None:
    compared(both, lines)


# -- random steps

READY, DELAYED, RESERVED, NOTIFY, OWNERS, PAUSED, FAILED, FAILED_AT, KEYED = (
    "queues:q" + end for end in ("", *QUEUE_SUFFIXES[:5], ":failed", ":failed_at", ":keyed")
)
CANCEL, TICKS, RECORD, LOCK = "qd:cancel", "qd:ticks", "qd:job:1", "qd:unique:one"
BATCH = ["qd:batch:1", "qd:batch:1:pending", "qd:batch:1:failed"]
MUTEX = ["qd:mutex:{x}", "qd:mutex:{x}:fence", "qd:mutex:{x}:line", "qd:mutex:{x}:seen"]
RATE = ["qd:rate:{x}:starts", "qd:rate:{x}:turns", "qd:rate:{x}:due"]
TIES = ("", '"qd":{"unique":"one"},', '"qd":{"key":"00001.a order"},', '"qd":{"batch":"1"},')


def payload(number: int, tie: str) -> str:
    return f'{{"uuid":"u{number}","job":"x","data":{{}},{tie}"id":"{number:032}","attempts":0,"delay":null}}'


def held(text: str) -> str:
    """The payload after its first reservation."""
    return text.replace('"attempts":0', '"attempts":1,"rsv":"T.1.1.1"')


TEXTS = [payload(0, tie) for tie in TIES] + [payload(1, "")]
PAYLOAD = st.sampled_from([*TEXTS, "no JSON", "{}", payload(7, TIES[0]).replace("x", "x" * 500)])
HELD = st.sampled_from([held(text) for text in TEXTS])
WHO = st.sampled_from(["T/1", "T/1", "T/1", "T/2"])
IDS = st.sampled_from(["one", "two", "three"])
UUIDS = st.sampled_from(["u0", "u1"])
SHORTEST = 0.9  # seconds: less than one adds a token
DELAY = st.sampled_from([0, SHORTEST, 200])
EFFECTS = st.sampled_from([
    ([], []),
    ([READY, DELAYED, NOTIFY], ["push", payload(5, ""), 0]),
    (BATCH, ["count", "u0", "done", "", ""]),
    (BATCH, ["count", "u1", "failed", "q one", ""]),
    ([LOCK, RECORD], ["free", "u0", "keep", "1", "done", "7", "500"]),
    ([LOCK], ["hold", "u1", "500"]),
])  # fmt: skip


def words(*parts: Any) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*[each if isinstance(each, st.SearchStrategy) else st.just(each) for each in parts]).map(list)


def several(*parts: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(words(*parts), min_size=1, max_size=3).map(
        lambda groups: [each for some in groups for each in some]
    )


def step(name: str, names: Sequence[str], args: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[Line]:
    return args.map(lambda found: ("step", name, list(names), found))


def ending(name: str, names: Sequence[str], args: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[Line]:
    """A step with additional effects."""
    return st.tuples(args, EFFECTS).map(lambda each: ("step", name, [*names, *each[1][0]], [*each[0], *each[1][1]]))


def added(first: Sequence[Any]) -> st.SearchStrategy[list[Any]]:
    jobs = several(1, UUIDS, DELAY, PAYLOAD)
    return jobs.map(lambda found: [*first, *found])


CALLBACK = payload(8, "").replace('"attempts"', '"createdAt":1795311328,"attempts"')
NEW = ["name", "n", "then", CALLBACK, "then:queue", "q", "then:delay", 0, "then:moments", CALLBACK.index("1795311328")]
SEEDS = {
    "due": line("ZADD", DELAYED, st.sampled_from(["1", "2"]), PAYLOAD),
    "lease": line("ZADD", RESERVED, st.sampled_from(["1", "4102444800"]), HELD),
    "own": line("HSET", OWNERS, "T/1", HELD),
    "pause": line("SET", PAUSED, "x"),
    "resume": line("DEL", PAUSED),
}
STEPS = {
    "push": step("push", [READY, NOTIFY], st.lists(PAYLOAD, min_size=1, max_size=3)),
    "later": step("later", [DELAYED, NOTIFY], several(DELAY.filter(bool), PAYLOAD)),
    "turn": step("turn", [READY, RESERVED, DELAYED, NOTIFY, OWNERS, PAUSED, FAILED, FAILED_AT],
                 words("T/1", 300, 100, 2, 100_000, st.sampled_from([900, 10**6]), 400, "qd:unique:", "T.1.1",
                       st.sampled_from([0, 1]), HELD, st.sampled_from(["", " 1 "]))),
    "ack": ending("ack", [RESERVED, OWNERS], words(WHO, HELD)),
    "release": ending("release", [READY, RESERVED, DELAYED, NOTIFY, OWNERS, CANCEL],
                      words(WHO, HELD, PAYLOAD, DELAY, st.sampled_from([0, 1]))),
    "bury": ending("bury", [RESERVED, OWNERS, FAILED, FAILED_AT], words(WHO, HELD, IDS, "{}", PAYLOAD, 2, 10_000, 2000)),
    "drop": ending("drop", [READY, NOTIFY, KEYED],
                   words(st.sampled_from(["ready"]), PAYLOAD, st.sampled_from(["", "order"]), "00001.a", 0)),
    "checkpoint": step("checkpoint", [RESERVED, OWNERS], words(WHO, HELD, HELD)),
    "beat": step("beat", ["qd:restart", "qd:down", "qd:masters", CANCEL, READY, RESERVED, DELAYED, NOTIFY, OWNERS, PAUSED],
                 words("T", st.sampled_from(["", '{"a":1}']), 300, st.sampled_from([0, 1]), st.sampled_from([0, 2**40]), 100,
                       100, 1)),
    "stop": step("stop", [RESERVED, OWNERS, CANCEL], words(WHO, "T.1.1")),
    "clear": step("clear", [READY, DELAYED, NOTIFY, KEYED], words(st.sampled_from([1, 100]), "qd:unique:")),
    "find": step("find", [READY], words("list", "0", st.sampled_from(["u0", "u1"]))),
    "adopt": step("adopt", [FAILED, FAILED_AT], several(IDS, '{"copied": false}', PAYLOAD)),
    "copied": step("copied", [FAILED], words(st.sampled_from(["0", "1"]), IDS, IDS)),
    "aged": step("aged", [FAILED, FAILED_AT], words(st.sampled_from([-1000, 1000]), 1)),
    "forget": step("forget", [FAILED, FAILED_AT], words(IDS)),
    "retry": step("retry", [FAILED, FAILED_AT, READY, NOTIFY, BATCH[0], LOCK, RECORD, *BATCH],
                 words(st.sampled_from([0, 1]), IDS, PAYLOAD, UUIDS, 300, st.sampled_from([0, 6]), st.sampled_from((0, 7)),
                       st.sampled_from([0, 8]), "q one")),
    "unique": step("unique", [READY, DELAYED, NOTIFY, LOCK], words(UUIDS, 300_000, DELAY, PAYLOAD)),
    "free": step("free", [LOCK], words(UUIDS)),
    "keyed_send": step("keyed_send", [READY, DELAYED, NOTIFY, KEYED], words("order", "00001.a", DELAY, PAYLOAD)),
    "keyed_move": step("keyed_move", [READY, DELAYED, NOTIFY, KEYED], words("order", DELAY)),
    "keyed_cancel": step("keyed_cancel", [DELAYED, KEYED], words("order")),
    "keyed_due": step("keyed_due", [KEYED], words("order")),
    "tick": step("tick", [TICKS, READY, DELAYED, NOTIFY, KEYED, LOCK],
                 st.one_of(
                     words("e1", st.sampled_from(["", "v1"]), "v1", 1, "push", DELAY, PAYLOAD,
                           "e2", "", "v2", st.sampled_from([1, 2**42]), "none"),
                     words("e3", "", "v3", 1, "single", UUIDS, 300_000, DELAY, PAYLOAD),
                     words("e4", "", "v4", 1, "keyed", "order", "00002.b", DELAY, PAYLOAD))),
    "batch_add": step("batch_add", [*BATCH, READY, DELAYED, NOTIFY],
                      st.one_of(added(["", 0, 5, *NEW]), added(["", 0, 0]))),
    "batch_cancel": step("batch_cancel", BATCH[:1], words()),
    "progress": step("progress", [RECORD], words(50, "500")),
    "hash_put": step("hash_put", ["h"], several(IDS, "v")),
    "hash_take": step("hash_take", ["h"], words(IDS, IDS)),
    "hold": step("hold", ["qd:lock:x", "qd:places:x"], words(WHO, IDS, st.sampled_from([1, 2]), 300_000, "qd:lock:x")),
    "hold_note": step("hold_note", ["qd:places:x"], words("qd:lock:x", IDS, 300_000)),
    "unhold": step("unhold", ["qd:lock:x", "qd:places:x"], words(WHO, IDS, "qd:lock:x")),
    "lease_take": step("lease_take", ["qd:lease"], words(WHO, 300_000)),
    "lease_extend": step("lease_extend", ["qd:lease"], words(WHO, 300_000)),
    "lease_pass": step("lease_pass", ["qd:lease"], words(WHO, WHO, 300_000)),
    "lock_take": step("lock_take", MUTEX, words(WHO, 300_000, st.sampled_from([0, 1]), 0, 10**9, 300_000, 3_600_000)),
    "lock_give": step("lock_give", [MUTEX[0], *MUTEX[2:]], words(WHO, 300_000)),
    "lock_wake": step("lock_wake", ["qd:mutex:{x}:wake:1"], words(300_000)),
    "admit": step("admit", RATE, words(WHO, "m", 2, 10**9, 10**9, 10**9, st.sampled_from([-1, 0, 10**10]))),
    "admit_leave": step("admit_leave", RATE[1:], words(WHO)),
    "admit_left": step("admit_left", RATE, words(10**9, 10**9)),
    "strike": step("strike", ["qd:errors:x", "qd:rest:x"], words("m", 3, 10**9, 300_000)),
}  # fmt: skip
QUEUE = ("push", "push", "later", "turn", "turn", "ack", "release", "bury", "drop", "checkpoint", "beat", "stop",
         "clear", "find", "copied", "retry", "forget", "unique", "keyed_send", "keyed_move", "batch_add")  # fmt: skip
TOGETHER = st.lists(st.one_of(*SEEDS.values(), *[STEPS[name] for name in QUEUE]), max_size=25)
ANY = st.lists(st.one_of(*STEPS.values()), max_size=25)


FOLDER = files("qd.drivers.keyspace") / "scripts"
TEXTS_OF = {each.name.removesuffix(".lua"): each.read_text() for each in FOLDER.iterdir() if each.name.endswith(".lua")}


def test_a_database_supports_every_command_of_every_step() -> None:
    """lanes.lua runs on Redis only: a table of jobs has statements of its own for it (database/reserve.py)."""
    texts = [text for name, text in TEXTS_OF.items() if name != "lanes"]
    called = {word for text in texts for word in re.findall(r"redis\.p?call\([^,)]*?'([A-Z]+)'", text)}
    assert "ZADD" in called
    assert called <= set(KNOWN)


@FEW
@given(lines=st.one_of(TOGETHER, TOGETHER, ANY))
def test_random_steps_do_the_same_as_on_redis(both: Both, lines: list[Line]) -> None:
    compared(both, lines)


@pytest.mark.slow
@MANY
@given(lines=st.one_of(TOGETHER, TOGETHER, ANY))
def test_many_random_steps_do_the_same_as_on_redis(both: Both, lines: list[Line]) -> None:
    compared(both, lines)


# -- a sequence of steps


def story() -> Iterator[Line]:
    """A typical sequence in which each step has an effect."""
    first, second, keyed = TEXTS[0], TEXTS[4], TEXTS[2]
    queue = [READY, RESERVED, DELAYED, NOTIFY, OWNERS, PAUSED, FAILED, FAILED_AT]
    turn = ["T/1", 300, 100, 2, 100_000, 10**6, 4000, "qd:unique:", "T.1.1", 0, "", ""]
    back = [READY, RESERVED, DELAYED, NOTIFY, OWNERS, CANCEL]
    yield "step", "batch_add", [*BATCH, READY, DELAYED, NOTIFY], ["", 0, 5, *NEW, 1, "u0", 0, first, 1, "u1", 0, second]
    yield "step", "turn", queue, turn
    yield "step", "checkpoint", [RESERVED, OWNERS], ["T/1", held(first), held(first) + " "]
    yield "step", "stop", [RESERVED, OWNERS, CANCEL], ["T/1", "T.1.1"]
    yield "step", "release", back, ["T/1", held(first) + " ", first, 0, 0]
    yield "step", "clear", [READY, DELAYED, NOTIFY, KEYED], [1, "qd:unique:"]
    yield "step", "push", [READY, NOTIFY], [first]
    yield "step", "turn", queue, turn
    yield "step", "ack", [RESERVED, OWNERS, *BATCH], ["T/1", held(first), "count", "u0", "failed", "q one", ""]
    yield "step", "push", [READY, NOTIFY], [second, "no JSON", second, "x" * 5000]
    yield "step", "turn", queue, turn
    yield (
        "step",
        "bury",
        [RESERVED, OWNERS, FAILED, FAILED_AT],
        ["T/1", held(second), "one", "{}", second, 2, 1000, 2000],
    )
    yield (
        "step",
        "retry",
        [FAILED, FAILED_AT, READY, NOTIFY, BATCH[0], LOCK, RECORD, *BATCH],
        [1, "one", second, "u1", 300, 6, 7, 8, "q one"],
    )
    yield "step", "unique", [READY, DELAYED, NOTIFY, LOCK], ["u0", 300_000, 0, TEXTS[1]]
    yield "step", "keyed_send", [READY, DELAYED, NOTIFY, KEYED], ["order", "00001.a", 200, keyed]
    yield "step", "keyed_move", [READY, DELAYED, NOTIFY, KEYED], ["order", 0]
    yield "step", "turn", queue, turn
    yield "step", "turn", queue, [*turn[:9], 1, held(second), ""]
    yield "ZADD", RESERVED, "1", held(second)
    beat = ["qd:restart", "qd:down", "qd:masters", CANCEL, READY, RESERVED, DELAYED, NOTIFY, OWNERS, PAUSED]
    yield "step", "beat", beat, ["T", '{"a":1}', 300, 1, 2**40, 100, 100, 1]
    for owner in ("T/1", "T/2", "T/3"):
        yield "step", "lock_take", MUTEX, [owner, 300_000, 1, 0, 10**9, 300_000, 3_600_000]
        yield "step", "admit", RATE, [owner, "m", 2, 10**9, 10**9, 10**9, -1]
        yield "step", "strike", ["qd:errors:x", "qd:rest:x"], ["m", 3, 10**9, 300_000]
    yield "step", "lock_give", [MUTEX[0], *MUTEX[2:]], ["T/1", 300_000]


def test_a_typical_sequence_does_the_same_as_on_redis(both: Both) -> None:
    for each in story():
        both.ask(each)
    both.agree()
